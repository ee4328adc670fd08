"""What the registry says of a backend: true, and told without importing it or torch."""

import functools
from typing import Any

import torch
from packaging.specifiers import SpecifierSet

from backbay.registry import BackendSpec, Registry
from backbay.registry.options import default_problems
from backbay.session import NoReply
from backbay_conformance.asking import asked
from backbay_conformance.case import Collection, Failed, NotRunnable
from backbay_conformance.subject import Subject

theme = Collection("load", "metadata")

_DEVICES_ELSEWHERE = {"tpu", "neuron", "ipu", "npu", "hpu", "xla", "xpu", "mps", "mtia", "maia"}


def registry_of(subject: Subject) -> tuple[Registry, BackendSpec]:
    """Return where the backend's name is registered, and as what.

    Raises:
        NotRunnable: it has no name.
    """
    if not subject.registered:
        raise NotRunnable("the backend has no registered name: it was given by its place")
    assert subject.registry is not None
    assert subject.spec is not None
    return subject.registry, subject.spec


def told(subject: Subject, what: str) -> dict[str, Any]:
    """Ask a fresh process.

    Raises:
        NotRunnable: a fresh process does not have the backend by its name.
        Failed: it raised.
    """
    _, spec = registry_of(subject)
    if spec.origin.kind == "process":
        raise NotRunnable("only this process has registered the name")
    try:
        return _told(what, subject.name, subject.device.type)
    except NoReply as error:
        raise Failed("fail_error", f"in a fresh process: {error}") from error


@functools.cache
def _told(what: str, name: str, device: str) -> dict[str, Any]:
    return asked(what, name, device)


@theme.case(compiles=False)
def name_is_not_found(subject: Subject) -> None:
    registry, _ = registry_of(subject)
    spec = registry.spec(subject.name)
    with subject.must("fail_behaviour", "the spec is of another name"):
        assert spec.name == subject.name


@theme.case(compiles=False)
def listing_imports_torch(subject: Subject) -> None:
    with subject.must("fail_behaviour", "torch was imported to read metadata"):
        assert not told(subject, "metadata")["torch"]


@theme.case(compiles=False)
def listing_imports_the_backend(subject: Subject) -> None:
    with subject.must("fail_behaviour", "the backend was imported to read its metadata"):
        assert not told(subject, "metadata")["module"]


@theme.case(compiles=False)
def name_is_not_listed(subject: Subject) -> None:
    _, spec = registry_of(subject)
    said = told(subject, "metadata")
    with subject.must("fail_behaviour", "the list of all backends lacks it"):
        assert said["listed"]
    with subject.must("fail_behaviour", "it is shown though its tags hide it, or the reverse"):
        assert said["shown"] == (not spec.debug and not spec.experimental)


@theme.case(compiles=False)
def origin_is_unknown(subject: Subject) -> None:
    _, spec = registry_of(subject)
    with subject.must("fail_metadata", "nobody says who provides it, in which version"):
        assert str(spec.origin).strip()
        assert spec.origin.kind != "distribution" or (
            spec.origin.distribution and spec.origin.version
        )


@theme.case(compiles=False)
def it_runs_and_is_said_not_to(subject: Subject) -> None:
    registry, _ = registry_of(subject)
    said = registry.availability(subject.name, subject.device.type)
    with subject.must("fail_metadata", f"it is said to be {said.state}: {said.reason}"):
        assert said.ready
        assert said.reason


@theme.case(compiles=False)
def traits_name_what_does_not_exist(subject: Subject) -> None:
    _, spec = registry_of(subject)
    named = spec.traits.dtypes or ()
    dtypes = [x for x in named if not isinstance(getattr(torch, x, None), torch.dtype)]
    devices = [x for x in spec.devices if not _is_device(x)]
    with subject.must("fail_metadata", f"no dtype or device is called {[*dtypes, *devices]}"):
        assert not dtypes
        assert not devices


def _is_device(name: str) -> bool:
    if name in _DEVICES_ELSEWHERE:
        return True
    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True


@theme.case(compiles=False)
def option_contradicts_itself(subject: Subject) -> None:
    _, spec = registry_of(subject)
    options = spec.options if isinstance(spec.options, tuple) else ()
    problems = [f"{x.name}: {problem}" for x in options for problem in default_problems(x)]
    with subject.must("fail_metadata", "; ".join(problems)):
        assert not problems


@theme.case(compiles=False)
def requirement_on_torch_is_not_met(subject: Subject) -> None:
    _, spec = registry_of(subject)
    wanted = SpecifierSet(spec.requires.torch or "")
    with subject.must("fail_metadata", f"it runs on torch {torch.__version__}, and asks {wanted}"):
        assert wanted.contains(str(torch.__version__).partition("+")[0], prereleases=True)


@theme.case(compiles=False)
def misspelt_name_is_not_explained(subject: Subject) -> None:
    said = told(subject, "metadata")["misspelt"]
    with subject.must("fail_behaviour", f"a misspelt name is answered with {said!r}"):
        assert subject.name in said.replace(f"{subject.name}x", "")
        assert "\n" not in said
