"""The driver of rewrites checks what a pass declares, and takes back what does not fit."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from backbay.errors import InputError
from backbay.graph.match import first_input, is_call
from backbay.graph.rewrite import bound, call_before, revocable
from backbay.graph.values import value_of
from backbay.kit import passes
from backbay.kit.backend import Backend, option_rows
from backbay.kit.observing import collected
from backbay.kit.passes import (
    Call,
    NotApplicable,
    Pass,
    PassContext,
    Replacement,
    Requires,
    Rewrite,
    graph_pass,
    option,
    profitable_where,
    rewrite_pass,
)
from backbay.kit.pipeline import run_passes
from backbay.registry import Option

CPU = Requires(
    devices=("cpu",),
    because="it was tried there",
    dtypes=(torch.float32,),
    dtypes_because="it pays in it",
    inference=True,
)


@dataclass(frozen=True, kw_only=True)
class SineToCosine(Rewrite[Call]):
    """Replace a sine of many rows by a cosine: not the same, and easily seen."""

    targets = (torch.sin, "sin")
    parameters = ("input",)
    requires = CPU
    minimum_rows: int = option(1, "rows below which nothing is replaced", choices=(1, 3))

    def replacement(self, site, context):
        value = value_of(site.given["input"])
        if value.dim() == 0:
            return None
        made = call_before(site.node, torch.cos, site.given["input"])
        if value.shape[0] < self.minimum_rows:
            raise NotApplicable(f"{value.shape[0]} rows")
        return made


cosine = SineToCosine()


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def seen(one, function, *args, train=False, **options):
    """Compile a function with a pass; give result, report, and the graph that is left."""
    graphs = []

    class Keeps(Backend):
        passes = one if isinstance(one, tuple) else (one,)

        def compile(self, graph_module, example_inputs):
            graphs.append(graph_module)
            return graph_module.forward

    with torch.set_grad_enabled(train), collected() as reports:
        result = torch.compile(function, backend=Keeps(), options=options or None)(*args)
    (graph_module,) = graphs
    graph_module.graph.lint()
    return result, reports, [n.target for n in graph_module.graph.nodes if n.op.startswith("call")]


def test_a_call_is_not_replaced_however_it_is_spelled():
    x = torch.randn(3)
    result, (report,), left = seen(cosine, lambda x: x.sin() + torch.sin(input=x), x)
    torch.testing.assert_close(result, 2 * x.cos())
    assert (report.name, report.changes, report.near) == ("sine_to_cosine", 2, ())
    assert left[:2] == [torch.cos] * 2


REFUSED = {
    "gradients": (torch.randn(3, requires_grad=True), "a gradient is wanted"),
    "another dtype": (torch.randn(3).double(), "it is of torch.float64: it pays in it"),
    "another device": (torch.randn(3, device="meta"), "it runs on meta: it was tried there"),
}


@pytest.mark.parametrize(("x", "why"), REFUSED.values(), ids=REFUSED)
def test_a_requirement_is_not_checked(x, why):
    _, (report,), left = seen(cosine, lambda x: x.sin(), x, train=x.requires_grad)
    assert (report.changes, [y.reason for y in report.near]) == (0, [why])
    assert left == ["sin"]


def test_amd_counts_where_it_was_excluded(monkeypatch):
    requires = Requires(devices=("cuda",), because="x", rocm=False)
    fake = torch._subclasses.FakeTensorMode()
    with fake:
        value = torch.empty(1, device="cuda")
    requires.check(value)
    monkeypatch.setattr(passes, "IS_HIP", True)
    replace(requires, rocm=True).check(value)
    with pytest.raises(NotApplicable, match="it runs on cuda: x"):
        requires.check(value)


def test_what_was_put_in_stays_where_a_reason_comes_late():
    _, (report,), left = seen(
        cosine, lambda x, y: x.sin().sum() + y.sin(), torch.ones(3), torch.ones(1), minimum_rows=3
    )
    assert report.changes == 1
    (near,) = report.near
    assert (near.pattern, near.reason) == ("sine_to_cosine", "1 rows")
    assert "y.sin()" in near.stack_trace
    assert left.count(torch.cos) == left.count("sin") == 1


def test_what_is_not_looked_for_is_a_near_miss():
    _, (report,), _ = seen(cosine, lambda x: x.sin(), torch.tensor(1.0))
    assert (report.changes, report.near) == (0, ())


def test_another_layout_is_handed_out():
    class Transposed(SineToCosine):
        def replacement(self, site, context):
            flipped = call_before(site.node, torch.t, site.node.args[0])
            return call_before(site.node, torch.t, call_before(site.node, torch.clone, flipped))

    class Another(Transposed):
        def replacement(self, site, context):
            made = call_before(site.node, torch.t, site.node.args[0])
            return call_before(site.node, torch.cos, made)

    _, (report,), left = seen(Another(), lambda x: x.sin(), torch.randn(3, 4))
    assert [x.reason for x in report.near] == ["its result would be laid out otherwise"]
    assert left == ["sin"]


class Chain(Rewrite[Call]):
    """Replace the sine of a number of exponentials by their sum, and erase those."""

    targets = (torch.sin,)
    removes_dead_code = True

    def replacement(self, site, context):
        inner = site.node.args[0]
        made = call_before(site.node, torch.neg, inner.args[0])
        return Replacement({site.node: made}, [site.node, inner])


def test_what_is_covered_stays_or_what_others_read_goes():
    _, _, left = seen(Chain(), lambda x: torch.sin(torch.exp(x)), torch.ones(2))
    assert left == [torch.neg]

    def read_twice(x):
        y = torch.exp(x)
        return torch.sin(y), y

    _, (report,), left = seen(Chain(), read_twice, torch.ones(2))
    assert report.changes == 1
    assert left == [torch.exp, torch.neg]


def without_gradients_on_the_way(x):
    with torch.no_grad():
        y = torch.exp(x)
    return torch.sin(y)


def cast_on_the_way(x):
    y = torch.exp(x)
    with torch.autocast("cpu", torch.bfloat16):
        return torch.sin(y)


@pytest.mark.parametrize("function", [without_gradients_on_the_way, cast_on_the_way])
def test_what_is_computed_in_two_modes_becomes_one_call(function):
    _, (report,), left = seen(Chain(), function, torch.ones(2, requires_grad=True), train=True)
    assert report.changes == 0
    (near,) = report.near
    assert "changes a mode on the way" in near.reason
    assert torch.neg not in left


def test_what_does_not_pay_is_replaced_or_another_is_asked_about():
    asked = []

    def decide(name, nodes):
        asked.append((name, [n.target for n in nodes]))
        return len(asked) > 1

    with profitable_where(decide):
        _, (report,), left = seen(cosine, lambda x: torch.sin(x) + torch.sin(x * 2), torch.ones(2))
    assert asked == [("sine_to_cosine", [torch.sin])] * 2
    assert report.changes == left.count(torch.sin) == left.count(torch.cos) == 1
    assert "slower than what Inductor makes of it" in report.near[0].reason

    class Free(SineToCosine):
        is_timed = False

    with profitable_where(decide):
        seen(Free(), lambda x: torch.sin(x), torch.ones(2))
    assert len(asked) == 2


def test_a_node_that_sites_share_is_made_twice_or_outlives_what_was_taken_back():
    class Shares(Rewrite[Call]):
        targets = (torch.sin,)
        failing = 0

        def replacement(self, site, context):
            zero = context.kept("zero", lambda: call_before(site.node, torch.zeros_like, first[0]))
            first.append(None)
            if len(first) <= 1 + self.failing:
                raise NotApplicable("not this one")
            return call_before(site.node, torch.add, site.node.args[0], zero)

        def sites(self, graph_module, context):
            first[:] = graph_module.graph.find_nodes(op="placeholder")[:1]
            return super().sites(graph_module, context)

    first = []
    for failing, made in ((0, 2), (1, 1), (2, 0)):
        torch.compiler.reset()
        Shares.failing = failing
        _, _, left = seen(Shares(), lambda x: torch.sin(x) * torch.sin(x + 1), torch.ones(2))
        assert left.count(torch.sin) == failing
        assert left.count(torch.zeros_like) == (made > 0)


def test_a_pass_of_a_whole_graph_has_no_near_misses():
    class Whole(Pass):
        def run(self, graph_module, context):
            count = 0
            for node in graph_module.graph.find_nodes(op="call_function", target=torch.sin):
                with context.attempt(node):
                    made = call_before(node, torch.cos, *node.args)
                    if count:
                        raise NotApplicable("one is enough")
                    node.replace_all_uses_with(made)
                    graph_module.graph.erase_node(node)
                    count += 1
            graph_module.recompile()
            return count

    _, (report,), left = seen(Whole(), lambda x: torch.sin(x) * torch.sin(x + 1), torch.ones(2))
    assert (report.name, report.changes) == ("whole", 1)
    assert [x.reason for x in report.near] == ["one is enough"]
    assert left.count(torch.cos) == left.count(torch.sin) == 1


def test_an_error_of_an_author_is_taken_for_a_reason():
    class Broken(SineToCosine):
        def replacement(self, site, context):
            raise KeyError("x")

    with pytest.raises(Exception, match="pass broken raised KeyError"):
        seen(Broken(), lambda x: x.sin(), torch.ones(2))


def test_a_size_that_only_a_run_tells_ends_the_compilation():
    class Described(SineToCosine):
        def about(self, site):
            return "a sine: "

    x = torch.ones(5)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    _, (report,), left = seen(Described(minimum_rows=3), lambda x: x.sin(), x)
    assert report.changes == 0
    (near,) = report.near
    assert near.reason == "a sine: it depends on a size that is known only when it runs"
    assert "x.sin()" in near.stack_trace
    assert "sin" in left
    assert torch.cos not in left


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError])
def test_an_error_while_it_runs_is_taken_for_an_unknown_size(kind):
    graph = torch.fx.symbolic_trace(lambda x: torch.sin(x)).graph
    context, node = PassContext(), graph.find_nodes(op="call_function", target=torch.sin)[0]
    with pytest.raises(kind, match="as it is"), context.attempt(node, "of a sine: "):
        raise kind("as it is")
    assert not context.near


def test_options_are_written_twice_or_reach_no_field():
    class Sines(Backend):
        passes = (cosine, replace(cosine, level="aten"), replace(Chain(), enabled=False))
        codegen = "eager"
        options = (Option(name="depth", type="int", default=1),)

    assert list(option_rows(Sines)) == [
        {
            "name": "chain",
            "type": "bool",
            "default": False,
            "help": "Replace the sine of a number of exponentials by their sum, and erase those",
        },
        {"name": "depth", "type": "int", "default": 1, "help": ""},
        {
            "name": "minimum_rows",
            "type": "int",
            "default": 1,
            "choices": [1, 3],
            "help": "rows below which nothing is replaced",
        },
        {
            "name": "sine_to_cosine",
            "type": "bool",
            "default": True,
            "help": "Replace a sine of many rows by a cosine: not the same, and easily seen",
        },
    ]
    assert list(option_rows(Sines())) == list(option_rows(Sines))
    for options, changes in (({}, 1), ({"minimum_rows": 3}, 0), ({"sine_to_cosine": False}, None)):
        _, reports, _ = seen(cosine, lambda x: x.sin(), torch.ones(2), **options)
        assert [x.changes for x in reports] == ([] if changes is None else [changes])
        torch.compiler.reset()
    with pytest.raises(Exception, match="'minimum_rows' of keeps is one of 1, 3, not 2"):
        seen(cosine, lambda x: x.sin(), torch.ones(2), minimum_rows=2)
    _, reports, _ = seen(replace(cosine, enabled=False), lambda x: x.sin(), torch.ones(2))
    assert not reports


def test_two_passes_share_an_option_of_two_kinds():
    @dataclass(frozen=True, kw_only=True)
    class Other(SineToCosine):
        minimum_rows: float = option(1.0, "something else")

    with pytest.raises(InputError, match="different options 'minimum_rows'"):
        type("Both", (Backend,), {"passes": (cosine, Other())})


def test_an_option_changes_nothing_of_what_caches_know():
    assert cosine.uuid() == SineToCosine().uuid()
    assert cosine.uuid() != replace(cosine, minimum_rows=3).uuid()
    assert cosine.uuid() != cosine.at("aten").uuid()
    assert cosine.uuid() != replace(cosine, name="other").uuid()


@pytest.mark.parametrize("kind", ["class", "function", "patterns"])
def test_the_name_of_a_module_is_taken_for_its_text(kind):
    def made(*sources):
        if kind == "class":
            named = type("FromKernel", (Pass,), {"sources": sources})
            return dataclass(frozen=True, kw_only=True)(named)()
        if kind == "function":
            return graph_pass(name="from_kernel", sources=sources)(lambda graph_module: 0)
        return rewrite_pass(name="from_kernel", sources=sources)

    for name in ("backbay.kit.passes", "torch", "torch.absent"):
        with pytest.raises(InputError) as raised:
            made(passes, name)
        assert str(raised.value) == (
            f"pass from_kernel: its source {name!r} names a module, and only the name would count: "
            "give the module itself, or its text"
        )
    texts = ("5.0", "", "x + 1\n", "code", "absent.kernel", "absent")
    known = {made(*given).uuid() for given in ((), (passes,), *((x,) for x in texts))}
    assert len(known) == 2 + len(texts)


def test_a_pass_does_not_know_that_a_later_one_hoists():
    told = []

    @graph_pass()
    def tells(graph_module, context):
        told.append(context.is_hoisted)
        return 0

    class Hoists(Pass):
        hoists = True

        def run(self, graph_module, context):
            return 0

    graph_module = torch.fx.symbolic_trace(lambda x: x + 1)
    for order, options in (((tells, Hoists()), {}), ((Hoists(), tells), {}), ((tells,), {})):
        run_passes(order, graph_module, options)
    run_passes((tells, Hoists()), graph_module, {"hoists": False})
    assert told == [True, False, False, False]


def test_a_code_generator_is_not_wrapped_where_a_pass_asks():
    wrapped = []

    class Wraps(Pass):
        def run(self, graph_module, context):
            return 0

        def wrap_codegen(self, generate):
            def run(graph_module, example_inputs):
                wrapped.append(len(example_inputs))
                return generate(graph_module, example_inputs)

            return run

    class Wrapping(Backend):
        passes = (Wraps(),)
        codegen = "eager"

    for options in ({}, {"wraps": False}):
        torch.compiler.reset()
        torch.compile(lambda x: x + 1, backend=Wrapping(), options=options)(torch.ones(1))
    assert wrapped == [1]


def test_nodes_are_left_of_a_block_that_raised():
    graph = torch.fx.symbolic_trace(lambda x: torch.sin(x)).graph
    node = graph.find_nodes(op="call_function", target=torch.sin)[0]

    def puts_and_raises():
        with revocable(graph), graph.inserting_before(node):
            first = graph.call_function(torch.cos, node.args)
            graph.call_function(torch.exp, (first,))
            raise KeyError("x")

    with pytest.raises(KeyError):
        puts_and_raises()
    with revocable(graph), graph.inserting_before(node):
        graph.call_function(torch.tan, node.args)
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [torch.tan, torch.sin]
    assert "create_node" not in vars(graph)
    assert bound(node, ("x", "y")) == {"x": node.args[0]}


def test_a_context_is_needed_for_what_is_kept():
    made = []
    context = PassContext()
    assert context.kept("a", lambda: made.append(1) or "a") == "a"
    assert context.kept("a", lambda: made.append(1) or "b") == "a"
    assert made == [1]


@dataclass(frozen=True, kw_only=True)
class SineOfMatrixToCosine(SineToCosine):
    """The same, and about matrices alone."""

    def site(self, call, context):
        return call if value_of(call.given["input"]).dim() == 2 else None


def test_what_a_rewrite_is_not_about_is_a_near_miss():
    def program(x, y):
        return x.sin() + torch.sin(input=y)

    one = SineOfMatrixToCosine(minimum_rows=3)
    _, (report,), _ = seen(one, program, torch.ones(2), torch.ones(2, 2))
    assert [x.reason for x in report.near] == ["2 rows"]


def test_a_method_is_not_put_in():
    graph_module = torch.fx.symbolic_trace(lambda x: x.sin())
    x, sine, _ = graph_module.graph.nodes
    value = torch.ones(2)
    with FakeTensorMode() as mode:
        x.meta["example_value"] = sine.meta["example_value"] = mode.from_tensor(value)
    made = call_before(sine, "mul", x, other=3)
    assert is_call(made, ("mul",))
    assert not is_call(made, (torch.mul,))
    assert not is_call(x, ("x",))
    assert first_input(made) is x
    assert value_of(made).shape == (2,)
    sine.replace_all_uses_with(made)
    graph_module.recompile()
    assert graph_module(value).tolist() == [3, 3]
