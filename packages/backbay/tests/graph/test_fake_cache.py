"""Of calls alike one is computed; of others, each: what is laid out tells nothing else."""

import gc
import itertools
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from backbay.graph import fake_cache
from backbay.graph.values import call_fake, tensors_in

_ATEN = torch.ops.aten
_library = torch.library.Library("backbay_test_fake_cache", "DEF")
ASKED = []


def operator(schema, fake):
    """Return an operator that notes when it is asked for a fake value."""
    name = schema.partition("(")[0]

    def noted(*given):
        ASKED.append(name)
        return fake(*given)

    _library.define(schema)
    torch.library.register_fake(f"backbay_test_fake_cache::{name}", noted, lib=_library)
    return getattr(torch.ops.backbay_test_fake_cache, name).default


PRODUCT = operator("product(Tensor x, Tensor y, float n=1.0) -> Tensor", lambda x, y, *_: x @ y)
PARTS = operator("parts(Tensor x) -> (Tensor, Tensor, int)", lambda x: (x.t() + 1, x.sum(), 3))
STACKED = operator("stacked(Tensor[] xs) -> Tensor", lambda xs: torch.stack([*xs]))
SUM = operator("sum(Tensor x, Tensor y) -> Tensor", lambda x, y: (x + y).sum())
FIRST = operator("first(Tensor[] xs, Tensor[] ys) -> Tensor", lambda xs, _: torch.stack([*xs]))
SAME = operator("same(Tensor(a) x) -> Tensor(a)", lambda x: x.t())
HALVES = operator("halves(Tensor x) -> Tensor[]", lambda x: [*(x + 1).chunk(2)])
TWINS = operator("twins(Tensor x) -> Tensor[]", lambda x: [y := x + 1, y.t()])
GAPS = operator("gaps(Tensor x) -> Tensor", lambda x: torch.stack([x, x], -1)[..., 0])
BEHIND = operator("behind(Tensor x) -> Tensor", lambda x: torch.cat([x, x])[1:])
HELD = operator("held(Tensor x) -> Tensor", lambda x: x.nonzero().as_strided((2, 2), (2, 1)))
LEAF = operator("leaf(Tensor x) -> Tensor", lambda x: torch.zeros_like(x, requires_grad=True))
SOME = operator("some(Tensor x) -> Tensor", lambda x: x.nonzero())
WRITES = operator("writes(Tensor(a!) x) -> ()", lambda _: None)


@pytest.fixture
def mode():
    ASKED.clear()
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        yield mode


def called(mode, target, *arguments, **keywords):
    """Return a call's value, and whether it was computed."""
    before = len(ASKED)
    return fake_cache.call_cached(target, arguments, keywords, mode), len(ASKED) > before


def told(value):
    """Return all that a later call could tell of a fake value."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda x: (
            *(tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad, x.is_leaf),
            *(x.storage_offset(), x.untyped_storage().nbytes(), x.is_contiguous()),
            *(x.is_conj(), x.is_neg(), x.is_inference(), x._is_view()),
        ),
        value,
    )


@pytest.mark.parametrize("state", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize(
    ("target", "given"),
    [
        (PRODUCT, lambda: (torch.empty(3, 4), torch.empty(4, 5))),
        (PRODUCT, lambda: (torch.empty(0, 4), torch.empty(4, 5))),
        (PRODUCT, lambda: (torch.empty(3, 4), torch.empty(4, 0))),
        (PRODUCT, lambda: (torch.empty(3, 4, requires_grad=True), torch.empty(4, 5))),
        (PARTS, lambda: (torch.empty(3, 4),)),
        (PARTS, lambda: (torch.empty(3, 4).double(),)),
        (STACKED, lambda: ([torch.empty(4), torch.empty(4)],)),
    ],
)
def test_a_value_of_a_call_alike_can_be_told_apart(mode, target, given, state):
    with state():
        first, computed = called(mode, target, *given())
        assert computed
        second, computed = called(mode, target, *given())
    assert not computed
    assert told(second) == told(first)
    tensors = tensors_in((first, second))
    assert len({x.untyped_storage()._cdata for x in tensors}) == len(tensors)
    assert all(x.fake_mode is mode for x in tensors)


def test_what_is_trained_cannot_be_written_to(mode):
    own = torch.library.custom_op("backbay_test_fake_cache::silu", mutates_args=())
    silu = own(torch.nn.functional.silu)
    silu.register_fake(torch.empty_like)
    silu.register_autograd(lambda _, dy: dy)
    found = []
    for _ in range(2):
        x = torch.empty(3, 4, requires_grad=True)
        target = torch.ops.backbay_test_fake_cache.silu.default
        found.append(fake_cache.call_cached(target, (x,), {}, mode))
        y = found[-1].mul_(2)
        assert y.requires_grad
        assert not y.is_leaf
    assert told(found[0]) == told(found[1])
    with torch.no_grad():
        assert not fake_cache.call_cached(target, (x,), {}, mode).requires_grad


def calls():
    x = torch.empty(4, 4)
    return {
        "as it is": (PRODUCT, (x, x)),
        "shape": (PRODUCT, (torch.empty(3, 4), x)),
        "strides": (PRODUCT, (torch.empty(4, 4).t(), x)),
        "dtype": (PRODUCT, (x.double(), x.double())),
        "device": (PRODUCT, (x.to("meta"), x.to("meta"))),
        "gradient": (PRODUCT, (torch.empty(4, 4, requires_grad=True), x)),
        "conjugate": (PRODUCT, (x.to(torch.complex64).conj(), x.to(torch.complex64))),
        "no conjugate": (PRODUCT, (x.to(torch.complex64), x.to(torch.complex64))),
        "number": (PRODUCT, (x, x, 2.0)),
        "type of a number": (PRODUCT, (x, x, 2)),
        "flag": (PRODUCT, (x, x, True)),
        "operator": (SUM, (x, x)),
        "another operator": (STACKED, ([x, x],)),
        "lists": (FIRST, ([x], [x, x])),
        "other lists": (FIRST, ([x, x], [x])),
        "length": (STACKED, ([x, x, x],)),
    }


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(calls(), 2)))
def test_what_differs_is_not_computed(mode, one, other):
    for target, given in (calls()[one], calls()[other]):
        found, computed = called(mode, target, *given)
        assert computed
        assert told(found) == told(target(*given))


def test_a_call_in_another_state_is_not_computed(mode):
    x, y = torch.empty(4, 4, requires_grad=True), torch.empty(4, 4)
    states = [
        torch.enable_grad,
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.float16),
    ]
    for state, computed in [*((x, True) for x in states), *((x, False) for x in states)]:
        with state():
            assert called(mode, PRODUCT, x, y)[1] == computed


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (torch.set_default_dtype, (torch.float64, torch.float32)),
        (torch.use_deterministic_algorithms, (True, False)),
    ],
)
def test_a_call_under_another_setting_is_not_computed(mode, change, back):
    x = torch.empty(4, 4)
    called(mode, PRODUCT, x, x)
    try:
        change(back[0])
        assert called(mode, PRODUCT, x, x)[1]
    finally:
        change(back[1])
    assert not called(mode, PRODUCT, x, x)[1]


def test_another_graph_is_traced_with_what_one_knows(mode):
    x = torch.empty(4, 4)
    called(mode, PRODUCT, x, x)
    with FakeTensorMode() as other:
        y = torch.empty(4, 4)
        assert called(other, PRODUCT, y, y)[1]
    with pytest.raises(AssertionError, match="Mixing fake modes"):
        called(mode, PRODUCT, x, y)


@pytest.mark.parametrize("target", [SAME, HALVES, TWINS, GAPS, BEHIND, HELD, LEAF, SOME], ids=str)
def test_what_has_more_to_it_is_laid_out(mode, target):
    found = [called(mode, target, torch.empty(4, 4)) for _ in range(2)]
    assert [computed for _, computed in found] == [True, True]
    with torch.no_grad():
        assert called(mode, target, torch.empty(4, 4))[1]
    if target in {SOME, HELD}:  # a number of elements that a run decides
        assert len({str(x.untyped_storage().nbytes()) for x, _ in found}) == 2
    else:
        assert told(found[0][0]) == told(found[1][0])


def test_arguments_that_have_more_to_them_are_taken_for_alike(mode):
    x, size = torch.empty(4, 4), mode.shape_env.create_unbacked_symint()
    torch._check(size >= 2)
    with torch.inference_mode():
        inferred = torch.empty(4, 4)
    for y in (torch.empty(size, 4), TwoTensor(x, x), torch._efficientzerotensor((4, 4)), inferred):
        assert fake_cache._key(PRODUCT, (y, x), {}, mode) is None
    known, inside = torch.empty(4, 4), []
    known.real_tensor = x
    for given in ((x, x, size), (x, x, max), (x, known)):
        assert fake_cache._key(PRODUCT, given, {}, mode) is None
    assert fake_cache._key(PRODUCT, (x, x), {}, mode) is not None
    for transform in (torch.vmap, lambda f: torch.func.grad(lambda y: f(y).sum())):
        transform(lambda y: (inside.append(fake_cache._key(PRODUCT, (y, y), {}, mode)), y)[1])(x)
    assert inside == [None, None]
    with torch.autograd.forward_ad.dual_level():
        assert fake_cache._key(PRODUCT, (x, x), {}, mode) is None


def test_what_is_no_operator_of_others_is_kept(mode):
    for target in (_ATEN.relu.default, torch.relu, getattr, "relu", WRITES, torch.ops.aten.relu):
        assert not fake_cache.is_cached(target)
    assert fake_cache.is_cached(PRODUCT)


def test_a_node_is_computed_though_another_one_is_alike(mode):
    graph = symbolic_trace(lambda x: (PRODUCT(x, x), PRODUCT(x, x), torch.relu(x))).graph
    first, second, relu = (x for x in graph.nodes if x.op == "call_function")
    x = torch.empty(4, 4)
    found = [call_fake(node, (x, x), {}) for node in (first, second)]
    assert ASKED == ["product"]
    assert told(found[0]) == told(found[1])
    assert call_fake(relu, (x,), {}).shape == x.shape


def test_what_was_traced_is_kept_alive():
    with FakeTensorMode() as mode:
        called(mode, PRODUCT, torch.empty(4, 4), torch.empty(4, 4))
    assert fake_cache._known[mode]
    gone = weakref.ref(mode)
    del mode
    gc.collect()
    assert gone() is None
