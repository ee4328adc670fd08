"""What samples of a stack say of where time went."""

import sys
import time

import pytest


@pytest.fixture
def stacks(speed):
    return speed("speed.stacks")


def root(*calls):
    for call in calls:
        call()


def slow():
    time.sleep(0.2)


def quick():
    time.sleep(0.05)


def test_time_is_where_it_was_not_spent(stacks):
    before = sys.getswitchinterval()
    with stacks.sampled("root") as found:
        slow()
        root(slow, quick)
    assert sys.getswitchinterval() == before
    # Beside other tests a thread is not woken in time: ends of sleeps are not exact.
    assert 0.15 < found.below["elsewhere"].seconds < 0.4
    (name,) = found.below.keys() - {"elsewhere"}
    assert name == f"root benchmarks/test_stacks.py:{root.__code__.co_firstlineno}"
    below = {x.partition(" ")[0]: y.seconds for x, y in found.below[name].below.items()}
    assert 0.15 < below["slow"] < 0.4
    assert below["slow"] > below["quick"] > 0.01


def test_a_block_that_fails_is_sampled_on(stacks):
    with pytest.raises(ZeroDivisionError), stacks.sampled("root") as found:
        root(slow, lambda: 1 / 0)
    seen = found.seconds
    assert seen > 0.15
    slow()
    assert found.seconds == seen


def test_lines_are_not_in_order_or_of_any_length(stacks):
    found = stacks.Stacks()
    for path, seconds in ((["a", "b"], 0.01), (["a", "c"], 0.02), (["d"], 0.5), (["e"], 0.004)):
        found.add(path, seconds)
    assert found.text() == "    500 d\n     30 a\n     20  c\n     10  b\n"
    assert found.text(least=0.02) == "    500 d\n     30 a\n     20  c\n"
