"""A node that a pass puts in has the value that it would have where it stands."""

import operator

import pytest
import torch

from backbay.graph.rewrite import call_before, replace_node
from backbay.graph.values import adopt, carry, value_of

WEIGHT = torch.nn.Parameter(torch.randn(4))


def doubled(x):
    return x * WEIGHT


def partly(x):
    with torch.no_grad():
        return x * WEIGHT


@torch.no_grad()
def nowhere(x):
    return x * WEIGHT


def afterwards(x):
    with torch.no_grad():
        y = x + 1
    return y * WEIGHT


CASES = {
    "under no_grad": (doubled, torch.no_grad(), False),
    "in inference mode": (doubled, torch.inference_mode(), False),
    "in training": (doubled, torch.enable_grad(), True),
    "in a part without": (partly, torch.enable_grad(), False),
    "in a function without": (nowhere, torch.enable_grad(), False),
    "behind a part without": (afterwards, torch.enable_grad(), True),
}


@pytest.mark.parametrize(("function", "mode", "recorded"), CASES.values(), ids=CASES)
def test_what_is_put_in_wants_a_gradient_where_none_is_recorded(function, mode, recorded):
    seen = []

    def compiler(graph_module, _):
        (product,) = graph_module.graph.find_nodes(op="call_function", target=operator.mul)
        made = call_before(product, torch.ops.aten.mul.Tensor, *product.args)
        seen.extend(value_of(x).requires_grad for x in (product, made))
        graph_module.graph.erase_node(made)
        return graph_module.forward

    torch.compiler.reset()
    with mode:
        torch.compile(function, backend=compiler)(torch.randn(4))
    assert seen == [recorded, recorded]


def cast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


def not_cast(x):
    with torch.autocast("cpu", enabled=False):
        return x @ x


def cast_before(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
    return y.float() @ x


def cast_within(x):
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.float16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            y = y + y
        return y @ x


AUTOCAST = {
    "as outside": (operator.matmul, False, torch.float32),
    "as around it": (operator.matmul, True, torch.bfloat16),
    "in a part with": (cast, False, torch.bfloat16),
    "in a part without": (not_cast, True, torch.float32),
    "behind a part with": (cast_before, False, torch.float32),
    "in the inner one": (cast_within, False, torch.float16),
}


@pytest.mark.parametrize(("function", "around", "dtype"), AUTOCAST.values(), ids=AUTOCAST)
def test_what_is_put_in_is_cast_where_autocast_is_on(function, around, dtype):
    seen = []

    def compiler(graph_module, _):
        products = graph_module.graph.find_nodes(op="call_function", target=operator.matmul)
        product = list(products)[-1]
        x = next(iter(graph_module.graph.find_nodes(op="placeholder")))
        made = call_before(product, torch.matmul, x, x)
        seen.append(value_of(made).dtype)
        graph_module.graph.erase_node(made)
        return graph_module.forward

    torch.compiler.reset()
    given = [torch.randn(4, 4)] * (2 if function is operator.matmul else 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        torch.compile(lambda *x: function(*x), backend=compiler)(*given)
    assert seen == [dtype]


def test_a_value_is_taken_over_with_the_memory_that_views_have():
    seen = []

    def compiler(graph_module, _):
        (product,) = graph_module.graph.find_nodes(op="call_function", target=operator.matmul)
        with graph_module.graph.inserting_before(product):
            made = graph_module.graph.call_function(torch.mm, product.args)
        adopt(made, product)
        value, (view,), where = value_of(product), product.users, product.meta["stack_trace"]
        before = value_of(view)
        replace_node(product, made)
        seen.append(value_of(made) is value and value_of(view) is before)
        seen.append(made.meta["stack_trace"] == where)
        graph_module.recompile()
        return graph_module.forward

    torch.compiler.reset()
    x = torch.randn(4, 4)
    result = torch.compile(lambda x: (x @ x).view(2, 8), backend=compiler)(x)
    assert seen == [True, True]
    torch.testing.assert_close(result, (x @ x).view(2, 8))


def test_symbols_stay_symbols_and_numbers_are_not_asked_for_in_python():
    dispatched = []

    def compiler(graph_module, _):
        (product,) = graph_module.graph.find_nodes(op="call_function", target=operator.matmul)
        made = call_before(product, seen_by, *product.args)
        dispatched.append((tuple(map(type, value_of(made).shape)), on[-1]))
        graph_module.graph.erase_node(made)
        return graph_module.forward

    on = []

    def seen_by(x, y):
        on.append(torch._C._dispatch_tls_is_dispatch_key_included(PYTHON))
        return x @ y

    for dynamic in (False, True):
        torch.compiler.reset()
        torch.compile(lambda x: x @ x.T, backend=compiler, dynamic=dynamic)(torch.randn(3, 5))
    (static, slow), (symbolic, as_dynamo) = dispatched
    assert static == (int, int)
    assert not slow
    assert symbolic == (torch.SymInt, torch.SymInt)
    assert as_dynamo


PYTHON = torch._C.DispatchKey.PythonDispatcher


def test_what_its_author_said_of_a_node_is_lost_or_is_said_of_two_at_once():
    graph = torch.fx.Graph()
    one, other = (graph.call_function(torch.relu, (graph.placeholder(x),)) for x in "ab")
    one.meta |= {"custom": {"stream": 1}, "stack_trace": "here", "example_value": None}
    carry(other, one)
    assert other.meta == {"custom": {"stream": 1}, "stack_trace": "here"}
    other.meta["custom"]["stream"] = 2  # as torch does
    assert one.meta["custom"] == {"stream": 1}
