"""Sessions with handlers that each do one thing that a process must not do."""

import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from backbay.cli.interrupts import terminable
from backbay.session import (
    LocalClient,
    Lost,
    ProcessClient,
    Refused,
    Service,
    Session,
    channel,
    end_until_done,
)

sys.path.insert(0, str(Path(__file__).parent))
import handlers
from handlers import SERVICE, Do

FOLDER = str(Path(__file__).parent)
LONG_S = 60.0
FORGED = "it wrote to Backbay's channel"
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")


def client(service=SERVICE, environment=None, **limits):
    return ProcessClient(service, environment or {}, path=[FOLDER], **limits)


@pytest.fixture
def session():
    with Session(client) as session:
        yield session


def asked(session, what, timeout_s=LONG_S):
    return session.ask(Do(what), timeout_s=timeout_s)


def is_gone(pid):
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    psutil.Process(pid).kill()
    return False


def test_requests_meet_another_handler_each(session):
    assert [asked(session, "count").number for _ in range(3)] == [1, 2, 3]


def test_what_is_printed_is_taken_for_a_reply(session):
    assert asked(session, "prints").number == 1
    assert asked(session, "count").number == 2


def test_a_child_warns_of_experimental_backends_again(session):
    assert asked(session, "chooses_an_experimental_backend").text == "0"


def test_a_crash_is_the_end_of_the_session(session):
    asked(session, "count")
    with pytest.raises(
        Lost, match=r"the process died \(SIGSEGV\): Segmentation fault, in "
    ) as lost:
        asked(session, "segfaults")
    assert (lost.value.status, lost.value.exit_code) == ("crashed", -11)
    assert asked(session, "count").number == 1  # of another process


def test_an_exit_has_no_last_words(session):
    with pytest.raises(Lost, match=r"died \(exit code 3\); it last printed: the end$") as lost:
        asked(session, "exits")
    assert lost.value.exit_code == 3
    assert lost.value.printed == "printed while it is made\nthe end\n"


def test_a_hang_lasts(session):
    pid = int(asked(session, "pid").text)
    with pytest.raises(Lost, match=r"no answer within 0\.2 s") as lost:
        asked(session, "hangs", timeout_s=0.2)
    assert lost.value.status == "timeout"
    assert is_gone(pid)
    assert asked(session, "count").number == 1


def test_half_a_reply_is_a_reply():
    with Session(lambda: client(Service("handlers:HalfDoer", {Do: handlers.Done}))) as session:
        with pytest.raises(Lost, match=r"the process died \(exit code 0\)") as lost:
            asked(session, "count")
        assert lost.value.status == "crashed"


def test_a_reply_of_another_kind_is_taken():
    service = Service("handlers:Doer", {Do: handlers.Do})
    for opened in (lambda: client(service), lambda: LocalClient(service, handlers.Doer(), {})):
        with Session(opened) as session, pytest.raises(Lost, match=FORGED) as lost:
            asked(session, "count")
        assert lost.value.status == "failed"


@pytest.mark.parametrize("what", ["forges", "forges_a_frame", "garbles", "garbles_without_end"])
def test_what_is_on_the_channel_is_believed_or_is_a_traceback(session, what):
    with pytest.raises(Lost, match=FORGED) as lost:
        asked(session, what)
    assert lost.value.status == "failed"
    assert asked(session, "count").number == 1  # of another process


def test_what_comes_between_two_requests_is_a_reply(session):
    asked(session, "garbles_later")
    time.sleep(0.5)
    with pytest.raises(Lost, match=FORGED):
        asked(session, "count")


@pytest.mark.parametrize("cut", range(0, 50, 7))
def test_a_frame_is_whole_too_early_or_too_late(cut):
    nonce, reply = b"0" * 32, b'{"a": 1}'
    whole = bytearray(channel.framed(reply, nonce))
    assert channel.unframed(whole[:cut], nonce) == (None if cut < len(whole) else reply)
    for wrong in (whole + b"x", b"x" + whole, whole.upper().replace(b"0", b"1")):
        with pytest.raises(channel.NotAFrameError):
            channel.unframed(wrong, nonce)
    with pytest.raises(channel.NotAFrameError):
        channel.unframed(bytearray(nonce + b"\xff" * 8), nonce)


def test_a_model_that_asks_its_reader_waits_or_eats_a_request(session):
    assert asked(session, "reads").text == ""
    assert asked(session, "count").number == 2


def test_a_message_that_no_reply_can_have_costs_the_process(session):
    with pytest.raises(Refused, match=r"^ValueError: .ud800$"):
        asked(session, "raises_a_surrogate")
    assert asked(session, "count").number == 2


def test_a_handler_that_raises_costs_its_process(session):
    with pytest.raises(Refused, match=r"^ValueError: no kernel$") as refused:
        asked(session, "raises")
    assert (refused.value.status, refused.value.input_error) == ("failed", False)
    assert asked(session, "count").number == 2


def test_the_users_mistake_looks_like_a_backends(session):
    with pytest.raises(Refused, match=r"^there is no such thing$") as refused:
        asked(session, "blames")
    assert refused.value.input_error
    assert refused.value.detail == "line 1\nline 2"


@pytest.mark.parametrize("ending", ["end", "timeout", "crash", "paused"])
def test_a_descendant_that_left_the_group_lives_on(session, ending):
    daemons = [int(asked(session, "leaves_a_daemon").text)]
    if sys.platform == "linux":
        daemons.append(int(asked(session, "leaves_an_orphan").text))
    assert [os.getpgid(x) for x in daemons] == daemons
    if ending == "paused":
        session.stop()
    if ending in {"timeout", "crash"}:
        with pytest.raises(Lost):
            asked(session, "hangs" if ending == "timeout" else "segfaults", timeout_s=0.5)
    else:
        session.end()
    assert [is_gone(x) for x in daemons] == [True] * len(daemons)


@linux
def test_a_twin_that_keeps_the_channel_open_keeps_who_asks_waiting(session):
    start = time.monotonic()
    with pytest.raises(Lost, match=r"died \(SIGKILL\)"):
        asked(session, "leaves_a_twin_and_dies")
    assert time.monotonic() - start < LONG_S / 2


@linux
@pytest.mark.parametrize("paused", [False, True])
def test_descendants_outlive_a_process_that_was_killed(run_python, paused):
    pids = run_python(
        f"""
        import os, signal, sys
        sys.path.insert(0, {FOLDER!r})
        from handlers import SERVICE, Do
        from backbay.session import ProcessClient

        client = ProcessClient(SERVICE, {{}}, path=[{FOLDER!r}])
        asked = ("pid", "leaves_a_daemon", "leaves_an_orphan")
        print(*(client.ask(Do(x), timeout_s=60.0).text for x in asked), flush=True)
        if {paused}:
            client.stop()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        check=False,
    ).stdout.split()
    assert len(pids) == 3
    assert [is_gone(int(x)) for x in pids] == [True] * 3


@linux
def test_who_asks_becomes_a_subreaper(session):
    asked(session, "count")
    flag = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(flag), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    assert flag.value == 0


def test_a_process_that_closed_its_output_is_waited_for_without_end(session):
    start = time.monotonic()
    with pytest.raises(Lost):
        asked(session, "closes_all")
    assert time.monotonic() - start < LONG_S


def test_a_process_prints_without_end():
    with Session(lambda: client(most_printed=2**20)) as session:
        with pytest.raises(Lost) as lost:
            asked(session, "floods")
        assert lost.value.too_much_printed
        assert lost.value.printed.endswith("xxx")
        assert len(lost.value.printed) <= 2**16


def test_a_line_without_end_pushes_out_what_was_printed_before(session):
    with pytest.raises(Lost) as lost:
        asked(session, "prints_a_line_without_end_and_crashes")
    assert "what matters\nxxx" in lost.value.printed
    assert len(lost.value.printed) < 10_000
    assert len(lost.value.reason) < 500


def test_a_paused_process_goes_on_or_never_wakes(session):
    asked(session, "count")
    session.stop()
    with pytest.raises(Lost, match="no answer within"):
        asked(session, "count", timeout_s=0.3)
    asked(session, "count")
    session.stop()
    session.resume()
    assert asked(session, "count").number == 2


def test_a_handler_that_cannot_be_imported_is_waited_for():
    absent = dataclasses.replace(SERVICE, handler="no_such_module:Doer")
    said = r"exit code 1\).*No module named 'no_such_module'"
    with Session(lambda: client(absent)) as session, pytest.raises(Lost, match=said):
        asked(session, "count")


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Session(client) as session, pytest.raises(Lost, match="/nowhere/python") as lost:
        asked(session, "count")
    assert lost.value.status == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_loses_a_process_that_is_just_starting(monkeypatch, number):
    started, popen = [], subprocess.Popen

    def interrupted(*arguments, **options):
        os.kill(os.getpid(), number)
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with terminable(), pytest.raises(KeyboardInterrupt), Session(client) as session:
        session.open()
    assert started[0].returncode is not None


def test_what_is_known_of_a_client_is_asked_too_late_or_it_outlives_the_interrupt():
    opened = []

    class Prepared(Session):
        def prepare(self, client):
            opened.append(client.ask(Do("pid"), timeout_s=LONG_S).text)
            raise KeyboardInterrupt

    session = Prepared(client)
    with pytest.raises(KeyboardInterrupt):
        session.open()
    assert is_gone(int(opened[0]))


def test_a_client_that_a_thread_opens_after_the_end_lives_on():
    opened = threading.Event()

    def slowly():
        opened.wait()
        return client()

    with ThreadPoolExecutor(1) as pool, Session(slowly) as session:
        asking = pool.submit(asked, session, "hangs")
        ended = []

        def end():
            session.end()
            ended.append(1)
            opened.set()

        end_until_done(end, [asking])
        assert isinstance(asking.exception(), Lost)
        assert len(ended) > 1


def test_an_environment_that_stays_behind(monkeypatch):
    monkeypatch.delenv("TESTED", raising=False)
    with Session(lambda: client(environment={"TESTED": "1"})) as session:
        assert asked(session, "environment").text == "1"
    with SERVICE.here(handlers.Doer(), {"TESTED": "2"}) as here:
        assert asked(here, "environment").text == "2"
    assert "TESTED" not in os.environ


def test_the_twin_in_this_process_answers_otherwise():
    with SERVICE.here(handlers.Doer()) as here:
        assert asked(here, "count").number == 1
        with pytest.raises(Refused, match=r"^ValueError: no kernel$"):
            asked(here, "raises")
        here.stop()
        here.resume()
        assert asked(here, "pid").text == str(os.getpid())


def test_the_twin_hands_on_what_cannot_travel():
    with pytest.raises(TypeError):
        LocalClient(SERVICE, handlers.Doer(), {}).ask(Do(object()), timeout_s=1.0)


def test_a_session_that_is_not_asked_starts_a_process():
    opened = []
    with Session(lambda: opened.append(client()) or opened[0]) as session:
        session.stop()
        session.resume()
    assert opened == []


def test_logs_are_left_behind(session, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    asked(session, "prints")
    assert list(tmp_path.iterdir()) == []
    session.end()
    assert list(tmp_path.iterdir()) == []


def test_torch_is_imported(run_python):
    program = "import sys, backbay.session.worker, backbay.session; print('torch' in sys.modules)"
    assert run_python(program).stdout == "False\n"
