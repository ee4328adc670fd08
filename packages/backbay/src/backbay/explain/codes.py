"""The codes of findings: the one table of what a report can find.

A code never changes its meaning, and none is used again: tests and editors may rely on it. Its
second digit groups it: 1 is not compiled, 2 is compiled again, 3 is done outside of the kernels, 4
is done in another dtype, 5 is about passes, 6 failed, 7 takes longer than it might, which only a
diagnosis measures. ``docs/findings.md`` has a section for each.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from backbay.errors import InputError

Severity = Literal["error", "warning", "note"]

PAGE = "docs/findings.md"
_NAME = re.compile(r"BB[0-9]+")
_SHAPE = re.compile(r"BB(\d{3})?|BB\d{1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One kind of finding."""

    code: str
    title: str
    severity: Severity
    what: str
    why: str
    """What it costs."""
    fix: str

    @property
    def page(self) -> str:
        """Its section of the documentation."""
        return f"{PAGE}#{self.code.lower()}"


_TABLE = (
    Code(
        code="BB101",
        title="graph break",
        severity="warning",
        what="Something in your code can't be compiled, so the graph ends there and another begins "
        "after it.",
        why="What lies between two graphs runs in Python. Nothing is fused across it, and guards "
        "are checked once more.",
        fix="Move the call out of the compiled function, or keep it from running while it is "
        "compiled with torch.compiler.is_compiling().",
    ),
    Code(
        code="BB102",
        title="graph break to read a value",
        severity="warning",
        what="A tensor's value becomes a Python number: .item(), .tolist(), float(), int() or "
        "bool().",
        why="The graph ends there. On a GPU the host also waits until everything before it is "
        "computed.",
        fix="Keep the value in a tensor, and compute with that.",
    ),
    Code(
        code="BB103",
        title="graph break at a branch on values",
        severity="warning",
        what="An if, a while or an assert depends on the values of a tensor.",
        why="The graph ends at the branch, and the host waits for the value on a GPU.",
        fix="Compute both sides and choose with torch.where, or use torch.cond.",
    ),
    Code(
        code="BB104",
        title="graph break at a size that depends on values",
        severity="warning",
        what="The size of a result depends on the values of a tensor: a boolean index, nonzero, "
        "unique.",
        why="The graph ends there, and what comes after it is compiled for sizes that change at "
        "every call.",
        fix="Keep the full size and mask it, for example with torch.where.",
    ),
    Code(
        code="BB105",
        title="function runs uncompiled",
        severity="warning",
        what="A graph break lies where a function can't be resumed: in a loop, or in a with block.",
        why="The whole function runs uncompiled, not the line alone.",
        fix="Take the break out of the loop, or move the loop's body into a function of its own.",
    ),
    Code(
        code="BB106",
        title="nothing is compiled",
        severity="error",
        what="The backend was given no graph.",
        why="The model runs uncompiled; compiling it only costs time.",
        fix="Remove the graph breaks that are listed. If there are none, Dynamo found no operator "
        "on tensors, or was kept away: by torch.jit, TORCH_COMPILE_DISABLE or "
        "torch.compiler.set_stance.",
    ),
    Code(
        code="BB201",
        title="recompiled for a size",
        severity="warning",
        what="A size changed, and the new version is compiled for one size again.",
        why="Each further size is compiled anew, for seconds, until the recompile limit.",
        fix="Let the size be dynamic: don't compute Python numbers from it that the graph depends "
        "on, leave dynamic=False out, or pad to a few sizes.",
    ),
    Code(
        code="BB202",
        title="recompiled for a Python value",
        severity="warning",
        what="A Python number, text or container that the graph depends on changed.",
        why="Each value has a version of its own, until the recompile limit.",
        fix="Keep what changes at every call in a tensor, or outside of the compiled function.",
    ),
    Code(
        code="BB203",
        title="recompiled for another kind of input",
        severity="warning",
        what="An input has another dtype, number of dimensions, layout or type, it is another "
        "object, or torch is in another state, such as its gradient mode.",
        why="Each kind has a version of its own, until the recompile limit.",
        fix="Call it with inputs of one kind, or compile once for each kind on purpose.",
    ),
    Code(
        code="BB204",
        title="recompile limit reached",
        severity="error",
        what="A function was compiled so often that torch compiles it no more.",
        why="From then on it runs uncompiled whenever no version fits.",
        fix="Remove the cause of its recompiles; or raise torch._dynamo.config.recompile_limit.",
    ),
    Code(
        code="BB205",
        title="size became dynamic",
        severity="note",
        what="A size changed, and torch compiled once more with that size dynamic.",
        why="It costs one more compilation, and none for further sizes.",
        fix="To compile once only, mark the size with torch._dynamo.mark_dynamic, or pass "
        "dynamic=True.",
    ),
    Code(
        code="BB301",
        title="work on the host inside a graph",
        severity="warning",
        what="The graph itself reads a tensor's value on the host, or makes a result whose size "
        "depends on values.",
        why="On a GPU the host waits until everything before it is computed, and launches nothing "
        "meanwhile.",
        fix="Keep the value in a tensor, and the full size with a mask.",
    ),
    Code(
        code="BB302",
        title="copy between devices",
        severity="warning",
        what="The graph copies a tensor from one device to another.",
        why="The copy is made at every call, over a bus that is far slower than memory.",
        fix="Put parameters, buffers and inputs on one device before the call; register constants "
        "as buffers, so that they move with the model.",
    ),
    Code(
        code="BB401",
        title="mixed dtypes",
        severity="warning",
        what="An operator takes floating-point tensors of two dtypes and computes in the wider "
        "one.",
        why="It reads and writes more memory than the narrow one would, and what follows it stays "
        "wide.",
        fix="Convert one of them once, where it is made.",
    ),
    Code(
        code="BB501",
        title="near miss of a pattern",
        severity="note",
        what="A pass found a place that is almost what it rewrites.",
        why="The place is compiled as it is written, without what the pass would gain.",
        fix="Write it as the pattern is written, or make the condition true that is named.",
    ),
    Code(
        code="BB502",
        title="pass failed",
        severity="error",
        what="A pass of the backend raised, or left a graph that is not right.",
        why="The backend compiles nothing, or something else than your model.",
        fix="Report it to the backend's author, with the report's JSON; leave the pass out if the "
        "backend has an option for it.",
    ),
    Code(
        code="BB601",
        title="backend fell back",
        severity="warning",
        what="Something else compiled a graph, or ran it, than the backend that was asked for.",
        why="You measure and ship another backend than you think.",
        fix="Read the reason; backbay doctor and backbay info say what the backend takes.",
    ),
    Code(
        code="BB602",
        title="compilation failed",
        severity="error",
        what="The model runs uncompiled, and raises when it is compiled.",
        why="Nothing runs.",
        fix="Run backbay explain without --backend: if that works, it is the backend's fault.",
    ),
    Code(
        code="BB603",
        title="the model raises",
        severity="error",
        what="The model raises before anything is compiled.",
        why="Nothing runs.",
        fix="Call the model with the same inputs, without torch.compile, and repair it there.",
    ),
    Code(
        code="BB701",
        title="the host is what takes the time",
        severity="note",
        what="Kernels take less than half of a step; launching them, guards and Python take more.",
        why="The device waits for the host, however fast its kernels are.",
        fix='Compile with mode="reduce-overhead" on a GPU, which replays CUDA graphs; or give a '
        "step more to do, with a larger batch.",
    ),
    Code(
        code="BB702",
        title="kernel far from the limit",
        severity="note",
        what="A kernel that takes much of a step reaches less than half of what this machine can "
        "do.",
        why="A kernel at the limit would take less than half of the time.",
        fix='Try another code generator, such as backend="backbay" or mode="max-autotune"; look '
        "at what was not fused with it, and why.",
    ),
    Code(
        code="BB703",
        title="repeated blocks in one graph",
        severity="note",
        what="The model repeats a block, and every repetition is compiled by itself.",
        why="Compiling takes as many times as long as there are blocks.",
        fix="Compile the block in place, with block.compile() for each: torch compiles it once.",
    ),
    Code(
        code="BB704",
        title="convolutions with channels first",
        severity="note",
        what="Weights of convolutions are laid out with channels first.",
        why="Many convolution kernels are fastest with channels last; others convert the layout at "
        "every call.",
        fix="Call model.to(memory_format=torch.channels_last), and give it inputs in that layout.",
    ),
    Code(
        code="BB705",
        title="matrix products in full float32",
        severity="note",
        what="Matrix products take much of a step, and are computed with all bits of float32.",
        why="The GPU's matrix units take factors of 10 bits in TF32, some times as fast; sums stay "
        "float32.",
        fix='Call torch.set_float32_matmul_precision("high") if that is precise enough for you, or '
        "compute in bfloat16.",
    ),
)
CODES = {x.code: x for x in _TABLE}


def named(text: str) -> Code | None:
    """Return the code that a text names; ``None`` where it is of no code's form.

    Raises:
        InputError: it is, and there is no such code.
    """
    word = text.upper()
    if _NAME.fullmatch(word) is None:
        return None
    if word not in CODES:
        raise _unknown(word)
    return CODES[word]


def selection(texts: Iterable[str]) -> tuple[str, ...]:
    """Return codes, and beginnings of codes, from what somebody typed: by commas or one by one.

    Raises:
        InputError: there is no such code.
    """
    words = [x.strip().upper() for text in texts for x in text.split(",") if x.strip()]
    for word in words:
        if _SHAPE.fullmatch(word) and any(x.startswith(word) for x in CODES):
            continue
        raise _unknown(word)
    return tuple(dict.fromkeys(words))


def _unknown(word: str) -> InputError:
    near = _nearest(word)
    hint = f": did you mean {near}?" if near else f": they are listed in {PAGE}"
    return InputError(f"there is no finding {word!r}{hint}")


def _nearest(word: str) -> str | None:
    """Return the code of the same group whose number is nearest, else the one most like a word."""
    group = [x for x in CODES if x.startswith(word[:3])] if _NAME.fullmatch(word) else []
    if group:
        return min(group, key=lambda x: abs(int(x[2:]) - int(word[2:])))
    return next(iter(difflib.get_close_matches(word, CODES, n=1)), None)


def selects(chosen: Iterable[str], code: str) -> bool:
    """Whether a code is among those chosen: in full, or by its beginning if it is no note."""
    telling = CODES[code].severity != "note"
    return any(code == x or (telling and code.startswith(x)) for x in chosen)
