"""``backbay.choose``: race a model that is at hand, compile it as was decided, and remember that.

What `backbay.auto` can't do for a single graph is done here: parts of a model, dynamic shapes,
whole graphs, an objective. A decision that is in the store is applied without a race.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.utils import _pytree as pytree

from backbay.decisions import GAIN, Arm, Decision, Store, StoreError
from backbay.decisions.arm import WHOLE
from backbay.decisions.place import place_on
from backbay.decisions.standing import why_not
from backbay.errors import InputError
from backbay.graph.region import captured_digest
from backbay.proof import Step, Workload
from backbay.proof.copying import is_expanded
from backbay.proof.likeness import likeness
from backbay.proof.sequence import mixed
from backbay.proof.state import Attributes, Buffers
from backbay.race import Limits, Objective, Report, run
from backbay.race.api import entrants
from backbay.race.compiler import Compiler, compiler_of
from backbay.race.objective import Kind
from backbay.race.record import EAGER
from backbay.race.requests import ArmSetup
from backbay.race.scopes import parts_of
from backbay.registry import Registry, default_registry
from backbay.workloads.setup import placed


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A model, compiled as was decided."""

    model: Callable[..., Any]
    arm: Arm
    why: str
    """What decided it; one line."""
    kept: Decision | None = None
    """What the store has; ``None`` where it can't be kept."""
    report: Report | None = None
    """The race; ``None`` where the decision was in the store."""


def choose(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    arms: str | Sequence[str | Arm] = "all",
    scopes: Sequence[str] = (WHOLE,),
    objective: Objective | Kind = "throughput",
    train: bool = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    further: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (),
    dynamic: bool | None = None,
    fullgraph: bool = False,
    limits: Limits | None = None,
    store: Store | None = None,
    anew: bool = False,
    registry: Registry = default_registry,
) -> Chosen:
    """Return a model compiled by the arm that is best for it here, by a race or an earlier one.

    The race runs in this process, where the model is: it takes as long as compiling with each arm
    and timing them, and resets what Dynamo has compiled. Eager is kept unless an arm is better by
    3 %, and significantly.

    Args:
        model: a module or a function; parts of a module that are chosen are compiled in place.
        args: positional inputs of a typical call.
        kwargs: keyword inputs.
        arms: what is raced, as `race.run` takes it.
        scopes: likewise.
        objective: what is decided by; a total needs an `Objective` with its calls.
        train: whether a step is forward and backward.
        loss: from the model's output to what backward starts from.
        optimizer: makes an optimizer of parameters; its step is timed with forward and backward, on
            copies.
        further: positional and keyword inputs of further calls, for example of other shapes: what
            is decided holds for the mix.
        dynamic: as torch.compile takes it.
        fullgraph: likewise.
        limits: how long things may take.
        store: where the decision is kept; default: the user's own.
        anew: race even if there is a decision.
        registry: where names are looked up.

    Raises:
        InputError: what was asked for does not exist or cannot run here.
    """
    if isinstance(objective, str):
        objective = Objective(kind=objective)
    if not objective.margin:
        objective = msgspec.structs.replace(objective, margin=GAIN)
    workload = Workload(
        model,  # type: ignore[arg-type] # a function becomes a module
        tuple(args),
        dict(kwargs or {}),
        further=tuple((tuple(x), dict(y)) for x, y in further),
        loss=loss,
        optimizer=optimizer,
    )
    asked = _Asked(model, workload, train, dynamic, fullgraph, registry)
    store = store or Store()
    raced = [x.name for x in entrants(arms, scopes, asked.device.type, registry)]
    with _unchanged(workload):
        known = None if anew else asked.known(store, objective, raced, asked.graphs(store))
    if known is not None:
        again = "; anew=True races again" if known.abstained else ""
        why = f"{known.arm}, {known.why}{again}"
        return Chosen(model=asked.applied(known.arm), arm=known.arm, why=why, kept=known)
    with _unchanged(workload):
        report = run(
            workload,
            arms=arms,
            scopes=scopes,
            objective=objective,
            train=train,
            dynamic=dynamic,
            fullgraph=fullgraph,
            limits=limits,
            store=store,
            registry=registry,
        )
        kept = asked.known(store, objective, raced, asked.graphs(store, anew=anew))
    (decided,) = report.decision
    arm = next((x.as_arm for x in report.results if x.arm == decided.winner), Arm(backend=EAGER))
    return Chosen(model=asked.applied(arm), arm=arm, why=decided.sentence, kept=kept, report=report)


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What Dynamo captured of a workload; kept by what it looks like."""

    graphs: tuple[str, ...]
    """Digests."""


@dataclass(frozen=True)
class _Asked:
    """A model, and how it is to be compiled."""

    model: Callable[..., Any]
    """As it was given."""
    workload: Workload
    train: bool
    dynamic: bool | None
    fullgraph: bool
    registry: Registry

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return torch.device(placed(self.workload)[0])

    def known(
        self, store: Store, objective: Objective, raced: Sequence[str], graphs: Sequence[str]
    ) -> Decision | None:
        """Return what was decided before, among these arms at least, if it holds here.

        The newest counts; but where times scattered, an earlier one that they did not.
        """
        place = place_on(self.device).key
        found = [{x.name: x for x in store.decided(graph, place)} for graph in graphs]
        common = set[str].intersection(*map(set, found)) if found else set()
        step = "train" if self.train else "infer"
        holding = [
            x
            for name, x in (found[0] if found else {}).items()
            if name in common
            and {*x.graphs} == {*graphs}
            and self._has(x.arm.scope)
            and (x.step, x.objective) == (step, str(objective))
            and {*raced} <= {*x.raced}
            and why_not(x, self.device.type, self.registry) is None
        ]
        return min(holding, key=lambda x: x.unclear, default=None)

    def _has(self, scope: str) -> bool:
        """Whether the model has the parts that a scope names."""
        try:
            return scope == WHOLE or bool(parts_of(self.workload.model, scope))
        except InputError:
            return False

    def graphs(self, store: Store, *, anew: bool = False) -> tuple[str, ...]:
        """Return the digests of the graphs that Dynamo captures.

        A workload that looks like one that was captured before is not captured again: what that
        may get wrong is how fast an arm is, and never what is right.

        Args:
            store: knows what was captured.
            anew: capture, whatever is known.
        """
        looks = likeness(self.workload, train=self.train, dynamic=self.dynamic)
        known = None if anew else store.measured(Captured, looks)
        if known is None:
            known = Captured(graphs=tuple(self._captured()))
            with contextlib.suppress(StoreError):  # it is captured the next time, too
                store.keep_measured(looks, known)
        return known.graphs

    def _captured(self) -> list[str]:
        """Return the digests of the graphs that Dynamo captures; nothing is compiled."""
        found: list[str] = []

        def look(graph_module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
            found.append(captured_digest(graph_module))
            return graph_module.forward

        row = mixed(self.workload)
        looking = Compiler(backend=look, keywords={"dynamic": self.dynamic})
        torch._dynamo.reset()  # noqa: SLF001 (torch.compiler.reset is this, since 2.1)
        Step(row, train=self.train)(looking.applied(row.model))
        torch._dynamo.reset()  # noqa: SLF001
        return list(dict.fromkeys(found))

    def applied(self, arm: Arm) -> Callable[..., Any]:
        """Return the model as an arm compiles it."""
        if arm.backend == EAGER:
            return self.model
        setup = ArmSetup(arm=arm, dynamic=self.dynamic, fullgraph=self.fullgraph)
        compiler = compiler_of(setup, {}, self.registry)
        if arm.scope == WHOLE:
            return compiler.compiled(self.model)
        for part in parts_of(self.workload.model, arm.scope).values():
            part._compiled_call_impl = compiler.compiled(part._call_impl)  # noqa: SLF001 (as Module.compile)
        return self.model


@contextlib.contextmanager
def _unchanged(workload: Workload) -> Iterator[None]:
    """Put state, inputs and gradients back as they are: looking at a model must not train it."""
    given = pytree.tree_leaves((workload.args, workload.kwargs, workload.further))
    inputs = [x for x in given if isinstance(x, torch.Tensor)]
    state = [(x, x.detach().clone()) for x in inputs]
    buffers, attributes = Buffers(workload.model), Attributes(workload.model)
    leaves = [x for x in (*workload.model.parameters(), *inputs) if x.is_leaf]
    gradients = [(x, x.grad) for x in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        buffers.put_back()
        attributes.put_back()
        for value, old in state:
            if not is_expanded(value):
                value.data.copy_(old)  # of its versions the user's own backward may remember one
        for leaf, gradient in gradients:
            leaf.grad = gradient
