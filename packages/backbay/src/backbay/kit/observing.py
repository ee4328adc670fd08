"""What is done beside running passes: somebody looks on, or each result is verified.

It holds in the context in which a backend is called, and for the graphs that are compiled later
because of it: autograd compiles backward graphs in a thread of its own.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from torch.fx import GraphModule

from backbay.errors import BackbayError
from backbay.graph.match import Nearest
from backbay.kit.passes import Pass, PassReport


class Observer(Protocol):
    """Who is told of every pass, with the graph as it is before and after it."""

    def before(self, one: Pass, graph_module: GraphModule) -> None:
        """See the graph that a pass is about to get; it is changed in place."""

    def after(self, one: Pass, graph_module: GraphModule, report: PassReport) -> None:
        """See the graph that a pass left, checked, and what it did."""

    def failed(self, one: Pass, graph_module: GraphModule, error: BackbayError) -> None:
        """See the graph in which a pass raised, or that is not right after it."""


class Watch(NamedTuple):
    """What is done beside running passes, in this context."""

    observer: Observer | None = None
    nearest: Nearest | None = None
    verifying: bool = os.environ.get("BACKBAY_VERIFY_PASSES", "0") not in {"", "0"}


_watch: ContextVar[Watch] = ContextVar("_watch", default=Watch())  # noqa: B039 (it is immutable)


def current_watch() -> Watch:
    """Return what is watched here: for what runs passes later, maybe in another thread."""
    return _watch.get()


@contextlib.contextmanager
def observed_by(observer: Observer, *, nearest: Nearest | None = None) -> Iterator[None]:
    """Call an observer for every pass of what is compiled in the block.

    Args:
        observer: who is told.
        nearest: `backbay.graph.nearness.nearest`, to have the places among near misses that differ
            from a pattern by one number or operator. It takes time.
    """
    with _watching(_watch.get()._replace(observer=observer, nearest=nearest)):
        yield


class Reports(list[PassReport]):
    """An observer that keeps what passes report."""

    __eq__ = object.__eq__  # two observers are two, also before they have seen anything
    __hash__ = object.__hash__  # type: ignore[assignment] # likewise

    def before(self, one: Pass, graph_module: GraphModule) -> None:
        """Do nothing."""

    def after(self, one: Pass, graph_module: GraphModule, report: PassReport) -> None:  # noqa: ARG002 (the observer's signature)
        """Keep a report."""
        self.append(report)

    def failed(self, one: Pass, graph_module: GraphModule, error: BackbayError) -> None:
        """Do nothing: the error is raised."""


@contextlib.contextmanager
def collected() -> Iterator[Reports]:
    """Collect the reports of all passes of what is compiled in the block, and later because of it.

    ::

        with collected() as reports:
            torch.compile(model, backend=backend)(x)
        fired = {x.name for x in reports if x.changes}
    """
    reports = Reports()
    with observed_by(reports):
        yield reports


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Call no observer in the block: what is compiled there is a trial."""
    with _watching(_watch.get()._replace(observer=None, nearest=None)):
        yield


@contextlib.contextmanager
def verified() -> Iterator[None]:
    """Run each graph before and after each pass of what is compiled in the block, and compare.

    For writing passes: the pass that makes a graph compute something else, or gives it another
    gradient, is named at once. Both graphs run in float64, on random inputs. With
    ``BACKBAY_VERIFY_PASSES=1`` in the environment it is so everywhere.
    """
    with _watching(_watch.get()._replace(verifying=True)):
        yield


@contextlib.contextmanager
def _watching(watch: Watch) -> Iterator[None]:
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
