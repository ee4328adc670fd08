"""Which match sites of a graph are slower for their rewrite, each timed alone.

A site is compiled twice as a graph of its own, as it was and as its rewrite makes it, and both are
called in turns on random numbers of its sizes and strides. That says less than timing the whole
graph, whose fusions around the site it does not see; so it only proposes what is then timed whole.
"""

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._guards import tracing
from torch.fx import GraphModule

from backbay.graph.values import are_numbers, value_of
from backbay.kit.codegen import Codegen
from backbay.kit.passes import Pass, PassContext
from backbay_optimizer.passes.match_sites import MatchSite
from backbay_optimizer.tuning import cache, variants
from backbay_optimizer.tuning.cache import PairTiming

BUDGET_S = 0.5
"""Seconds for the timing of one match site."""


def slower(
    sites: Iterable[MatchSite], passes: Sequence[Pass], generate: Codegen, settings: Any
) -> Iterator[str]:
    """Yield the names of match sites that are shown to be faster without their rewrite.

    What can't be timed alone is not among them: a symbolic size, an input of integers, a site that
    its pass does not rewrite when it stands alone.

    Args:
        sites: those where rewrites fired.
        passes: among them the rewrites.
        generate: compiles a graph.
        settings: what ``generate`` does it with: anything whose ``repr`` tells it apart.
    """
    by_name = {x.name: x for x in passes}
    for site in sites:
        found = _found(site, by_name, generate, settings)
        if found is not None and found.interval[0] > 1.0:
            yield site.name


def _found(
    site: MatchSite, passes: Mapping[str, Pass], generate: Codegen, settings: Any
) -> PairTiming | None:
    values = [value_of(x) for x in site.region.graph.find_nodes(op="placeholder")]
    if not all(map(_can_be_made, values)):
        return None
    rewrite = passes[site.rewrite]
    around = variants.surroundings(), variants.machine(values)
    parts = (site.name, rewrite.uuid(), settings, around)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    known = cache.read_timing(key)
    if known is not None:
        return known
    try:
        found = _measured(site.region, rewrite, [_made(x) for x in values], generate)
    except Exception:  # noqa: BLE001 (whatever it is: the site is timed with the whole graph)
        return None
    if found is not None:
        cache.write_timing(key, found)
    return found


def _can_be_made(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    if not value.is_floating_point() and value.dtype != torch.bool:
        return False  # random numbers may be indices out of range
    sizes = (*value.shape, *value.stride())
    return are_numbers(sizes) and value.numel() > 0 and 0 not in value.stride()


def _made(value: torch.Tensor) -> torch.Tensor:
    """Return positive numbers, as one may be a variance; of a mask, True."""
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if value.dtype == torch.bool:
        return made.fill_(True)  # noqa: FBT003 (the value)
    drawn = torch.Generator(value.device).manual_seed(0)
    return made.uniform_(0.5, 1.5, generator=drawn)


def _measured(
    region: GraphModule, rewrite: Pass, inputs: Sequence[Any], generate: Codegen
) -> PairTiming | None:
    rewritten = copy.deepcopy(region)
    if not rewrite.run(rewritten, PassContext(alone=True)):
        return None
    # Apart from the graph that is being compiled: neither its fake tensors nor its guards are ours.
    with tracing(None), torch.no_grad():
        arms = {variants.ALL: generate(rewritten, inputs)}
        without = (rewrite.name,)
        arms[without] = generate(copy.deepcopy(region), inputs)
        return variants.compared(arms, without, inputs, BUDGET_S)
