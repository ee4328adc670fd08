"""``backend="backbay"``: Inductor, after rewrites of the graph that it lacks.

Each rewrite is a pass that changes nothing unless it is sure to be right, and can be switched off
by its name::

    torch.compile(model, backend="backbay", options={"constant_masks": False})

Passes put in operators of PyTorch's, which Inductor lowers and fuses as ever, and for convolutions
two of Backbay's, which it calls as they are; its caches know both.
Whether they pay is measured where it is asked for, and remembered::

    torch.compile(model, backend="backbay", options={"tune": "full"})
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from backbay import ledger
from backbay.backends import choices, tuning
from backbay.graph.sources import say_sources
from backbay.kit.backend import Backend
from backbay.kit.codegen import Compiled, apart
from backbay.passes import (
    constant_masks,
    eager_convolutions,
    early_selection,
    fused_convolutions,
    linear_epilogues,
    merged_linears,
    one_token_attention,
    parameter_hoist,
)
from backbay.registry import Option

Compile = Callable[[GraphModule, tuple[str, ...]], Compiled]
"""Compiles a graph, and leaves some rewrites out."""


class Optimizing(Backend):
    """Rewrites what Inductor leaves on the table, then Inductor."""

    name = "backbay"
    # Masks first: who is causal may be cut. The hoist last: what others fold may be hoisted.
    passes = (
        constant_masks,
        early_selection,
        one_token_attention,
        eager_convolutions,
        fused_convolutions,
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
            help="with parameter_hoist, linear layers that read the same are one, in inference",
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
        plain = functools.partial(super().__call__, mode=mode, name=name)
        tune = given.get("tune", "cache")
        if tune not in {"cache", "full"}:  # also what is no value of it, which is refused below
            return plain(graph_module, example_inputs, options=given)

        def compile_(graph: GraphModule, off: tuple[str, ...]) -> Compiled:
            return plain(graph, example_inputs, options=given | dict.fromkeys(off, False))

        asked = sorted((k, repr(v)) for k, v in given.items() if k != "tune")
        key = tuning.key_of(graph_module, example_inputs, self.passes, (mode, asked))
        known = choices.read(key)
        if known is not None:
            why = f"timed on {known.created[:10]}: {known}"
            ledger.note(ledger.Record(asked=name or self.__name__, ran=self.codegen, why=why))
            return compile_(graph_module, known.off)
        if tune == "cache":
            return compile_(graph_module, tuning.ALL)
        return self._choosing(compile_, graph_module, example_inputs, key)

    def _choosing(
        self, compile_: Compile, graph_module: GraphModule, example_inputs: Sequence[Any], key: str
    ) -> Compiled:
        untouched = _copied(graph_module)
        before = len(self.reports)
        arms = {tuning.ALL: compile_(graph_module, tuning.ALL)}
        reports = self.reports[before:]
        fired = tuple(x.name for x in reports if x.changes)
        if not fired:
            return arms[tuning.ALL]
        for off in dict.fromkeys((fired, *((x,) for x in fired))):
            with apart(example_inputs):
                arms[off] = compile_(_copied(untouched), off)
        self.reports[before:] = reports  # of what runs unless a variant is faster
        keep = functools.partial(choices.write, key)
        return tuning.Choosing(arms, fired, self.__name__, keep)


def _copied(graph_module: GraphModule) -> GraphModule:
    copied = copy.deepcopy(graph_module)
    say_sources(graph_module, copied)  # else a CUDA graph copies its parameters, and is timed so
    return copied


backbay = Optimizing()
