"""The comparison rule meets its bars, on what it was fixed on and on what it was not."""

import pytest
import torch

from backbay.proof.calibration.programs import FIXING, UNSEEN
from backbay.proof.calibration.report import OURS, Tally, tally


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("programs", "seeds"),
    [(FIXING, range(1)), (FIXING, range(20_000, 20_002)), (UNSEEN, range(20_000, 20_004))],
    ids=["fixing", "unseen seeds", "unseen programs"],
)
def test_rule_meets_its_bars(programs, seeds):
    counted = tally(programs, seeds, device=torch.device("cpu"))
    assert not counted.wronged
    assert counted.share(OURS, torch.float32) == 1.0, list(counted.exceptions(missed=False))
    assert counted.visible_share(OURS, torch.bfloat16) >= 0.85
    assert counted.holds()


def test_bars_can_be_missed():
    counted = Tally()
    assert not counted.holds()
    counted.faults.update({torch.float32: 1, torch.bfloat16: 1})
    counted.visible.update({torch.bfloat16: 1})
    counted.caught_faults.update([(OURS, torch.float32)])
    counted.caught_visible.update([(OURS, torch.bfloat16)])
    assert counted.holds()
    counted.wronged.append("rejected")
    assert not counted.holds()
