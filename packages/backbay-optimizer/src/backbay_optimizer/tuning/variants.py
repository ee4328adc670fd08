"""Whether a graph's rewrites pay here: it is timed with and without them, when it is first called.

What a rewrite gains depends on shapes and on the machine, and on what Inductor makes of the code
around it; so the whole compiled graph is timed, forward and, where it trains, backward: with every
rewrite, without any, without each, and without those match sites that are slower when each is
timed alone (`site_timing.py`). They take turns on copies of the first call's inputs, so nobody's
tensors change. A rewrite stays unless the graph is shown to be faster without it.
"""

import datetime as dt
import hashlib
import importlib.metadata
import math
import platform
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._prims_common import clone_preserve_strides
from torch.fx import GraphModule

import backbay
from backbay import compile_log
from backbay.graph.aliases import writes_what_it_holds
from backbay.graph.region import described
from backbay.graph.values import is_symbolic, is_watched, value_of
from backbay.kit.codegen import Compiled
from backbay.kit.passes import Pass
from backbay_optimizer.cuda_graphs.capture import exclusive
from backbay_optimizer.cuda_graphs.replayable import library_settings
from backbay_optimizer.tuning.cache import Choice, PairTiming

BUDGET_S = 2.0
"""Seconds for the timing of one graph."""
ALL: tuple[str, ...] = ()
"""The arm that leaves nothing out."""
MOST_OFF = 0.1
"""Of a result's norm, that another variant's may be off: deep graphs in 16 bits differ by some
hundredths, and a kernel that is wrong by all of it."""
LEAST_PART = 0.01
"""Of the norm of all gradients, from which one is no mere rounding."""
WRITES_ITS_OWN = "it writes tensors that are no inputs, as an optimizer's step does"
"""Why a graph is not called on copies of its inputs."""
Arms = Mapping[tuple[str, ...], Compiled]
"""What is left out, to the compiled graph."""


def key_of(
    graph_module: GraphModule, example_inputs: Sequence[Any], passes: Sequence[Pass], settings: Any
) -> str:
    """Return a digest of all that a choice depends on: graph, inputs, passes, settings, machine.

    Args:
        graph_module: Dynamo's, before any pass.
        example_inputs: its inputs.
        passes: what may be left out.
        settings: mode and options: anything whose ``repr`` tells them apart.
    """
    graphs = [x.graph for x in graph_module.modules() if isinstance(x, GraphModule)]
    all_nodes = [node for graph in graphs for node in graph.nodes]  # branches' and loops' too
    nodes = [x.format_node() or "" for x in all_nodes]
    constants = [described(value_of(x)) for x in all_nodes if x.op == "get_attr"]
    inputs = [described(x) for x in example_inputs]
    rest = [x.uuid() for x in passes], settings, surroundings(), machine(example_inputs)
    whole = repr((nodes, constants, inputs, rest))
    return hashlib.sha256(whole.encode()).hexdigest()


def surroundings() -> tuple[object, ...]:
    """Return what is set around a graph that its code depends on, as Dynamo's guards know."""
    autocast = [(x, torch.is_autocast_enabled(x), torch.get_autocast_dtype(x)) for x in _DEVICES]
    attention = [getattr(torch.backends.cuda, f"{x}_sdp_enabled")() for x in _ATTENTION]
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [x for x in autocast if x[1]],
        torch.are_deterministic_algorithms_enabled(),
        library_settings(),
        attention,
    )


_DEVICES = ("cpu", "cuda")
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")


def machine(example_inputs: Sequence[Any]) -> tuple[str, ...]:
    """Return what times depend on: the processor or GPU that inputs are on, and versions."""
    names = [platform.machine(), platform.processor(), str(torch.get_num_threads())]
    devices = dict.fromkeys(x.device for x in example_inputs if isinstance(x, torch.Tensor))
    gpus = [torch.cuda.get_device_name(x) for x in devices if x.type == "cuda"]
    if gpus:
        names = [*gpus, str(torch.version.cuda), _version("triton")]
    return (backbay.__version__, torch.__version__, *names)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


class Choosing:
    """A compiled graph in several variants; the first call times them, and the best one stays."""

    def __init__(
        self,
        arms: Arms,
        fired: Sequence[str],
        name: str,
        keep: Callable[[Choice], None],
        *,
        plain: tuple[str, ...],
        default: tuple[str, ...] = ALL,
        untried: Collection[tuple[str, ...]] = (),
    ) -> None:
        """Hold the variants.

        Args:
            arms: with every rewrite, without any, and others.
            fired: the rewrites that changed the graph.
            name: of the backend, for the compile log.
            keep: is given the choice, where one was made.
            plain: what is left out of the arm without any.
            default: what is left out of the arm that stays unless another is shown to be faster.
            untried: the arms with kernels that nobody has tried on this GPU, which have to agree
                with the default.
        """
        self._arms: Arms | None = arms
        self._default = default
        self._plain = plain
        self._untried = frozenset(untried)
        self._chosen = arms[default]
        self._fired = tuple(fired)
        self._name = name
        self._keep = keep
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """Autotune on the first call, then run the chosen variant."""
        if self._arms is not None:
            self._choose(args)
        return self._chosen(*args)

    def _choose(self, args: Sequence[Any]) -> None:
        with self._lock:
            arms, self._arms = self._arms, None
        if arms is None:  # another thread is at it; until it is done, every rewrite holds
            return
        why = unsuitable(args)
        if why is None:
            try:
                if self._untried:
                    arms = self._agreeing(arms, args)
                choice = chosen(timed(arms, args), self._fired, self._plain, self._default)
            except Exception as error:  # noqa: BLE001 (whatever it is, the graph itself still runs)
                why = f"{type(error).__name__}: {error}".splitlines()[0]
        if why is not None:
            but = f" but {', '.join(self._default)}" if self._default else ""
            self._note(f"not timed, every rewrite kept{but}: {why}")
            return
        self._chosen = arms[choice.off]
        self._keep(choice)
        self._note(f"timed: {choice}", timed=True)

    def _agreeing(self, arms: Arms, args: Sequence[Any]) -> Arms:
        """Return the arms whose results are those of one without unmeasured kernels."""
        right, wanted = {}, results_of(arms[self._default], args)
        for off, arm in arms.items():
            why = _difference(arm, args, wanted) if off in self._untried else None
            if why is None:
                right[off] = arm
            else:
                left = f"the variant without {', '.join(off)}" if off else "the whole"
                self._note(f"{left} is not used: {why}")
        return right

    def _note(self, why: str, *, timed: bool = False) -> None:
        record = compile_log.Record(asked=self._name, ran="inductor", why=why, timed=timed)
        compile_log.note(record)


def untried(graph_module: GraphModule) -> str | None:
    """Return why a graph is not compiled in several variants and timed; None if it may be."""
    if any(is_symbolic(value_of(x)) for x in graph_module.graph.find_nodes(op="placeholder")):
        return "its sizes vary: a time would be of one, and each variant guards sizes of its own"
    return WRITES_ITS_OWN if writes_what_it_holds(graph_module) else None


def unsuitable(args: Sequence[Any], *, written: bool = True) -> str | None:
    """Return why a graph can't be timed with copies of these inputs; None if it can.

    Args:
        args: the inputs.
        written: whether the graph may write any of them.
    """
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    odd = next((x for x in tensors if type(x) not in plain), None)
    if odd is not None:
        return f"an input is a {type(odd).__name__}, which is not copied"
    memory = [x.untyped_storage().data_ptr() for x in tensors if x.numel()]
    if written and len(set(memory)) < len(memory):
        return "two inputs share memory, and copies would not"
    if torch.is_grad_enabled() and is_watched():
        return "hooks of the caller's see what is saved for the backward"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "in a process group the others would wait, or choose otherwise"
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def timed(
    arms: Arms,
    args: Sequence[Any],
    budget_s: float | None = None,
    *,
    shared: Collection[int] = (),
) -> dict[tuple[str, ...], list[float]]:
    """Time variants in turns on copies of their inputs.

    Args:
        arms: what is left out, to the compiled graph.
        args: its inputs.
        budget_s: seconds for all of it. Default: those of a whole graph.
        shared: which inputs are taken as they are, since nothing writes them.

    Returns:
        By variant, milliseconds a call, one sample a round.
    """
    from backbay.timing import clock, rounds  # noqa: PLC0415 (34 ms, with tune="full")

    device = next((x.device for x in args if isinstance(x, torch.Tensor)), torch.device("cpu"))
    devices = [device] if device.type == "cuda" else []
    with exclusive, torch.random.fork_rng(devices):
        copies = [x if i in shared else _copied(x) for i, x in enumerate(args)]
        steps = {",".join(off): _step(arm, copies) for off, arm in arms.items()}
        for step in steps.values():
            clock.seconds(step, rounds.WARMUPS + 1, device)  # CUDA graphs record in the second
        step_s = {name: clock.seconds(step, 1, device) for name, step in steps.items()}
        plan = rounds.plan(step_s, BUDGET_S if budget_s is None else budget_s)

        def block(name: str) -> float:
            return clock.block(steps[name], warmups=1, calls=plan.calls[name], device=device)

        taken = list(rounds.in_turns(steps, plan, block))
    return {off: [x[",".join(off)] for x in taken] for off in arms}


def compared(
    arms: Arms,
    plain: tuple[str, ...],
    args: Sequence[Any],
    budget_s: float,
    *,
    shared: Collection[int] = (),
) -> PairTiming:
    """Time the variant that leaves nothing out beside another one, as `timed` does.

    Args:
        arms: both of them.
        plain: what the other one leaves out.
        args: their inputs.
        budget_s: seconds for all of it.
        shared: which inputs are taken as they are, since nothing writes them.
    """
    from backbay.timing import stats  # noqa: PLC0415 (as above)

    samples = timed(arms, args, budget_s, shared=shared)
    ratio, interval = stats.ratio(samples[ALL], samples[plain])
    return PairTiming(ratio=ratio, interval=interval, created=now())


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copied: torch.Tensor = clone_preserve_strides(value.detach())  # type: ignore[no-untyped-call] # torch has no stub
    return copied.requires_grad_(value.requires_grad)


def _step(
    arm: Compiled,
    copies: Sequence[Any],
    cotangent: Callable[[torch.Tensor], torch.Tensor] = torch.ones_like,
) -> Callable[[], tuple[list[torch.Tensor], list[torch.Tensor | None]]]:
    """Return a step that returns results and gradients."""
    sources = [x for x in copies if isinstance(x, torch.Tensor) and x.requires_grad]

    def step() -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        tensors = [x for x in arm(*copies) if isinstance(x, torch.Tensor)]
        results = [x for x in tensors if x.requires_grad]
        if not (torch.is_grad_enabled() and results and sources):
            return tensors, []
        given = [cotangent(x) for x in results]
        # A thread of autograd's holds the last gradient for a moment longer. A CUDA graph that
        # is recorded meanwhile takes that for a tensor which dies in it, and no later call fits
        # ("graph recording observed an input tensor deallocate").
        with torch.autograd.set_multithreading_enabled(False):
            return tensors, [*torch.autograd.grad(results, sources, given, allow_unused=True)]

    return step


class Results(NamedTuple):
    """What a variant computes."""

    tensors: list[torch.Tensor]
    """Results, and inputs that were written."""
    gradients: list[torch.Tensor | None]


def results_of(arm: Compiled, args: Sequence[Any]) -> Results:
    """Return what a variant computes, on copies of its inputs, with the same random numbers."""
    devices = {x.device for x in args if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    with exclusive, torch.random.fork_rng(devices):
        copies = [_copied(x) for x in args]
        tensors, gradients = _step(arm, copies, _random)()
        pairs = zip(copies, args, strict=True)
        written = [x for x, y in pairs if isinstance(x, torch.Tensor) and not torch.equal(x, y)]
        return Results([x.detach() for x in (*tensors, *written)], gradients)


def _random(x: torch.Tensor) -> torch.Tensor:
    """Return a gradient; ones would be as good as none behind a norm, whose results add up to 0."""
    generator = torch.Generator(x.device).manual_seed(0)
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


def _difference(arm: Compiled, args: Sequence[Any], wanted: Results) -> str | None:
    try:
        found = results_of(arm, args)
    except Exception as error:  # noqa: BLE001 (whatever it is, other variants run)
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None if agree(found, wanted) else "its results are others"


def agree(found: Results, wanted: Results) -> bool:
    """Whether results are another variant's but for rounding, which grows with a graph's depth.

    Gradients are compared all together, and those by themselves that are a good part of the whole:
    others may be nothing but rounding, such as that of a bias before a norm.
    """
    pairs = [*zip(found.tensors, wanted.tensors, strict=False)]
    if len(found.tensors) != len(wanted.tensors):
        return False
    if any(x.shape != y.shape or x.dtype != y.dtype for x, y in pairs):
        return False
    given = [(x, y) for x, y in zip(*(r.gradients for r in (found, wanted)), strict=True)]
    if any((x is None) != (y is None) for x, y in given):
        return False
    if not all(_is_near([_distance(x, y)]) for x, y in pairs):
        return False
    apart = [_distance(x, y) for x, y in given if x is not None and y is not None]
    whole = math.hypot(*(norm for _, norm in apart))
    return _is_near(apart) and all(_is_near([x]) for x in apart if x[1] > LEAST_PART * whole)


def _distance(x: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float]:
    """Return the norms of a difference and of what is wanted; infinity where one is not finite."""
    if not (x.is_floating_point() or x.is_complex()):
        return 0.0, 0.0  # the place of a maximum may be another
    wide = torch.promote_types(x.dtype, torch.float32) if x.dtype.itemsize > 1 else torch.float32
    x, wanted = x.to(wide), wanted.to(wide)
    real = wanted.isfinite()
    if not torch.equal(x.isfinite(), real):
        return math.inf, 0.0
    x, wanted = (torch.where(real, t, 0) for t in (x, wanted))
    double = torch.complex128 if wide.is_complex else torch.float64
    off, norm = (torch.linalg.vector_norm(t, dtype=double) for t in (x - wanted, wanted))
    return off.item(), norm.item()


def _is_near(distances: Sequence[tuple[float, float]]) -> bool:
    off, norm = (math.hypot(*x) for x in zip(*distances, strict=True)) if distances else (0.0, 0.0)
    return off <= MOST_OFF * norm


def chosen(
    samples: Mapping[tuple[str, ...], Sequence[float]],
    fired: Sequence[str],
    plain: tuple[str, ...],
    default: tuple[str, ...] = ALL,
) -> Choice:
    """Decide between variants: the default, unless another one is shown to be faster.

    Args:
        samples: by variant, one a round, as `timed` gives them.
        fired: the rewrites that changed the graph.
        plain: what the variant without rewrites leaves out.
        default: what the default leaves out; with nothing, all rewrites stay.
    """
    from backbay.timing import stats  # noqa: PLC0415 (as above)

    medians = {off: stats.median(x)[0] for off, x in samples.items()}
    best = min(medians, key=lambda off: medians[off])
    _, (low, _) = stats.ratio(samples[default], samples[best])
    if low <= 1.0:
        best = default
    gain, interval = stats.ratio(samples[plain], samples[best])
    return Choice(
        off=best,
        fired=tuple(fired),
        gain=gain,
        interval=interval,
        milliseconds={",".join(off): x for off, x in medians.items()},
        created=now(),
    )


def now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
