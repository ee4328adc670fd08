"""What samples of a stack say of where time went."""

import sys
import time

import pytest


@pytest.fixture
def stacks(speed):
    return speed("speed.stacks")


def seen(stacks, name):
    """Return the name of a function as it was sampled; None if it was not."""
    names = [*stacks.below]  # at once: the sampler adds some
    return next((x for x in names if x.startswith(f"{name} ")), None)


def until(is_over):
    """Wait for the sampler, however late it is woken."""
    end = time.monotonic() + 60
    while not is_over():
        assert time.monotonic() < end


def root(*calls):
    for call in calls:
        call()


def test_time_is_where_it_was_not_spent(stacks):
    before = sys.getswitchinterval()
    with stacks.sampled("root") as found:

        def first():
            until(lambda: seen(found, "root") and seen(found.below[seen(found, "root")], "first"))

        def second():
            until(lambda: seen(found.below[seen(found, "root")], "second"))

        until(lambda: "elsewhere" in found.below)
        root(first, second)
    assert sys.getswitchinterval() == before
    assert found.below.keys() == {"elsewhere", seen(found, "root")}
    below = found.below[seen(found, "root")]
    assert seen(found, "root") == f"root benchmarks/test_stacks.py:{root.__code__.co_firstlineno}"
    assert [x.split()[0] for x in below.below] == ["first", "second"]
    assert below.seconds >= sum(x.seconds for x in below.below.values()) > 0
    assert found.seconds == pytest.approx(sum(x.seconds for x in found.below.values()))


def test_a_block_that_fails_is_sampled_on(stacks):
    with pytest.raises(ZeroDivisionError), stacks.sampled("root") as found:
        root(lambda: until(lambda: found.seconds), lambda: 1 / 0)
    before = found.seconds
    time.sleep(0.1)
    assert found.seconds == before


def test_lines_are_not_in_order_or_of_any_length(stacks):
    found = stacks.Stacks()
    for path, seconds in ((["a", "b"], 0.01), (["a", "c"], 0.02), (["d"], 0.5), (["e"], 0.004)):
        found.add(path, seconds)
    assert found.text() == "    500 d\n     30 a\n     20  c\n     10  b\n"
    assert found.text(least=0.02) == "    500 d\n     30 a\n     20  c\n"
    found.add(["deep"] * 5000, 1.0)
    assert len(found.text().splitlines()) == 5004
