"""What an explanation says is what happened: breaks, passes, guards, recompiles, errors."""

import logging
import math
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

import backbay
from backbay.errors import BackendNotFound, InputError, WorkloadNotFound
from backbay.explain import Explanation, run
from backbay.graph.match import Pattern
from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.passes import graph_pass, rewrite_pass
from backbay.kit.rewrites import rewrite_silu
from backbay.proof import Workload

MODELS = Path(__file__).with_name("models.py")


class GateEagerly(Backend):
    """SiLU, and nothing compiled after it."""

    passes = (rewrite_silu,)
    codegen = "eager"


@graph_pass(level="aten")
def aten_only(graph_module):
    return 0


class Aten(Backend):
    passes = (aten_only,)
    codegen = "eager"


def only(found):
    (one,) = found
    return one


class Counting(torch.nn.Module):
    """As in models.py, line by line what Inductor sees."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@pytest.fixture(scope="module")
def gated():
    return run(f"{MODELS}:gated", backend=GateEagerly(), device="cpu", again=False)


def test_a_break_at_a_print_has_its_line_why_and_what_to_change(reference, line):
    told = run(reference("broken"), device="cpu", again=False)
    printed = told.breaks[0]
    assert printed.line == line('print("hello from the model")')
    assert printed.stack[-1] == printed.line
    assert printed.reason == "Failed to trace builtin operator"
    assert "print" in printed.explanation
    assert any("Avoid calling builtin `print`" in x for x in printed.hints)
    assert printed.url.startswith("https://")
    assert not printed.skipped
    assert len(told.graphs) == 3


def test_a_branch_on_data_has_its_line_with_the_colon_and_its_hint(reference, line):
    branch = run(reference("broken"), device="cpu", again=False).breaks[1]
    assert branch.line == line("if h.sum() > 0:")
    assert branch.reason == "Data-dependent branching"
    assert any("torch.cond" in x for x in branch.hints)
    assert "resumed after a break" in branch.function


def test_a_break_met_again_in_later_calls_is_one_break(reference):
    told = run(reference("broken"), device="cpu")
    assert len(told.breaks) == 2
    assert told.breaks[0].calls == (0, 2)  # compiled first, and again for another batch


def test_a_function_that_runs_eagerly_as_a_whole_is_told_apart_from_one_that_resumes(
    reference, line
):
    broken = only(run(reference("looped"), device="cpu", again=False).breaks)
    assert broken.skipped
    assert broken.line == line('print("in the loop")')
    assert "Avoid calling" in broken.hints[0]  # the break's own, not that of what it led to


def test_where_nothing_is_captured_the_notes_say_so(reference):
    told = run(reference("looped"), device="cpu", again=False)
    assert not told.graphs
    assert any("no graph" in x for x in told.notes)


def test_a_pass_that_fired_and_the_near_miss_with_its_condition_and_line(gated, line):
    one = only(only(only(gated.graphs).stages).passes)
    assert (one.name, one.level, one.changes) == ("rewrite_silu", "torch", 1)
    miss = only(one.near)
    assert miss.pattern == "SiLU as x * sigmoid(x)"
    assert "int64, not floating point" in miss.reason
    assert miss.line == line("return gated, whole * whole.sigmoid()")
    assert "rewrite_silu fired 1x" in gated.sentence


def bent(x):
    return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3)))


def bent_with_another_pi(x):
    return torch.tanh(math.sqrt(2 / 3.14159265) * (x + 0.044715 * torch.pow(x, 3)))


def bent_with_a_product(x):
    return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            bent_with_another_pi,
            "the number is 0.7978845612587234 here, and 0.7978845608028654 in the pattern",
        ),
        (bent_with_a_product, "the power 3 is written with mul here, and with pow in the pattern"),
    ],
)
def test_where_a_pattern_of_ones_own_nearly_fits_what_differs_is_a_finding(function, reason):
    own = rewrite_pass(
        Pattern(match=bent, replacement=lambda x: torch.tanh(x)), name="mine", level="torch"
    )
    backend = type("Mine", (Backend,), {"passes": (own,), "codegen": "eager"})()
    told = run(Workload(function, (torch.ones(4, 4),)), backend=backend, again=False)
    found = only([x for x in told.findings if x.code == "BB501"])
    assert reason in found.message
    assert found.line.startswith(f"{__file__}:")


def test_the_diff_of_a_pass_has_what_went_and_what_came(gated):
    diff = gated.graphs[0].stages[0].passes[0].diff.splitlines()
    assert diff[:2] == ["--- before rewrite_silu", "+++ after rewrite_silu"]
    gone = [x for x in diff if x.startswith("-gated")]
    assert gone == ["-gated: float32 4x8 = mul(h, sigmoid)"]
    assert [x for x in diff if x.startswith("+silu")] == [
        "+silu: float32 4x8 = silu(h, inplace=False)"
    ]
    assert any(x.startswith("-return (gated,") for x in diff)


def test_the_graph_before_and_after_passes_are_two_graphs(gated):
    stage = gated.graphs[0].stages[0]
    before, after = ({x.target for x in nodes} for nodes in (stage.before, stage.after))
    assert "sigmoid" in before
    assert "silu" not in before
    assert "silu" in after
    # What was handed over is what it was before the passes changed it in place.
    assert stage.before == gated.graphs[0].nodes


def test_passes_on_forward_and_backward_graphs_are_told_apart(reference):
    told = run(reference("gated"), backend=Aten(), device="cpu", train=True, again=False)
    stages = only(told.graphs).stages
    assert [x.graph for x in stages] == ["forward", "backward"]
    assert all(x.after is None for x in stages)  # nothing was changed
    assert all(x.target.startswith(("aten.", "getitem")) for s in stages for x in s.before
               if x.op == "call_function")  # fmt: skip


def test_a_pass_that_never_ran_is_not_passed_over_in_silence(reference):
    class Never(Backend):
        level = "aten"
        passes = (aten_only,)

        def compile(self, graph_module, example_inputs):
            return graph_module.forward

        def _generator(self, later, own, rest, mode):
            return super()._generator([], own, rest, mode)

    told = run(reference("gated"), backend=Never(), device="cpu", again=False)
    assert any("aten_only, of level aten, did not run" in x for x in told.notes)


def test_a_pass_that_is_off_is_no_pass_that_never_ran(reference):
    off = type("Off", (Backend,), {"passes": (replace(rewrite_silu, enabled=False),)})()
    told = run(reference("gated"), backend=off, device="cpu", again=False)
    assert not any("did not run" in x for x in told.notes)


def test_what_a_pass_has_to_say_beside_arrives(reference):
    @graph_pass()
    def measured(graph_module, context):
        context.detail["gain"] = 1.25
        context.detail["where"] = graph_module.graph
        context.inductor["combo_kernels"] = True
        return 0

    backend = type("Measured", (Backend,), {"passes": (measured,), "codegen": "eager"})()
    told = run(reference("gated"), backend=backend, device="cpu", again=False)
    detail = told.graphs[0].stages[0].passes[0].detail
    assert detail["gain"] == 1.25
    assert isinstance(detail["where"], str)
    assert detail["Inductor's combo_kernels"] is True


def test_a_backend_that_is_not_of_the_kit_is_explained_without_passes(reference):
    told = run(reference("gated"), backend="aot_eager", device="cpu", again=False)
    assert not told.graphs[0].stages
    assert any("aot_eager is not made with Backbay's kit" in x for x in told.notes)


def test_without_a_backend_nothing_is_compiled_and_the_graphs_are_there(reference):
    told = run(reference("gated"), device="cpu", again=False)
    graph = only(told.graphs)
    assert graph.operators == {"mul": 2, "sigmoid": 2, "linear": 1}
    assert {frozenset(x) for x in graph.groups} == {
        frozenset({"sigmoid", "gated"}),
        frozenset({"sigmoid_1", "mul_1"}),
    }
    assert told.settings.backend is None
    assert any("no backend was named" in x for x in told.notes)


def test_each_node_has_its_shape_module_inputs_and_line(gated, line):
    node = {x.name: x for x in gated.graphs[0].nodes}["h"]
    assert (node.target, node.shape, node.dtype) == ("linear", "4x8", "float32")
    assert node.module == "lift"
    assert node.line == line("h = self.lift(x)")
    assert "l_x_" in node.inputs


def test_guards_say_of_what_and_why_in_groups(reference, line):
    guards = only(run(reference("counting"), device="cpu", again=False).graphs).guards
    tensor = only(x for x in guards if x.group == "tensors")
    assert tensor.source == "L['x']"
    assert tensor.says.startswith("float32 Tensor of size [4, 6], stride [6, 1]")
    value = only(x for x in guards if x.group == "values" and "calls" in x.source)
    assert value.says.endswith(".calls == 0")
    assert value.line == line("self.calls += 1")
    assert {"types", "torch's state", "markings"} <= {x.group for x in guards}
    assert not any("___check" in x.says and "id(" in x.says for x in guards)


def test_a_size_that_became_dynamic_is_no_longer_guarded_as_a_number(reference):
    told = run(reference("gated"), device="cpu")
    graph = told.graphs[1]
    assert "L['x'].size()[0]" in graph.dynamic.values()
    tensor = next(x for x in graph.guards if x.source == "L['x']" and x.group == "tensors")
    assert "size [any, 6]" in tensor.says


def test_another_batch_is_compiled_again_once_and_dynamic_from_then_on(reference):
    told = run(reference("gated"), device="cpu")
    names = ["first", "again", "batch 4 to 5", "batch 5 to 6"]
    assert [x.name for x in told.calls] == names
    assert [x.graphs for x in told.calls] == [1, 0, 1, 0]
    again = only(told.calls[2].recompiles)
    assert again.reasons[0].version == "0/0"
    assert "size mismatch at index 0. expected 4, actual 5" in again.reasons[0].failed
    assert "L['x'].size()[0]" in again.dynamic.values()


def test_a_changed_python_number_is_the_reason_with_its_line_and_torchs_hint(reference, line):
    told = run(reference("counting"), device="cpu")
    again = only(told.calls[1].recompiles)
    reason = again.reasons[0]
    assert reason.failed == "self.calls == 0"
    assert reason.line == line("self.calls += 1")
    assert "allow_unspec_int_on_nn_module" in reason.hint
    assert not again.dynamic
    assert [x.version for x in told.calls[3].recompiles[0].reasons] == ["0/2", "0/1", "0/0"]


def test_what_recompiles_again_and_again_is_one_finding_with_count_and_cost(reference, line):
    told = run(reference("counting"), device="cpu")
    found = only(x for x in told.findings if x.code == "BB202")
    assert (found.message, found.line) == ("self.calls was 0, and changed", line("self.calls += 1"))
    assert found.count == sum(x.kind == "value" for c in told.calls for x in c.recompiles) == 2
    assert found.cost_s == pytest.approx(
        sum(x.compile_s for c in told.calls for x in c.recompiles if x.kind == "value")
    )
    assert found.calls == (1, 3)


def test_a_size_that_is_never_dynamic_is_told_apart_from_one_that_becomes_so():
    class Rows(torch.nn.Module):
        def forward(self, x):
            return torch.stack([row.sin() for row in x])

    told = run(Workload(Rows(), (torch.ones(4, 2),)))
    assert [(x.code, x.count) for x in told.findings] == [("BB201", 2)]


def test_a_workload_that_takes_one_batch_only_is_not_called_with_another(reference):
    told = run(reference("fixed"), device="cpu")
    assert [x.name for x in told.calls] == ["first", "again"]
    assert any("batch 5 was not tried" in x and "invalid for input" in x for x in told.notes)
    assert told.problem is None


def test_inputs_without_a_batch_in_common_are_said_to_have_none():
    class Two(torch.nn.Module):
        def forward(self, x, y):
            return x.sum() + y.sum()

    told = run(Workload(Two(), (torch.ones(3), torch.ones(5))))
    assert [x.name for x in told.calls] == ["first", "again"]
    assert any("no leading size in common: 3 and 5" in x for x in told.notes)


def test_a_tensor_that_is_given_twice_is_given_twice_with_another_batch_too():
    class Same(torch.nn.Module):
        def forward(self, x, y):
            return x + 1 if x is y else x - y

    x = torch.ones(4, 2)
    told = run(Workload(Same(), (x, x)))
    assert len(told.graphs) == 2
    assert "add" in told.graphs[1].operators


def test_a_model_that_raises_is_a_section_with_its_line(reference, line):
    told = run(reference("raising"), device="cpu")
    assert told.problem is not None
    assert told.problem.stage == "eager"
    assert told.problem.line == line("return x.view(7) + 1")
    assert "invalid for input of size 24" in told.problem.error
    assert not told.calls
    assert "the model itself raised" in told.sentence


def test_a_backend_that_makes_nothing_is_said_at_a_line_of_dynamos():
    workload = Workload(torch.nn.Sequential(torch.nn.ReLU()), (torch.ones(3),))
    problem = run(workload, backend=lambda graph_module, inputs: None).problem
    assert problem is not None
    assert problem.line == ""
    assert problem.error == "AssertionError: compiler_fn did not return callable"


def test_a_backend_that_fails_is_a_section_with_the_function_and_where_it_raised(reference, line):
    class Unlicensed(Backend):
        def compile(self, graph_module, example_inputs):
            raise RuntimeError("no licence")

    told = run(reference("gated"), backend=Unlicensed(), device="cpu")
    problem = told.problem
    assert problem is not None
    assert problem.stage == "compiled"
    assert "unlicensed.compile raised RuntimeError: no licence" in problem.error
    assert "models.py" in problem.line
    assert "def forward(self, x, whole):" in problem.line
    assert 'raise RuntimeError("no licence")' in problem.raised_at
    assert told.calls[0].problem == problem
    assert len(told.calls) == 1
    assert only(told.graphs).nodes  # what it was handed is there all the same


def test_a_pass_that_leaves_a_broken_graph_is_named_and_its_diff_shown(reference):
    @graph_pass()
    def loses_the_result(graph_module):
        graph = graph_module.graph
        output = next(iter(reversed(graph.nodes)))
        graph.erase_node(output)
        graph_module.recompile()
        return 1

    backend = type("Loses", (Backend,), {"passes": (loses_the_result,), "codegen": "eager"})()
    told = run(reference("gated"), backend=backend, device="cpu", again=False)
    one = only(told.graphs[0].stages[0].passes)
    assert "loses_the_result left 0 output nodes" in one.error
    assert "-return" in one.diff
    assert told.problem is not None
    assert "MissingOutput" in told.problem.error


def test_what_does_not_exist_is_an_error_before_anything_runs(reference):
    with pytest.raises(WorkloadNotFound):
        run("hf:nothing_of_this_name")
    with pytest.raises(BackendNotFound):
        run(reference("gated"), backend="nobody_knows_it")
    with pytest.raises(InputError, match="no device"):
        run(reference("gated"), device="abacus")
    with pytest.raises(InputError, match="name one"):
        run(reference("gated"), device="cpu", options={"x": 1})


def test_nothing_is_left_changed():
    class Stateful(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = torch.nn.Linear(3, 3)
            self.register_buffer("seen", torch.zeros(()))
            self.calls = 7

        def forward(self, x):
            self.calls += 1
            self.seen.add_(1)
            return F.dropout(self.lift(x), 0.5)

    model, x = Stateful(), torch.ones(4, 3)
    model.lift.weight.grad = kept = torch.ones(3, 3)
    trace = logging.getLogger("torch.__trace")
    handlers = [x for x in trace.handlers if "Lazy" not in type(x).__name__]
    counters["mine"]["count"], breaks = 3, dict(counters["graph_break"])
    torch.manual_seed(1)
    before = torch.get_rng_state()
    told = run(Workload(model, (x,)), backend=GateEagerly(), train=True)
    assert told.problem is None
    assert torch.equal(before, torch.get_rng_state())
    assert model.lift.weight.grad is kept
    assert torch.equal(kept, torch.ones(3, 3))
    assert (model.calls, model.seen.item()) == (7, 0)
    assert x.shape == (4, 3)
    assert [x for x in trace.handlers if "Lazy" not in type(x).__name__] == handlers
    assert counters["mine"]["count"] == 3
    assert counters["graph_break"] == breaks
    del counters["mine"]


def test_dynamo_starts_empty_so_that_what_ran_before_is_compiled_anew(gated, reference):
    told = [run(reference("gated"), device="cpu", again=False) for _ in range(2)]
    assert [len(x.graphs) for x in told] == [1, 1]
    assert [x.graphs[0].compile_id for x in told] == ["0/0", "0/0"]


def test_a_plain_function_is_told_by_its_own_name_and_parameters():
    def scaled(tokens, *, scale):
        return (tokens * scale).sum(-1)

    told = run(Workload(scaled, (torch.ones(4, 3),), {"scale": torch.ones(4, 1)}))
    assert all(x.function.startswith("scaled (") for x in told.graphs)
    assert "test_explain.py:" in told.graphs[0].function
    found = only(told.findings)
    assert found.message == "the size of tokens's dimension 0 changed from 4 to 5"
    assert "L['scale'].size()[0]" in told.graphs[1].dynamic.values()
    assert "L['tokens']" in {x.source for x in told.graphs[0].guards}


def helper(*args):
    torch._dynamo.graph_break()
    return args[0] * args[1]


def test_what_else_has_args_keeps_its_own():
    def swapped(a, b):
        return helper(b, a) + 1

    x = torch.ones(4, 3)
    told = run(Workload(swapped, (x, x + 1)))
    sizes = {x.function.partition(" (")[0]: x.dynamic for x in told.graphs if x.call}
    assert "L['args'][0].size()[0]" in sizes["helper, resumed after a break"].values()
    messages = " ".join(x.message for x in told.findings)
    assert "the size of a's dimension 0 changed" in messages
    assert "the size of args[0]'s dimension 0 changed" in messages


def test_what_a_function_takes_as_a_rest_is_told_by_its_place():
    def first(x, *more):
        return more[1] - x.sum() if len(more) > 1 else x

    told = run(Workload(first, (torch.ones(()), torch.ones(4, 3), torch.ones(5, 3))), again=False)
    sources = {x.source for x in told.graphs[0].guards if x.group == "tensors"}
    assert sources == {"L['x']", "L['more'][1]"}


def test_the_gravest_finding_is_first_wherever_it_was_met():
    told = run(Workload(lambda x: x * x.double(), (torch.ones(4, 3),)))
    assert [x.code for x in told.findings] == ["BB401", "BB205"]


def test_an_assertion_on_values_is_called_one():
    def positive(x):
        assert x.sum() > 0, f"of shape {x.shape}"
        return x * 2

    found = only(run(Workload(positive, (torch.ones(4, 3),)), again=False).findings)
    assert (found.code, found.message) == (
        "BB103",
        "an assertion depends on the values of a tensor",
    )
    assert "torch._assert" in found.fixes[0]


def test_of_a_break_that_we_know_no_words_for_advice_for_developers_is_left_out():
    def opens(x):
        open(os.devnull).close()  # noqa: PTH123 (it is what breaks)
        return x + 1

    told = run(Workload(opens, (torch.ones(4, 3),)), again=False)
    said = " ".join(y for x in told.findings for y in (x.message, *x.fixes))
    assert "close" in said
    assert "report" not in said
    assert "issue" not in said


def test_json_round_trips(reference):
    told = run(reference("broken"), backend=GateEagerly(), device="cpu")
    data = msgspec.json.encode(told)
    again = msgspec.json.decode(data, type=Explanation)
    assert again == told
    assert again.schema == "backbay.explain/1"


@pytest.mark.slow
def test_passes_inside_inductors_hooks_are_seen_although_a_cache_has_the_graph(
    reference, tmp_path, monkeypatch
):
    class Hooked(Backend):
        passes = (aten_only,)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = Counting().eval()
    for _ in range(2):  # written to the cache, then read from it
        torch.compiler.reset()
        backend = Hooked()
        with torch.no_grad(), collected() as reports:
            torch.compile(model, backend=backend)(torch.randn(4, 6))
        model.calls = 0
    assert not reports  # what comes from a cache runs no pass
    told = run(reference("counting"), backend=Hooked(), device="cpu", again=False)
    assert [x.graph for x in only(told.graphs).stages] == ["inference"]


def test_the_name_on_backbay_is_the_package():
    assert backbay.explain.run is run
