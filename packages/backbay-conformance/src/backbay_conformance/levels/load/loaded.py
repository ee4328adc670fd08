"""Loading: one object for a name, wherever it is looked up, and nothing else changed by it."""

import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch

from backbay.registry import CompilerFn, Registry
from backbay.registry.options import signature_problems
from backbay_conformance.case import Collection, Failed, NotRunnable
from backbay_conformance.levels.load.metadata import registry_of, told
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject, message_of

theme = Collection("load", "loaded")


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).sum(-1)


def _registry(subject: Subject) -> Registry:
    if subject.registry is None:
        raise NotRunnable("the backend was given as an object, and is looked up nowhere")
    return subject.registry


@theme.case()
def first_graph_is_not_compiled(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    subject.agrees(model.to(subject.device), normal(subject, 4, 6))


@theme.case(compiles=False)
def second_look_up_gives_another_object(subject: Subject) -> None:
    registry = _registry(subject)
    with subject.must("fail_behaviour", "Dynamo would recompile for each look-up"):
        assert registry.lookup_backend(subject.name) is registry.lookup_backend(subject.name)


@theme.case(compiles=False)
def threads_load_it_twice(subject: Subject) -> None:
    with subject.must("fail_behaviour", "look-ups from several threads give several objects"):
        assert told(subject, "loading")["one"]


@theme.case(compiles=False)
def loading_leaves_state_changed(subject: Subject) -> None:
    changed = told(subject, "loading")["changed"]
    with subject.must("fail_behaviour", f"loading changes: {', '.join(changed)}"):
        assert not changed


@theme.case(compiles=False)
def forked_child_cannot_use_it(subject: Subject) -> None:
    code = told(subject, "loading")["forked"]
    with subject.must("fail_behaviour", f"a forked child ends with {code}"):
        assert code == 0


@theme.case(compiles=False)
def it_takes_no_graph_and_inputs(subject: Subject) -> None:
    compiler = subject.watched.compiler
    with subject.must("fail_metadata", "it cannot be called"):
        assert callable(compiler)
    try:
        takes = _binds(compiler)
    except ValueError as error:
        raise NotRunnable("its signature cannot be read") from error
    with subject.must("fail_metadata", "it does not take a graph module and example inputs"):
        assert takes


def _binds(compiler: Callable[..., Any]) -> bool:
    try:
        inspect.signature(compiler).bind(None, [])
    except TypeError:
        return False
    return True


@theme.case()
def torch_finds_another_by_its_name(subject: Subject) -> None:
    registry, _ = registry_of(subject)
    if registry.environment is None or not _shared(registry):
        raise NotRunnable("the registry is not the one that torch shares")
    found = torch._dynamo.lookup_backend(subject.name)  # noqa: SLF001
    with subject.must("fail_behaviour", "torch.compile(backend=name) uses another object"):
        assert found is registry.lookup_backend(subject.name)
    subject.watched.compiler = found
    x = normal(subject, 3, 4)
    subject.matches(_program, x)
    subject.near(torch.compile(_program, backend=subject.name)(x), _program(x))


def _shared(registry: Registry) -> bool:
    from backbay.registry import default_registry  # noqa: PLC0415 (a test's own is another)

    return registry is default_registry


@theme.case(compiles=False)
def torch_does_not_list_it(subject: Subject) -> None:
    registry, _ = registry_of(subject)
    if not _shared(registry):
        raise NotRunnable("the registry is not the one that torch shares")
    with subject.must("fail_behaviour", "torch.compiler.list_backends does not know the name"):
        assert subject.name in torch.compiler.list_backends(exclude_tags=None)


@theme.case()
def configured_object_does_not_travel(subject: Subject) -> None:
    registry = _registry(subject)
    if subject.spec is not None and subject.spec.origin.kind == "process":
        raise NotRunnable("only this process has registered the name")
    one = registry.get_backend(subject.name)
    other = pickle.loads(pickle.dumps(one))  # noqa: S301 (our own bytes)
    with subject.must("fail_behaviour", "a pickled backend is not equal to what it was made from"):
        assert other == one
        assert hash(other) == hash(one)
        assert other.digest == one.digest
    _compiles_as_well(subject, other)


@theme.case()
def object_itself_does_not_travel(subject: Subject) -> None:
    # torch.save of a compiled module, and a process that is given one, pickle its backend.
    try:
        other = pickle.loads(pickle.dumps(subject.watched.compiler))  # noqa: S301 (our own bytes)
    except (pickle.PicklingError, AttributeError) as error:
        reason = f"pickle finds functions by their names, and one has none: {message_of(error)}"
        raise NotRunnable(reason) from error
    _compiles_as_well(subject, other)


@theme.case()
def copy_of_the_object_does_not_compile(subject: Subject) -> None:
    # copy.deepcopy of a compiled module copies its backend.
    _compiles_as_well(subject, copy.deepcopy(subject.watched.compiler))


def _compiles_as_well(subject: Subject, other: CompilerFn) -> None:
    subject.watched.compiler = other
    x = normal(subject, 3, 4)
    subject.matches(_program, x)


@theme.case()
def thread_cannot_compile_first(subject: Subject) -> None:
    call, x, found = subject.compile(_program), normal(subject, 3, 4), list[Any]()

    def run() -> None:
        try:
            found.append(call(x))
        except Exception as error:  # noqa: BLE001 (a thread's error belongs to who waits)
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise Failed("fail_error", f"in a thread: {message_of(found[0])}") from found[0]
    subject.near(found[0], _program(x))


@theme.case()
def reset_breaks_it(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 3, 4)
    for _ in range(2):
        subject.watched.reset()
        torch._dynamo.reset()  # noqa: SLF001 (what people call)
        subject.near(call(x), _program(x))


@theme.case(needs={"name"})
def keyword_name_is_refused(subject: Subject) -> None:
    # From 2.15 on torch.compile hands it to every backend.
    problems = list(signature_problems_of(subject, {"name": "a"}))
    if problems and subject.traits.name is None:
        raise NotRunnable("nobody declares that it takes the keyword")
    with subject.must("fail_behaviour", "; ".join(problems)):
        assert not problems
    x = normal(subject, 3, 4)
    subject.matches(_program, x)
    if "name" in inspect.signature(torch.compile).parameters:
        torch.compiler.reset()
        backend: Any = subject.name if subject.registered else subject.watched
        subject.near(torch.compile(_program, backend=backend, name="a")(x), _program(x))


def signature_problems_of(subject: Subject, keywords: dict[str, Any]) -> list[str]:
    """Return which keywords the compiler function does not take."""
    if subject.spec is None:
        raise NotRunnable("nothing is declared of it")
    return list(signature_problems(subject.spec, subject.watched.compiler, keywords))
