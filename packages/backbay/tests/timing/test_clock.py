"""What timing leaves behind."""

import gc

import pytest
import torch

from backbay.timing import clock


@pytest.mark.parametrize("was_enabled", [False, True])
def test_a_block_switches_the_collector_on_or_leaves_it_off(was_enabled):
    seen = []
    try:
        if not was_enabled:
            gc.disable()
        clock.block_of([lambda: seen.append(gc.isenabled())], warmups=0, device=torch.device("cpu"))
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
    assert seen == [False]
