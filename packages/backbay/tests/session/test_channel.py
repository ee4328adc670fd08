"""Replies through a pipe: what its end is, and who is told of it."""

import contextlib
import os
import threading
import time

import pytest

from backbay.session.channel import NONCE_BYTES, Channel, framed

NONCE = b"n" * NONCE_BYTES
SOON_S = 20.0


def opened():
    read, write = os.pipe()
    return Channel(os.fdopen(read, "rb")), write


def test_a_reply_that_comes_in_pieces_is_lost():
    channel, write = opened()
    whole = framed(b"reply", NONCE)
    os.write(write, whole[:7])
    with pytest.raises(TimeoutError):
        channel.receive(NONCE, timeout_s=0.05)
    os.write(write, whole[7:])
    assert channel.receive(NONCE, timeout_s=SOON_S) == b"reply"
    os.close(write)


def test_who_closes_takes_the_end_from_who_waits_for_it():
    channel, write = opened()
    os.close(write)
    time.sleep(0.2)  # the end is there, and nobody has taken it
    channel.close()
    with pytest.raises(EOFError):
        channel.receive(NONCE, timeout_s=SOON_S)


def test_a_flood_keeps_the_end_from_who_waits_for_it():
    channel, write = opened()

    def flood():
        with contextlib.suppress(BrokenPipeError):
            os.write(write, b"x" * (1 << 20))

    sender = threading.Thread(target=flood)
    sender.start()
    time.sleep(0.2)  # as much as is kept, and the pipe, are full
    channel.close()
    with pytest.raises(EOFError):
        channel.receive(NONCE, timeout_s=SOON_S)
    sender.join(SOON_S)
    os.close(write)
