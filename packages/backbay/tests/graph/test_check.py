"""Each common mistake of a pass has its own error, which names the pass."""

import operator

import pytest
import torch
from torch import fx

from backbay.errors import (
    BackbayError,
    DanglingNode,
    EndlessPass,
    ErasedInUse,
    GradientMismatch,
    GraphBroken,
    MissingOutput,
    ShapeAssumed,
    StaleCode,
    WrongDtype,
)
from backbay.graph.check import Freshness
from backbay.graph.values import value_of
from backbay.kit.passes import graph_pass
from backbay.kit.pipeline import run_passes


@pytest.fixture
def graph_module():
    """Return Dynamo's graph of a small function, with its metadata."""
    seen = []

    def keep(module, _):
        seen.append(module)
        return module.forward

    torch.compiler.reset()
    torch.compile(lambda x, y: (torch.relu(x * 2) + y, x.sum()), backend=keep, dynamic=True)(
        torch.randn(3, 4), torch.randn(3, 4)
    )
    return seen[0]


@pytest.fixture
def waiting():
    """Return such a graph whose code is not written yet: nobody has called it."""
    seen = []

    def keep(module, _):
        seen.append(module)
        return lambda *inputs: fx.Interpreter(module).run(*inputs)

    torch.compiler.reset()
    torch.compile(lambda x, y: torch.relu(x * 2) + y, backend=keep)(torch.ones(3), torch.ones(3))
    assert seen[0]._needs_recompile()
    return seen[0]


def find(module, target):
    return next(
        n for n in module.graph.nodes if n.target == target or n.name.startswith(str(target))
    )


def broken(graph_module, function, error):
    one = graph_pass()(function)
    with pytest.raises(error, match=f"pass {function.__name__}") as caught:
        run_passes([one], graph_module)
    assert isinstance(caught.value, GraphBroken)
    return str(caught.value)


def test_a_pass_that_does_nothing_or_right_passes(graph_module):
    @graph_pass()
    def nothing(module):
        return 0

    @graph_pass()
    def doubles(module):
        node = find(module, operator.mul)
        node.args = (node.args[0], 4)
        module.recompile()
        return 1

    reports = run_passes([nothing, doubles], graph_module)
    assert [(r.name, r.changes) for r in reports] == [("nothing", 0), ("doubles", 1)]


def test_missing_output(graph_module):
    def drops_the_output(module):
        module.graph.erase_node(find(module, "output"))
        return 1

    assert "0 output nodes" in broken(graph_module, drops_the_output, MissingOutput)


def test_fewer_results(graph_module):
    def returns_less(module):
        output = find(module, "output")
        output.args = (output.args[0][:1],)
        module.recompile()
        return 1

    assert "changed what the graph returns" in broken(graph_module, returns_less, MissingOutput)


def test_an_input_removed(graph_module):
    def removes_an_input(module):
        placeholder = next(n for n in module.graph.nodes if n.op == "placeholder")
        with module.graph.inserting_after(placeholder):
            new = module.graph.call_function(torch.zeros, (3, 4))
        placeholder.replace_all_uses_with(new)
        module.graph.erase_node(placeholder)
        module.recompile()
        return 1

    assert "Leave placeholders" in broken(graph_module, removes_an_input, MissingOutput)


def test_wrong_dtype(graph_module):
    def halves(module):
        output = find(module, "output")
        first, *rest = output.args[0]
        with module.graph.inserting_before(output):
            half = module.graph.call_method("half", (first,))
        half.meta["example_value"] = first.meta["example_value"].half()
        output.args = ((half, *rest),)
        module.recompile()
        return 1

    assert "float16" in broken(graph_module, halves, WrongDtype)


def test_a_symbolic_size_taken_for_a_number(graph_module):
    def assumes_the_shape(module):
        output = find(module, "output")
        first, *rest = output.args[0]
        fake = first.meta["example_value"]
        with module.graph.inserting_before(output):
            fixed = module.graph.call_function(torch.zeros, (3, 4))
        with fake.fake_mode:
            fixed.meta["example_value"] = torch.zeros(3, 4)
        output.args = ((fixed, *rest),)
        module.recompile()
        return 1

    assert "is a symbol" in broken(graph_module, assumes_the_shape, ShapeAssumed)


def test_a_node_used_before_it_is_there(graph_module):
    def uses_too_early(module):
        add = find(module, operator.add)
        find(module, "relu").args = (add,)
        return 1

    assert "comes only after it" in broken(graph_module, uses_too_early, DanglingNode)


def test_a_node_of_another_graph(graph_module):
    def uses_a_stranger(module):
        stranger = fx.Graph().placeholder("stranger")
        find(module, operator.add).args = (stranger, 1)
        return 1

    assert "not in the graph" in broken(graph_module, uses_a_stranger, DanglingNode)


def test_a_node_erased_in_use(graph_module):
    def erases(module):
        module.graph.erase_node(find(module, operator.mul))
        return 1

    assert "replace_all_uses_with" in broken(graph_module, erases, ErasedInUse)


def test_a_forgotten_recompile(graph_module):
    def forgets(module):
        node = find(module, operator.mul)
        node.args = (node.args[0], 4)
        return 1

    assert "recompile()" in broken(graph_module, forgets, StaleCode)


def test_a_forgotten_recompile_that_is_not_counted_after_a_pass_that_did_nothing(graph_module):
    def forgets(module):
        node = find(module, operator.mul)
        node.args = (node.args[0], 4)
        return 0

    idle = graph_pass(name="idle")(lambda _: 0)
    with pytest.raises(StaleCode, match="forgets"):
        run_passes([idle, graph_pass()(forgets)], graph_module)


@graph_pass(name="idle")
def idle(module):
    return 0


def quadruple(module):
    node = find(module, operator.mul)
    node.args = (node.args[0], 4)


@graph_pass(name="doubles")
def doubles(module):
    quadruple(module)
    module.recompile()
    return 1


@graph_pass(name="forgets")
def forgets(module):
    quadruple(module)
    return 1


def test_code_is_written_for_the_check_alone(waiting):
    assert len(run_passes([idle, doubles, idle], waiting)) == 3
    assert waiting._needs_recompile()
    assert waiting(torch.ones(3), torch.ones(3))[0].tolist() == [5, 5, 5]


@pytest.mark.parametrize("before", [(), (idle,), (doubles,)], ids=["first", "idle", "doubles"])
def test_a_forgotten_recompile_of_a_graph_that_nobody_has_called(waiting, before):
    def changes_more(module):
        node = find(module, operator.mul)
        node.args = (node.args[0], 8)
        return 1

    with pytest.raises(StaleCode, match="changes_more"):
        run_passes([*before, graph_pass()(changes_more)], waiting)
    assert "recompile" not in vars(waiting)  # nothing is left on torch's object


def test_a_recompile_excuses_a_later_pass(waiting):
    again = graph_pass(name="again")(lambda module: int(bool(module.recompile())))
    with pytest.raises(StaleCode, match="forgets"):
        run_passes([again, idle, forgets], waiting)


def test_a_change_taken_back_is_stale(waiting):
    def takes_back(module):
        node = find(module, operator.mul)
        before = node.args
        node.args = (node.args[0], 4)
        node.args = (*before,)
        return 0

    assert run_passes([graph_pass()(takes_back)], waiting)[0].changes == 0


def test_code_that_a_pass_asked_for_before_it_changed_the_graph_is_fresh(waiting):
    def reads(module):
        assert "relu" in module.code
        quadruple(module)
        return 1

    with pytest.raises(StaleCode, match="reads"):
        run_passes([graph_pass()(reads)], waiting)


def test_a_recompile_between_passes_makes_code_stale(graph_module):
    freshness = Freshness()
    assert freshness.of(graph_module)
    graph_module.recompile()
    assert freshness.of(graph_module)


def test_code_that_is_written_after_the_change_is_stale(waiting, graph_module):
    def changes(module):
        quadruple(module)
        module.recompile()
        return len(module.code)

    one = graph_pass()(changes)
    for each in (waiting, graph_module):
        assert run_passes([one, idle, one], each)[2].changes > 0


def test_a_graph_changed_while_it_is_walked_over(graph_module):
    def endless(module):
        for node in module.graph.nodes:
            if node.target == operator.mul:
                with module.graph.inserting_after(node):
                    module.graph.call_function(operator.mul, (node, 2))
        return 1

    assert "list(graph.nodes)" in broken(graph_module, endless, EndlessPass)
    assert "create_node" not in vars(graph_module.graph)  # nothing is left on torch's object


def test_what_a_pass_raises_names_it_and_keeps_the_cause(graph_module):
    @graph_pass()
    def raises(module):
        raise KeyError("lost")

    with pytest.raises(BackbayError, match="pass raises raised KeyError") as caught:
        run_passes([raises], graph_module)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_pass_that_forgets_to_count(graph_module):
    @graph_pass()
    def says_nothing(module):
        pass

    with pytest.raises(BackbayError, match="give how many changes"):
        run_passes([says_nothing], graph_module)


def test_an_idle_pass_hides_what_a_later_one_forgets(graph_module):
    def renames(module):
        find(module, operator.mul).name = "another"
        return 0

    with pytest.raises(StaleCode, match="renames"):
        run_passes([idle, graph_pass()(renames)], graph_module)


def test_an_idle_pass_hides_a_gradient_that_a_later_one_cuts_off():
    def detaches(module):
        (output,) = module.graph.find_nodes(op="output")
        value_of(output.args[0][0]).detach_()
        return 0

    def compile_(module, _):
        with pytest.raises(GradientMismatch, match="detaches"):
            run_passes([idle, graph_pass()(detaches)], module)
        return module.forward

    torch.compiler.reset()
    torch.compile(lambda x: x * 2, backend=compile_)(torch.ones(3, requires_grad=True))


def test_a_value_that_a_pass_sets_hides_what_a_later_one_makes_of_it(graph_module):
    node = find(graph_module, operator.mul)

    def adds_what_nothing_reads(module):
        with module.graph.inserting_before(node):
            module.graph.call_method("double", node.args[:1])
        module.recompile()
        return 1

    def sets_one_alike(module):
        node.meta["example_value"] = value_of(node).clone()
        return 0

    def reads_that(module):
        node.args = (find(module, "double"), *node.args[1:])
        module.recompile()
        return 1

    passes = [adds_what_nothing_reads, sets_one_alike, reads_that]
    with pytest.raises(WrongDtype, match="reads_that"):
        run_passes([graph_pass()(x) for x in passes], graph_module)
