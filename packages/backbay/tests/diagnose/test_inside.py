"""What is seen inside of Inductor: kernels, their lines, what was fused and what was not."""

from collections import deque
from types import SimpleNamespace

import msgspec
import pytest
import torch

import backbay
from backbay import diagnose
from backbay.diagnose.inductor import Graph, Kernel, Scheduled, _assign, _stack
from backbay.diagnose.looking import _pairs
from backbay.diagnose.profiling import _event, _matched, _steps, _Sums

pytestmark = pytest.mark.slow

LAYER = """
import torch


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(256, 512)

    def forward(self, x):
        h = self.lift(x)
        gated = h.sigmoid() * h
        return gated - gated.mean(-1, keepdim=True)


def layer():
    return Layer().eval(), (torch.randn(64, 256),)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("layer") / "layer.py"
    found.write_text(LAYER)
    return found


@pytest.fixture(scope="module")
def told(path):
    limits = diagnose.Limits(budget_s=0, timing_s=0.3)
    return diagnose.run(f"{path}:layer", device="cpu", limits=limits)


@pytest.fixture(scope="module")
def kernels(told):
    (graph,) = told.inside.graphs
    return graph.kernels


def test_every_kernel_has_the_users_lines_and_a_time(kernels, path):
    assert len(kernels) == 2
    product, rest = kernels
    assert product.lines == (f"{path}:11: h = self.lift(x)",)
    assert set(rest.lines) == {
        f"{path}:12: gated = h.sigmoid() * h",
        f"{path}:13: return gated - gated.mean(-1, keepdim=True)",
    }
    assert all(x.ms > 0 for x in kernels)
    assert sum(x.share for x in kernels) == pytest.approx(1)


def test_a_product_is_torchs_own_with_its_operations(kernels):
    product = kernels[0]
    assert (product.kind, product.work, product.code) == ("extern", "gemm", "")
    assert product.operations == 2 * 64 * 256 * 512
    assert product.bytes == 4 * (64 * 256 + 256 * 512 + 64 * 512 + 512)
    assert product.of_limit > 0


def test_what_is_fused_is_listed_with_its_code_and_bytes(kernels):
    rest = kernels[1]
    assert (rest.kind, rest.work) == ("cpp", "reduction")
    assert {"aten.sigmoid.default", "aten.mul.Tensor", "aten.mean.dim", "aten.sub.Tensor"} <= set(
        rest.operators
    )
    assert "sigmoid" in rest.code or "exp" in rest.code
    assert "void" in rest.code
    assert rest.bytes >= 4 * 2 * 64 * 512
    assert rest.operations is None


def test_a_neighbour_that_was_not_fused_says_why(kernels):
    product, rest = kernels
    assert product.not_fused == ()
    (why,) = rest.not_fused
    assert why.kernel == product.name
    assert why.reason.endswith("is torch's own kernel: nothing is fused into it")


def test_phases_are_those_of_compiling_and_none_is_counted_twice(told):
    phases = told.inside.phases_s
    assert {"Dynamo", "AOTAutograd", "lowering", "code generation", "compiling kernels"} <= set(
        phases
    )
    assert sum(phases.values()) == pytest.approx(told.inside.compile_s, rel=0.1)


def test_a_step_is_kernels_host_and_guards(told):
    step = told.inside.step
    assert step.by_work.keys() == {"gemm", "reduction"}
    assert sum(step.by_work.values()) == pytest.approx(step.kernels_ms)
    assert step.outside_ms == 0
    assert step.guards_ms > 0


def test_training_has_a_forward_and_a_backward_graph(path):
    limits = diagnose.Limits(budget_s=0, timing_s=0.2)
    told = diagnose.run(f"{path}:layer", device="cpu", limits=limits, train=True)
    assert [x.direction for x in told.inside.graphs] == ["forward", "backward"]
    assert all(x.calls == 1 for x in told.inside.graphs)
    backward = told.inside.graphs[1]
    assert all(x.lines for x in backward.kernels)


def test_inductors_reason_is_kept_for_two_kernels_of_its_own():
    """Two reductions along different axes: one can't be fused into the other."""

    def model(x):
        return (x.softmax(0) * 2).softmax(1)

    told = diagnose.run(
        backbay.Workload(model, (torch.randn(257, 129),)),
        limits=diagnose.Limits(budget_s=0, timing_s=0.1),
    )
    reasons = [y.reason for g in told.inside.graphs for k in g.kernels for y in k.not_fused]
    assert all(reasons)
    read = msgspec.json.decode(msgspec.json.encode(told), type=diagnose.Diagnosis)
    assert read.inside == told.inside


def test_a_process_is_left_as_it_was():
    import logging

    from torch._inductor import config

    before = (logging.getLogger("torch._inductor.scheduler.__fusion").level,
              list(logging.getLogger("torch.__trace").handlers))  # fmt: skip
    diagnose.run(
        backbay.Workload(lambda x: x.sin(), (torch.randn(8),)),
        limits=diagnose.Limits(budget_s=0, timing_s=0.1),
    )
    assert config._post_fusion_custom_pass is None
    assert config.trace.provenance_tracking_level == 0
    assert before == (logging.getLogger("torch._inductor.scheduler.__fusion").level,
                      list(logging.getLogger("torch.__trace").handlers))  # fmt: skip


def scheduled(origins, *, extern=False, own="", operations=("op0",), operators=(), stacks=()):
    return Scheduled(
        operations=frozenset(operations), origins=origins, operators=operators, own=own,
        extern=extern, stacks=stacks,
        template=False, reduction=False, reads=frozenset(), writes=frozenset(), bytes=None,
        floating_operations=None,
    )  # fmt: skip


def kernel(name, *origins):
    return Kernel(name=name, stacks=(), origins=frozenset(origins))


def test_a_node_belongs_to_the_kernel_that_has_its_origins_and_is_of_its_kind():
    nodes = (scheduled(("a", "b")), scheduled(("a", "c"), extern=True, own="c"), scheduled(("d",)))
    kernels = [kernel("extern_kernels.mm:1", "c"), kernel("cpp_x:2", "a", "b"), kernel("cpp_y:3")]
    graph = Graph(
        compile_id="0/0", direction="inference", schedule=nodes, unfused={}, kernels=kernels
    )
    _assign(graph)
    assert [x.parts for x in kernels] == [[nodes[1]], [nodes[0]], []]


def test_a_kernel_that_computes_a_node_again_is_not_the_one_it_belongs_to():
    alone, again = scheduled(("a",)), scheduled(("a", "b"))
    kernels = [kernel("cpp_fused_a_b:1", "a", "b"), kernel("cpp_fused_a:2", "a")]
    graph = Graph(
        compile_id="0/0",
        direction="inference",
        schedule=(alone, again),
        unfused={},
        kernels=kernels,
    )
    _assign(graph)
    assert [x.parts for x in kernels] == [[again], [alone]]


def test_a_kernel_of_which_torch_knows_no_line_has_its_nodes():
    node = scheduled(("a",), stacks=("near",))
    unknown, known = kernel("cpp_a:1", "a"), kernel("cpp_a:1", "a")
    known.stacks = ("own",)
    for one, stacks in ((unknown, ("near",)), (known, ("own",))):
        graph = Graph(
            compile_id="0/0", direction="forward", schedule=(node,), unfused={}, kernels=[one]
        )
        _assign(graph)
        assert one.stacks == stacks


def test_an_extern_kernel_without_origins_is_the_next_of_its_name():
    first, second, other = (
        scheduled((x,), extern=True, own=x, operators=(f"aten.{target}.default",), stacks=(x,))
        for x, target in (("a", "addmm"), ("b", "addmm"), ("c", "mm"))
    )
    kernels = [
        kernel("extern_kernels.mm:1", "c"),
        kernel("extern_kernels.addmm:2"),
        kernel("extern_kernels.addmm:3"),
        kernel("extern_kernels.bmm:4"),
        kernel("triton_b:5"),
    ]
    graph = Graph(
        compile_id="0/0",
        direction="backward",
        schedule=(first, other, second),
        unfused={},
        kernels=kernels,
    )
    _assign(graph)
    assert [x.parts for x in kernels] == [[other], [first], [second], [], []]
    assert [x.stacks for x in kernels] == [("c",), ("a",), ("b",), (), ()]


def test_the_nearest_node_with_a_line_is_one_that_is_read_else_one_that_reads():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    seeds = graph.call_function(torch.ones, (2,))
    first = graph.call_function(torch.relu, (x,))
    made = graph.call_function(torch.add, (first, seeds))
    last = graph.call_function(torch.sin, (made,))
    assert _stack(made) == ""
    last.meta["stack_trace"] = "last"
    assert _stack(made) == _stack(seeds) == "last"
    first.meta["stack_trace"] = "first"
    assert _stack(made) == _stack(first) == "first"


@pytest.mark.parametrize(
    ("function", "event"),
    [
        ("cpp_fused_add_0", "cpp_fused_add_0"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("extern_kernels.mm", "aten::mm"),
        ("torch.ops.mkldnn._linear_pointwise.default", "mkldnn::_linear_pointwise"),
        ("aten.randint.low_out", "aten::randint"),
    ],
)
def test_a_kernel_has_an_event_of_a_name_that_is_known(function, event):
    assert _event(function) == event
    assert kernel(f"{function}:1").extern is ("::" in event)


class Event:
    """As torch's profiler has them."""

    def __init__(self, name, *, start=0.0, us=0.0, children=(), kernels=(), thread=1):
        self.name, self.cpu_children, self.kernels = name, list(children), list(kernels)
        self.time_range = SimpleNamespace(start=start, end=start + us, elapsed_us=lambda: us)
        self.thread, self.cpu_parent = thread, None
        for child in children:
            child.cpu_parent = self


def launched(name, us):
    return SimpleNamespace(name=name, duration=us)


def step_of(*events):
    call = Event("## Call CompiledFxGraph None ##", children=events)
    return [Event("Torch-Compiled Region: 0/0", children=[call])]


def one_graph(*kernels):
    return Graph(
        compile_id="0/0", direction="inference", schedule=(), unfused={}, kernels=list(kernels)
    )


def test_the_time_of_a_gpus_kernel_is_what_was_launched_and_what_nobody_launched_is_outside():
    graph = one_graph(kernel("extern_kernels.mm:1"), kernel("triton_a:2"))
    pool = {
        "gemm": deque([7.0]), "triton_a": deque([5.0]), "stray": deque([3.0]),
    }  # fmt: skip
    sums = _Sums([graph], gpu=True, launched=pool)
    inner = Event("aten::gemm", kernels=[launched("gemm", 7.0)])
    product = Event("aten::mm", children=[inner], start=1)
    sums.add_step(step_of(product, Event("triton_a", start=2, us=99)), 0.0)
    spent = sums.spent(1)
    assert spent.kernels == {(0, 0): pytest.approx(0.007), (0, 1): pytest.approx(0.005)}
    assert spent.outside == {"stray": pytest.approx(0.003)}


def test_a_cpus_host_time_is_what_no_kernel_takes_of_a_step():
    sums = _Sums([one_graph(kernel("cpp_a:1"))], gpu=False)
    sums.add_step(step_of(Event("graph_0_cpp_a", us=30.0), Event("aten::sort", us=5.0)), 50.0)
    spent = sums.spent(1)
    assert spent.kernels == {(0, 0): pytest.approx(0.030)}
    assert spent.outside == {"aten::sort": pytest.approx(0.005)}
    assert spent.host_ms == pytest.approx(0.015)


def test_a_kernels_time_is_the_lower_quartile_of_its_calls():
    sums = _Sums([one_graph(kernel("cpp_a:1"))], gpu=False)
    for us in (10.0, 11.0, 12.0, 900.0):
        sums.add_step(step_of(Event("graph_0_cpp_a", us=us)), us)
    assert sums.spent(4).kernels == {(0, 0): pytest.approx(0.011)}
    assert sums.spent(4).calls == {0: 1.0}


def mark(start):
    return Event("backbay.diagnose step", start=start)


def test_a_step_has_what_begins_between_two_marks_and_takes_the_time_between_them():
    events = [
        Event("before", start=0, us=5), mark(10), Event("a", start=11, us=4), mark(20),
        Event("b", start=21, us=4), Event("other thread", start=22, us=1, thread=2), mark(50),
        Event("after", start=51, us=4),
    ]  # fmt: skip
    found = [([x.name for x in step], us) for step, us in _steps(events, gpu=False)]
    assert found == [(["a"], 10), (["b"], 30)]
    on_gpu = [[x.name for x in step] for step, _ in _steps(events, gpu=True)]
    assert on_gpu == [["a"], ["b", "other thread"]]


def test_what_spans_two_steps_is_parted_and_guards_are_not():
    inner = [Event("a", start=12, us=4), mark(20), Event("b", start=21, us=4)]
    guards = Event("TorchDynamo Cache Lookup", start=39, us=3, children=[mark(40)])
    events = [mark(10), Event("batch", start=11, us=20, children=inner), *inner, guards,
              guards.cpu_children[0]]  # fmt: skip
    found = [([x.name for x in step], us) for step, us in _steps(events, gpu=False)]
    assert found == [(["a"], 10), (["b", "TorchDynamo Cache Lookup"], 20)]


def test_events_are_matched_in_order_and_what_fits_nowhere_is_left():
    kernels = ("extern_kernels.mm", "cpp_a", "extern_kernels.mm")
    assert _matched(kernels, ("aten::mm", "aten::empty", "cpp_a", "aten::mm")) == {0: 0, 2: 1, 3: 2}


def test_an_event_that_is_no_kernels_does_not_take_a_later_ones_place():
    kernels = ("triton_a", "triton_b", "triton_c", "triton_d", "triton_b")
    events = ("triton_d", "triton_a", "triton_b", "triton_c", "triton_b")
    assert _matched(kernels, events) == {1: 0, 2: 1, 3: 2, 4: 4}


def test_a_copy_that_an_operator_launches_counts_with_the_copies_alone():
    sums = _Sums([one_graph(kernel("triton_a:1"))], gpu=True, launched={"k": deque([4.0])})
    copied = Event("aten::item", kernels=[launched("Memcpy DtoH", 7.0), launched("k", 4.0)])
    sums.add_step([copied], 0.0)
    assert sums.spent(1).outside == {"aten::item": pytest.approx(0.004)}


def test_names_of_cpp_kernels_are_found_whatever_graph_they_are_in():
    sums = _Sums([one_graph(kernel("cpp_a:1"))], gpu=False)
    sums.add_step(step_of(Event("graph_17_cpp_a", us=30.0)), 30.0)
    assert sums.spent(1).kernels == {(0, 0): pytest.approx(0.030)}


def test_the_last_reason_of_two_operations_counts_both_ways():
    unfused = {("op0", "op1"): "first", ("op0_op2", "op1"): "last"}
    found = _pairs(unfused)
    assert found["op0", "op1"] == found["op1", "op0"] == "last"
    assert found["op1", "op2"] == "last"
