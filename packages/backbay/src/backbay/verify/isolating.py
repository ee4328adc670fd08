"""One module of a model, compiled by itself and judged on the inputs that it gets in eager."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters

from backbay.errors import ProofImpossible
from backbay.messages import one_line
from backbay.proof import Golden, Workload, make_golden, observe
from backbay.registry import CompilerFn
from backbay.verify.calling import inputs_to
from backbay.verify.proving import part, room
from backbay.verify.requests import Judged, Situation
from backbay.verify.situations import FIRST, Files, inputs_of, state_of


class Isolation:
    """A module, by its path in a workload's model; the empty path is the model itself."""

    def __init__(
        self,
        workload: Workload,
        compiler: CompilerFn,
        files: Files,
        *,
        module: str,
        train: bool,
        seed: int,
    ) -> None:
        torch.compiler.reset()
        self._whole = files.golden(FIRST).at(workload)
        self._compiler = compiler
        self._files = files
        self._path = module
        self._module = workload.model.get_submodule(module)
        self._train = train
        self._seed = seed

    def judged(self, situation: Situation, eager: Sequence[str]) -> Judged:
        """Compile it, and judge it in a situation; what is named in ``eager`` is not compiled.

        It is compiled in the first situation, as it is in the model.
        """
        try:
            with self._in(FIRST) as first, self._in(situation) as alone:
                train, golden = self._golden(alone)
        except ProofImpossible as error:
            return Judged(status="unproven", reason=str(error))
        except Exception as error:  # noqa: BLE001 (alone, a module may not run at all)
            return Judged(
                status="unproven", reason=f"alone, uncompiled, it raises {one_line(error)}"
            )
        try:
            with room(), golden.context(), _uncompiled(self._whole.model, eager):
                return self._proven(first, alone, situation, golden, train=train)
        except Exception as error:  # noqa: BLE001 (whatever a backend raises is the result)
            return Judged(status="failed", reason=one_line(error))

    def _proven(
        self, first: Workload, alone: Workload, situation: Situation, golden: Golden, *, train: bool
    ) -> Judged:
        call = torch.compile(self._module, backend=self._compiler)
        counters.clear()
        if situation != FIRST:
            observe(call, first, train=train, seed=self._seed)
        with state_of(self._whole.model, situation, self._files):
            outcome = observe(call, alone, train=train, seed=self._seed)
        if not counters["stats"]["unique_graphs"]:
            return Judged(status="not_compiled", reason="Dynamo gave the backend no graph")
        return Judged(parts=(part(situation.name, golden.judge(outcome).verdicts),))

    def _golden(self, alone: Workload) -> tuple[bool, Golden]:
        """Make the module's own truth; one that has no gradients is judged without them."""
        if self._train:
            with contextlib.suppress(ProofImpossible):
                return True, make_golden(alone, train=True, seed=self._seed)
        return False, make_golden(alone, train=False, seed=self._seed)

    @contextlib.contextmanager
    def _in(self, situation: Situation) -> Iterator[Workload]:
        """Put the model into a situation; yields the module with what it is called with there."""
        with state_of(self._whole.model, situation, self._files):
            whole = inputs_of(self._whole, situation)
            yield whole if not self._path else self._workload(whole)

    def _workload(self, whole: Workload) -> Workload:
        inputs = inputs_to(whole, self._path, self._seed)
        if inputs is None:
            raise ProofImpossible("it is not called")
        args, kwargs = inputs
        return Workload(model=self._module, args=args, kwargs=kwargs, name=self._path)


@contextlib.contextmanager
def _uncompiled(model: torch.nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Keep Dynamo out of some modules of a model."""
    modules = [model.get_submodule(path) for path in paths]
    before: list[Any] = [vars(x).get("forward") for x in modules]
    for module in modules:
        module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward
