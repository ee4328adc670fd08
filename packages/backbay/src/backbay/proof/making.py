"""Make a golden outcome: eager once, float64 truth once, and further draws of rounding noise."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch

from backbay.errors import NothingTrained, ProofImpossible
from backbay.proof.decompose import Decomposing
from backbay.proof.draws import Draw, Recording, Replay
from backbay.proof.golden import Golden, draws_in_the_open
from backbay.proof.judging import number_of
from backbay.proof.monte_carlo import MonteCarloArithmetic, Reweighed
from backbay.proof.noise import Noise, dense, moderated, noise_of, rms
from backbay.proof.outcome import Outcome, outcome_of
from backbay.proof.shrink import shrunk
from backbay.proof.step import NESTED, Cotangents, Step, device_of
from backbay.proof.tree import leaves
from backbay.proof.truth import in_float64, raised
from backbay.workloads.workload import Workload

TREMBLES = 2
"""Further draws of rounding noise, beside eager's own. Three draws in all: a fourth would narrow
the bounds of few-element tensors by little, and costs another run."""
REWEIGHINGS = 2
"""Draws with weights that are rounded once more; of these only mean and scale count. Of 40 small
networks in bfloat16 whose batch norms were folded in single precision, 29 were called wrong without
such a draw, 4 with one and 2 with two. A scale that is off by 5e-4, an eighth of a unit, was missed
in none, in 1 and in 4 of them (``tests/proof/test_folded_weights.py``, torch 2.13, CPU)."""
SHARED = 0.5
"""Dropout multiplies by 1 / (1 - p), which some kernels round to the working precision and others
do not: everything computed from it shifts by up to so many epsilons. No draw shows it, because
draws are replayed. Seen in Inductor's gradients of GPT-2: 0.3 epsilons, where eager had a tenth."""
_FAR = 0.1
"""Of a tensor's size. Nothing that is rounded differs by more, but what is zero apart from it."""
_LEFT = 1e-3
"""Share of a difference between two runs that float64 leaves, at most, where it is rounding: it
rounds 2^29 times as finely as float32."""
_LEAF = "a leaf Variable that requires grad is being used in an in-place operation"
"""What torch says where a model writes into an input that has a gradient."""
_DOUBLE_BYTES = 8
_FLOAT8 = {x for x in vars(torch).values() if isinstance(x, torch.dtype) and "float8" in str(x)}
_SLOWER = {"cpu": 3.0, "cuda": 20.0}
"""Float64's run time over the working precision's, roughly; only used against ``seconds``."""


def make_golden(
    workload: Workload,
    *,
    train: bool,
    seed: int = 0,
    memory_bytes: int | None = None,
    seconds: float | None = None,
) -> Golden:
    """Run a workload in eager and in float64, and measure how honest results scatter.

    Where the float64 run is predicted not to fit, or runs out of memory, the proof is made on
    smaller inputs, and a note says so.

    Args:
        workload: what to run. It is left as it was.
        train: whether to run backward as well.
        seed: of the random state that each run starts from.
        memory_bytes: memory that the float64 run may take; what is free if not given.
        seconds: time that the float64 run may take; no limit if not given.

    Raises:
        ProofImpossible: no float64 truth can be made, even on smaller inputs.
    """
    maker = _Maker(train=train, seed=seed, memory_bytes=memory_bytes, seconds=seconds)
    try:
        return maker.golden(workload)
    except _TooLargeError as large:
        small = shrunk(workload, train=train)
        note = f"{large}, so the proof was made on smaller inputs"
    try:
        golden = maker.golden(small)
    except _TooLargeError as error:
        raise ProofImpossible(f"{error}, even on smaller inputs") from error
    return dataclasses.replace(golden, reduced=True, notes=(note, *golden.notes))


def make_golden_alike(golden: Golden, workload: Workload, *, train: bool, seed: int) -> Golden:
    """Make the golden of other inputs, whose honest results scatter as those of known ones do.

    Args:
        golden: of the known inputs.
        workload: the same model on other inputs, of the same shapes. It is left as it was.
        train: whether to run backward as well.
        seed: of the random state that each run starts from.

    Raises:
        ProofImpossible: there is no float64 truth of these inputs.
    """
    maker = _Maker(train=train, seed=seed, memory_bytes=None, seconds=None)
    return dataclasses.replace(maker.alike(golden, workload), reduced=golden.reduced)


class _TooLargeError(Exception):
    """The float64 run does not fit; the message is the beginning of a sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Eager:
    """Eager's run, and what must be known of it to repeat it."""

    outcome: Outcome
    draws: list[Draw]
    working: torch.dtype
    math_attention: bool
    cotangents: Cotangents
    exact: bool
    """Whether nothing in it was rounded: whole numbers throughout, which eager gets right."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Maker:
    train: bool
    seed: int
    memory_bytes: int | None
    seconds: float | None

    def golden(self, workload: Workload) -> Golden:
        eager = self._eager(workload)
        golden = self._watched(workload, eager)
        # Eager's run was watched by a dispatch mode, and so was the truth's. There are kernels that
        # compute something else then: https://github.com/pytorch/pytorch/issues/198118.
        with golden.context():
            step = Step(workload, train=self.train, seed=self.seed)
            plain = outcome_of(workload.model, step, seed=self.seed)
            proof = golden.judge(plain)
            # Where what eager gives depends on how often it was called, its distance from the truth
            # says nothing, and allows anything.
            drift = self._drift(workload, eager, golden.truth, plain) if proof.passed else {}
            if proof.passed and not drift:
                return golden
            once_more = outcome_of(workload.model, step, seed=self.seed)
        how = f"{proof.worst.where}: {proof.worst.reason}"
        if drift:
            where = max(drift, key=lambda name: drift[name])
            how = f"{where} differs by {drift[where]:.3g}, root mean square"
        if drift or _far(plain, once_more):
            raise ProofImpossible(
                "eager gives something else each time, from the same inputs, buffers and seed "
                f"({how}): where the model draws from a generator of its own, or keeps what it "
                "counts elsewhere than in itself, have each call begin alike"
            )
        raise ProofImpossible(
            "eager gives something else where a dispatch mode watches it, as the float64 run "
            f"needs: {how}"
        )

    def _drift(
        self, workload: Workload, eager: _Eager, truth: Outcome, plain: Outcome
    ) -> dict[str, float]:
        """Return how far a further run of eager is from the first, where rounding is no reason."""
        far = _far(eager.outcome, plain)
        if not far:
            return {}
        # Of what is zero but for rounding, two runs may differ by all that they are: one that adds
        # up in another order each time, as atomics do. In float64 far less of that is left.
        with _open(eager.math_attention):
            left = _distances(truth, self._truth(workload, eager))
        return {name: x for name, x in far.items() if left.get(name, 0.0) > _LEFT * x}

    def _watched(self, workload: Workload, eager: _Eager) -> Golden:
        if eager.exact:
            return self._reference(eager, _without_tensors(eager.outcome), {})
        with _open(eager.math_attention):
            truth = self._truth(workload, eager)
            noise = self._noise(workload, eager, truth)
        return self._reference(eager, truth, noise)

    def alike(self, golden: Golden, workload: Workload) -> Golden:
        eager = self._eager(workload, math_attention=golden.math_attention)
        if eager.exact:
            return self._reference(eager, _without_tensors(eager.outcome), {})
        with _open(eager.math_attention):
            truth = self._truth(workload, eager)
        own = _scatter(eager.outcome, truth)
        known = {
            n: dataclasses.replace(x, size=own[n].size)
            for n, x in golden.noise.items()
            if n in own  # a float may be None for other inputs
        }
        return self._reference(eager, truth, {n: x.at_least(own[n]) for n, x in known.items()})

    def _reference(self, eager: _Eager, truth: Outcome, noise: dict[str, Noise]) -> Golden:
        return Golden(
            eager=eager.outcome,
            truth=truth,
            noise=noise,
            working=eager.working,
            train=self.train,
            draws_random=bool(eager.draws),
            math_attention=eager.math_attention,
            notes=_notes(eager),
        )

    def _eager(self, workload: Workload, *, math_attention: bool = False) -> _Eager:
        recording, step = Recording(), Step(workload, train=self.train, seed=self.seed)
        with _measured(workload) as used, _open(math_attention):
            outcome = self._first(workload, step, recording)
        if recording.hidden and not math_attention:
            return self._eager(workload, math_attention=True)
        if recording.hidden:
            raise ProofImpossible(
                f"{recording.hidden[0]} draws random numbers inside a kernel, where they cannot "
                "be seen and given to the float64 run"
            )
        _check_has_numbers(outcome)
        if self.train and all(x is None for x in outcome.gradients.values()):
            raise NothingTrained("in training, eager's backward reaches no parameter and no input")
        working = _working(workload, recording.dtypes)
        self._check_fits(workload, used.seconds, used.peak or recording.bytes_made, working)
        return _Eager(
            outcome=outcome,
            draws=recording.draws,
            working=working,
            math_attention=math_attention,
            cotangents=step.cotangents,
            exact=not recording.dtypes and not _rounds(workload, outcome),
        )

    def _first(self, workload: Workload, step: Step, recording: Recording) -> Outcome:
        try:
            return outcome_of(workload.model, step, seed=self.seed, during=recording)
        except RuntimeError as error:
            if self.train and _LEAF in str(error):
                raise ProofImpossible(
                    "in training, the model writes into an input that is given a gradient: have "
                    "it proven without (--infer), or give a Workload with grad_as_given=True"
                ) from error
            raise

    def _truth(self, workload: Workload, eager: _Eager) -> Outcome:
        replay = Replay(eager.draws)
        try:
            double = raised(workload)
            truth = self._repeated(double, eager, _nested(in_float64(), replay))
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise _TooLargeError("the float64 truth ran out of memory") from error
        except ProofImpossible:
            raise
        except Exception as error:  # whatever an operator raises that takes no float64
            raise ProofImpossible(f"the float64 run of the model raised {error!r}") from error
        replay.check_finished()
        return _widened(truth)

    def _noise(self, workload: Workload, eager: _Eager, truth: Outcome) -> dict[str, Noise]:
        noise = self._shifted(workload, eager, truth, _scatter(eager.outcome, truth))
        for draw in range(TREMBLES):
            during = _nested(MonteCarloArithmetic(self.seed + 1 + draw), Replay(eager.draws))
            try:
                other = _scatter(self._repeated(workload, eager, during), truth)
            except ProofImpossible:
                break  # a trembling bit changed how often the model draws: eager's error must do
            noise = {n: x.widened(other[n]) if n in other else x for n, x in noise.items()}
        shared = SHARED * torch.finfo(eager.working).eps if eager.draws else 0.0
        noise = {name: dataclasses.replace(x, shared=shared) for name, x in noise.items()}
        return moderated(noise)

    def _shifted(
        self, workload: Workload, eager: _Eager, truth: Outcome, noise: dict[str, Noise]
    ) -> dict[str, Noise]:
        state = _constants(workload, eager.outcome)
        for draw in range(REWEIGHINGS):
            parts = Decomposing() if not draw else contextlib.nullcontext()
            try:
                reweighed = Reweighed(state, self.seed + 1 + TREMBLES + draw)
                during = _nested(parts, Replay(eager.draws), reweighed)
                other = _scatter(self._repeated(workload, eager, during), truth)
            except Exception:  # noqa: BLE001, S112 (a decomposition or tensor that is like no other)
                continue
            noise = {n: x.shifted(other[n]) if n in other else x for n, x in noise.items()}
        return noise

    def _repeated(
        self, workload: Workload, eager: _Eager, during: contextlib.AbstractContextManager[Any]
    ) -> Outcome:
        """Run what eager ran, from the same cotangents."""
        step = Step(workload, train=self.train, seed=self.seed, cotangents=eager.cotangents)
        return outcome_of(workload.model, step, seed=self.seed, during=during)

    def _check_fits(
        self, workload: Workload, seconds: float, peak: int, working: torch.dtype
    ) -> None:
        device = device_of(workload)
        growth = _DOUBLE_BYTES / working.itemsize
        need = int(growth * (peak + _state_bytes(workload)))
        free = self.memory_bytes if self.memory_bytes is not None else _free_bytes(device)
        if need > free:
            raise _TooLargeError(
                f"the float64 truth needs about {_gigabytes(need)} and {_gigabytes(free)} is free"
            )
        slow = seconds * _SLOWER.get(device.type, 1.0)
        if self.seconds is not None and slow > self.seconds:
            raise _TooLargeError(f"the float64 truth takes about {slow:.0f} s")


def _far(one: Outcome, other: Outcome) -> dict[str, float]:
    """Return the distances of two runs that are a large share of a tensor's size, by its name."""
    size = {name: rms(_number(x)) for name, x in _tensors(one).items() if x.numel()}
    return {name: x for name, x in _distances(one, other).items() if x > _FAR * size[name]}


def _distances(one: Outcome, other: Outcome) -> dict[str, float]:
    others = _tensors(other)
    return {
        name: rms(_number(others[name]) - _number(x))
        for name, x in _tensors(one).items()
        if x.numel() and name in others and _comparable(x, others[name])
    }


def _number(value: torch.Tensor) -> torch.Tensor:
    real = dense(value)
    real = torch.view_as_real(real.resolve_conj()) if real.is_complex() else real
    return real.detach().double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _constants(workload: Workload, outcome: Outcome) -> list[torch.Tensor]:
    """Return the parameters and buffers that a run leaves as they are."""
    model = workload.model
    buffers = [x for name, x in model.named_buffers() if f"buffer {name}" not in outcome.changed]
    kept = (x for x in (*model.parameters(), *buffers) if x.is_floating_point())
    return [x for x in kept if x.layout == torch.strided]


@contextlib.contextmanager
def _nested(*contexts: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _check_has_numbers(outcome: Outcome) -> None:
    """Raise ProofImpossible where a result is of a kind that the rule can't compare."""
    for name, value in outcome.tensors.items():
        if value.is_nested:
            raise ProofImpossible(f"{name} {NESTED}")
        if value.is_meta:
            raise ProofImpossible(
                f"{name} is on the meta device, where there are no numbers to compare: build the "
                "model on another, or prove one that does not return it"
            )


def _rounds(workload: Workload, outcome: Outcome) -> bool:
    given = [*_state(workload), *_tensors(outcome).values()]
    return any(x.is_floating_point() or x.is_complex() for x in given)


def _widened(truth: Outcome) -> Outcome:
    """Return float8 results in float64: they are quantised in truth, too, and exact in it."""

    def wide(x: torch.Tensor | None) -> Any:
        return x.double() if x is not None and x.dtype in _FLOAT8 else x

    return dataclasses.replace(
        truth,
        tensors={name: wide(x) for name, x in truth.tensors.items()},
        gradients={name: wide(x) for name, x in truth.gradients.items()},
        changed={name: wide(x) for name, x in truth.changed.items()},
    )


def _without_tensors(outcome: Outcome) -> Outcome:
    return dataclasses.replace(outcome, tensors={}, gradients={}, changed={})


def _open(math_attention: bool) -> contextlib.AbstractContextManager[None]:
    return draws_in_the_open() if math_attention else contextlib.nullcontext()


def _scatter(outcome: Outcome, truth: Outcome) -> dict[str, Noise]:
    """Measure every floating-point tensor and float of an outcome against the truth."""
    return {
        name: noise_of(value, true)
        for name, value in _everything(outcome).items()
        if (true := _everything(truth).get(name)) is not None and _comparable(value, true)
    }


def _everything(outcome: Outcome) -> dict[str, torch.Tensor]:
    plain = outcome.plain.items()
    return _tensors(outcome) | {n: number_of(x) for n, x in plain if isinstance(x, float)}


def _tensors(outcome: Outcome) -> dict[str, torch.Tensor]:
    gradients = {name: x for name, x in outcome.gradients.items() if x is not None}
    return outcome.tensors | gradients | _after(outcome)


def _after(outcome: Outcome) -> dict[str, torch.Tensor]:
    return {f"{name} after the run": x for name, x in outcome.changed.items()}


def _comparable(value: torch.Tensor, truth: torch.Tensor) -> bool:
    floating = value.is_floating_point() or value.is_complex()
    return floating and truth.shape == value.shape


def _working(workload: Workload, computed: set[torch.dtype]) -> torch.dtype:
    """Return the coarsest precision that anything is computed in, float8 storage apart."""
    state = [*workload.model.parameters(), *workload.model.buffers()]
    dtypes = computed | {x.dtype for x in state if x.is_floating_point()}
    known = [x for x in dtypes if x.itemsize > 1]
    return max(known, key=lambda x: torch.finfo(x).eps, default=torch.get_default_dtype())


def _notes(eager: _Eager) -> tuple[str, ...]:
    notes = [
        f"{name} is not compared: its content is out of sight" for name in eager.outcome.opaque
    ]
    if eager.math_attention:
        notes.append(
            "dropout inside a fused kernel cannot be repeated: the proof was made, and backends "
            "observed, with attention computed from plain operators"
        )
    return tuple(notes)


@dataclasses.dataclass
class _Used:
    seconds: float = 0.0
    peak: int = 0
    """Bytes allocated at most during the run; 0 where the device does not tell."""


@contextlib.contextmanager
def _measured(workload: Workload) -> Iterator[_Used]:
    used, device = _Used(), device_of(workload)
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    start = time.perf_counter()
    yield used
    if on_cuda:
        torch.cuda.synchronize(device)
        used.peak = torch.cuda.max_memory_allocated(device) - before
    used.seconds = time.perf_counter() - start


def _state_bytes(workload: Workload) -> int:
    return sum(x.numel() * x.element_size() for x in _state(workload))


def _state(workload: Workload) -> list[torch.Tensor]:
    inputs = [x for _, x in leaves((workload.args, dict(workload.kwargs)), "inputs")]
    state = [*workload.model.parameters(), *workload.model.buffers(), *inputs]
    return [x for x in state if isinstance(x, torch.Tensor)]


def _free_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
