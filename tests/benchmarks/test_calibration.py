"""The comparison rule meets its bars, on what it was fixed on and on what it was not."""

from collections.abc import Iterator

import pytest
import torch

from calibration.programs import FIXING, UNSEEN
from calibration.report import (
    ALL_BFLOAT16,
    DTYPES,
    EVERY_FLOAT32,
    NO_HONEST,
    OURS,
    VISIBLE_BFLOAT16,
    Tally,
    tally,
)

SETS = {
    "fixing": (FIXING, range(1)),
    "unseen seeds": (FIXING, range(40_000, 40_002)),
    "unseen programs": (UNSEEN, range(40_000, 40_004)),
}


@pytest.fixture(scope="module", params=SETS)
def counted(request) -> Iterator[Tally]:
    """Put every case of a set to every rule, once for all tests of the set."""
    programs, seeds = SETS[request.param]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tally(programs, seeds, device=torch.device("cpu"))
    torch.set_num_threads(before)


def test_every_bar_holds(counted):
    assert counted.faults[torch.float32]
    assert not counted.missed_bars(), list(counted.exceptions(missed=True))


def test_ours_catches_about_what_eagers_own_error_alone_catches_and_rejects_less(counted):
    other = "three parts, eager's own error alone"
    assert counted.share(OURS, torch.bfloat16) >= counted.share(other, torch.bfloat16) - 0.02
    rejected = [sum(counted.rejected_honest[x, d] for d in DTYPES) for x in (OURS, other)]
    assert rejected[0] == 0 < rejected[1]


def test_bars_can_be_missed_and_met():
    counted = Tally()
    assert set(counted.missed_bars()) == {EVERY_FLOAT32, VISIBLE_BFLOAT16, ALL_BFLOAT16}
    counted.faults.update({torch.float32: 1, torch.bfloat16: 1})
    counted.visible.update({torch.bfloat16: 1})
    counted.caught_faults.update([(OURS, torch.float32), (OURS, torch.bfloat16)])
    counted.caught_visible.update([(OURS, torch.bfloat16)])
    assert not counted.missed_bars()
    counted.wronged.append("rejected")
    assert counted.missed_bars() == [NO_HONEST]
