"""What tests of several passes share."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from backbay import compile_log
from backbay.kit import Pass
from backbay_optimizer.kernels import group_norm_silu as group_norm_silu_kernel
from backbay_optimizer.passes.group_norm_silu import group_norm_silu
from backbay_optimizer.passes.horizontal_fusion import horizontal_fusion
from backbay_optimizer.tuning import variants

sys.path.insert(0, str(Path(__file__).parent))  # for what tests of two files read
import layers_of_one_input as layers


class Idle(Pass):
    """Does nothing."""

    def run(self, graph_module, context):
        return 0


class Hoists(Idle):
    """Does nothing, and says that what only parameters decide is computed once."""

    hoists = True


@pytest.fixture
def hoists(request) -> Any:
    """Return a pass that says so, or, for False, one that does not."""
    return Hoists() if getattr(request, "param", True) else Idle()


@pytest.fixture
def layers_anywhere(lift, monkeypatch):
    """Let training merge what `attention` has here, on the CPU, in every dtype, for any reader."""
    lift(horizontal_fusion, DEVICES=("cpu",))
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    lift(horizontal_fusion, DTYPES=dtypes)
    monkeypatch.setattr(layers.MODULE, "ROWS", (layers.B * layers.T, layers.B * layers.T))
    monkeypatch.setattr(layers.MODULE, "COPIED", (layers.WIDE + 2 * layers.NARROW) * layers.D)
    monkeypatch.setattr(layers.MODULE, "_other_reader", lambda node: None)


@pytest.fixture
def norms_anywhere(lift, monkeypatch):
    """Let group norms be rewritten on the CPU, in two dtypes, however small, whatever is copied."""
    lift(group_norm_silu, DEVICES=("cpu",))
    lift(group_norm_silu, DTYPES=(torch.float32, torch.bfloat16))
    lift(group_norm_silu, COPIED=0.5)
    monkeypatch.setattr(group_norm_silu_kernel, "pays", lambda x, groups: None)
    monkeypatch.setattr(group_norm_silu_kernel, "PAYS_FROM", 1)


@pytest.fixture(params=[False, True], ids=["first", "last"])
def image(request):
    """Return a batch of images, in either layout."""
    torch.manual_seed(0)
    form = torch.channels_last if request.param else torch.contiguous_format
    return torch.randn(2, 8, 6, 10).contiguous(memory_format=form)


@pytest.fixture
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(variants, "BUDGET_S", 0.05)
    torch.compiler.reset()
    compile_log.clear()
    yield
    torch.compiler.reset()
