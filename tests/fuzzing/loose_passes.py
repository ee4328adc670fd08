"""Passes without what they ask of devices, dtypes and sizes: kernels compute as on a CPU."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (its usual name)

from backbay_optimizer.backend import Optimizing
from backbay_optimizer.kernels import (
    batch_norm,
    depthwise_convolution,
    embedding,
    few_row_linears,
    float8_rows,
    group_norm_silu,
    linear_cross_entropy,
    linear_epilogue,
    max_pool,
    rotated_heads,
    row_norm,
    softmax,
)

PASSES = tuple(dataclasses.replace(x, enabled=True) for x in Optimizing.passes)
DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
_LARGE = 2**62
_CONSTANTS: dict[str, dict[str, Any]] = {
    "group_norm_silu": {"COPIED": 0.01},
    "fused_convolutions": {"LAUNCH": -_LARGE, "FOLDING": -_LARGE},
    "linear_epilogues": {"EIGHTS": 1},
    "space_to_depth": {
        "RESULTS": 0,
        "RESULTS_OF_PATCHES": 0,
        "COPIED": float(_LARGE),
        "OVERLAPPING": 1,
        "TAPS": 0,
    },
    "eager_convolutions": {"PAYS_FROM": 1},
    "horizontal_fusion": {
        "LAYERS": 2,
        "ROWS": (0, _LARGE),
        "COPIED": _LARGE,
        "_other_reader": lambda node: None,
    },
    "one_token_attention": {"BLOCKS": 0},
    "fused_attention": {"FEWEST_BLOCKS": {"inference": 0, "training": 0}, "BLOCK": 4, "EIGHTS": 1},
    "windowed_attention": {"MOST": 1.0},
}
_PAYS = (
    *(group_norm_silu, batch_norm, max_pool, depthwise_convolution, linear_epilogue),
    *(few_row_linears, float8_rows, rotated_heads, row_norm, softmax),
)


@contextlib.contextmanager
def let_loose() -> Iterator[None]:
    """Have all passes work on the CPU, whatever the size."""
    with pytest.MonkeyPatch.context() as patch:
        for one in PASSES:
            kind, module = type(one), sys.modules[type(one).__module__]
            if kind.requires.devices:
                requires = dataclasses.replace(kind.requires, devices=("cpu",), dtypes=DTYPES)
                patch.setattr(kind, "requires", requires)
            for name, value in _CONSTANTS.get(one.name, {}).items():
                patch.setattr(module, name, value)
        for kernel in _PAYS:
            patch.setattr(kernel, "pays", _pays_unless_empty)
        patch.setattr(embedding, "unfit_table", _pays_unless_empty)
        patch.setattr(embedding, "small", lambda _: None)
        patch.setattr(linear_cross_entropy, "pays", lambda *_, **__: None)
        patch.setattr(linear_cross_entropy, "FEWEST_ROWS", 2)
        patch.setattr(group_norm_silu, "PAYS_FROM", 0)
        patch.setattr(group_norm_silu, "pays_alone", _pays_unless_empty)
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("_addmm_activation", _as_on_cuda, "CPU", allow_override=True)
            yield


def _pays_unless_empty(x: torch.Tensor, *_: Any, **__: Any) -> str | None:
    return None if x.numel() else "it is empty"


def _as_on_cuda(
    bias: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    use_gelu: bool = False,
) -> torch.Tensor:
    """Compute GELU by tanh, as the operator does on CUDA alone."""
    y = torch.addmm(bias, x, weight, beta=beta, alpha=alpha)
    return F.gelu(y, approximate="tanh") if use_gelu else y.relu_()
