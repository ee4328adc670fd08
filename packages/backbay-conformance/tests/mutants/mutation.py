"""Faults of mutation: writes that are lost, too early, too late, or made by nobody."""

import contextlib
from typing import Any

import torch

from mutants.graphs import follows, writes_to
from mutants.harness import (
    Backend,
    Plan,
    Run,
    aot,
    dynamo,
    instead_of,
    packet,
    storage,
)
from mutants.mutant import Compiled, Demonstration, Mutant
from mutants.numerics import aten

_AUTOGRAD: Any = torch.autograd
_READS = {aten.select: aten.select_scatter, aten.slice: aten.slice_scatter}


def after(function: Any, *inputs: torch.Tensor) -> Demonstration:
    """Return the demonstration that shows a call's result and its inputs afterwards."""

    def shown(compiled: Compiled) -> Any:
        own = [x.clone() for x in inputs]
        return compiled(function)(*own), own

    return shown


def unnoticed(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Write to a tensor without autograd's knowledge, as foreign code does."""
    preserved: contextlib.AbstractContextManager[Any] = _AUTOGRAD._unsafe_preserve_version_counter(
        x
    )
    return preserved


def _scratch(run: Run, _graph: Any, _inputs: Any) -> Run:
    def call(*args: Any) -> Any:
        versions = [x._version if isinstance(x, torch.Tensor) else 0 for x in args]
        outputs = run(*args)
        taken = {storage(x) for x in outputs if isinstance(x, torch.Tensor)}
        for x, version in zip(args, versions, strict=True):
            free = type(x) is torch.Tensor and not x.requires_grad and storage(x) not in taken
            if free and x._version == version and x.is_contiguous() and x.is_floating_point():
                with torch.no_grad(), unnoticed(x):
                    x.zero_()
                break
        return outputs

    return call


def _clones_dropped(module: torch.fx.GraphModule) -> None:
    nodes = list(module.graph.nodes)
    for i, node in enumerate(nodes):
        if node.target in {"clone", torch.clone} and node.op.startswith("call_"):
            source = node.args[0]
            if any(writes_to(later) is source for later in nodes[i:]):
                node.replace_all_uses_with(source)
                module.graph.erase_node(node)
    module.recompile()


def _bit_views_read_last(module: torch.fx.GraphModule) -> None:
    views = [
        x
        for x in module.graph.nodes
        if x.target == "view" and any(isinstance(a, torch.dtype) for a in x.args)
    ]
    late: set[torch.fx.Node] = set().union(*(follows(x) for x in views))
    outside = {writes_to(x) for x in late} - late - {None}
    if outside:  # it writes through to what others read
        return
    end = next(x for x in module.graph.nodes if x.op == "output")
    for node in [x for x in module.graph.nodes if x in late]:
        end.prepend(node)
    module.recompile()


def _reads_before_write(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        written = node.args[0] if node.args else None
        scatter = _READS.get(packet(node.target))
        if scatter is None or not isinstance(written, torch.fx.Node):
            continue
        if packet(written.target) is scatter and written.args[2:] == node.args[1:]:
            node.update_arg(0, written.args[0])
    module.recompile()


def _without_dead_writes(module: torch.fx.GraphModule) -> None:
    for node in reversed(list(module.graph.nodes)):
        if writes_to(node) is not None and not node.users:
            module.graph.erase_node(node)
    module.recompile()


def _biased_running_variance(op: Any, *args: Any, **kwargs: Any) -> Any:
    right = list(op(*args, **kwargs))
    x, old, momentum = args[0], args[4], args[6]
    count = x.numel() // x.size(1)
    kept = (1 - momentum) * old
    right[4] = kept + (right[4] - kept) * (1 - 1 / count)
    return tuple(right)


def _sunk(x: torch.Tensor) -> torch.Tensor:
    y = x.view(torch.int32) * 2
    x[0] = 5.0
    return y


def _copied_first(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    x.add_(1)
    return y * 2


def _added_twice(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[0] += x[0]
    y[0] += x[0]
    return y


def _summed_twice(x: torch.Tensor) -> Any:
    before = x.sum()
    x.add_(1)
    return before, x.sum()


def _running(compiled: Compiled) -> Any:
    norm = torch.nn.BatchNorm1d(2)
    compiled(norm)(torch.arange(6.0).view(3, 2) ** 2)
    return norm.running_var


def _backend(name: str, plan: Plan) -> Backend:
    return Backend(name, dynamo(plan))


FAULTS = [
    Mutant(
        name="input_used_as_scratch",
        family="mutation",
        fault="The memory of an input is used for something else once the input has been read.",
        level="contract",
        compiler=_backend("input_used_as_scratch", Plan(around=_scratch)),
        shown_by=after(torch.sin, torch.ones(3)),
    ),
    Mutant(
        name="copy_dropped_before_write",
        family="mutation",
        fault="A copy of a tensor is taken for the tensor itself, which is changed afterwards.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/198131",
        compiler=_backend("copy_dropped_before_write", Plan(rewrite=_clones_dropped)),
        shown_by=after(_copied_first, torch.ones(3)),
    ),
    Mutant(
        name="bit_view_read_after_write",
        family="mutation",
        fault="What is computed from a view of an input in another dtype is computed at the end, "
        "after the input was changed.",
        level="programs",
        link="https://github.com/pytorch/pytorch/issues/198101",
        compiler=_backend("bit_view_read_after_write", Plan(rewrite=_bit_views_read_last)),
        shown_by=after(_sunk, torch.ones(3)),
    ),
    Mutant(
        name="part_read_before_write",
        family="mutation",
        fault="A part that was just written is read as it was before.",
        level="contract",
        link="https://github.com/pytorch/pytorch/issues/136662",
        compiler=Backend("part_read_before_write", aot(Plan(rewrite=_reads_before_write))),
        shown_by=after(_added_twice, torch.ones(3, 2)),
    ),
    Mutant(
        name="write_is_dead_code",
        family="mutation",
        fault="An operator in place whose result is not used is dropped as dead code.",
        level="contract",
        compiler=_backend("write_is_dead_code", Plan(rewrite=_without_dead_writes)),
        shown_by=after(_summed_twice, torch.ones(3)),
    ),
    Mutant(
        name="running_variance_is_biased",
        family="mutation",
        fault="Batch norm moves its running variance towards the biased variance of the batch.",
        level="contract",
        compiler=Backend(
            "running_variance_is_biased",
            aot(
                Plan(
                    faults=instead_of(
                        {aten._native_batch_norm_legit_functional: _biased_running_variance}
                    )
                )
            ),
        ),
        shown_by=_running,
    ),
]
