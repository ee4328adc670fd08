"""Graph breaks in the user's words: what it is at their line, and what to change there.

Torch explains a break by what its tracer can't do. For the breaks that people meet most, we say
what it is of their code; every other keeps torch's explanation, and of torch's hints those that the
reader can follow.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backbay.explain.record import BreakRecord
from backbay.reporting.breaks import useful

_SENTENCES = re.compile(r"(?<=[.!?]) +")
_ADDRESS = re.compile(r"<(?:function|bound method) (\S+)[^>]*>")
_KEEP_IN_TENSOR = (
    "compute with the tensor itself, without making a Python number of it",
    "to have it captured in the graph, set torch._dynamo.config.capture_scalar_outputs = True",
)
_CAPTURED_VALUES = {"capture_scalar_outputs": True}
_ASSERTION = (
    "use torch._assert(condition, message), with a message that is a plain string",
    "leave it out while it is compiled: if not torch.compiler.is_compiling():",
)
_REORDER = "add it to torch._dynamo.config.reorderable_logging_functions"
_CAPTURE_SIZES = (
    "to have it captured in the graph, set "
    "torch._dynamo.config.capture_dynamic_output_shape_ops = True"
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What a break is, and what to change."""

    code: str
    words: str
    fixes: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of torch._dynamo.config with which the break goes away; functions by their names."""


def of(broken: BreakRecord) -> Advice:
    """Return what a break is in the user's words, and what to change."""
    for pattern, worded in _FORMS:
        if pattern.search(broken.reason):
            return worded(broken)
    explanation = " ".join(useful(_SENTENCES.split(broken.explanation)))
    words = f"{broken.reason}: {explanation}" if explanation else broken.reason
    return Advice("BB101", words, broken.hints)


def _builtin(broken: BreakRecord) -> Advice:
    found = re.match(r"builtin (\w+)", broken.context)
    return _call(found[1] if found else "a builtin function")


def _skipped(broken: BreakRecord) -> Advice:
    found = re.match(r"module: (\S+), qualname: (\S+),", broken.context)
    return _call(f"{found[1].lstrip('_')}.{found[2]}" if found else "a function")


def _call(name: str) -> Advice:
    words = f"{name} can't be compiled"
    if name not in {"print", "warnings.warn"}:
        return Advice("BB101", words, (f"call {name} outside of the compiled function",))
    fixes = (
        f"leave {name} out while it is compiled: if not torch.compiler.is_compiling():",
        f"to have {name} called after the graph, {_REORDER}",
    )
    return Advice("BB101", words, fixes, {"reorderable_logging_functions": [name]})


def _logging(broken: BreakRecord) -> Advice:
    found = re.search(r">\.(\w+), args", broken.context)
    name = f"a logger's {found[1]}" if found else "a logger"
    return Advice(
        "BB101",
        f"{name} can't be compiled",
        (
            "leave it out while it is compiled: if not torch.compiler.is_compiling():",
            "to have it ignored, add the method to torch._dynamo.config.ignore_logging_functions",
        ),
    )


def _disabled(broken: BreakRecord) -> Advice:
    found = _ADDRESS.search(broken.context)
    name = found[1] if found else "a function"
    return Advice(
        "BB101",
        f"{name} is kept from being compiled, with torch.compiler.disable",
        (f"remove torch.compiler.disable from {name}, or call it outside",),
    )


def _asked_for(_: BreakRecord) -> Advice:
    words = "torch._dynamo.graph_break() asks for the break"
    return Advice("BB101", words, ("remove the call",))


def _item(_: BreakRecord) -> Advice:
    words = "a tensor's value is read as a Python number, as by .item(), float() or bool()"
    return Advice("BB102", words, _KEEP_IN_TENSOR, _CAPTURED_VALUES)


def _list(_: BreakRecord) -> Advice:
    words = "a tensor's values are read as a list of Python numbers, by .tolist()"
    return Advice("BB102", words, _KEEP_IN_TENSOR[:1])


def _operator_value(_: BreakRecord) -> Advice:
    words = "an operator makes a Python number of a tensor's values"
    return Advice("BB102", words, _KEEP_IN_TENSOR, _CAPTURED_VALUES)


def _branch(broken: BreakRecord) -> Advice:
    if broken.reason.startswith("Data-dependent assertion") or re.search(
        r":\d+: assert\b", broken.line
    ):
        return Advice("BB103", "an assertion depends on the values of a tensor", _ASSERTION)
    return Advice(
        "BB103",
        "a branch depends on the values of a tensor",
        (
            "compute both sides and choose with torch.where(condition, a, b)",
            "where one side is much work, use torch.cond",
        ),
    )


def _dynamic(broken: BreakRecord) -> Advice:
    name = broken.context.removeprefix("aten.").partition(".")[0]
    operator = f"{name}'s" if name.isidentifier() else "an operator's"
    return Advice(
        "BB104",
        f"the size of {operator} result depends on the values of a tensor",
        (
            "keep the full size, and mask: torch.where(mask, x, 0)",
            _CAPTURE_SIZES,
        ),
        {"capture_dynamic_output_shape_ops": True},
    )


_FORMS: tuple[tuple[re.Pattern[str], Callable[[BreakRecord], Advice]], ...] = tuple(
    (re.compile(pattern), worded)
    for pattern, worded in (
        (r"^Failed to trace builtin operator", _builtin),
        (r"^Attempted to call function marked as skipped", _skipped),
        (r"^logging\.Logger method", _logging),
        (r"torch\.compiler\.disable\(\)`d function", _disabled),
        (r"^Call to `torch\._dynamo\.graph_break\(\)`", _asked_for),
        (r"^Unsupported Tensor\.item\(\)", _item),
        (r"^Tensor\.tolist\(\)", _list),
        (r"^Data dependent operator", _operator_value),
        (r"^Data-dependent (branching|assertion)", _branch),
        (r"^Dynamic shape operator", _dynamic),
    )
)
