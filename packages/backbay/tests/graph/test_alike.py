"""Of calls alike one is computed; of others, each: what is laid out tells nothing else."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from backbay.graph import alike
from backbay.graph.values import tensors_in

_ATEN = torch.ops.aten
_library = torch.library.Library("backbay_test_alike", "DEF")


class Count:
    """Operators of our own, which note when they are asked for a fake value."""

    def __init__(self):
        self.asked = 0

    def define(self, schema, fake):
        name = schema.partition("(")[0]

        def noted(*given):
            self.asked += 1
            return fake(*given)

        _library.define(schema)
        torch.library.register_fake(f"backbay_test_alike::{name}", noted, lib=_library)
        return getattr(torch.ops.backbay_test_alike, name).default


COUNT = Count()
PRODUCT = COUNT.define("product(Tensor x, Tensor y, float n=1.0) -> Tensor", lambda x, y, *_: x @ y)
PARTS = COUNT.define("parts(Tensor x) -> (Tensor, Tensor, int)", lambda x: (x.t() + 1, x.sum(), 3))
STACKED = COUNT.define("stacked(Tensor[] xs) -> Tensor", lambda xs: torch.stack([*xs]))
SAME = COUNT.define("same(Tensor(a) x) -> Tensor(a)", lambda x: x.t())
HALVES = COUNT.define("halves(Tensor x) -> Tensor[]", lambda x: [*(x + 1).chunk(2)])
WRITES = COUNT.define("writes(Tensor(a!) x) -> ()", lambda _: None)
GAPS = COUNT.define("gaps(Tensor x) -> Tensor", lambda x: torch.stack([x, x], -1)[..., 0])


@pytest.fixture
def mode():
    COUNT.asked = 0
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        yield mode


def asked(mode, target, *arguments, **keywords):
    """Return a call's value, and whether it was computed."""
    before = COUNT.asked
    return alike.called(target, arguments, keywords, mode), COUNT.asked > before


def told(value):
    """Return all that a later call could tell of a fake value."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda x: (
            *(tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad, x.is_leaf),
            *(x.storage_offset(), x.untyped_storage().nbytes(), x.is_contiguous()),
        ),
        value,
    )


@pytest.mark.parametrize(
    ("target", "given"),
    [
        (PRODUCT, lambda: (torch.empty(3, 4), torch.empty(4, 5))),
        (PRODUCT, lambda: (torch.empty(0, 4), torch.empty(4, 5))),
        (PARTS, lambda: (torch.empty(3, 4),)),
        (PARTS, lambda: (torch.empty(3, 4).double(),)),
        (STACKED, lambda: ([torch.empty(4), torch.empty(4)],)),
    ],
)
def test_a_value_of_a_call_alike_can_be_told_apart(mode, target, given):
    first, computed = asked(mode, target, *given())
    assert computed
    second, computed = asked(mode, target, *given())
    assert not computed
    assert told(second) == told(first)
    tensors = tensors_in((first, second))
    assert len({x.untyped_storage()._cdata for x in tensors}) == len(tensors)
    assert all(x.fake_mode is mode for x in tensors)


def test_what_is_trained_cannot_be_written_to(mode):
    found = []
    for _ in range(2):
        x = torch.empty(3, 4, requires_grad=True)
        found.append(alike.called(_ATEN.silu.default, (x,), {}, mode))
        y = found[-1].mul_(2)
        assert y.requires_grad
        assert not y.is_leaf
    assert told(found[0]) == told(found[1])
    with torch.no_grad():
        assert not alike.called(_ATEN.silu.default, (x,), {}, mode).requires_grad


def calls():
    x = torch.empty(4, 4)
    yield "as it is", PRODUCT, (x, x)
    yield "shape", PRODUCT, (torch.empty(3, 4), x)
    yield "strides", PRODUCT, (torch.empty(4, 4).t(), x)
    yield "dtype", PRODUCT, (x.double(), x.double())
    yield "device", PRODUCT, (x.to("meta"), x.to("meta"))
    yield "gradient", PRODUCT, (torch.empty(4, 4, requires_grad=True), x)
    yield "conjugate", PRODUCT, (x.to(torch.complex64).conj(), x.to(torch.complex64))
    yield "no conjugate", PRODUCT, (x.to(torch.complex64), x.to(torch.complex64))
    yield "number", PRODUCT, (x, x, 2.0)
    yield "type of a number", PRODUCT, (x, x, 2)
    yield "flag", PRODUCT, (x, x, True)
    yield "operator", STACKED, ([x, x],)
    yield "length", STACKED, ([x, x, x],)


NAMES = range(13)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(NAMES, 2)))
def test_what_differs_is_not_computed(mode, one, other):
    for _, target, given in (list(calls())[x] for x in (one, other)):
        found, computed = asked(mode, target, *given)
        assert computed
        assert told(found) == told(target(*given))


def test_a_call_in_another_state_is_not_computed(mode):
    x, y = torch.empty(4, 4, requires_grad=True), torch.empty(4, 4)
    states = [
        torch.enable_grad,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.float16),
    ]
    for state, computed in [*((x, True) for x in states), *((x, False) for x in states)]:
        with state():
            assert asked(mode, PRODUCT, x, y)[1] == computed


def test_another_graph_is_traced_with_what_one_knows(mode):
    x = torch.empty(4, 4)
    asked(mode, PRODUCT, x, x)
    with FakeTensorMode() as other:
        x = torch.empty(4, 4)
        assert asked(other, PRODUCT, x, x)[1]


@pytest.mark.parametrize("target", [SAME, HALVES, WRITES, GAPS], ids=str)
def test_memory_that_is_shared_or_written_is_laid_out_anew(mode, target):
    x = torch.empty(4, 4)
    found = [asked(mode, target, x) for _ in range(2)]
    assert [computed for _, computed in found] == [True, True]
    assert told(found[0][0]) == told(found[1][0])


def test_other_arguments_than_are_compared_are_taken_for_alike(mode):
    size = mode.shape_env.create_unbacked_symint()
    torch._check(size >= 2)
    x, y = torch.empty(4, 4), torch.empty(size, 4)
    real = TwoTensor(x, x)
    for given in ((y, x), (real, x), (x, x, size)):
        for _ in range(2):
            assert alike._key(PRODUCT, given, {}) is None
    assert alike._key(PRODUCT, (x, x), {}) is not None


def test_functions_that_anyone_wrote_are_called_once(mode):
    called = []

    def mine(x):
        called.append(x)
        return x + 1

    for _ in range(2):
        alike.called(mine, (torch.empty(4),), {}, mode)
    assert len(called) == 2


def test_a_number_of_elements_that_a_run_decides_is_one_for_all(mode):
    found = [alike.called(_ATEN.nonzero.default, (torch.empty(4),), {}, mode) for _ in range(2)]
    assert len({str(x.shape[0]) for x in found}) == 2


def test_torchs_own_functions_are_computed_each_time(mode, monkeypatch):
    heads = torch.empty(2, 4, 8, 16, dtype=torch.bfloat16)
    attend = torch.nn.functional.scaled_dot_product_attention
    first = alike.called(attend, (heads, heads, heads), {"is_causal": True}, mode)
    monkeypatch.setattr(alike, "_layouts", None)  # what is computed asks for it
    second = alike.called(attend, (heads, heads, heads), {"is_causal": True}, mode)
    assert told(second) == told(first)
    with pytest.raises(TypeError):
        alike.called(attend, (heads, heads, heads), {"is_causal": False}, mode)
