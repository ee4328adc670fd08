"""What a pass is: what it declares, what it may know, and what it reports.

A pass is a frozen dataclass. One that rewrites a graph place by place derives from `Rewrite`, and
has one method, from a site to what takes its place::

    @dataclass(frozen=True, kw_only=True)
    class FuseGelu(Rewrite[Call]):
        '''Compute GELU in the kernel of the product before it.'''

        targets = (F.gelu,)
        requires = Requires(devices=("cuda",), inference=True)
        minimum_rows: int = option(1, "rows below which nothing is fused")

        def replacement(self, site: Call, context: PassContext) -> Node:
            if value_of(site.node).shape[0] < self.minimum_rows:
                raise NotApplicable("too few rows")
            return call_before(site.node, fused_gelu, *site.node.args)

`Rewrite` does the rest. One that decides over a whole graph derives from `Pass` and defines
``run``; `PassContext.attempt` notes its near misses. Simple ones are functions (`graph_pass`) or
patterns (`rewrite_pass`). `kit.pipeline` runs them.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import torch
from torch.fx import GraphModule, Node

import backbay
from backbay.errors import InputError
from backbay.graph.aliases import disturbed
from backbay.graph.aten_rewrite import apply_aten
from backbay.graph.checkpoints import with_bodies
from backbay.graph.match import Nearest, NearMiss, Pattern, is_call
from backbay.graph.rewrite import apply, bound, erase_dead, layout, replace_node, revocable
from backbay.graph.values import is_data_dependent, is_ordinary, value_of

Level = Literal[
    "torch",
    "aten",
    "inductor.pre_grad",
    "inductor.joint_pre",
    "inductor.joint_post",
    "inductor.post_grad_pre",
    "inductor.post_grad",
]
"""Where a pass runs: on Dynamo's graph; after AOTAutograd, on the functional forward and backward
graphs; or in one of Inductor's own hooks."""

LEVELS: tuple[Level, ...] = get_args(Level)

DYNAMO_GRAPHS = frozenset({"torch", "inductor.pre_grad"})
"""Levels whose graphs hold what the user wrote; the others hold functional ATen operators."""

IS_HIP = torch.version.hip is not None
"""Whether what torch calls ``cuda`` is ROCm."""

EIGHTS = 8
"""Elements of 16 bits in 16 bytes: kernels read as many at once, and want sizes that are multiples
of it."""

_HELP = "backbay option"
_T = TypeVar("_T")


class NotApplicable(Exception):  # noqa: N818 (a reason, not a failure)
    """A rewrite does not fit a site; the message says why, on one line."""


# 1. What a pass declares


class PassOption(NamedTuple):
    """One option of a pass, as a row of its backend's options."""

    name: str
    type: str
    default: Any
    choices: tuple[Any, ...]
    help: str


def option(default: Any, help: str, *, choices: tuple[Any, ...] = ()) -> Any:  # noqa: A002 (argparse's word)
    """Return a field of a pass that ``torch.compile(options=...)`` may set, by its name.

    Args:
        default: also decides the type.
        help: one line for users.
        choices: the values that it may take; any of its type where empty.
    """
    return field(default=default, metadata={_HELP: help, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Requires:
    """What the value of a site must be."""

    devices: tuple[str, ...] = ()
    """Types of device; any where empty."""
    because: str = ""
    """Why others are left alone."""
    rocm: bool = True
    """Whether AMD's GPUs count as ``cuda``, too."""
    dtypes: tuple[torch.dtype, ...] = ()
    """Any where empty."""
    dtypes_because: str = ""
    inference: bool = False
    """Whether no gradient may be wanted."""

    def check(self, value: Any) -> None:
        """Check a value.

        Raises:
            NotApplicable: it is another; of several reasons, the first.
        """
        if self == _ANYTHING:
            return
        if not is_ordinary(value):
            raise NotApplicable("it is not an ordinary tensor that is known")
        where = value.device.type
        if self.inference and value.requires_grad:
            raise NotApplicable("a gradient is wanted")
        if self.devices and (where not in self.devices or (IS_HIP and not self.rocm)):
            raise NotApplicable(f"it runs on {where}: {self.because}")
        if self.dtypes and value.dtype not in self.dtypes:
            raise NotApplicable(f"it is of {value.dtype}: {self.dtypes_because}")


_ANYTHING = Requires()


# 2. What a pass may know, and reports


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did to one graph: texts and numbers, which keep no graph alive."""

    name: str
    changes: int
    seconds: float
    near: tuple[NearMiss, ...]
    """Where it nearly did something, with the first condition that failed."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What else the pass had to say."""
    inductor: Mapping[str, Any] = field(default_factory=dict)
    """Settings of Inductor that it wants."""


IsProfitable = Callable[[str, Sequence[Node]], bool]
"""Whether a rewrite, by its name, of some nodes is not known to be slower."""

_profitable: ContextVar[IsProfitable | None] = ContextVar("_profitable", default=None)


@contextlib.contextmanager
def profitable_where(decide: IsProfitable) -> Iterator[None]:
    """Have passes that run in the block ask a function whether each of their rewrites is worth it.

    For backends that time rewrites. Elsewhere the answer is yes, and costs nothing.
    """
    token = _profitable.set(decide)
    try:
        yield
    finally:
        _profitable.reset(token)


@dataclass(slots=True)
class PassContext:
    """What a pass may know beside the graph, and where it notes what it nearly did."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the backend. A pass has its own as fields, and does not look for another's here."""
    near: list[NearMiss] = field(default_factory=list)
    level: Level = "torch"
    """Where the pass runs."""
    decompositions: Mapping[Any, Any] = field(default_factory=dict)
    """Of the graph's operators, where they are ATen's."""
    detail: dict[str, Any] = field(default_factory=dict)
    """What else it has to say: shown as it is by ``backbay explain``."""
    inductor: dict[str, Any] = field(default_factory=dict)
    """Settings of Inductor that the pass wants for this graph, by their names as options. They hold
    where it runs on Dynamo's graph and Inductor is next, but for those that the user gave."""
    alone: bool = False
    """Whether the graph is one site, taken out to be timed: what all sites of a graph decide
    together does not count."""
    is_hoisted: bool = False
    """Whether a later pass has what only parameters decide computed once, for all calls."""
    nearest: Nearest | None = None
    """Finds what nearly fits a pattern, where somebody looks on and wants to know."""
    name: str = ""
    """Of the pass."""
    whole: GraphModule | None = None
    """The graph that a `Rewrite` got, also while it is at what a checkpoint of it runs."""
    _kept: dict[Any, Any] = field(default_factory=dict)

    def note(self, node: Node, reason: str) -> None:
        """Note a near miss."""
        self.near.append(NearMiss.at(node, self.name, reason))

    @contextlib.contextmanager
    def attempt(self, node: Node, about: str = "") -> Iterator[None]:
        """Note `NotApplicable`, raised in the block, as a near miss of a node.

        So is a question that nobody can answer before the graph runs, such as whether a tensor of
        unbacked sizes is empty.

        What the block put into the graph until then is erased; it must not have replaced anything.

        Args:
            node: where the near miss is.
            about: what the reason begins with.
        """
        try:
            with revocable(node.graph):
                yield
        except NotApplicable as error:
            self.note(node, f"{about}{error}")
        except RuntimeError as error:
            if not is_data_dependent(error):
                raise
            self.note(node, f"{about}it depends on a size that is known only when it runs")

    def kept(self, key: Any, make: Callable[[], _T]) -> _T:
        """Return what is made once for a run of the pass, such as a node that many sites share.

        A node that has been erased since is made anew.
        """
        known = self._kept.get(key)
        if known is None or (isinstance(known, Node) and known._erased):  # noqa: SLF001 (no other)
            known = self._kept[key] = make()
        found: _T = known
        return found

    def check_profitable(self, nodes: Sequence[Node]) -> None:
        """Check that the pass's rewrite of some nodes is not known to be slower.

        Raises:
            NotApplicable: it was timed, and is slower.
        """
        decide = _profitable.get()
        if decide is not None and not decide(self.name, nodes):
            raise NotApplicable("it was timed here, and is slower than what Inductor makes of it")


Run = Callable[[GraphModule, PassContext], int]


# 3. The two forms of a pass


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One rewrite of a graph, which defines ``run``."""

    name: str = ""
    """By default the class's: ``fuse_gelu`` of ``FuseGelu``. The option of its name switches it."""
    level: Level = "torch"
    enabled: bool = True
    """Whether it runs where the option of its name is not given."""

    summary: ClassVar[str] = ""
    """One line for users: what it does where it is on. Default: the docstring's first."""
    requires: ClassVar[Requires] = _ANYTHING
    sources: ClassVar[tuple[Any, ...]] = ()
    """Further functions, modules or texts that decide what it does: kernels, tables. A module's own
    text is taken, not that of the modules that it imports: name each."""
    hoists: ClassVar[bool] = False
    """Whether it has what only parameters decide computed once, for all calls."""

    def __post_init__(self) -> None:
        """Name the pass.

        Raises:
            InputError: one of its sources is the name of a module.
        """
        if not self.name:
            object.__setattr__(self, "name", snake_case(type(self).__name__))
        named = next((x for x in self.decisive() if _names_module(x)), None)
        if named is not None:
            raise InputError(
                f"pass {self.name}: its source {named!r} names a module, and only the name would "
                "count: give the module itself, or its text"
            )

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Change a graph module in place; return how many changes were made.

        The code of the graph module must be made anew, ``graph_module.recompile()``, where the
        graph was changed.
        """
        raise NotImplementedError

    def wrap_codegen(self, generate: Any) -> Any:
        """Return the code generator for graphs that the pass has seen: by default, as it is.

        A pass may so leave something in a graph that only it can compile. ``generate`` takes a
        graph module and example inputs, and gives what runs it.
        """
        return generate

    def at(self, level: Level) -> "Pass":
        """Return the same pass at another level; it must be written for the graphs there."""
        return dataclasses.replace(self, level=level)

    def options(self) -> tuple[PassOption, ...]:
        """Return what users may set: whether the pass is on, and its fields made by `option`."""
        text = self.summary or _first_line(self.__doc__)
        rows = [PassOption(self.name, "bool", self.enabled, (), text)]
        for one in dataclasses.fields(self):
            if _HELP in one.metadata:
                value, choices = getattr(self, one.name), one.metadata["choices"]
                kind = type(one.default).__name__
                rows.append(PassOption(one.name, kind, value, choices, one.metadata[_HELP]))
        return tuple(rows)

    def configured(self, options: Mapping[str, Any]) -> "Pass":
        """Return the pass with its own among a backend's options."""
        names = [x.name for x in dataclasses.fields(self) if _HELP in x.metadata]
        own = {x: options[x] for x in names if x in options}
        enabled = options.get(self.name, self.enabled) is not False
        if not own and enabled == self.enabled:
            return self
        return dataclasses.replace(self, enabled=enabled, **own)

    def uuid(self) -> str:
        """Return a digest of all that decides what the pass does: its source, and our version.

        Inductor's caches take it into their keys: a pass that changes is never served stale.
        """
        fields = [getattr(self, x.name) for x in dataclasses.fields(self) if _HELP in x.metadata]
        parts = [backbay.__version__, self.name, self.level, repr(fields)]
        parts += [_source(x) for x in self.decisive()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def decisive(self) -> tuple[Any, ...]:
        """Return functions, classes, modules or texts that decide what it does."""
        return (type(self), *self.sources)


class Site(Protocol):
    """Where a rewrite may fire."""

    @property
    def node(self) -> Node:
        """What would be replaced, and where a near miss is noted."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of a rewrite's targets."""

    node: Node
    given: dict[str, Any]
    """Its arguments by the names in ``Rewrite.parameters``; what it leaves out is left out."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What takes the place of more than one node."""

    new: Mapping[Node, Node]
    """Old node to new one, in the order in which they are replaced."""
    covers: Sequence[Node]
    """All that is replaced: it is timed as one, and erased where nobody else uses it."""


SiteT = TypeVar("SiteT", bound=Site)


@dataclass(frozen=True, kw_only=True)
class Rewrite(Pass, Generic[SiteT]):
    """A pass that rewrites a graph place by place, by `replacement`.

    Sites are walked in the graph's order; requirements are checked first, then `replacement` is
    called, then the result is checked, and that gradients and autocast are not switched between
    what is replaced as one. At the first reason against it what was put in is taken back, and a
    near miss noted. Else nodes are replaced, what is left over is erased, and the code of the graph
    is made anew.
    """

    targets: ClassVar[tuple[Any, ...]] = ()
    """Functions and names of methods."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """Names of the targets' parameters, in order."""
    in_checkpoints: ClassVar[bool] = False
    """Whether it also looks into what activation checkpointing runs."""
    is_timed: ClassVar[bool] = True
    """Whether the gain depends on shapes, so that a backend that times rewrites decides."""
    removes_dead_code: ClassVar[bool] = False
    """Whether nodes that it leaves unused, wherever they stand, are removed."""

    def replacement(self, site: SiteT, context: PassContext) -> Node | Replacement | None:
        """Put what takes a site's place before it; return it, or None where it is left as it is.

        Raises:
            NotApplicable: the rewrite does not fit the site.
        """
        raise NotImplementedError

    def sites(self, graph_module: GraphModule, context: PassContext) -> Iterable[SiteT]:
        """Yield where the rewrite may fire: by default, at each call of a target."""
        for node in [x for x in graph_module.graph.nodes if is_call(x, self.targets)]:
            if node._erased:  # noqa: SLF001 (nothing else tells)
                continue
            site = None
            with context.attempt(node):
                site = self.site(Call(node, bound(node, self.parameters)), context)
            if site is not None:
                yield site

    def site(self, call: Call, context: PassContext) -> SiteT | None:  # noqa: ARG002 (of those that define it)
        """Return what a call of a target is the site of: by default, itself.

        None where the rewrite is not about such a call, and nothing is to be noted.

        Raises:
            NotApplicable: it is a near miss already.
        """
        return call  # type: ignore[return-value] # the default

    def about(self, site: SiteT) -> str:  # noqa: ARG002 (of those that define it)
        """Return what near misses of a site begin with."""
        return ""

    def is_alike(self, old: Node, new: Node) -> bool:
        """Whether nobody can tell a new node's layout from the old one's."""
        return layout(value_of(new)) == layout(value_of(old))

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Rewrite every site that fits; return how many did."""
        context.name, context.whole, total = context.name or self.name, graph_module, 0
        bodies = with_bodies(graph_module) if self.in_checkpoints else [graph_module]
        for one in bodies:
            count = 0
            for site in self.sites(one, context):
                with context.attempt(site.node, self.about(site)):
                    count += self._replaced(site, context)
            if count:
                if self.removes_dead_code:
                    erase_dead(one.graph)
                one.recompile()
            total += count
        return total

    def _replaced(self, site: SiteT, context: PassContext) -> bool:
        self.requires.check(value_of(site.node))
        found = self.replacement(site, context)
        if found is None:
            return False
        if isinstance(found, Node):
            found = Replacement({site.node: found}, [site.node])
        if not all(self.is_alike(old, new) for old, new in found.new.items()):
            raise NotApplicable("its result would be laid out otherwise")
        if context.level in DYNAMO_GRAPHS:  # elsewhere gradients and casts are operators
            _check_mode(found.covers)
        if self.is_timed:
            context.check_profitable(found.covers)
        left_over = sorted((x for x in found.covers if x not in found.new), reverse=True)
        for old, new in found.new.items():
            replace_node(old, new)
        for node in left_over:
            if not node.users:
                node.graph.erase_node(node)
        return True


def _check_mode(nodes: Sequence[Node]) -> None:
    """Check that what is replaced as one is computed in one mode: one call has no other."""
    changed = disturbed(min(nodes), max(nodes), ())
    if changed is not None:
        raise NotApplicable(changed)


# 4. Passes of functions, and of patterns


@dataclass(frozen=True, kw_only=True)
class _FunctionPass(Pass):
    function: Run
    written: tuple[Any, ...]
    """What decides what it does."""

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        return self.function(graph_module, context)

    def options(self) -> tuple[PassOption, ...]:
        text = _first_line(self.function.__doc__)
        return (PassOption(self.name, "bool", self.enabled, (), text),)

    def decisive(self) -> tuple[Any, ...]:
        return self.written


def graph_pass(
    *, level: Level = "torch", name: str | None = None, sources: tuple[Any, ...] = ()
) -> Callable[[Callable[..., int]], Pass]:
    """Return a decorator: a function of a graph module, or also of its context, becomes a pass.

    Args:
        level: which graphs it gets.
        name: by default the function's.
        sources: further functions, modules or texts that decide what it does; of a module its own
            text, not that of the modules that it imports: name each.
    """
    if level not in LEVELS:
        raise InputError(f"there is no level {level!r}; levels: {', '.join(LEVELS)}")

    def made(function: Callable[..., int]) -> Pass:
        takes_context = len(inspect.signature(function).parameters) > 1

        @functools.wraps(function)
        def run(graph_module: GraphModule, _: PassContext) -> int:
            return function(graph_module)

        return _FunctionPass(
            name=name or function.__name__,
            function=function if takes_context else run,
            level=level,
            written=(function, *sources),
        )

    return made


def rewrite_pass(
    *patterns: Pattern,
    name: str,
    level: Level = "torch",
    sources: tuple[Any, ...] = (),
    summary: str = "",
) -> Pass:
    """Make a pass of patterns, tried in order.

    Args:
        patterns: what to find, and what takes its place.
        name: of the pass.
        level: which graphs it gets.
        sources: the modules of the operators that it puts in: they decide what comes out. A
            module's own text is taken, not that of the modules that it imports: name each.
        summary: one line for users.
    """

    def run(graph_module: GraphModule, context: PassContext) -> int:
        count = 0
        for pattern in patterns:
            if context.level in DYNAMO_GRAPHS:
                done = apply(pattern, graph_module, nearest=context.nearest)
            else:
                done = apply_aten(
                    pattern, graph_module, context.decompositions, nearest=context.nearest
                )
            context.near += done.near
            count += done.count
        return count

    run.__doc__ = summary
    both = tuple(x for pattern in patterns for x in (pattern.match, pattern.replacement))
    conditions = tuple(x for pattern in patterns for x in pattern.conditions)
    tolerances = tuple(f"{x.title} {x.tolerance}" for x in patterns)
    written = (*both, *conditions, *tolerances, *sources)
    return _FunctionPass(name=name, function=run, level=level, written=written)


def snake_case(name: str) -> str:
    """Return the name of a class as that of a function."""
    return "".join(f"_{x.lower()}" if x.isupper() else x for x in name).lstrip("_")


def _first_line(text: str | None) -> str:
    return next(iter((text or "").strip().splitlines()), "").rstrip(".")


def _names_module(thing: Any) -> bool:
    """Whether a source is the name of a module that can be imported."""
    if not isinstance(thing, str) or not all(x.isidentifier() for x in thing.split(".")):
        return False
    package, dot, _ = thing.partition(".")
    if not dot:  # a word may be text, such as "code"
        return thing in sys.modules and thing not in sys.stdlib_module_names
    try:
        return importlib.util.find_spec(package) is not None  # of a package's parts it would run it
    except ValueError:  # such as of __main__
        return False


def _source(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    try:
        return _written(thing)
    except TypeError:  # it has no hash: no function or module
        return repr(thing)


# Files are read for it, and every graph that is compiled asks.
@functools.lru_cache(maxsize=1024, typed=True)
def _written(thing: Any) -> str:
    code = getattr(thing, "__code__", None)
    try:
        module = inspect.getmodule(thing)
        if module is None:
            return inspect.getsource(thing)
        # A pass calls what stands beside it: its whole module counts. To find its own lines there
        # takes longer than all the rest.
        which = f"{getattr(thing, '__qualname__', '')} {getattr(code, 'co_firstlineno', '')}"
        return which + inspect.getsource(module)
    except (OSError, TypeError):  # made at run time, or in C
        return repr(thing) if code is None else code.co_code.hex() + repr(code.co_consts)
