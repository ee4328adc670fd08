"""``backend="backbay"``: Inductor, after rewrites of the graph that it lacks.

Each rewrite is a pass that changes nothing unless it is sure to be right, and can be switched off
by its name::

    torch.compile(model, backend="backbay", options={"constant_masks": False})

Passes put in operators of PyTorch's, which Inductor lowers and fuses as ever, and for convolutions
Backbay's, which it calls as they are; its caches know both.
Whether they pay, and where, is measured where it is asked for, and remembered::

    torch.compile(model, backend="backbay", options={"tune": "full"})
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from backbay import compile_log
from backbay.backends import choices, place_timing, tuning
from backbay.graph.sources import say_sources
from backbay.kit.backend import Backend
from backbay.kit.codegen import Codegen, Compiled, apart
from backbay.kit.places import Places
from backbay.passes import (
    constant_masks,
    eager_convolutions,
    early_selection,
    folded_strides,
    fused_attention,
    fused_convolutions,
    linear_epilogues,
    merged_linears,
    one_row_linears,
    one_token_attention,
    parameter_hoist,
    windowed_attention,
)
from backbay.registry import Option


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
        early_selection,
        windowed_attention,
        one_token_attention,
        eager_convolutions,
        folded_strides,
        fused_convolutions,
        one_row_linears,
        linear_epilogues,
        merged_linears,
        parameter_hoist,
    )
    options = (
        Option(
            name="constant_masks",
            type="bool",
            default=True,
            help="attention without masks that are causal, or hide nothing, in every call",
        ),
        Option(
            name="early_selection",
            type="bool",
            default=True,
            help="rows that are cut away at the end are not computed",
        ),
        Option(
            name="eager_convolutions",
            type="bool",
            default=True,
            help="on a CPU, convolutions of more weights than activations are as eager's",
        ),
        Option(
            name="folded_strides",
            type="bool",
            default=True,
            help="on CUDA, strided convolutions of few channels read blocks of pixels as channels",
        ),
        Option(
            name="fused_attention",
            type="bool",
            default=True,
            help="on CUDA, attention that is written out with a bias or a mask is one call",
        ),
        Option(
            name="fused_convolutions",
            type="bool",
            default=True,
            help="on CUDA, convolution, batch norm, sum and ReLU are one call, in inference",
        ),
        Option(
            name="linear_epilogues",
            type="bool",
            default=True,
            help="on CUDA, a linear layer with its ReLU or GELU by tanh is one call, in inference",
        ),
        Option(
            name="merged_linears",
            type="bool",
            default=True,
            help="linear layers that read the same are one: in inference with parameter_hoist, in "
            "training on CUDA",
        ),
        Option(
            name="one_row_linears",
            type="bool",
            default=True,
            help="on CUDA, linear layers of one row are sums that Inductor fuses, in inference",
        ),
        Option(
            name="one_token_attention",
            type="bool",
            default=True,
            help="on CUDA, one query attends to a cache that is not repeated for each head",
        ),
        Option(
            name="parameter_hoist",
            type="bool",
            default=False,
            help="what only parameters decide is computed once, in inference, and anew when the "
            "version of one changes; a write through .data changes none and goes unseen",
        ),
        Option(
            name="tune",
            type="str",
            default="cache",
            choices=("off", "cache", "full"),
            help="full times a graph with and without its rewrites when it is first called, and "
            "keeps what is faster; cache does as was found before; off asks nothing",
        ),
        Option(
            name="windowed_attention",
            type="bool",
            default=True,
            help="on CUDA, attention with a constant window computes what lies in it",
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
        variants = _Variants(
            backend=self, example_inputs=example_inputs, given=given, mode=mode, name=name
        )
        tune = given.get("tune", "cache")
        if tune not in {"cache", "full"}:  # also what is no value of it, which is refused there
            return variants.compile(graph_module)
        key = tuning.key_of(graph_module, example_inputs, self.passes, variants.settings)
        known = choices.read(key)
        if known is not None:
            why = f"timed on {known.created[:10]}: {known}"
            compile_log.note(
                compile_log.Record(
                    asked=name or self.__name__, ran=self.codegen, why=why, timed=True
                )
            )
            return variants.compile(graph_module, known.off)
        if tune == "cache":
            return variants.compile(graph_module)
        return variants.choosing(graph_module, functools.partial(choices.write, key))

    def generator_of(self, mode: str | None, options: Mapping[str, Any]) -> Codegen:
        """Give what compiles a graph when all rewrites are done.

        Args:
            mode: as torch.compile takes it.
            options: this backend's, and Inductor's.
        """
        return self._generator([], *self._options(options), mode)


@dataclass(frozen=True, kw_only=True)
class _Variants:
    """One graph, compiled with all rewrites, or without some."""

    backend: Optimizing
    example_inputs: Sequence[Any]
    given: Mapping[str, Any]
    """Options."""
    mode: str | None
    name: str | None

    @property
    def settings(self) -> Any:
        """What times depend on, beside the graph."""
        return self.mode, sorted((k, repr(v)) for k, v in self.given.items() if k != "tune")

    def compile(
        self,
        graph_module: GraphModule,
        off: tuple[str, ...] = tuning.ALL,
        places: Places | None = None,
    ) -> Compiled:
        """Compile the graph without some rewrites, or without them at some places."""
        everywhere = dict.fromkeys((x for x in off if not choices.is_place(x)), False)
        places = places or Places([x for x in off if choices.is_place(x)])
        with places.asked():
            return Backend.__call__(
                self.backend,
                graph_module,
                self.example_inputs,
                mode=self.mode,
                options={**self.given, **everywhere},
                name=self.name,
            )

    def choosing(
        self, graph_module: GraphModule, keep: Callable[[choices.Choice], None]
    ) -> Compiled:
        """Compile the graph in every variant, of which the first call takes the best."""
        untouched, places, reports = _copied(graph_module), Places(keep=True), self.backend.reports
        before = len(reports)
        arms = {tuning.ALL: self.compile(graph_module, places=places)}
        with_all = reports[before:]
        fired = tuple(x.name for x in with_all if x.changes)
        if not fired:
            return arms[tuning.ALL]
        variants = dict.fromkeys((fired, *((x,) for x in fired), self._slower(places)))
        for off in (x for x in variants if x not in arms):
            with apart(self.example_inputs):
                arms[off] = self.compile(_copied(untouched), off)
        reports[before:] = with_all  # of what runs unless a variant is faster
        return tuning.Choosing(arms, fired, self.backend.__name__, keep)

    def _slower(self, places: Places) -> tuple[str, ...]:
        mode = "max-autotune-no-cudagraphs" if self.mode == "max-autotune" else self.mode
        mode = None if mode == "reduce-overhead" else mode  # a CUDA graph is of the whole
        generate = self.backend.generator_of(mode, self.given)
        found = places.found.values()
        return tuple(place_timing.slower(found, self.backend.passes, generate, self.settings))


def _copied(graph_module: GraphModule) -> GraphModule:
    copied = copy.deepcopy(graph_module)
    say_sources(graph_module, copied)  # else a CUDA graph copies its parameters, and is timed so
    return copied


backbay = Optimizing()
