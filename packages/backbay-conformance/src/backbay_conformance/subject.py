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
from backbay_conformance.case import EagerUnstable, Failed, NotRunnable
from backbay_conformance.record import Status
from backbay_conformance.watching import Graph, Watched

_FOLDERS = re.compile(r"/[^\s:\"']*/(?=(?:backbay|torch)/)")
_KIND = ("shape", "dtype", "device", "layout")
_STATUS: Mapping[Kind, Status] = {
    "value": "fail_value",
    "metadata": "fail_metadata",
    "mutation": "fail_mutation",
    "gradient": "fail_grad",
}


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
    ) -> None:
        self.name = name
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
    ) -> Proof:
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
        return self.agrees_on(workload, train=train, calls=calls, options=options)

    def agrees_on(
        self,
        workload: Workload,
        *,
        train: bool = False,
        calls: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> Proof:
        """Hold what the backend gives on a workload against eager's; see `agrees`."""
        golden = golden_of(workload, train=train, seed=self.seed)
        with golden.context():
            call = self.compile(workload.model, **(options or {}))
            for _ in range(calls):
                proof = golden.judge(observe(call, workload, train=train, seed=self.seed))
                raise_if_wrong(proof)
        return proof

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

    def near(self, got: Any, wanted: Any, *, what: str = "result") -> None:
        """Hold a value computed outside `agrees` against eager's, tensor by tensor.

        The tolerance is torch.testing.assert_close's; where an exact answer is due, compare so.

        Raises:
            Failed: they differ.
        """
        try:
            torch.testing.assert_close(got, wanted, equal_nan=True)
        except AssertionError as error:
            kind = _differs_in_kind(got, wanted)
            status: Status = "fail_metadata" if kind else "fail_value"
            raise Failed(status, f"{what}: {message_of(error)}") from error

    @contextlib.contextmanager
    def must(self, status: Status, what: str) -> Iterator[None]:
        """A plain assertion its status: ``with subject.must("fail_metadata", "stride"): ...``.

        Raises:
            Failed: the block raised AssertionError.
        """
        try:
            yield
        except AssertionError as error:
            said = f": {message_of(error)}" if str(error) else ""
            raise Failed(status, f"{what}{said}") from error


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
