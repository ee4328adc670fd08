"""Faults of backends, planted in one tensor of a right result.

Each takes the float64 truth and gives what a backend with that fault computes before it rounds its
result to the working dtype. A fault that rounding hides, bit for bit, was not planted.
"""

from collections.abc import Callable

import torch

_FEW = 8

Fault = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def _size(truth: torch.Tensor) -> float:
    return truth.square().mean().sqrt().item()


def _scale(by: float) -> Fault:
    return lambda truth, _: truth * (1 + by)


def _bias(by: float) -> Fault:
    return lambda truth, _: truth + by * _size(truth)


def _noise(by: float) -> Fault:
    def noisy(truth: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        # Each element up or down by as much: drawn from a normal distribution, the error of a
        # single element would often be next to none.
        up = torch.randint(2, truth.shape, generator=generator).to(truth.device)
        return truth + by * _size(truth) * (2.0 * up - 1.0)

    return noisy


def _rounded(dtype: torch.dtype) -> Fault:
    def rounded(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        # One number alone may by luck lie close to what it is rounded to.
        few = truth.numel() < _FEW
        return truth if few else truth.to(dtype).to(torch.float64)

    return rounded


def _tail(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    wrong = truth.clone()
    wrong.view(-1)[-1] = wrong.view(-1)[-2] if truth.numel() > 1 else 0.0
    return wrong


def _tail_tile(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    wrong = truth.clone()
    wrong.view(-1)[-max(1, truth.numel() // 16) :] = 0.0
    return wrong


def _one_zero(truth: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    wrong = truth.clone()
    wrong.view(-1)[int(torch.randint(truth.numel(), (), generator=generator))] = 0.0
    return wrong


def _rows(truth: torch.Tensor) -> torch.Tensor:
    return truth.reshape(-1, truth.shape[-1]) if truth.dim() > 1 else truth.reshape(-1, 1)


def _stale_row(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    rows = _rows(truth).clone()
    rows[-1] = rows[0]
    return rows.view_as(truth)


def _swapped_rows(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    rows = _rows(truth).clone()
    rows[[0, -1]] = rows[[-1, 0]]
    return rows.view_as(truth)


def _off_by_one(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return truth.roll(1, -1) if truth.dim() else truth


def _one_row_scaled(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    rows = _rows(truth).clone()
    rows[-1] *= 1.1
    return rows.view_as(truth)


def _sign_lost(truth: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    wrong = truth.clone()
    wrong.view(-1)[0] = -wrong.view(-1)[0]
    return wrong


FINITE: dict[str, Fault] = {
    "scale 1e-3": _scale(1e-3),
    "scale 1e-2": _scale(1e-2),
    "bias 1e-4": _bias(1e-4),
    "bias 1e-3": _bias(1e-3),
    "bias 1e-2": _bias(1e-2),
    "noise 1e-3": _noise(1e-3),
    "noise 1e-2": _noise(1e-2),
    "float16 inside": _rounded(torch.float16),
    "bfloat16 inside": _rounded(torch.bfloat16),
    "float8 inside": _rounded(torch.float8_e4m3fn),
    "tail element wrong": _tail,
    "tail tile zero": _tail_tile,
    "one element zero": _one_zero,
    "stale row": _stale_row,
    "two rows swapped": _swapped_rows,
    "off by one": _off_by_one,
    "one row scaled 1.1": _one_row_scaled,
    "one sign lost": _sign_lost,
}
"""By name. float16 carries more digits than bfloat16, and is a fault only above that."""

NON_FINITE: dict[str, Fault] = {
    "NaN flushed": lambda truth, _: truth.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf),
    "inf to largest finite": lambda truth, _: truth.clamp(-3e38, 3e38),
    "inf to NaN": lambda truth, _: truth.masked_fill(truth.isinf(), torch.nan),
    "sign of inf lost": lambda truth, _: torch.where(truth.isinf(), truth.abs(), truth),
}
"""Of a truth that holds a NaN and both infinities."""
