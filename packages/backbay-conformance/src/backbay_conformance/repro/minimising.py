"""A smaller graph that fails alike, by torch's own minifier; and inputs as they can be written."""

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.fx_minifier import minifier  # functorch.compile's, which has no types

Fails = Callable[[torch.fx.GraphModule, Sequence[Any]], bool]
_MOST_LITERALS = 40
"""Elements of inputs that are written out."""


class _Enough(BaseException):
    """Time is up: no failure of the minifier's, and nothing that it may catch."""


def operators(graph_module: torch.fx.GraphModule) -> int:
    """Count a graph's operators."""
    return sum(x.op.startswith("call_") for x in graph_module.graph.nodes)


def minimised(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any], fails: Fails, seconds: float
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Return the smallest graph that was found to fail within a time, and its inputs."""
    best: list[tuple[int, torch.fx.GraphModule, list[Any]]] = [
        (operators(graph_module), graph_module, list(inputs))
    ]
    end = time.monotonic() + seconds

    def still(candidate: torch.fx.GraphModule, values: Sequence[Any]) -> bool:
        if time.monotonic() > end:
            raise _Enough
        if not fails(candidate, values):
            return False
        size = operators(candidate)
        if size <= best[-1][0]:
            best.append((size, candidate, list(values)))
        return True

    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(_Enough, Exception):
        minifier(
            graph_module,
            list(inputs),
            still,
            dump_state=lambda _module, _inputs: None,
            skip_offload=True,
        )
    return best[-1][1], best[-1][2]


def written(
    inputs: Sequence[Any], fails: Callable[[Sequence[Any]], bool]
) -> tuple[str, ...] | None:
    """Return inputs as expressions that fail alike; None where they can't be written down."""
    drawn = tuple(map(_drawn, inputs))
    if None not in drawn and fails(values(drawn)):
        return tuple(x for x in drawn if x is not None)
    total = sum(x.numel() for x in inputs if isinstance(x, torch.Tensor))
    if total > _MOST_LITERALS:
        return None
    literal = tuple(map(_literal, inputs))
    return literal if fails(values(literal)) else None


def values(expressions: Sequence[Any]) -> list[Any]:
    """Make inputs from their expressions, as a program does."""
    torch.manual_seed(0)
    space = {"torch": torch, "inf": float("inf"), "nan": float("nan")}
    return [eval(x, space) for x in expressions]  # noqa: S307 (our own text)


def _drawn(value: Any) -> str | None:
    if not isinstance(value, torch.Tensor):
        return _plain(value)
    shape = tuple(value.shape)
    if value.layout != torch.strided or value.is_quantized:
        return None
    if value.is_floating_point() or value.is_complex():
        made = f"torch.randn({shape}{_kind(value)})"
    elif value.dtype == torch.bool:
        made = f"torch.rand({shape}{_device(value)}) > 0.5"
        return made if value.is_contiguous() else None
    else:
        low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
        made = f"torch.randint({low}, {high + 1}, {shape}{_kind(value)})"
    return _laid_out(made, value) + (".requires_grad_()" if value.requires_grad else "")


def _literal(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return _plain(value) or repr(value)
    made = f"torch.tensor({value.detach().cpu().tolist()}{_kind(value)}).view({tuple(value.shape)})"
    return _laid_out(made, value) + (".requires_grad_()" if value.requires_grad else "")


def _laid_out(made: str, value: torch.Tensor) -> str:
    """Add what gives a dense tensor its order of dimensions in memory."""
    if value.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(value):
        return made
    order = sorted(range(value.dim()), key=lambda i: value.stride()[i], reverse=True)
    back = [order.index(i) for i in range(value.dim())]
    return f"{made}.permute({order}).contiguous().permute({back})"


def _kind(value: torch.Tensor) -> str:
    usual = torch.int64 if not (value.is_floating_point() or value.is_complex()) else torch.float32
    dtype = "" if value.dtype == usual else f", dtype={value.dtype}"
    return dtype + _device(value)


def _device(value: torch.Tensor) -> str:
    return "" if value.device.type == "cpu" else f", device={str(value.device)!r}"


def _plain(value: Any) -> str | None:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    return repr(value) if isinstance(value, bool | int | float | None) else None
