"""The remedies of findings: what Backbay can change by itself, and why it can't change the rest.

A remedy that rewrites the user's code is not here: nobody but they can.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backbay.decisions.arm import BLOCKS, WHOLE
from backbay.diagnose.remedy import Remedy
from backbay.errors import InputError
from backbay.explain import BreakRecord, Explanation, FindingRecord, RecompileRecord, advice
from backbay.race.requests import ArmSetup
from backbay.registry import Registry

_BY_HAND = "only a change of the code removes it, and Backbay changes no code of yours"
_LEADING = re.compile(r"L\['\w+'\](\[\d+\])?\.size\(\)\[0\]")
"""An input's leading size, as torch names it."""
_SOURCE = re.compile(r"(?P<source>[LG]\['\w+'\](\.\w+|\[[^],]+\])*?)(\.size\(\)\[\d+\])?")
"""What torch can be told to have dynamic: a tensor, of which a size changed, or a number."""
_UNSPECIALISED = "allow_unspec_int_on_nn_module"
_MORE_VERSIONS = 64
OPTIMIZER = "backbay"
REDUCED = "reduce-overhead"
TF32 = "high"


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """What can be tried for the findings of one diagnosis."""

    explanation: Explanation
    arm: ArmSetup
    device: str
    registry: Registry

    def of(self, finding: FindingRecord) -> list[Remedy]:
        """Return what to try for a finding, the likeliest first; or why nothing can be."""
        found = {x.name: x for x in self._of(finding)}  # two breaks at one line have one remedy
        return list(found.values()) or [Remedy(name=finding.fixes[0], unfit=_BY_HAND)]

    def _of(self, finding: FindingRecord) -> Iterator[Remedy]:
        match finding.code:
            case "BB101" | "BB102" | "BB103" | "BB104" | "BB105":
                yield from self._of_break(finding)
            case "BB201" | "BB202" | "BB203" | "BB205":
                yield from self._of_recompile(finding)
            case "BB204":
                limit = {"recompile_limit": _MORE_VERSIONS}
                yield _setting(limit, calls_again=True, through=True)
            case "BB701":
                yield self._reduced_overhead()
            case "BB702":
                yield self._optimizer()
            case "BB703":
                yield self._blocks()
            case "BB704":
                yield Remedy(name="model.to(memory_format=torch.channels_last)", channels_last=True)
            case "BB705":
                name = f'torch.set_float32_matmul_precision("{TF32}")'
                yield Remedy(name=name, matmul_precision=TF32)

    def _of_break(self, finding: FindingRecord) -> Iterator[Remedy]:
        for broken in self.explanation.breaks:
            settings = advice.of(broken).settings
            if settings and _line(broken) == finding.line:
                yield _setting(settings, through=broken.skipped)

    def _of_recompile(self, finding: FindingRecord) -> Iterator[Remedy]:
        recompiles = [
            y
            for x in self.explanation.calls
            for y in x.recompiles
            if y.says == finding.message or (y.line or y.function) == finding.line
        ]
        if any(_UNSPECIALISED in reason.hint for x in recompiles for reason in x.reasons):
            yield _setting({_UNSPECIALISED: True}, calls_again=True)
        if finding.code not in {"BB201", "BB205"} or self.arm.dynamic:
            return
        if recompiles and all(_is_batch(x) for x in recompiles):
            name = "torch._dynamo.mark_dynamic(x, 0)"
            yield Remedy(name=name, mark=True, calls_again=True)
            return
        changed = {y for x in recompiles for y in x.dynamic.values()}
        sources = [found["source"] for x in changed if (found := _SOURCE.fullmatch(x))]
        if len(sources) == len(changed) > 0:  # of a computed size torch has no name
            named = ", ".join(sorted(set(sources)))
            name = f'torch.compiler.config.dynamic_sources = "{named}"'
            yield Remedy(name=name, dynamic_sources=named, calls_again=True)
        yield Remedy(name="torch.compile(dynamic=True)", dynamic=True, calls_again=True)

    def _reduced_overhead(self) -> Remedy:
        name = f'torch.compile(mode="{REDUCED}")'
        unfit = ""
        if not self.device.startswith("cuda"):
            unfit = "CUDA graphs need a GPU"
        elif self.arm.arm.backend != "inductor" or self.arm.arm.mode or self.arm.arm.options:
            unfit = "it is Inductor's, without another mode or options"
        return Remedy(name=name, arm={"mode": REDUCED}, unfit=unfit)

    def _optimizer(self) -> Remedy:
        name, unfit = f'torch.compile(backend="{OPTIMIZER}")', ""
        try:
            self.registry.require(OPTIMIZER, self.device.partition(":")[0])
        except InputError as error:
            unfit = str(error)
        if self.arm.arm.backend == OPTIMIZER:
            unfit = "it is what was diagnosed"
        change: Mapping[str, Any] = {"backend": OPTIMIZER, "mode": None, "options": {}}
        return Remedy(name=name, arm=dict(change), unfit=unfit)

    def _blocks(self) -> Remedy:
        unfit = "" if self.arm.arm.scope == WHOLE else "a part of the model is compiled already"
        name = "block.compile() for each of the repeated blocks"
        return Remedy(name=name, arm={"scope": BLOCKS}, unfit=unfit)


def _setting(
    settings: Mapping[str, Any], *, calls_again: bool = False, through: bool = False
) -> Remedy:
    words = [f"torch._dynamo.config.{name} = {_written(x)}" for name, x in settings.items()]
    return Remedy(
        name="; ".join(words), settings=dict(settings), calls_again=calls_again, through=through
    )


def _written(value: object) -> str:
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, list) else repr(value)


def _line(broken: BreakRecord) -> str:
    return broken.line or broken.function


def _is_batch(one: RecompileRecord) -> bool:
    """Whether the leading sizes of inputs are what changed."""
    return bool(one.dynamic) and all(_LEADING.fullmatch(x) for x in one.dynamic.values())
