"""Passes in plain ``torch.fx``, as in tutorials, set no fake values: they are checked too."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.errors import (
    BackbayError,
    DanglingNode,
    GradientMismatch,
    GraphBroken,
    MissingOutput,
    ShapeAssumed,
    WrongDtype,
)
from backbay.graph.effects import is_known
from backbay.graph.values import value_of
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass

ATEN = torch.ops.aten
BOTH = pytest.mark.parametrize("level", ["torch", "aten"])


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def model(x):
    return torch.relu(x * 2) + 1


def graph_passed(change, level, *args, function=model, dynamic=None, codegen="aot_eager"):
    """Compile with one pass; return the graph that it left."""
    seen = []

    def changes(graph_module):
        change(graph_module.graph)
        graph_module.recompile()
        return 1

    def keep(graph_module):
        seen.append(graph_module)
        return 0

    passes = (graph_pass(level=level)(changes), graph_pass(level=level)(keep))
    backend = type("One", (Backend,), {"passes": passes, "codegen": codegen})()
    torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    return seen[0]


def refused(change, level, error, *args, **given):
    with pytest.raises(Exception, match="pass changes") as caught:
        graph_passed(change, level, *args, **given)
    found = caught.value
    while not isinstance(found, BackbayError) and found.__cause__ is not None:
        found = found.__cause__
    assert error.__name__ in f"{type(found).__name__} {caught.value}"
    return str(caught.value)


def before_the_last(graph):
    """Return the node that is returned, and its only use."""
    output = graph.output_node()
    return output.all_input_nodes[0], output


def put_last(graph, method, *args):
    last, output = before_the_last(graph)
    with graph.inserting_before(output):
        made = graph.call_method(method, (last, *args))
    output.replace_input_with(last, made)
    return made


@BOTH
def test_a_missing_output(level):
    refused(lambda g: g.erase_node(g.output_node()), level, MissingOutput, torch.ones(3))


@BOTH
@pytest.mark.parametrize("method", ["half", "double"])
def test_another_dtype(level, method):
    said = refused(lambda g: put_last(g, method), level, WrongDtype, torch.ones(3))
    assert "result 0 is torch.float" in said


@BOTH
def test_another_dtype_with_the_metadata_of_what_it_replaces(level):
    def change(graph):
        last, _ = before_the_last(graph)
        put_last(graph, "half").meta = dict(last.meta)

    refused(change, level, WrongDtype, torch.ones(3))


def test_another_dtype_of_a_node_that_is_changed_in_place():
    def change(graph):
        node = next(x for x in graph.nodes if x.target is torch.relu)
        node.op, node.target = "call_method", "half"

    refused(change, "torch", WrongDtype, torch.ones(3))


def test_another_dtype_that_a_later_node_cannot_take():
    def look_up(x, weight):
        return F.embedding(x * 2, weight)

    def change(graph):
        node = next(x for x in graph.nodes if "embedding" in x.name)
        with graph.inserting_before(node):
            cast = graph.call_method("float", (node.args[0],))
        node.replace_input_with(node.args[0], cast)

    given = torch.ones(2, dtype=torch.int64), torch.ones(3, 3)
    said = refused(change, "torch", WrongDtype, *given, function=look_up)
    assert "can't take float_1 of torch.float32, it was torch.int64" in said


@BOTH
def test_a_dangling_node(level):
    def change(graph):
        last, output = before_the_last(graph)
        with graph.inserting_after(output):
            late = graph.call_method("neg", (last,))
        output.replace_input_with(last, late)

    refused(change, level, DanglingNode, torch.ones(3))


def test_a_gradient_that_is_lost():
    x = torch.ones(3, requires_grad=True)
    assert "needs a gradient" in refused(
        lambda g: put_last(g, "detach"), "torch", GradientMismatch, x
    )


def test_a_gradient_that_is_lost_inside():
    def change(graph):
        node = next(x for x in graph.nodes if x.target is torch.relu)
        with graph.inserting_before(node):
            node.replace_input_with(node.args[0], graph.call_method("detach", node.args))

    refused(change, "torch", GradientMismatch, torch.ones(3, requires_grad=True))
    torch.compiler.reset()
    graph_passed(change, "torch", torch.ones(3))  # where nobody wants one, it is right


@BOTH
@pytest.mark.parametrize(
    ("method", "args"), [("expand", (5, 3)), ("reshape", (5, 3)), ("reshape", (-1,))]
)
def test_a_shape_taken_from_the_example(level, method, args):
    refused(
        lambda g: put_last(g, method, *args), level, ShapeAssumed, torch.ones(5, 3), dynamic=True
    )


@BOTH
@pytest.mark.parametrize("by", ["module", "function"])
def test_a_constant_of_the_size_of_the_example(level, by):
    def change(graph):
        last, output = before_the_last(graph)
        with graph.inserting_before(output):
            if by == "module":
                graph.owning_module.register_buffer("held", torch.zeros(5, 3))
                zeros = graph.get_attr("held")
            else:
                zeros = graph.call_function(torch.zeros, ((5, 3),))
            made = graph.call_function(torch.add, (last, zeros))
        output.replace_input_with(last, made)

    said = refused(change, level, ShapeAssumed, torch.ones(5, 3), dynamic=True)
    assert "is right only where Eq(" in said
    torch.compiler.reset()
    if by == "function":  # AOTAutograd refuses a buffer that Dynamo did not bring
        graph_passed(change, level, torch.ones(5, 3), dynamic=False)


def test_a_shape_that_a_later_node_cannot_take():
    def change(graph):
        node = next(x for x in graph.nodes if x.target is torch.relu)
        with graph.inserting_before(node):
            node.replace_input_with(node.args[0], graph.call_method("reshape", (*node.args, -1)))

    def product(x):
        return torch.relu(x * 2) @ x.t()

    said = refused(change, "torch", ShapeAssumed, torch.ones(5, 3), function=product)
    assert "of shape (15,), it was (5, 3)" in said


def test_a_call_that_cannot_work_is_named():
    said = refused(lambda g: put_last(g, "view", 7), "torch", GraphBroken, torch.ones(3))
    assert "can't be computed from what it gets (RuntimeError" in said


@BOTH
def test_what_a_right_pass_puts_in_has_values(level):
    def change(graph):
        node = next(x for x in graph.nodes if "relu" in str(x.target))
        with graph.inserting_before(node):
            half = graph.call_method("half", node.args)
            back = graph.call_method("float", (half,))
        node.replace_input_with(node.args[0], back)

    graph = graph_passed(change, level, torch.ones(3)).graph
    dtypes = [value_of(x).dtype for x in graph.nodes if x.op == "call_method"]
    assert dtypes == [torch.float16, torch.float32]
    assert all(value_of(x) is not None for x in graph.nodes if x.op != "output")


@BOTH
def test_no_guard_is_added(level):
    counts = []

    def change(graph):
        first = next(x for x in graph.nodes if isinstance(value_of(x), torch.Tensor))
        env = value_of(first).fake_mode.shape_env
        counts.append((len(env.guards), dict(env.replacements)))
        put_last(graph, "reshape", -1, 3)
        counts.append(env)

    x = torch.ones(5, 3)
    torch._dynamo.mark_dynamic(x, 0)
    graph_module = graph_passed(change, level, x)
    (count, replacements), env = counts
    if level == "torch":  # AOTAutograd, which comes after it, adds its own
        assert (len(env.guards), env.replacements) == (count, replacements)
    assert "evaluate_expr" not in vars(env)
    assert "s" in str(value_of(before_the_last(graph_module.graph)[0]).shape[0])


def test_views_of_what_was_replaced_share_the_memory_of_what_replaces_it():
    def function(x):
        return torch.relu(x * 2).view(-1)

    def change(graph):
        node = next(x for x in graph.nodes if x.target is torch.relu)
        with graph.inserting_before(node):
            made = graph.call_method("relu", node.args)
        node.replace_all_uses_with(made)
        graph.erase_node(node)

    graph = graph_passed(change, "torch", torch.ones(5, 3), function=function).graph
    view, made = before_the_last(graph)[0], next(x for x in graph.nodes if x.target == "relu")
    assert value_of(view).untyped_storage()._cdata == value_of(made).untyped_storage()._cdata


def test_a_value_that_a_pass_computed_stays():
    kept = []

    def change(graph):
        made = put_last(graph, "neg")
        made.meta["example_value"] = value_of(made.args[0]).neg()
        kept.append(made.meta["example_value"])

    graph = graph_passed(change, "torch", torch.ones(3)).graph
    assert value_of(before_the_last(graph)[0]) is kept[0]


def test_what_writes_is_not_computed_once_more():
    versions = []

    def change(graph):
        made = put_last(graph, "mul_", 2)
        versions.append((value_of(made.args[0]), value_of(made.args[0])._version))

    graph = graph_passed(change, "torch", torch.ones(3)).graph
    value, version = versions[0]
    assert value_of(before_the_last(graph)[0]) is value
    assert value._version == version


def needs_numbers(x):
    return x + float(x.sum())


def test_a_function_that_needs_real_tensors_is_left_alone():
    def change(graph):
        last, output = before_the_last(graph)
        with graph.inserting_before(output):
            made = graph.call_function(needs_numbers, (last,))
        output.replace_input_with(last, made)

    graph = graph_passed(change, "torch", torch.ones(3), codegen="eager").graph
    assert value_of(before_the_last(graph)[0]) is None
    assert not is_known(before_the_last(graph)[0])


def test_a_submodule_has_values_too():
    def change(graph):
        last, output = before_the_last(graph)
        graph.owning_module.add_module("norm", torch.nn.LayerNorm(3))
        with graph.inserting_before(output):
            made = graph.call_module("norm", (last,))
        output.replace_input_with(last, made)

    graph = graph_passed(change, "torch", torch.ones(5, 3), codegen="eager").graph
    assert value_of(before_the_last(graph)[0]).shape == (5, 3)
