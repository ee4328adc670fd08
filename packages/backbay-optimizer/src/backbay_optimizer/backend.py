"""``backend="backbay"``: Inductor, after rewrites of the graph that it lacks.

Each rewrite is a pass that changes nothing unless it is sure to be right, and can be switched off
by its name::

    torch.compile(model, backend="backbay", options={"constant_masks": False})

Passes put in operators of PyTorch's, which Inductor lowers and fuses as ever, and for convolutions
Backbay's, which it calls as they are; its caches know both.
Whether they pay, and where, is measured where it is asked for, and remembered. That is also how a
GPU gets Triton kernels that were measured on others (``tuning.plan_search``)::

    torch.compile(model, backend="backbay", options={"tune": "full"})
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import GraphModule

from backbay import compile_log
from backbay.graph.effects import uses_streams
from backbay.graph.values import say_sources
from backbay.kit.backend import Backend, Compilation
from backbay.kit.codegen import Codegen, Compiled, nested_tracing
from backbay.kit.observing import unobserved
from backbay.registry import Option
from backbay_optimizer.inductor.compiling import InductorCodegen
from backbay_optimizer.kernels.elsewhere import Elsewhere, Launch, is_elsewhere, used_elsewhere
from backbay_optimizer.passes.batch_norms import batch_norms
from backbay_optimizer.passes.depthwise_convolutions import depthwise_convolutions
from backbay_optimizer.passes.eager_convolutions import eager_convolutions
from backbay_optimizer.passes.embeddings import embeddings
from backbay_optimizer.passes.few_row_linears import few_row_linears
from backbay_optimizer.passes.float8_rows import float8_rows
from backbay_optimizer.passes.fused_attention import fused_attention
from backbay_optimizer.passes.fused_convolutions import fused_convolutions
from backbay_optimizer.passes.fused_counters import fused_counters
from backbay_optimizer.passes.group_norm_silu import group_norm_silu
from backbay_optimizer.passes.horizontal_fusion import horizontal_fusion
from backbay_optimizer.passes.linear_cross_entropy import linear_cross_entropy
from backbay_optimizer.passes.linear_epilogues import linear_epilogues
from backbay_optimizer.passes.masks import constant_masks
from backbay_optimizer.passes.match_sites import MatchSites, is_site
from backbay_optimizer.passes.max_pools import max_pools
from backbay_optimizer.passes.narrow_vectors import narrow_vectors
from backbay_optimizer.passes.one_row_linears import one_row_linears
from backbay_optimizer.passes.one_token_attention import one_token_attention
from backbay_optimizer.passes.parameter_hoist import parameter_hoist
from backbay_optimizer.passes.pooled_convolutions import pooled_convolutions
from backbay_optimizer.passes.product_epilogues import product_epilogues
from backbay_optimizer.passes.rotated_heads import rotated_heads
from backbay_optimizer.passes.row_norms import row_norms
from backbay_optimizer.passes.slice_pushdown import slice_pushdown
from backbay_optimizer.passes.softmaxes import softmaxes
from backbay_optimizer.passes.space_to_depth import space_to_depth
from backbay_optimizer.passes.windowed_attention import windowed_attention

if TYPE_CHECKING:
    from backbay_optimizer.tuning.cache import Choice

_FOR_MEMORY = {linear_cross_entropy.name}
"""Rewrites that are not asked for to be faster, and stay where they are not."""
_UNMEASURED = ("unmeasured_kernels",)
"""Left out: kernels that were not measured on GPUs of this kind, whatever rewrite they are of."""


def _searched(plan: Any, launch: Launch) -> Any:
    from backbay_optimizer.tuning import plan_search  # noqa: PLC0415 (on some GPUs, if asked for)

    return plan_search.found(plan, launch)


class Optimizing(Backend):
    """Rewrites what Inductor leaves on the table, then Inductor."""

    name = "backbay"
    # Attention that is written out first: its mask may be a constant one. Masks before what is cut:
    # who is causal may be; windows after that, which are not. Strides before what is fused, which
    # wants channels in eights. Sums of one row need no merging. The hoist last: what others fold
    # may be hoisted.
    passes = (
        fused_attention,
        constant_masks,
        slice_pushdown,
        windowed_attention,
        one_token_attention,
        eager_convolutions,
        depthwise_convolutions,
        space_to_depth,
        pooled_convolutions,  # before what looks at linear layers
        group_norm_silu,
        batch_norms,
        fused_counters,
        max_pools,
        embeddings,
        replace(linear_cross_entropy, enabled=False),  # it is asked for
        softmaxes,  # before what puts something in the place of products
        float8_rows,  # likewise
        rotated_heads,
        fused_convolutions,
        one_row_linears,
        linear_epilogues,
        product_epilogues,
        few_row_linears,  # before what merges layers by a copy of their weights
        horizontal_fusion,
        row_norms,  # behind what merges their readers
        replace(parameter_hoist, enabled=False),  # it is asked for
        narrow_vectors,
    )
    options = (
        Option(
            name="tune",
            type="str",
            default="cache",
            choices=("off", "cache", "full"),
            help="full times a graph with and without its rewrites when it is first called, and "
            "keeps what is faster, with kernels that were not measured on this GPU; cache does as "
            "was found before; off asks nothing",
        ),
        Option(
            name="cuda_graphs",
            type="any",
            default="auto",
            choices=(False, True, "auto"),
            help="replay inference and training as CUDA graphs, and run as ever where that could "
            "be told; auto where it is measured to be faster, and no mode asks for torch's own",
        ),
        Option(
            name="cuda_graphs_memory",
            type="float",
            default=0.25,
            help="the part of a device's memory that CUDA graphs may hold, all together",
        ),
    )

    def __call__(
        self,
        graph_module: GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Compiled:
        """Compile one of Dynamo's graphs; torch.compile calls this."""
        given = dict(options or {})
        compiler = _GraphCompiler(
            backend=self, example_inputs=example_inputs, given=given, mode=mode, name=name
        )
        if uses_streams(graph_module):
            compiler.note("compiled as Inductor does: it chooses streams, or has one wait")
            off = (*(x.name for x in self.passes), "cuda_graphs", *_UNMEASURED)
            return compiler.compile(graph_module, off)
        tune = given.get("tune", "cache")
        if tune not in {"cache", "full"}:  # also what is no value of it, which is refused there
            return compiler.compile(graph_module, _UNMEASURED)
        from backbay_optimizer.tuning import cache, variants  # noqa: PLC0415 (14 ms, unless "off")

        key = variants.key_of(graph_module, example_inputs, self.passes, compiler.settings)
        known = cache.read(key)
        if known is not None:
            why = f"timed on {known.created[:10]}: {known}"
            compile_log.note(
                compile_log.Record(
                    asked=name or self.__name__, ran=self.codegen, why=why, timed=True
                )
            )
            return compiler.as_known(graph_module, known.off)
        if tune == "cache":
            return compiler.compile(graph_module, _UNMEASURED)
        reason = variants.untried(graph_module)
        if reason is not None:
            compiler.note(f"not timed, every rewrite kept: {reason}")
            return compiler.compile(graph_module, _UNMEASURED)
        return compiler.choosing(graph_module, functools.partial(cache.write, key))

    def _inductor(
        self, mode: str | None, options: dict[str, Any], own: Mapping[str, Any]
    ) -> Codegen:
        plain = InductorCodegen(mode, options, super()._inductor(mode, options, own))
        if own["cuda_graphs"] is False or not torch.cuda.is_available():
            return plain
        from backbay_optimizer.cuda_graphs import codegen  # noqa: PLC0415 (it is asked for)
        from backbay_optimizer.tuning import graph_timing  # noqa: PLC0415 (likewise)

        return codegen.replaying(
            mode,
            options,
            plain=plain,
            name=self.__name__,
            share=own["cuda_graphs_memory"],
            decide=graph_timing.GraphDecision if own["cuda_graphs"] == "auto" else None,
        )


@dataclass(frozen=True, kw_only=True)
class _GraphCompiler:
    """Compiles one graph: with all rewrites, or without some."""

    backend: Optimizing
    example_inputs: Sequence[Any]
    given: Mapping[str, Any]
    """Options."""
    mode: str | None
    name: str | None

    @property
    def settings(self) -> Any:
        """What times depend on, beside the graph."""
        from backbay_optimizer.cuda_graphs.codegen import known_by  # noqa: PLC0415 (unless "off")

        return self.mode, sorted((k, known_by(v)) for k, v in self.given.items() if k != "tune")

    def compile(self, graph_module: GraphModule, off: tuple[str, ...]) -> Compiled:
        """Compile the graph without some rewrites, or without them at some match sites."""
        return self._variant(graph_module, off).compilation.run

    def _variant(self, graph_module: GraphModule, off: tuple[str, ...]) -> "_Variant":
        sites = MatchSites([x for x in off if is_site(x)])
        with used_elsewhere(_searched, allowed=_UNMEASURED[0] not in off) as elsewhere:
            compilation = self._compiled(graph_module, off, sites)
        return _Variant(off, compilation, is_untried=elsewhere.asked)

    def _variant_apart(self, untouched: GraphModule, off: tuple[str, ...]) -> "_Variant":
        """Compile a copy of the graph that is being compiled."""
        with nested_tracing(self.example_inputs), unobserved():
            return self._variant(_copied(untouched), off)

    def _fewer(self, untouched: GraphModule, off: tuple[str, ...]) -> Iterator["_Variant"]:
        """Compile it without some rewrites, and without those that fire in their place; and so on.

        The last has none.
        """
        variant = self._variant_apart(untouched, off)
        yield variant
        more = [x for x in _fired(variant.compilation) if x not in off]
        if more:
            yield from self._fewer(untouched, (*off, *more))

    def as_known(self, graph_module: GraphModule, off: tuple[str, ...]) -> Compiled:
        """Compile the graph as was found; without unmeasured kernels if they fail now."""
        if _UNMEASURED[0] in off or not is_elsewhere(self.example_inputs):
            return self.compile(graph_module, off)
        untouched, sites = _copied(graph_module), MatchSites([x for x in off if is_site(x)])
        with used_elsewhere(_searched) as elsewhere:
            found = self._tried(graph_module, off, sites, elsewhere)
        return found.run if found is not None else self.compile(untouched, _UNMEASURED)

    def _compiled(
        self, graph_module: GraphModule, off: tuple[str, ...], sites: MatchSites
    ) -> Compilation:
        rewrites = (x for x in off if not is_site(x) and x not in _UNMEASURED)
        everywhere = dict.fromkeys(rewrites, False)
        with sites.asked():
            return self.backend.compile_graph(
                graph_module,
                self.example_inputs,
                mode=self.mode,
                options={**self.given, **everywhere},
                name=self.name,
            )

    def _tried(
        self,
        graph_module: GraphModule,
        off: tuple[str, ...],
        sites: MatchSites,
        elsewhere: Elsewhere,
    ) -> Compilation | None:
        """Compile the graph; None if kernels fail that were not measured here."""
        try:
            return self._compiled(graph_module, off, sites)
        except Exception as error:
            if not elsewhere.asked:
                raise
            self._note_failure("kernels left out that were not measured here", error)
            return None

    def choosing(
        self,
        graph_module: GraphModule,
        keep: "Callable[[Choice], None]",
        base: tuple[str, ...] = (),
    ) -> Compiled:
        """Compile the graph in every variant, of which the first call takes the best.

        All of them leave out what ``base`` does.
        """
        from backbay_optimizer.tuning import variants  # noqa: PLC0415 (14 ms, unless "off")

        untouched, sites = _copied(graph_module), MatchSites(keep=True)
        with used_elsewhere(_searched, allowed=not base) as elsewhere:
            whole = self._tried(graph_module, base, sites, elsewhere)
            if whole is None:
                return self.choosing(untouched, keep, _UNMEASURED)
            fired = _fired(whole)
            if not fired:
                return whole.run
            slower = self._slower(sites)
        made = {base: _Variant(base, whole, is_untried=elsewhere.asked)}
        default = _UNMEASURED if elsewhere.asked else base
        none, plain = (*base, *fired), None
        single = ((*base, x) for x in fired)
        for off in dict.fromkeys((none, default, *single, (*base, *slower))):
            if off in made:
                continue
            try:
                if off == none:
                    for plain in self._fewer(untouched, off):
                        made[plain.off] = plain
                else:
                    made[off] = self._variant_apart(untouched, off)
            except Exception as error:  # noqa: BLE001 (whatever it is, the graph itself compiled)
                self._note_failure(f"{', '.join(off)} not timed: without it", error)
        if default not in made:
            return self.compile(untouched, _UNMEASURED)
        if plain is None:
            return made[default].compilation.run
        return variants.Choosing(
            {off: x.compilation.run for off, x in made.items()},
            fired,
            self.backend.__name__,
            keep,
            plain=plain.off,
            default=default,
            untried=[off for off, x in made.items() if x.is_untried and x is not plain],
        )

    def note(self, why: str) -> None:
        """Put a line into the compile log."""
        asked = self.name or self.backend.__name__
        compile_log.note(compile_log.Record(asked=asked, ran=self.backend.codegen, why=why))

    def _note_failure(self, what: str, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        self.note(f"{what}: {said}")

    def _slower(self, sites: MatchSites) -> tuple[str, ...]:
        from backbay_optimizer.tuning import site_timing  # noqa: PLC0415 (only tune="full" asks)

        mode = "max-autotune-no-cudagraphs" if self.mode == "max-autotune" else self.mode
        mode = None if mode == "reduce-overhead" else mode  # a CUDA graph is of the whole
        generate = self.backend.code_generator(mode, self.given)
        found = sites.found.values()
        return tuple(site_timing.slower(found, self.backend.passes, generate, self.settings))


class _Variant(NamedTuple):
    """A graph that is compiled without some rewrites."""

    off: tuple[str, ...]
    """What is left out."""
    compilation: Compilation
    is_untried: bool
    """Whether it holds kernels that were not measured on this GPU."""


def _fired(compilation: Compilation) -> tuple[str, ...]:
    """Return the rewrites that changed a graph, of those that can be left out."""
    reports = compilation.reports
    return tuple(x.name for x in reports if x.changes and x.name not in _FOR_MEMORY)


def _copied(graph_module: GraphModule) -> GraphModule:
    # Its tensors are the caller's, and may be written between two calls.
    held = (*graph_module.parameters(), *graph_module.buffers())
    copied = copy.deepcopy(graph_module, {id(x): x for x in held})
    say_sources(graph_module, copied)  # else a CUDA graph copies its parameters, and is timed so
    return copied


backbay = Optimizing()
