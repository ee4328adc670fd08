"""What a case is given: a backend under watch, and the means to hold it against eager."""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from backbay.errors import ProofImpossible
from backbay.proof import Golden, Outcome, Proof, Verdict, Workload, make_golden, observe
from backbay.proof.oracle import Kind
from backbay.registry import BackendSpec, CompilerFn, Registry, Traits
from backbay.registry.target import parse
from backbay_conformance.answers import Answers, JudgedHere, Reference
from backbay_conformance.case import EagerUnstable, Failed, NotRunnable
from backbay_conformance.record import Status
from backbay_conformance.travelling import travelled
from backbay_conformance.watching import Graph, Watched

_FOLDERS = re.compile(r"/[^\s:\"']*/(?=(?:backbay|torch)/)")
_KIND = ("shape", "dtype", "device", "layout")
_STATUS: Mapping[Kind, Status] = {
    "value": "fail_value",
    "metadata": "fail_metadata",
    "mutation": "fail_mutation",
    "gradient": "fail_grad",
}


REFUSED = "refused"
"""What stands for a result that a backend may refuse to compute, and says that it does."""
Configure = Callable[[str | None, Mapping[str, Any] | None], CompilerFn]
"""Returns the backend with a mode and options: torch's own take them in their own way."""


class Subject:
    """The backend that a case is put to, on one device."""

    def __init__(
        self,
        compiler: CompilerFn,
        *,
        name: str,
        device: torch.device,
        seed: int = 0,
        traits: Traits | None = None,
        configure: "Configure | None" = None,
        spec: BackendSpec | None = None,
        registry: Registry | None = None,
        runs_graphs_as_they_are: bool = False,
        answers: Answers | None = None,
    ) -> None:
        self.name = name
        self.answers = answers or JudgedHere()
        """What becomes of its results."""
        self.runs_graphs_as_they_are = runs_graphs_as_they_are
        """Whether it says of itself that it generates no code: it is there for finding faults."""
        self.device = device
        self.seed = seed
        self.traits = traits or Traits()
        self.spec = spec
        """What is declared of it; None where nobody declares anything."""
        self.registry = registry
        """Where it was looked up; None where it was given as an object."""
        self.watched = Watched(compiler, name=name)
        self._configure = configure

    @property
    def graphs(self) -> list[Graph]:
        """The ownership reports of this case's graphs, in the order in which they came."""
        return self.watched.graphs

    @property
    def registered(self) -> bool:
        """Whether it has a name that a registry knows."""
        return self.registry is not None and self.spec is not None and parse(self.name) is None

    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compile with the backend; options are those of torch.compile."""
        if not self.answers.compiles:
            return function
        if self._configure is not None and options.keys() & {"mode", "options"}:
            mode, further = options.pop("mode", None), options.pop("options", None)
            self.watched.compiler = self._configure(mode, further)
        compiled: Callable[..., Any] = torch.compile(function, backend=self.watched, **options)
        return compiled

    def agrees(
        self,
        function: Callable[..., Any] | torch.nn.Module,
        *args: Any,
        train: bool = False,
        calls: int = 1,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Hold what the backend gives against eager and float64 truth: everything, by the rule.

        Values, shapes, dtypes, strides, structure, memory shared with inputs, what the run changed,
        and in training the gradient of every floating-point input and parameter.

        Args:
            function: compiled as it is; parameters are those of a module.
            args: its inputs; move them to ``self.device`` first.
            train: whether to run backward as well.
            calls: how often what was compiled is run and judged.
            options: of torch.compile, such as ``dynamic``.
            kwargs: its keyword inputs.

        Raises:
            Failed: it is not right; the status says in which way.
            EagerUnstable: eager gives nothing that could be compared with.
        """
        workload = Workload(as_module(function), args, kwargs)
        self.agrees_on(workload, train=train, calls=calls, options=options)

    def agrees_on(
        self,
        workload: Workload,
        *,
        train: bool = False,
        calls: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Hold what the backend gives on a workload against eager's; see `agrees`."""
        golden = self.golden(workload, train=train)
        with golden.context():
            call = self.compile(workload.model, **(options or {}))
            for _ in range(calls):
                self.judge(golden, observe(call, workload, train=train, seed=self.seed))

    def golden(self, workload: Workload, *, train: bool) -> Reference:
        """Return the reference of a workload, or the seal of one that a judge has.

        Raises:
            EagerUnstable: eager gives nothing that could be compared with.
            NotRunnable: eager raises.
        """
        return self.answers.golden(lambda: golden_of(workload, train=train, seed=self.seed))

    def judge(self, golden: Reference, outcome: Outcome) -> None:
        """Hold what a run gave against a reference.

        Raises:
            Failed: it is not right.
        """

        def how(given: Any) -> None:
            assert isinstance(golden, Golden), "who judges has made it"
            raise_if_wrong(golden.judge(given))

        self.answers.answer(outcome, how)

    def matches(self, function: Callable[..., Any], *calls: Any, **options: Any) -> None:
        """Compile a function once, and hold each call of it against eager's; see `near`.

        Args:
            function: what is compiled.
            calls: the inputs of one call after the other; a tuple is several.
            options: of torch.compile.

        Raises:
            Failed: a result is not eager's.
        """
        call = self.compile(function, **options)
        for inputs in calls:
            args = inputs if isinstance(inputs, tuple) else (inputs,)
            self.near(call(*args), function(*args))

    def near(
        self, got: Any, wanted: Any, *, what: str = "result", or_refused: bool = False
    ) -> None:
        """Hold a value computed outside `agrees` against eager's, tensor by tensor.

        The tolerance is torch.testing.assert_close's; where an exact answer is due, compare so.

        Raises:
            Failed: they differ.
        """
        self.answers.answer(got, Near(wanted, what=what, or_refused=or_refused))

    def near_each_other(self, got: Any, other: Any, *, what: str = "result") -> None:
        """Hold two values that the backend gave against each other; see `near`.

        Raises:
            Failed: they differ.
        """
        self.answers.answer((got, other), lambda pair: Near(pair[1], what=what)(pair[0]))

    def same(self, got: Any, wanted: Any, *, status: Status, what: str) -> None:
        """Hold a tensor that the backend gave against eager's, to the last bit.

        Raises:
            Failed: they differ.
        """
        kept = travelled(wanted)

        def how(given: Any) -> None:
            if not _same(given, kept):
                raise Failed(status, what)

        self.answers.answer(got, how)

    def same_as_each_other(self, *got: Any, status: Status, what: str) -> None:
        """Hold what the backend gave against its own first, to the last bit.

        Raises:
            Failed: they differ.
        """

        def how(given: Any) -> None:
            if not all(_same(x, given[0]) for x in given[1:]):
                raise Failed(status, what)

        self.answers.answer(got, how)

    @contextlib.contextmanager
    def must(self, status: Status, what: str) -> Iterator[None]:
        """A plain assertion its status: ``with subject.must("fail_metadata", "stride"): ...``.

        It is for what can only be seen where the backend runs: memory that is shared, what is
        raised, how often something was compiled. Nothing but the backend's own process says so.
        Values are for `near` and `same`.

        Raises:
            Failed: the block raised AssertionError.
        """
        try:
            yield
        except AssertionError as error:
            if not self.answers.compiles:
                return
            said = f": {message_of(error)}" if str(error) else ""
            raise Failed(status, f"{what}{said}") from error


class Near:
    """Whether a value is near another, as torch.testing.assert_close has it."""

    def __init__(self, wanted: Any, *, what: str, or_refused: bool = False) -> None:
        self._wanted = travelled(wanted)
        self._what = what
        self._or_refused = or_refused

    def __call__(self, got: Any) -> None:
        """Hold a value against it.

        Raises:
            Failed: they differ.
        """
        if self._or_refused and isinstance(got, str) and got == REFUSED:
            return
        got = travelled(got)
        try:
            torch.testing.assert_close(got, self._wanted, equal_nan=True)
        except AssertionError as error:
            kind = _differs_in_kind(got, self._wanted)
            status: Status = "fail_metadata" if kind else "fail_value"
            raise Failed(status, f"{self._what}: {message_of(error)}") from error
        except TypeError as error:  # no two that could be compared: a float in a tensor's place
            said = f"{self._what}: it is of another kind than eager's: {message_of(error)}"
            raise Failed("fail_metadata", said) from error


class Function(torch.nn.Module):
    """A function as the module that a workload wants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)


def as_module(function: Callable[..., Any] | torch.nn.Module) -> torch.nn.Module:
    """Return a module as it is, and any other callable as a module."""
    return function if isinstance(function, torch.nn.Module) else Function(function)


def golden_of(workload: Workload, *, train: bool, seed: int) -> Golden:
    """Make the reference of a workload; where it has no float64 truth, eager alone is that.

    Raises:
        EagerUnstable: eager does not give the same twice.
        NotRunnable: eager raises, or there is nothing to train.
    """
    try:
        return make_golden(workload, train=train, seed=seed)
    except ProofImpossible:
        return _golden_of_eager(workload, train=train, seed=seed)
    except Exception:
        in_eager(workload, train=train, seed=seed)  # it may be eager that raises
        raise


def in_eager(workload: Workload, *, train: bool, seed: int) -> Outcome:
    """Run a workload in eager.

    Raises:
        NotRunnable: eager raises.
    """
    try:
        return observe(workload.model, workload, train=train, seed=seed)
    except Exception as error:
        reason = f"eager itself raises {type(error).__name__}: {message_of(error)}"
        raise NotRunnable(reason) from error


def _golden_of_eager(workload: Workload, *, train: bool, seed: int) -> Golden:
    first, second = (observe(workload.model, workload, train=train, seed=seed) for _ in range(2))
    if train and all(x is None for x in first.gradients.values()):
        raise NotRunnable("in training, eager's backward reaches no parameter and no input")
    golden = Golden(
        eager=first,
        truth=dataclasses.replace(first, tensors={}, gradients={}, changed={}),
        noise={},
        working=torch.get_default_dtype(),
        train=train,
        draws_random=True,
    )
    if not golden.judge(second).passed:
        raise EagerUnstable("two eager runs from one random state differ")
    return golden


def raise_if_wrong(proof: Proof) -> None:
    """Raise what a failed proof is called here."""
    if not proof.passed:
        worst = worst_of(proof)
        raise Failed(_STATUS[worst.kind], f"{worst.where}: {worst.reason}")


def worst_of(proof: Proof) -> Verdict:
    """Return the failure that names a proof: a wrong kind of tensor before wrong numbers."""
    order = ("metadata", "mutation", "gradient", "value")
    return min(proof.failures, key=lambda x: (order.index(x.kind), -x.severity))


def message_of(error: BaseException) -> str:
    """Return an exception's message on one line, with its type where the message is empty.

    Where packages are installed is left out: it differs from machine to machine.
    """
    text = _FOLDERS.sub("", " ".join(str(error).split()))
    return text[:400] or type(error).__name__


def _differs_in_kind(got: Any, wanted: Any) -> bool:
    """Whether two results that are not close first differ in what they are, not in numbers."""
    if isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor):
        return any(getattr(got, x) != getattr(wanted, x) for x in _KIND)
    if isinstance(got, Mapping) and isinstance(wanted, Mapping):
        if got.keys() != wanted.keys():
            return False
        return _differs_in_kind(list(got.values()), [wanted[x] for x in got])
    if isinstance(got, list | tuple) and isinstance(wanted, list | tuple):
        if _lengths(got) != _lengths(wanted):
            return True
        far = (x for x in zip(got, wanted, strict=True) if _far(*x))
        return any(_differs_in_kind(*x) for x in itertools.islice(far, 1))
    return False


def _lengths(value: Any) -> Any:
    return [_lengths(x) for x in value] if isinstance(value, list | tuple) else None


def _far(got: Any, wanted: Any) -> bool:
    try:
        torch.testing.assert_close(got, wanted, equal_nan=True)
    except AssertionError:
        return True
    return False


def _same(got: Any, wanted: Any) -> bool:
    if isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor):
        return same_bits(got, wanted)
    if isinstance(got, list | tuple) and isinstance(wanted, list | tuple):
        return len(got) == len(wanted) and all(map(_same, got, wanted))
    if isinstance(got, torch.Tensor) or isinstance(wanted, torch.Tensor):
        return False
    return bool(got == wanted)


def same_bits(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two tensors are equal to the last bit: zeros by their sign, NaN by any NaN."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    if got.is_complex():
        return same_bits(
            *(torch.view_as_real(x.resolve_conj().resolve_neg()) for x in (got, wanted))
        )
    if not got.is_floating_point():
        return torch.equal(got, wanted)
    signs = torch.signbit(got) == torch.signbit(wanted)
    equal = (got == wanted) & signs
    return bool((equal | (got.isnan() & wanted.isnan())).all())
