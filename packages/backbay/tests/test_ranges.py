"""Numbers out of range are the caller's mistake in Python, too, before anything is started."""

import math

import pytest

from backbay import race, verify
from backbay.errors import InputError

SEEDS = (-1, 1 << 63, -99999999999999999999, 1.5, "0", True, None)
SECONDS = (-1, -0.5, math.nan, math.inf, 1e9, "60", None, True)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_generator_takes_such_a_seed(seed):
    for asked in (race.run, verify.run):
        with pytest.raises(InputError, match=r"seed .*: give a whole number from 0"):
            asked("decoder", backends=["aot_eager"], device="cpu", seed=seed)


@pytest.mark.parametrize("seconds", [*SECONDS, 0])
@pytest.mark.parametrize("name", ["backend_s", "timing_s", "whole_s"])
def test_nobody_races_for_such_a_time(name, seconds):
    limits = race.Limits(**{name: seconds})
    with pytest.raises(
        InputError, match=rf"limits\.{name} is .*: give a number of seconds above 0"
    ):
        race.run("decoder", backends=["aot_eager"], device="cpu", limits=limits)


@pytest.mark.parametrize(("name", "zero"), [("check_s", True), ("blame_s", False)])
def test_nobody_verifies_for_such_a_time(name, zero):
    for seconds in (*SECONDS, *([0] if zero else [])):
        limits = verify.Limits(**{name: seconds})
        with pytest.raises(InputError, match=rf"limits\.{name} is .*: give a number of seconds"):
            verify.run("decoder", backends=["aot_eager"], device="cpu", limits=limits)
