"""Asks at run time whether a guard that was left out would have held; also those of hooks.

To filter guards, Dynamo builds a frame's guards twice: all of them, then those that are kept, which
decide whether compiled code runs. The first lot is kept here instead of being dropped, and is asked
at each call of the compiled code, against the locals of the frame that calls it. So each call pays
for every guard once more, and for walking up to its frame: this is for debugging.

It can't see two things: a frame that hands no graph to the backend, and whether two tensors, whose
guards were both left out, have become the same one: Dynamo adds that guard after the filter.

Torch has no public way to these guards. They are read from the frame that calls the filter, the
same in torch 2.11 to 2.15; where they are not found, that is an error.
"""

import functools
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal

from backbay.errors import BackbayError, SkippedGuardFailed

Action = Literal["raise", "warn"]
"""What is done when a guard that was left out no longer holds."""

_WHERE = "CheckFunctionManager"
_HOOKS = "EMPTY_NN_MODULE_HOOKS_DICT"
"""Torch's type of a guard that it makes nothing of, unless it is told to."""

_pending = threading.local()


@dataclass(frozen=True, slots=True)
class Skipped:
    """The guards of one frame that were left out, and how to ask whether they hold."""

    code: CodeType
    """The frame's own code; Dynamo's has the same name and place."""
    root: Any
    """Dynamo's manager of all guards of the frame; None where the filter left none out."""
    lines: dict[str, str]
    """A guard's source to the user's line that it was taken for."""
    hooks: tuple[tuple[str, Any], ...]
    """Source and content of each module's hooks: torch does not guard on their being empty."""


class Watch:
    """What one compiled graph asks before it runs; told which guards when Dynamo built them."""

    def __init__(self, filters: str, action: Action) -> None:
        self._filters = filters
        self._action = action
        self.skipped: Skipped | None = None

    def check(self) -> None:
        """Ask whether what was left out holds, for the frame that calls the graph.

        Raises:
            SkippedGuardFailed: it does not, and the action is to raise.
        """
        failed = self._failed()
        if failed is None:
            return
        if self._action == "raise":
            raise SkippedGuardFailed(failed)
        warnings.warn(failed, RuntimeWarning, stacklevel=3)

    def _failed(self) -> str | None:
        skipped = self.skipped
        if skipped is None:
            return None
        code = skipped.code
        added = next((name for name, hooks in skipped.hooks if hooks), None)
        if added is not None:
            return (
                f"{added} has a hook that was added after {code.co_name} "
                f"({code.co_filename}:{code.co_firstlineno}) was compiled, and it is not called: "
                "add it before, or set torch._dynamo.config.skip_nnmodule_hook_guards = False"
            )
        if skipped.root is None:
            return None
        values = dict(_caller(code).f_locals)
        if skipped.root.check(values):
            return None
        parts = skipped.root.check_verbose(values).verbose_code_parts
        return (
            f"a guard that {self._filters} leaves out no longer holds in {code.co_name} "
            f"({code.co_filename}:{code.co_firstlineno}): {_said(parts, skipped.lines)}. What runs "
            "was compiled for another value: keep this guard, or leave the value as it was"
        )


def watched(compiled: Callable[..., Any], filters: str, action: Action) -> Callable[..., Any]:
    """Return compiled code that checks before it runs; `take` tells it what."""
    watch = Watch(filters, action)
    waiting = getattr(_pending, "watches", None)
    if waiting is None:
        waiting = _pending.watches = []
    waiting.append(watch)

    @functools.wraps(compiled)
    def run(*arguments: Any) -> Any:
        watch.check()
        return compiled(*arguments)

    return run


def take(entries: Sequence[Any], kept: Sequence[bool], caller: FrameType | None) -> None:
    """Take down the guards of the frame that is being compiled, for its compiled code.

    Args:
        entries: what Dynamo gave the filter.
        kept: what the filter answered.
        caller: the frame that called the filter, or one that it called.

    Raises:
        BackbayError: this torch keeps its guards elsewhere.
    """
    waiting = getattr(_pending, "watches", [])
    _pending.watches = []
    hooks = tuple(_unguarded_hooks(entries))
    if all(kept) and not hooks:
        return
    found = _dynamo_frame(caller)
    root = None if all(kept) else found["guard_manager"].root
    lines = {
        entry.orig_guard.name: _users_line(entry.orig_guard)
        for entry, keep in zip(entries, kept, strict=True)
        if not keep
    }
    skipped = Skipped(found["f_code"], root, lines, hooks)
    for watch in waiting:
        watch.skipped = skipped


def _unguarded_hooks(entries: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    from torch._dynamo import config  # noqa: PLC0415 (Dynamo is compiling)

    if not config.skip_nnmodule_hook_guards:
        return
    for entry in entries:
        if entry.guard_type == _HOOKS and entry.has_value:
            yield entry.orig_guard.name, entry.value


def _dynamo_frame(frame: FrameType | None) -> dict[str, Any]:
    while frame is not None:
        if frame.f_code.co_qualname == f"{_WHERE}.__init__":
            values = frame.f_locals
            if hasattr(values.get("guard_manager"), "root") and "f_code" in values:
                return values
        frame = frame.f_back
    import torch  # noqa: PLC0415 (its version is for the error)

    raise BackbayError(
        f"check_guards can't find Dynamo's guards in torch {torch.__version__}: leave it out"
    )


def _caller(code: CodeType) -> FrameType:
    """Return the frame, outwards from here, that runs what Dynamo made of a code object."""
    wanted = (code.co_name, code.co_filename, code.co_firstlineno)
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (the only way to a caller's locals)
    while frame is not None:
        own = frame.f_code
        if (own.co_name, own.co_filename, own.co_firstlineno) == wanted:
            return frame
        frame = frame.f_back
    raise BackbayError(f"check_guards can't find the frame of {code.co_name}: leave it out")


def _said(parts: Sequence[str], lines: dict[str, str]) -> str:
    """Return what failed, with the user's line; a tensor's guard says none itself."""
    said = re.sub(r"\s{2,}", "  ", "; ".join(parts))
    if "  # " in said:
        return said
    # The longest source counts: L['x'] is part of L['x'].shape.
    sources = sorted((x for x in lines if x and x in said), key=len)
    line = lines[sources[-1]] if sources else ""
    return f"{said}  # {line}" if line else said


def _users_line(guard: Any) -> str:
    if not guard.user_stack:
        return ""
    last = guard.user_stack[-1]
    return f"{last.line}  # {last.filename}:{last.lineno} in {last.name}"
