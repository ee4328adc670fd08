"""What the backend replaces, what it must leave alone, and that results and gradients stay."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backbay_example_backend.backend import silu_eager
from torch.fx import GraphModule

F = torch.nn.functional
Function = Callable[[torch.Tensor], torch.Tensor]


class Watched:
    """The backend, and how many silu there are in the graphs that it made."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.silus = 0

    def __call__(self, graph_module: GraphModule, example_inputs: list[Any]) -> Any:
        """Compile a graph."""
        compiled = silu_eager(graph_module, example_inputs, options=self.options)
        self.silus += sum(node.target is F.silu for node in graph_module.graph.nodes)
        return compiled


def silus(function: Function, x: torch.Tensor, **options: Any) -> int:
    """Compile a function, compare it with eager forward and backward, and count silus."""
    torch._dynamo.reset()  # noqa: SLF001 (torch.compiler.reset would do more)
    watched = Watched(**options)
    compiled = torch.compile(function, backend=watched, fullgraph=True)
    ours, theirs = (x.detach().clone().requires_grad_(x.requires_grad) for _ in range(2))
    got, wanted = compiled(ours), function(theirs)
    torch.testing.assert_close(got, wanted)
    if x.requires_grad:
        for result, given in ((got, ours), (wanted, theirs)):
            result.square().sum().backward()
            assert given.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad)
    return watched.silus


@pytest.fixture
def x() -> torch.Tensor:
    """Give a batch that wants a gradient, with large and small values."""
    torch.manual_seed(0)
    return (10 * torch.randn(8, 16)).requires_grad_()


SPELLINGS: dict[str, Function] = {
    "operator": lambda x: torch.sigmoid(x) * x,
    "operator, x first": lambda x: x * torch.sigmoid(x),
    "method": lambda x: x.sigmoid().mul(x),
    "method, x first": lambda x: x.mul(x.sigmoid()),
    "function": lambda x: torch.mul(torch.sigmoid(x), x),
    "function, x first": lambda x: torch.multiply(x, F.sigmoid(x)),
    "special function": lambda x: operator.mul(torch.special.expit(x), x),
    "module": lambda x: x * torch.nn.Sigmoid()(x),
    "of a value in between": lambda x: (x + 1).sigmoid() * 2 + (y := x - 1) * y.sigmoid(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_replaced(spelling: str, x: torch.Tensor) -> None:
    """A spelling that is not recognised stays slow."""
    assert silus(SPELLINGS[spelling], x) == 1


def of_another(x: torch.Tensor) -> torch.Tensor:
    """Multiply with something else."""
    return torch.sigmoid(x) * (x + 1)


def used_twice(x: torch.Tensor) -> torch.Tensor:
    """Use the sigmoid again: it has to be computed anyway."""
    gate = torch.sigmoid(x)
    return gate * x + gate


def written_between(x: torch.Tensor) -> torch.Tensor:
    """Write to x, through a view of it, between the sigmoid and the product."""
    y = x + 0
    gate = torch.sigmoid(y)
    y.view(-1).mul_(2)
    return gate * y


def with_out(x: torch.Tensor) -> torch.Tensor:
    """Write the product to a tensor that is there."""
    out = torch.zeros_like(x)
    torch.mul(torch.sigmoid(x), x, out=out)
    return out


@pytest.mark.parametrize("function", [of_another, used_twice])
def test_what_only_looks_like_it_is_left_alone(function: Function, x: torch.Tensor) -> None:
    """A replacement would change the result, or save nothing."""
    assert silus(function, x) == 0


@pytest.mark.parametrize("function", [written_between, with_out])
def test_writing_functions_are_left_alone(function: Function, x: torch.Tensor) -> None:
    """A replacement would read what was written later."""
    assert silus(function, x.detach()) == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_dtypes_that_silu_does_not_take_are_left_alone(dtype: torch.dtype) -> None:
    """Sigmoid takes integers and complex numbers, and silu raises."""
    assert silus(SPELLINGS["operator"], torch.ones(3, dtype=dtype)) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_floating_dtypes_are_replaced(dtype: torch.dtype) -> None:
    """Half precision differs in rounding only."""
    assert silus(SPELLINGS["operator"], torch.linspace(-9, 9, 64, dtype=dtype)) == 1


def test_a_changing_batch_size_is_compiled_once_more_and_right() -> None:
    """Symbolic sizes must not confuse the replacement."""
    watched = Watched()
    compiled = torch.compile(SPELLINGS["operator"], backend=watched)
    for size in (2, 3, 5, 7):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x), F.silu(x))
    assert watched.silus <= 2  # noqa: PLR2004 (one of fixed, one of symbolic size)


def test_an_input_that_is_written_is_written_once() -> None:
    """A graph that is run to be looked at would write twice."""

    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.sigmoid(x) * x

    watched, x = Watched(), torch.zeros(3)
    torch.testing.assert_close(torch.compile(step, backend=watched)(x), F.silu(torch.ones(3)))
    torch.testing.assert_close(x, torch.ones(3))
    assert watched.silus == 1


def test_the_keyword_name_is_taken() -> None:
    """From torch 2.15 on it is passed, and a backend without it fails."""
    assert callable(silu_eager(torch.fx.symbolic_trace(torch.nn.Identity()), [], name="mine"))


def twice(x: torch.Tensor) -> torch.Tensor:
    """Hold two that can be replaced."""
    y = torch.sigmoid(x) * x
    return torch.sigmoid(y) * y


@pytest.mark.parametrize(("limit", "count"), [(-1, 2), (0, 0), (1, 1), (5, 2)])
def test_limit_is_how_many_are_replaced(limit: int, count: int, x: torch.Tensor) -> None:
    """A fault is found by halving the limit."""
    assert silus(twice, x, limit=limit) == count


def test_on_none_says_that_a_graph_has_nothing_to_replace(x: torch.Tensor) -> None:
    """Silence would look like a replacement."""
    with pytest.warns(UserWarning, match="found no sigmoid"):
        assert silus(of_another, x, on_none="warn") == 0
    with pytest.raises(Exception, match="found no sigmoid"):
        silus(of_another, x, on_none="raise")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"options": {"limti": 1}}, "no option 'limti'; it has limit, on_none"),
        ({"options": {"limit": True}}, "limit is a number of replacements, not True"),
        ({"options": {"on_none": "shout"}}, "on_none is one of ignore, warn, raise, not 'shout'"),
        ({"mode": "fast"}, "has no modes, and 'fast' was given"),
    ],
)
def test_what_is_not_understood_is_refused(keywords: dict[str, Any], message: str) -> None:
    """A mistaken option that is ignored is believed to hold."""
    with pytest.raises(ValueError, match=message):
        silu_eager(torch.fx.symbolic_trace(torch.nn.Identity()), [], **keywords)
