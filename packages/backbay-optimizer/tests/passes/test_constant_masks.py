import functools
import gc
from itertools import accumulate

import pytest
import torch
import torch.distributed as dist
from torch.fx.passes.split_module import split_module
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils.checkpoint import checkpoint

from backbay.graph import constant
from backbay.graph.layouts import Layouts
from backbay.graph.rewrite import replace_node
from backbay.graph.values import value_of
from backbay.kit.pipeline import run_passes
from backbay_optimizer.passes import attention
from backbay_optimizer.passes.masks import constant_masks

SHAPE = (2, 4, 6, 8)


def tensors(*, heads=4, keys=6, dtype=torch.float32, train=False):
    """Return query, key and value: (2, 4, 6, 8), and the others with their own heads and length."""
    torch.manual_seed(0)
    shapes = (SHAPE, (2, heads, keys, 8), (2, heads, keys, 8))
    return [torch.randn(x, dtype=dtype).requires_grad_(train) for x in shapes]


def attend(mask_of, **keywords):
    return lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask_of(q, k), **keywords
    )


def rows(n):
    return torch.arange(n)[:, None]


CAUSAL = {
    "comparison": lambda q, k: rows(6) >= torch.arange(6),
    "tril": lambda q, k: torch.ones(6, 6).tril() > 0,
    "tril of booleans": lambda q, k: torch.ones(6, 6, dtype=torch.bool).tril(),
    "for each sequence": lambda q, k: (rows(6) >= torch.arange(6)).expand(2, 1, 6, 6),
    "and all": lambda q, k: (rows(6) >= torch.arange(6)) & torch.ones(6, 6, dtype=torch.bool),
    "minus infinity": lambda q, k: torch.full((6, 6), float("-inf")).triu(1),
    "the lowest number": lambda q, k: torch.full((6, 6), torch.finfo(torch.float32).min).triu(1),
    "a window that is wide enough": lambda q, k: (
        (rows(6) >= torch.arange(6)) & (rows(6) - torch.arange(6) < 6)
    ),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask_of", CAUSAL.values(), ids=CAUSAL)
def test_a_causal_mask_is_missed(look, mask_of, train):
    given = tensors(train=train)
    seen = look(attend(mask_of), *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": True}
    assert not seen.calls("arange") + seen.calls("tril") + seen.calls("full")
    torch.testing.assert_close(seen.result, F.scaled_dot_product_attention(*given, is_causal=True))


@pytest.mark.parametrize("inside", [False, True], ids=["off", "on"])
def test_a_result_that_autocast_rounds_is_missed(look, inside):
    def under_autocast(q, k, v):
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return attend(CAUSAL["tril"])(q, k, v)

    given = tensors()
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        seen = look(under_autocast, *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1
    assert seen.result.dtype == (torch.bfloat16 if inside else torch.float32)
    torch.testing.assert_close(seen.result, under_autocast(*given))


@pytest.mark.parametrize(
    "mask_of",
    [
        lambda q, k: torch.ones(6, 6, dtype=torch.bool),
        lambda q, k: torch.zeros(2, 1, 6, 6),
        lambda q, k: torch.ones(1, 1, dtype=torch.bool),
    ],
)
def test_a_mask_that_hides_nothing_is_missed(look, mask_of):
    given = tensors()
    seen = look(attend(mask_of), *given, passes=[constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {}
    torch.testing.assert_close(seen.result, F.scaled_dot_product_attention(*given))


def test_a_mask_that_hides_nothing_of_a_longer_past_is_missed(look):
    given = tensors(keys=9)
    seen = look(attend(lambda q, k: torch.ones(6, 9) > 0), *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1


BUFFER = torch.ones(6, 6, dtype=torch.bool).tril()
NEITHER = {
    "an input": (lambda q, k: q[0, 0, :, :6] > 0, "depends on the input"),
    "a tensor of the model": (lambda q, k: BUFFER, "depends on the input"),
    "a window": (
        lambda q, k: (rows(6) >= torch.arange(6)) & (rows(6) - torch.arange(6) < 3),
        "neither causal nor empty: it is a window of 2 keys back and 0 ahead",
    ),
    "strictly causal": (
        lambda q, k: rows(6) > torch.arange(6),
        "neither causal nor empty: it lets 42% of all pairs through",
    ),
    "reversed": (lambda q, k: rows(6) <= torch.arange(6), "neither causal"),
    "one pair less": (
        lambda q, k: (rows(6) >= torch.arange(6)) & (rows(6) * 6 + torch.arange(6) != 30),
        "neither causal",
    ),
    "causal for one sequence of two": (
        lambda q, k: (rows(6) >= torch.arange(6)) | (torch.arange(2)[:, None, None, None] > 0),
        "neither causal",
    ),
    "a bias": (lambda q, k: torch.arange(6)[None] * 0.5, "a bias"),
    "a random mask": (lambda q, k: torch.rand(6, 6) > 0.5, "random"),
}


@pytest.mark.parametrize(("mask_of", "why"), NEITHER.values(), ids=NEITHER)
def test_a_mask_that_is_neither_is_taken_away(look, mask_of, why):
    given = tensors()
    torch.manual_seed(1)
    seen = look(attend(mask_of), *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]
    assert why in seen.near[0]


def test_a_causal_mask_over_a_longer_past_becomes_torchs_other_corner(look):
    # is_causal aligns the first query with the first key; this mask the last with the last.
    given = tensors(keys=9)
    seen = look(
        attend(lambda q, k: rows(6) + 3 >= torch.arange(9)), *given, passes=[constant_masks]
    )
    assert not seen.changes["constant_masks"]
    assert "a window of 8 keys back and 0 ahead" in seen.near[0]


def test_a_mask_that_is_written_to_is_taken_as_it_was_made(look):
    def attended(q, k, v):
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        mask[5, 0] = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]
    assert "written to" in seen.near[0]


def test_a_mask_of_a_symbolic_size_is_guessed(look):
    def attended(q, k, v):
        n = q.shape[2]
        mask = torch.arange(n)[:, None] >= torch.arange(n)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks], dynamic=True)
    assert not seen.changes["constant_masks"]
    assert seen.near


def test_one_mask_of_several_layers_is_kept_for_one(look):
    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        first = F.scaled_dot_product_attention(q, k, v, mask, 0.0)
        second = F.scaled_dot_product_attention(first, k, v, attn_mask=mask, scale=0.3)
        return second + mask[0, 0]

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 2
    assert {x.kwargs.get("scale") for x in seen.nodes("scaled_dot_product_attention")} == {
        None,
        0.3,
    }
    torch.testing.assert_close(seen.result, attended(*given))


REPEATED = {
    "index": lambda k: k[:, :, None, :, :].expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8),
    "unsqueeze": lambda k: k.unsqueeze(2).expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8),
    "interleaved": lambda k: torch.repeat_interleave(k, 2, dim=1),
    "interleaved method": lambda k: k.repeat_interleave(2, dim=1),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("repeated", REPEATED.values(), ids=REPEATED)
def test_repeated_heads_are_missed(look, repeated, train):
    given = tensors(heads=2, train=train)

    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    seen = look(attended, *given, passes=[constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": True, "enable_gqa": True}
    assert not seen.calls("expand") + seen.calls("repeat_interleave")
    torch.testing.assert_close(seen.result, attended(*given))


@pytest.mark.parametrize("repeated", REPEATED.values(), ids=REPEATED)
def test_heads_whose_number_is_a_symbol_raise(look, repeated):
    def attended(q, k, v):
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v))

    q, k, v = (torch.randn(2, heads, 6, 8) for heads in (4, 2, 2))
    seen = look(attended, q, k, v, passes=[constant_masks], dynamic=True)
    torch.testing.assert_close(seen.result, attended(q, k, v))


def test_keys_that_are_written_after_they_were_repeated_are_read_as_they_are_then(look):
    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        wide = REPEATED["index"](k), REPEATED["index"](v)
        v.mul_(0.5)
        return F.scaled_dot_product_attention(q, *wide, attn_mask=mask)

    seen = look(attended, *tensors(heads=2), passes=[constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": True}
    torch.testing.assert_close(seen.result, attended(*tensors(heads=2)))


@pytest.mark.parametrize("repeated", REPEATED.values(), ids=REPEATED)
def test_keys_that_are_written_once_they_are_repeated_are_read_as_they_were(look, repeated):
    def attended(q, k, v):
        k, v = repeated(k), repeated(v)
        v.mul_(0.5)
        return F.scaled_dot_product_attention(q, k, v)

    given = tensors(heads=2)
    seen = look(attended, *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]
    torch.testing.assert_close(seen.result, attended(*given))


def test_keys_that_are_written_before_backward_raise(look):
    def attended(q, k, v):
        k, v = k.sin(), v.sin()
        y = F.scaled_dot_product_attention(q, *map(REPEATED["index"], (k, v)))
        k.mul_(0.5)
        return y

    given = tensors(heads=2, train=True)
    seen = look(attended, *given, passes=[constant_masks])
    ours, right = (torch.autograd.grad(x.sum(), given) for x in (seen.result, attended(*given)))
    torch.testing.assert_close(ours, right)


NOT_REPEATED = {
    "another dimension": lambda k: k.unsqueeze(1).expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8),
    "tiled": lambda k: k.repeat(1, 2, 1, 1),
    "another order": lambda k: k[:, [0, 1, 0, 1]],
}


@pytest.mark.parametrize("repeated", NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_heads_in_another_order_are_taken_for_groups(look, repeated):
    given = tensors(heads=2)

    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    seen = look(attended, *given, passes=[constant_masks])
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs == {"is_causal": True}
    torch.testing.assert_close(seen.result, attended(*given))


def test_heads_stay_repeated_where_a_mask_stays(look):
    given = tensors(heads=2)
    repeated = REPEATED["index"]

    def attended(q, k, v):
        mask = q[0, 0, :, :6] > 0
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    seen = look(attended, *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]


def test_the_option_of_its_name_leaves_it_on(look):
    offered = {"constant_masks": False}
    seen = look(attend(CAUSAL["tril"]), *tensors(), passes=[constant_masks], options=offered)
    assert not seen.changes
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.kwargs["attn_mask"] is not None


def under_checkpoints(mask_of, *, times=1):
    """Attend inside a checkpoint, or inside one in another; the mask is made outside."""

    def attended(q, k, v):
        mask = mask_of(q, k)
        function = attend(lambda *_: mask)
        for _ in range(times):
            function = functools.partial(checkpoint, function, use_reentrant=False)
        return function(q, k, v) * 2

    return attended


@pytest.mark.parametrize("times", [1, 2], ids=["a checkpoint", "one in another"])
def test_a_mask_that_is_handed_to_a_checkpoint_is_missed(look, times):
    given = tensors(train=True)
    seen = look(
        under_checkpoints(CAUSAL["comparison"], times=times), *given, passes=[constant_masks]
    )
    assert seen.changes["constant_masks"] == 1
    assert seen.calls("tag_activation_checkpoint") == 1
    expected = F.scaled_dot_product_attention(*given, is_causal=True) * 2
    torch.testing.assert_close(seen.result, expected)
    grads = [torch.autograd.grad(x.sum(), given) for x in (seen.result, expected)]
    torch.testing.assert_close(*grads)


def test_a_mask_that_is_made_in_a_checkpoint_is_missed(look):
    def attended(q, k, v):
        return checkpoint(attend(CAUSAL["tril"]), q, k, v, use_reentrant=False)

    given = tensors(train=True)
    seen = look(attended, *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1
    expected = F.scaled_dot_product_attention(*given, is_causal=True)
    torch.testing.assert_close(seen.result, expected)


@pytest.mark.parametrize(
    ("mask_of", "why"),
    [NEITHER["an input"], NEITHER["a window"], NEITHER["a random mask"]],
    ids=["an input", "a window", "a random mask"],
)
def test_a_mask_that_is_neither_is_taken_from_a_checkpoint(look, mask_of, why):
    given = tensors(train=True)
    seen = look(under_checkpoints(mask_of), *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]
    assert why in seen.near[0]


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a checkpoint"])
def test_a_mask_that_is_written_to_is_handed_to_a_checkpoint_as_it_was_made(look, inside):
    def hide(mask, q):
        mask[5, 0] = False
        return q * 2

    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        q = checkpoint(hide, mask, q, use_reentrant=False) if inside else hide(mask, q)
        return checkpoint(attend(lambda *_: mask), q, k, v, use_reentrant=False)

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks])
    assert not seen.changes["constant_masks"]
    assert "written to" in seen.near[0]


def test_a_checkpoint_is_taken_to_write_to_its_arguments(look):
    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        v = checkpoint(lambda v: v.masked_fill(~mask[:, :1], 2.0), v, use_reentrant=False)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    given = tensors()
    seen = look(attended, *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1
    torch.testing.assert_close(seen.result, attended(*given))


def test_attention_as_export_spells_it_is_missed(look):
    class Attends(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(CAUSAL["tril"], scale=0.3)(q, k, v)

    given = tuple(tensors())
    exported = torch.export.export(Attends(), given).module()
    seen = look(exported, *given, passes=[constant_masks])
    assert seen.changes["constant_masks"] == 1
    (node,) = seen.nodes("scaled_dot_product_attention")
    assert node.target is torch.ops.aten.scaled_dot_product_attention.default
    assert node.kwargs == {"is_causal": True, "scale": 0.3}
    torch.testing.assert_close(seen.result, Attends()(*given))


@pytest.fixture
def process_group():
    """Make this process the only one of a group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def look_in_parts():
    """Run the pass on parts of a graph, as DDP's optimizer has them compiled: a relu begins one."""

    def run(function, *given):
        reports = []

        def cut(graph_module, _):
            begun = accumulate(int(x.target == "relu") for x in graph_module.graph.nodes)
            part_of = dict(zip(graph_module.graph.nodes, begun, strict=True))
            parts = split_module(graph_module, None, part_of.__getitem__)
            for part in parts.children():
                reports.extend(run_passes([constant_masks], part))
            return parts.forward

        result = torch.compile(function, backend=cut, fullgraph=True)(*given)
        torch.testing.assert_close(result, function(*given))
        return [(x.changes, *(y.reason for y in x.near)) for x in reports]

    torch.compiler.reset()
    return run


def in_another_part(q, k, v):
    mask = rows(6) >= torch.arange(6)
    return attend(lambda *_: mask)(q.relu(), k, v)


@pytest.mark.usefixtures("process_group")
def test_a_mask_of_an_earlier_part_is_missed(look_in_parts):
    assert look_in_parts(in_another_part, *tensors()) == [(0,), (1,)]
    assert constant._MADE
    torch.compiler.reset()
    gc.collect()
    assert not constant._MADE  # nothing is kept longer than the graphs


def test_a_mask_is_looked_up_where_no_model_is_cut_apart(look_in_parts):
    found = look_in_parts(in_another_part, *tensors())
    assert found == [(0,), (0, "it depends on the input mask")]


@pytest.mark.usefixtures("process_group")
def test_a_mask_that_a_part_between_writes_to_is_taken_as_it_was_made(look_in_parts):
    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        first = mask[5]
        q = q.relu()
        first[0] = False
        return attend(lambda *_: mask)(q.relu(), k, v)

    found = look_in_parts(attended, *tensors())
    assert found == [(0,), (0,), (0, "it depends on the input mask")]


@pytest.mark.usefixtures("process_group")
def test_a_mask_that_its_last_part_writes_to_is_taken_as_it_was_made(look_in_parts):
    def attended(q, k, v):
        mask = rows(6) >= torch.arange(6)
        q = q.relu()
        mask[5, 0] = False
        return attend(lambda *_: mask)(q, k, v)

    assert look_in_parts(attended, *tensors()) == [(0,), (0, "it depends on the input mask")]


@pytest.mark.usefixtures("process_group")
def test_a_mask_is_made_of_what_two_parts_made(look_in_parts):
    def attended(q, k, v):
        lines = rows(6)
        q = q.relu()
        mask = lines >= torch.arange(6)
        return attend(lambda *_: mask)(q.relu(), k, v)

    assert look_in_parts(attended, *tensors()) == [(0,), (0,), (1,)]


def test_what_views_attention_views_another_layout_than_is_put_in():
    def laid_out_otherwise(q, k, v):
        return F.scaled_dot_product_attention(q, k, v).mT.contiguous().mT

    seen = []

    def compiler(graph_module, _):
        graph = graph_module.graph
        (node,) = graph.find_nodes(op="call_function", target=attention.TARGETS[0])
        (view,) = node.users
        made = attention.call_instead(node, laid_out_otherwise, node.args, {}, Layouts())
        replace_node(node, made)
        graph_module.recompile()
        seen.extend(x.stride() for x in (value_of(view.args[0]), value_of(view)))
        return graph_module.forward

    given = tensors()
    compiled = torch.compile(lambda *x: F.scaled_dot_product_attention(*x)[0] + 1, backend=compiler)
    compiled(*given)
    expected = laid_out_otherwise(*given)
    assert seen == [expected.stride(), expected[0].stride()]


def test_what_is_repeated_without_gradients_has_them(look):
    def program(q, k, v):
        with torch.no_grad():
            wide = k[:, :, None].expand(2, 2, 2, 6, 8)
        key, value = wide.reshape(SHAPE), v[:, :, None].expand(2, 2, 2, 6, 8).reshape(SHAPE)
        return F.scaled_dot_product_attention(q, key, value, is_causal=True)

    given = tensors(heads=2, train=True)
    seen = look(program, *given, passes=[constant_masks])
    gradients = [
        torch.autograd.grad(y.sum(), given, allow_unused=True)
        for y in (seen.result, program(*given))
    ]
    assert [x is None for x in gradients[0]] == [x is None for x in gradients[1]]
