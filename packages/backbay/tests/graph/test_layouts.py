"""Of calls alike one value is made; of others, each."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from backbay.graph import layouts
from backbay.graph.layouts import Layouts, kind


@pytest.fixture
def made(monkeypatch):
    made, real = [], layouts.computed
    monkeypatch.setattr(layouts, "computed", lambda *x: made.append(x) or real(*x))
    return made


MODE = FakeTensorMode()


def fake(*size, **how):
    with MODE:
        return torch.empty(*size, **how)


def product(x, y, *, twice=1):
    return (x @ y) * twice


def test_what_is_laid_out_alike_is_asked_for_once(made):
    known = Layouts()
    found = [known.of(product, fake(4, 4), fake(4, 4)) for _ in range(3)]
    assert found == [kind(torch.empty(4, 4))] * 3
    assert len(made) == 1


def either(x, y=None):
    return x[0] @ x[1] if y is None else (x @ y)[0]


def calls():
    x = fake(4, 4)
    yield "two", (either, x, x), {}
    yield "a pair", (either, [x, x]), {}
    yield "shape", (product, fake(3, 4), x), {}
    yield "strides", (product, fake(4, 4).T, x), {}
    yield "dtype", (product, *[fake(4, 4, dtype=torch.float64)] * 2), {}
    yield "device", (product, *[fake(4, 4, device="meta")] * 2), {}
    yield "gradient", (product, fake(4, 4, requires_grad=True), x), {}
    yield "place", (torch.Tensor.copy_, x, fake(1, 4)), {}
    yield "the other place", (torch.Tensor.copy_, fake(1, 4), x[:1]), {}
    yield "function", (torch.add, x, x), {}
    yield "a keyword", (product, x, x), {"twice": 2}
    yield "its number", (product, x, x), {"twice": 3.0}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(calls(), 2)))
def test_what_differs_is_asked_for_again(one, other, made):
    known = Layouts()
    for _, arguments, keywords in (one, other):
        found = known.of(*arguments, **keywords)
        function, *rest = arguments
        assert found == kind(function(*rest, **keywords))
    assert len(made) == 2


def test_a_gradient_is_no_part_of_what_is_known():
    assert kind(fake(4, requires_grad=True)) != kind(fake(4))


STATES = {
    "as it is": torch.enable_grad,
    "no gradients": torch.no_grad,
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", torch.float16),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(STATES.values(), 2)))
def test_so_is_what_is_asked_in_another_state(one, other, made):
    known, given = Layouts(), (fake(4, 4, requires_grad=True), fake(4, 4))
    for state in (one, other, one):
        with state():
            assert known.of(product, *given) == kind(product(*given))
    assert len(made) == 2


def test_nothing_is_known_of_subclasses_and_without_fake_values():
    known, x = Layouts(), torch.ones(4, 4)
    assert known.of(product, TwoTensor(x, x), fake(4, 4)) is None
    assert known.of(product, x, x) is None
    assert known.of(lambda n: n + 1, 2) is None
