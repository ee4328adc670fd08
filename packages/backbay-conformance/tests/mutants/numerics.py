"""Faults of arithmetic: numbers that are a little off, or off where an operator has an edge."""

from typing import Any

import torch
from torch.nn import functional

from mutants.harness import (
    Backend,
    Plan,
    Wrong,
    aot,
    instead_of,
    kept,
    of_pointwise,
)
from mutants.mutant import Demonstration, Mutant

aten = torch.ops.aten
MATMULS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.mv, aten.dot, aten.convolution)
_VECTOR = 8


def matmuls(wrong: Wrong) -> Plan:
    """Return the plan in which every product of matrices goes wrong."""
    return Plan(faults=instead_of(dict.fromkeys(MATMULS, wrong)))


def once(function: Any, *args: Any) -> Demonstration:
    """Return the demonstration that one compiled function is called once."""
    return lambda compiled: compiled(function)(*args)


def _in_bfloat16(op: Any, *args: Any, **kwargs: Any) -> Any:
    def rounded(x: Any) -> Any:
        is_single = isinstance(x, torch.Tensor) and x.dtype == torch.float32
        return x.to(torch.bfloat16).to(x.dtype) if is_single else x

    return op(*map(rounded, args), **kwargs)


def _scaled(op: Any, *args: Any, **kwargs: Any) -> Any:
    right = op(*args, **kwargs)
    return right * 1.001 if right.is_floating_point() else right


def _stale_tail(op: Any, *args: Any, **kwargs: Any) -> Any:
    right = op(*args, **kwargs)
    if not isinstance(right, torch.Tensor) or right.numel() <= 1 or not right.numel() % _VECTOR:
        return right
    flat = right.flatten().clone()
    flat[-1] = flat[-2]
    return kept(right, flat.view(right.shape))


def _replaced(where: Any, by: float) -> Wrong:
    def wrong(op: Any, *args: Any, **kwargs: Any) -> Any:
        right = op(*args, **kwargs)
        if not isinstance(right, torch.Tensor) or not right.is_floating_point():
            return right
        return kept(right, right.masked_fill(where(right), by))

    return wrong


def _gelu_by_tanh(op: Any, x: torch.Tensor, **_approximate: str) -> torch.Tensor:
    right: torch.Tensor = op(x, approximate="tanh")
    return right


def _foreign_eps(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args[:-1], 1e-3, **kwargs)


def _softmax_as_written(op: Any, x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    e = x.exp()
    return kept(op(x, dim, half_to_float), e / e.sum(dim, keepdim=True))


def _log_softmax_as_written(
    op: Any, x: torch.Tensor, dim: int, half_to_float: bool
) -> torch.Tensor:
    return kept(op(x, dim, half_to_float), x - x.exp().sum(dim, keepdim=True).log())


def _logsumexp_of_nothing(op: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    right: torch.Tensor = op(*args, **kwargs)
    return kept(right, right.masked_fill(right == -torch.inf, torch.nan))


def _maximum(_op: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.fmax(a, b)


def _minimum(_op: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.fmin(a, b)


def _clamp(op: Any, x: torch.Tensor, *bounds: Any, **named: Any) -> torch.Tensor:
    right: torch.Tensor = op(x, *bounds, **named)
    given = [b for b in (*bounds, *named.values()) if b is not None]
    if not x.is_floating_point():
        return right
    return kept(right, torch.where(x.isnan(), torch.as_tensor(given[0]).to(x), right))


def _without_nan(fill: float) -> Wrong:
    def wrong(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.is_floating_point():
            x = x.masked_fill(x.isnan(), fill)
        return op(x, *args, **kwargs)

    return wrong


def _average_by_whole_kernel(
    op: Any,
    x: torch.Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    *further: Any,
) -> Any:
    if not further or not further[0]:
        return op(x, kernel, stride, padding, *further)
    count = kernel[0] * kernel[-1]
    return op(x, kernel, stride, padding, True, True, count)  # noqa: FBT003 (aten's own)


def _zero_of_nothing(op: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    right = op(x, *args, **kwargs)
    return right if x.numel() else right.nan_to_num(nan=0.0)


def _biased(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **{**kwargs, "correction": 0})


def _conj_is_nothing(_op: Any, x: torch.Tensor) -> torch.Tensor:
    return x


def _odd(n: int) -> torch.Tensor:
    return torch.arange(1.0, n + 1)


FAULTS = [
    Mutant(
        name="bfloat16_inside",
        family="numerics",
        fault="Products of float32 matrices are computed from operands rounded to bfloat16.",
        level="contract",
        compiler=Backend("bfloat16_inside", aot(matmuls(_in_bfloat16))),
        shown_by=once(torch.mm, _odd(49).view(7, 7).sin(), _odd(49).view(7, 7).cos()),
    ),
    Mutant(
        name="scaled_by_a_thousandth",
        family="numerics",
        fault="Products of matrices are too large by one part in a thousand.",
        level="contract",
        compiler=Backend("scaled_by_a_thousandth", aot(matmuls(_scaled))),
        shown_by=once(torch.mm, torch.eye(3), torch.eye(3)),
    ),
    Mutant(
        name="stale_tail",
        family="numerics",
        fault="Where the size is no multiple of 8, the last element of a pointwise result is the "
        "one before it.",
        level="contract",
        compiler=Backend("stale_tail", aot(Plan(faults=of_pointwise(_stale_tail)))),
        shown_by=once(torch.sin, _odd(9)),
    ),
    Mutant(
        name="nan_flushed",
        family="numerics",
        fault="A NaN in the result of a pointwise operator is zero instead.",
        level="contract",
        compiler=Backend(
            "nan_flushed", aot(Plan(faults=of_pointwise(_replaced(torch.isnan, 0.0))))
        ),
        shown_by=once(torch.log, torch.tensor([-1.0, 1.0])),
    ),
    Mutant(
        name="gelu_is_tanh",
        family="numerics",
        fault="GELU is its approximation by tanh, which was not asked for.",
        level="contract",
        compiler=Backend("gelu_is_tanh", aot(Plan(faults=instead_of({aten.gelu: _gelu_by_tanh})))),
        shown_by=once(functional.gelu, torch.linspace(-3, 3, 9)),
    ),
    Mutant(
        name="foreign_eps",
        family="numerics",
        fault="Layer norm adds 1e-3 to the variance, another framework's default, whatever is "
        "asked for.",
        level="contract",
        compiler=Backend(
            "foreign_eps", aot(Plan(faults=instead_of({aten.native_layer_norm: _foreign_eps})))
        ),
        shown_by=once(
            lambda x: functional.layer_norm(x, (8,)), torch.linspace(-0.2, 0.2, 16).view(2, 8)
        ),
    ),
    Mutant(
        name="softmax_overflows",
        family="numerics",
        fault="Softmax does not subtract the maximum, and gives NaN for large inputs.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/100775",
        compiler=Backend(
            "softmax_overflows",
            aot(
                Plan(
                    faults=instead_of(
                        {
                            aten._softmax: _softmax_as_written,
                            aten._log_softmax: _log_softmax_as_written,
                        }
                    )
                )
            ),
        ),
        shown_by=once(lambda x: x.softmax(-1), torch.tensor([[1.0, 100.0, 200.0]])),
    ),
    Mutant(
        name="masked_row_is_nan",
        family="numerics",
        fault="Logsumexp of a row that is masked out (minus infinity throughout) is NaN.",
        level="contract",
        link="https://github.com/pytorch/pytorch/pull/134650",
        compiler=Backend(
            "masked_row_is_nan",
            aot(Plan(faults=instead_of({aten.logsumexp: _logsumexp_of_nothing}))),
        ),
        shown_by=once(lambda x: x.logsumexp(-1), torch.full((2, 3), -torch.inf)),
    ),
    Mutant(
        name="maximum_drops_nan",
        family="numerics",
        fault="Maximum, minimum and clamp give the operand that is not NaN.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/93784",
        compiler=Backend(
            "maximum_drops_nan",
            aot(
                Plan(
                    faults=instead_of(
                        {
                            aten.maximum: _maximum,
                            aten.minimum: _minimum,
                            aten.clamp: _clamp,
                            aten.clamp_min: _clamp,
                            aten.clamp_max: _clamp,
                        }
                    )
                )
            ),
        ),
        shown_by=once(lambda x: x.clamp(min=0.5), torch.tensor([torch.nan, 0.0, 1.0])),
    ),
    Mutant(
        name="argmax_skips_nan",
        family="numerics",
        fault="Argmax and argmin pass NaN over, and eager takes it for the extreme.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/118266",
        compiler=Backend(
            "argmax_skips_nan",
            aot(
                Plan(
                    faults=instead_of(
                        {
                            aten.argmax: _without_nan(-torch.inf),
                            aten.argmin: _without_nan(torch.inf),
                        }
                    )
                )
            ),
        ),
        shown_by=once(torch.argmax, torch.tensor([1.0, torch.nan, 4.5])),
    ),
    Mutant(
        name="average_divides_by_whole_kernel",
        family="numerics",
        fault="Average pooling with ceil_mode divides a window that overhangs by the whole kernel.",
        level="ops",
        link="https://github.com/pytorch/pytorch/issues/100987",
        compiler=Backend(
            "average_divides_by_whole_kernel",
            aot(Plan(faults=instead_of({aten.avg_pool2d: _average_by_whole_kernel}))),
        ),
        shown_by=once(
            lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True), torch.ones(1, 1, 6, 6)
        ),
    ),
    Mutant(
        name="mean_of_nothing_is_zero",
        family="numerics",
        fault="The mean of an empty tensor is zero, the sum's identity, and not NaN.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/197108",
        compiler=Backend(
            "mean_of_nothing_is_zero", aot(Plan(faults=instead_of({aten.mean: _zero_of_nothing})))
        ),
        shown_by=once(torch.mean, torch.ones(0)),
    ),
    Mutant(
        name="variance_is_biased",
        family="numerics",
        fault="Variance and standard deviation divide by n whatever correction is asked for.",
        level="ops",
        compiler=Backend(
            "variance_is_biased",
            aot(
                Plan(
                    faults=instead_of(
                        {aten.var: _biased, aten.std: _biased, aten.var_mean: _biased}
                    )
                )
            ),
        ),
        shown_by=once(torch.var, _odd(4)),
    ),
    Mutant(
        name="conjugate_is_nothing",
        family="numerics",
        fault="The conjugate of a complex tensor is the tensor itself.",
        level="dtypes",
        compiler=Backend(
            "conjugate_is_nothing", aot(Plan(faults=instead_of({aten._conj: _conj_is_nothing})))
        ),
        shown_by=once(lambda x: x.conj() * 2, torch.tensor([1 + 2j])),
    ),
]
