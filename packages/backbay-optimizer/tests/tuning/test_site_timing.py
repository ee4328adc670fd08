"""Match sites are timed alone; a rewrite that is slower at one is left out there alone."""

import time

import pytest
import torch
from measurements import kept_keys, spoil
from torch.library import Library

from backbay import compile_log
from backbay.graph.region import digest
from backbay.graph.rewrite import call_before, replace_node
from backbay.graph.values import value_of
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from backbay_optimizer.backend import Optimizing
from backbay_optimizer.passes.match_sites import MatchSite, MatchSites
from backbay_optimizer.tuning import cache, site_timing, variants
from backbay_optimizer.tuning.cache import PairTiming

LARGE = 100
PAUSE_S = 0.003

_library = Library("site_timing", "FRAGMENT")
for name in ("slow_if_small", "slow_if_large"):
    _library.define(f"{name}(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def _slow_if_small(x):
    time.sleep(PAUSE_S * (x.numel() < LARGE))
    return x * 2


def _slow_if_large(x):
    time.sleep(PAUSE_S * (x.numel() >= LARGE))
    return x * 2


for _name, _kernel in (("slow_if_small", _slow_if_small), ("slow_if_large", _slow_if_large)):
    _library.impl(_name, _kernel, "CPU")
    torch.library.register_fake(f"site_timing::{_name}", lambda x: x * 2, lib=_library)

BEFORE = torch.ops.site_timing.slow_if_small.default
AFTER = torch.ops.site_timing.slow_if_large.default


@graph_pass(level="torch", name="swap")
def swap(graph_module, context):
    """Put what is slow of much in place of what is slow of little."""
    count = 0
    for node in [n for n in graph_module.graph.nodes if n.target is BEFORE]:
        with context.attempt(node):
            context.check_profitable([node])
            replace_node(node, call_before(node, AFTER, *node.args))
            count += 1
    graph_module.recompile()
    return count


class Swapping(Optimizing):
    name = "swapping"
    passes = (swap,)


def program(small, large):
    return BEFORE(small) + BEFORE(large + 1).sum() + BEFORE(small - 1)


def inputs():
    return torch.ones(3), torch.ones(LARGE)


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(variants, "BUDGET_S", 0.2)
    monkeypatch.setattr(site_timing, "BUDGET_S", 0.05)
    torch.compiler.reset()
    compile_log.clear()
    yield
    torch.compiler.reset()


def compiled(backend, tune="full"):
    return torch.compile(program, backend=backend, options={"tune": tune})


def kept(tmp_path):
    return kept_keys(tmp_path, PairTiming)


def test_a_rewrite_holds_everywhere_or_nowhere(tmp_path, reports):
    backend = Swapping()
    state = torch.get_rng_state()
    with torch.no_grad():
        torch.testing.assert_close(compiled(backend)(*inputs()), program(*inputs()))
    assert torch.equal(state, torch.get_rng_state())
    (graph,) = kept_keys(tmp_path, cache.Choice)
    off = cache.read(graph).off
    assert [x.partition("@")[0] for x in off] == ["swap"]
    assert "swap kept; swap at 1 kind of match site left out" in compile_log.records()[-1].why
    assert len(kept(tmp_path)) == 2  # the two small ones are of a kind

    torch.compiler.reset()  # as another process
    reports.clear()
    with torch.no_grad():
        torch.testing.assert_close(compiled(backend, "cache")(*inputs()), program(*inputs()))
    assert [x.changes for x in reports] == [2]


def test_a_site_is_timed_again_in_another_graph(monkeypatch):
    measured = []
    real = site_timing._measured
    monkeypatch.setattr(site_timing, "_measured", lambda *given: measured.append(1) or real(*given))
    with torch.no_grad():
        compiled(Swapping())(*inputs())
        torch.compile(lambda x: BEFORE(x * 3).sum(), backend=Swapping(), options={"tune": "full"})(
            torch.ones(LARGE)
        )
    assert len(measured) == 2


def sites_of(function, *args, dynamic=False):
    sites = MatchSites(keep=True)

    class Asking(Backend):
        passes = (swap,)
        codegen = "eager"

    with torch.no_grad(), sites.asked():
        torch.compile(function, backend=Asking(), dynamic=dynamic)(*args)
    return sites.found


def slower(found, generate=None, rewrite=swap):
    def as_it_is(graph_module, _):
        return graph_module.forward

    return list(site_timing.slower(found.values(), (rewrite,), generate or as_it_is, None))


def test_the_slower_of_two_sites_is_another():
    found = sites_of(program, *inputs())
    assert len(found) == 2
    (name,) = slower(found)
    (given,) = found[name].region.graph.find_nodes(op="placeholder")
    assert value_of(given).numel() == LARGE


def test_what_only_all_sites_of_a_graph_decide_refuses_each_alone():
    @graph_pass(level="torch", name="swap")
    def swap_two(graph_module, context):
        """Rewrite where a graph has two match sites, or is one."""
        count = sum(n.target is BEFORE for n in graph_module.graph.nodes)
        return swap.run(graph_module, context) if context.alone or count > 1 else 0

    found = sites_of(program, *inputs())
    assert len(slower(found, rewrite=swap_two)) == 1


def test_what_is_told_apart_is_names_of_nodes():
    one = sites_of(lambda x: BEFORE(x + 1), torch.ones(LARGE))
    other = sites_of(lambda y: BEFORE((y * 2).sin()).cos(), torch.ones(LARGE))
    assert one.keys() == other.keys()
    for x in (torch.ones(LARGE + 1), torch.ones(2 * LARGE)[::2], torch.ones(LARGE).double()):
        assert sites_of(lambda y: BEFORE(y), x).keys() != one.keys()


NOT_ALONE = {
    "integers": torch.ones(LARGE, dtype=torch.int64),
    "nothing": torch.ones(0),
    "memory that overlaps": torch.ones(1).expand(LARGE),
}


@pytest.mark.parametrize("x", NOT_ALONE.values(), ids=NOT_ALONE)
def test_numbers_are_made_up_that_may_be_wrong(x, tmp_path):
    found = sites_of(BEFORE, x)
    assert len(found) == 1
    assert not slower(found)
    assert not kept(tmp_path)


def test_a_symbol_is_timed_at_some_size(monkeypatch):
    made = []
    monkeypatch.setattr(site_timing, "_made", made.append)
    x = torch.ones(LARGE)
    torch._dynamo.mark_dynamic(x, 0)
    found = sites_of(BEFORE, x, dynamic=None)
    assert len(found) == 1
    assert not slower(found)
    assert not made


def test_what_cannot_be_compiled_alone_stops_the_model(tmp_path):
    def refuses(*_):
        raise RuntimeError("out of memory")

    assert not slower(sites_of(program, *inputs()), refuses)
    assert not kept(tmp_path)


def test_a_site_that_its_pass_leaves_alone_is_timed():
    (site,) = sites_of(BEFORE, torch.ones(LARGE)).values()
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    for node, like in zip(graph.graph.nodes, site.region.graph.nodes, strict=True):
        node.meta = dict(like.meta)
    other = MatchSite(rewrite="swap", name=f"swap@{digest(graph.graph)}", region=graph)
    assert not slower({"": other})


def test_nothing_is_taken_out_where_nobody_asks(monkeypatch):
    def refuse(_):
        raise AssertionError("taken out")

    monkeypatch.setattr("backbay_optimizer.passes.match_sites.taken_out", refuse)
    with torch.no_grad():
        torch.testing.assert_close(compiled(Swapping(), "cache")(*inputs()), program(*inputs()))


@pytest.mark.parametrize(("low", "expected"), [(1.001, 1), (0.999, 0)])
def test_noise_leaves_a_site_out(monkeypatch, low, expected):
    found = PairTiming(ratio=1.1, interval=(low, 1.2), created="")
    monkeypatch.setattr(cache, "read_timing", lambda _: found)
    assert len(slower(sites_of(BEFORE, torch.ones(LARGE)))) == expected


def test_a_broken_entry_is_trusted(tmp_path):
    found = PairTiming(ratio=1.5, interval=(1.4, 1.6), created="now")
    cache.write_timing("key", found)
    assert cache.read_timing("key") == found
    assert cache.read("key") is None
    spoil(tmp_path)
    assert cache.read_timing("key") is None
