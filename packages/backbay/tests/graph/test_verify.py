"""A pass that makes a graph compute something else is named, when it is asked for."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph.match import Pattern
from backbay.kit.backend import Backend
from backbay.kit.observing import verified
from backbay.kit.passes import graph_pass, rewrite_pass
from backbay.kit.rewrites import rewrite_gelu, rewrite_silu


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def compiled(one, function, *args):
    backend = type("One", (Backend,), {"passes": (one,), "codegen": "aot_eager"})()
    return torch.compile(function, backend=backend)(*args), backend


def replaced(match, replacement, **given):
    example = {"example": lambda: (torch.empty(2, 3),)}
    return rewrite_pass(
        Pattern(match=match, replacement=replacement, **example), name="one", **given
    )


def swish(x):
    return x * torch.sigmoid(x)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return F.silu(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


@torch.library.custom_op("backbay_tests::swish_straight_through", mutates_args=())
def straight_through(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


straight_through.register_fake(torch.empty_like)
straight_through.register_autograd(lambda ctx, grad: grad)


@torch.library.custom_op("backbay_tests::swish_without_gradient", mutates_args=())
def without_gradient(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


without_gradient.register_fake(torch.empty_like)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_wrong_value_is_named(level):
    one = replaced(swish, lambda x: F.silu(x) * 1.001, level=level)
    x = torch.randn(7)
    compiled(one, swish, x)  # nothing is run unless it is asked for
    torch.compiler.reset()
    with verified(), pytest.raises(Exception, match="WrongResult: pass one: result 0 is another"):
        compiled(one, swish, x)


def test_a_wrong_gradient_is_named_where_every_value_is_right():
    one = replaced(swish, lambda x: straight_through(x))
    x = torch.randn(7, requires_grad=True)
    out, _ = compiled(one, swish, x)
    torch.testing.assert_close(out, swish(x))
    torch.compiler.reset()
    with (
        verified(),
        pytest.raises(Exception, match="GradientMismatch: pass one: gradient of input 0"),
    ):
        compiled(one, swish, x)


def test_a_gradient_that_is_cut_off_is_an_error_without_running_anything():
    one = replaced(swish, lambda x: F.silu(x.detach()))
    with pytest.raises(Exception, match="GradientMismatch: pass one: result 0 needs a gradient"):
        compiled(one, swish, torch.randn(7, requires_grad=True))
    torch.compiler.reset()
    out, _ = compiled(one, swish, torch.randn(7))  # where nobody asked for one it is right
    assert out.shape == (7,)


def test_a_changed_mutation_is_named():
    @graph_pass(level="torch")
    def forgets(graph_module):
        for node in list(graph_module.graph.nodes):
            if node.target == "add_":
                node.replace_all_uses_with(node.args[0])
                graph_module.graph.erase_node(node)
        graph_module.recompile()
        return 1

    def counts(x, calls):
        calls.add_(1)
        return x * 2

    with verified(), pytest.raises(Exception, match="WrongResult: pass forgets: input"):
        compiled(forgets, counts, torch.ones(2), torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("one", "function", "fired"),
    [
        (rewrite_silu, swish, 1),
        (rewrite_silu, lambda x: x / (1 + torch.exp(-x.float())).to(x.dtype), 0),
        (rewrite_gelu, lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), 1),
        (rewrite_silu, lambda x: swish(F.dropout(x, 0.5)), 1),
        (rewrite_silu, lambda x: swish(torch.log(x)), 1),
    ],
    ids=["silu", "cast inside", "gelu", "random", "NaN"],
)
def test_what_is_right_passes(one, function, fired, dtype, reports):
    x = torch.randn(4, 6, dtype=dtype, requires_grad=True)
    with verified():
        out, _ = compiled(one, function, x)
    assert out.dtype == dtype
    assert sum(r.changes for r in reports) == fired


def share(x):
    return torch.softmax(x, -1)


def by_hand(x):
    powers = torch.exp(x)
    return powers / powers.sum(-1, keepdim=True)


def test_a_gradient_that_is_zero_but_for_rounding_is_called_wrong(reports):
    x = torch.randn(4, 6, requires_grad=True)
    with verified():
        _, _ = compiled(replaced(share, by_hand), lambda x: share(x).sum(-1), x)
    assert reports[0].changes == 1


def test_a_gradient_that_should_be_zero_and_is_not_passes():
    one = replaced(share, lambda x: torch.softmax(x, -1) + 1e-9 * (x - x.detach()))
    x = torch.randn(4, 6, requires_grad=True)
    with verified(), pytest.raises(Exception, match="GradientMismatch: pass one: gradient of inp"):
        compiled(one, lambda x: share(x).sum(-1), x)


def test_an_index_is_valid_and_generators_are_left_alone(reports):
    weight, at = torch.randn(3, 4, requires_grad=True), torch.tensor([2, 1])
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with verified():
        _, _ = compiled(rewrite_silu, lambda at, w: swish(F.embedding(at, w)), at, weight)
    assert torch.equal(torch.get_rng_state(), before)
    assert reports[0].changes == 1


def test_a_graph_without_gradients_is_held_to_those_of_its_parameters():
    @graph_pass()
    def stops(graph_module):
        (linear,) = graph_module.graph.find_nodes(op="call_function", target=F.linear)
        with graph_module.graph.inserting_after(linear):
            stopped = graph_module.graph.call_method("detach", (linear,))
        linear.replace_all_uses_with(stopped, delete_user_cb=lambda x: x is not stopped)
        stopped.meta = dict(linear.meta)
        graph_module.recompile()
        return 1

    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    with verified(), torch.no_grad():
        result, _ = compiled(stops, model, x)
    torch.testing.assert_close(result, model(x))
    with verified(), pytest.raises(Exception, match=r"needs a gradient|gradient of input"):
        compiled(stops, model, x)


def put_last(graph, target, *args, **keywords):
    output = graph.output_node()
    last = output.all_input_nodes[0]
    with graph.inserting_before(output):
        made = graph.call_function(target, (last, *args), keywords)
    output.replace_input_with(last, made)


def doubled(x):
    return x * 2


def widened(x):
    return x.double() if x.data_ptr() else x


def flattened(x):
    return x.reshape(-1) if x.data_ptr() else x


def as_the_first(x, sizes):
    return x.expand(sizes) if x.data_ptr() else x


def divided(x, size):
    return x / size * x.shape[0]


def refused_unless_five(x):
    if x.data_ptr() and x.shape[0] != 5:
        raise ValueError("five rows")
    return x


@pytest.mark.parametrize(
    ("target", "args", "error", "said"),
    [
        (widened, (), "WrongDtype", "result 0 is torch.float64 on cpu"),
        (flattened, (), "ShapeAssumed", r"result 0 has shape \(15\), and had \(5, 3\)"),
        (as_the_first, ((5, 3),), "ShapeAssumed", "raises RuntimeError: The expanded size"),
        (divided, (5,), "ShapeAssumed", "result 0 is another than before it"),
        (refused_unless_five, (), "ShapeAssumed", "raises ValueError: five rows"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_only_real_tensors_show_is_named(target, args, error, said):
    """Functions that nobody knows, which fake tensors can't be given."""

    @graph_pass()
    def puts(graph_module):
        put_last(graph_module.graph, target, *args)
        graph_module.recompile()
        return 1

    x = torch.randn(5, 3)
    torch._dynamo.mark_dynamic(x, 0)
    backend = type("One", (Backend,), {"passes": (puts,), "codegen": "eager"})()
    with verified(), pytest.raises(Exception, match=f"{error}: pass puts: .*{said}") as caught:
        torch.compile(doubled, backend=backend)(x)
    second = "That is so where s" in str(caught.value)
    assert second == (target in {as_the_first, divided, refused_unless_five})


def test_a_second_size_is_one_that_the_guards_allow():
    seen = []

    def notes(x):
        if x.data_ptr():
            seen.append(x.shape[0])
        return x

    @graph_pass()
    def puts(graph_module):
        put_last(graph_module.graph, notes)
        graph_module.recompile()
        return 1

    def by_fours(x):
        return x.view(-1, 4, 3) * 2 if x.shape[0] % 4 == 0 else x

    x = torch.randn(8, 3)
    torch._dynamo.mark_dynamic(x, 0)
    backend = type("One", (Backend,), {"passes": (puts,), "codegen": "eager"})()
    with verified():
        torch.compile(by_fours, backend=backend)(x)
    assert set(seen) == {2, 4}
