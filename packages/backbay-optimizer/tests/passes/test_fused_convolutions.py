"""Convolution, batch norm, sum and ReLU become one call where that is the same, not elsewhere.

The pass is for CUDA. Here it is let loose on the CPU, where its operator is the reference; what
cuDNN makes of it, tests of a GPU see.
"""

import itertools
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.graph import layouts
from backbay.graph.rewrite import layout
from backbay.graph.values import value_of
from backbay.kit.backend import Backend
from backbay.proof import Workload
from backbay_optimizer.kernels import fused_convolution
from backbay_optimizer.kernels.fused_convolution import OPERATOR
from backbay_optimizer.passes.fused_convolutions import fused_convolutions
from backbay_optimizer.passes.parameter_hoist import parameter_hoist

K = 16


@pytest.fixture
def anywhere(lift, monkeypatch):
    """Let the pass fold on the CPU, and whatever the size."""
    module = sys.modules["backbay_optimizer.passes.fused_convolutions"]
    lift(fused_convolutions, DEVICES=("cpu",))
    monkeypatch.setattr(module, "LAUNCH", -(2**20))
    monkeypatch.setattr(module, "FOLDING", -(2**20))


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


@pytest.fixture
def given():
    return tensors(torch.float32)


def tensors(dtype):
    """Return x, weight, another of the result's shape, and the mean, variance, scale and shift."""
    torch.manual_seed(0)
    shapes = (2, K, 5, 7), (K, K, 3, 3), (2, K, 5, 7)
    large = [channels_last(torch.randn(x).to(dtype)) for x in shapes]
    return *large, *(torch.rand(K) + 0.5 for _ in range(4))


def conv(x, w, b=None):
    return F.conv2d(x, w, b, padding=1)


def norm(y, mean, var, scale, shift):
    return F.batch_norm(y, mean, var, scale, shift, training=False, eps=1e-3)


def added(y, z):
    y += z
    return y


FUSED = {
    "convolution and ReLU": lambda x, w, z, *n: F.relu(conv(x, w)),
    "a bias": lambda x, w, z, *n: conv(x, w, n[0]).relu(),
    "a batch norm": lambda x, w, z, *n: torch.relu(norm(conv(x, w), *n)),
    "a batch norm and a bias": lambda x, w, z, *n: torch.relu(norm(conv(x, w, n[2]), *n)),
    "a batch norm of statistics alone": lambda x, w, z, *n: F.relu(
        F.batch_norm(conv(x, w), *n[:2])
    ),
    "a sum": lambda x, w, z, *n: F.relu(conv(x, w) + z),
    "a sum the other way": lambda x, w, z, *n: F.relu(z + norm(conv(x, w), *n)),
    "in place": lambda x, w, z, *n: F.relu(added(norm(conv(x, w), *n), z), inplace=True),
    "methods in place": lambda x, w, z, *n: norm(conv(x, w), *n).add_(z).relu_(),
    "another that is a convolution": lambda x, w, z, *n: F.relu(
        norm(conv(x, w), *n) + norm(conv(z, w), *n)
    ),
    "dilation and stride": lambda x, w, z, *n: F.relu(
        F.conv2d(input=x, weight=w, stride=(2, 1), padding=[0, 2], dilation=2)
    ),
    "weights with their channels first": lambda x, w, z, *n: norm(
        conv(x, w.contiguous()), *n
    ).relu(),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("program", FUSED.values(), ids=FUSED)
def test_steps_that_could_be_one_are_not(look, given, program):
    seen = look(program, *given, passes=[fused_convolutions])
    assert seen.changes["fused_convolutions"] == 1
    (graph,) = seen.graphs
    assert [n.target for n in graph.graph.nodes].count(OPERATOR) == 1
    assert not seen.calls("relu") + seen.calls("relu_") + seen.calls("add_") + seen.calls("iadd")
    expected = program(*tensors(torch.float32))
    assert seen.result.stride() == expected.stride()
    torch.testing.assert_close(seen.result, expected, rtol=1e-5, atol=1e-5)


class Results(torch.fx.Interpreter):
    """Keeps how each call's result is laid out, and how its node says that it is."""

    def __init__(self, graph):
        super().__init__(graph)
        self.found = []

    def run_node(self, n):
        result = super().run_node(n)
        if n.target is OPERATOR:
            self.found.append((layout(result), layout(value_of(n))))
        return result


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("program", FUSED.values(), ids=FUSED)
def test_a_result_is_laid_out_otherwise_than_its_node_says(look, given, program):
    seen = look(program, *given, passes=[fused_convolutions])
    (graph,) = seen.graphs
    results = Results(graph)
    results.run(*inputs_of(graph, given))
    assert len(results.found) == seen.changes["fused_convolutions"] > 0
    assert all(result == told for result, told in results.found)


def inputs_of(graph, given):
    """Return those that a graph was compiled with, by their sizes."""
    values = [value_of(n) for n in graph.graph.find_nodes(op="placeholder")]
    return [next(x for x in given if layout(x) == layout(value)) for value in values]


def alike(x, w, z, *n):
    """Call twice what is one signature, and once what differs in a stride of x alone."""
    return [F.relu(norm(conv(y, w), *n)) for y in (x, z, x.relu(), widened(x))]


def widened(x):
    """Return the same with gaps between its pixels."""
    return channels_last(torch.cat([x, x], 1))[:, :K]


@pytest.mark.usefixtures("anywhere")
def test_a_layout_is_asked_for_again_or_taken_from_another_call(look, given, monkeypatch):
    asked = []
    real = layouts.computed
    monkeypatch.setattr(layouts, "computed", lambda *x: asked.append(x[1][0].stride()) or real(*x))
    monkeypatch.setattr("backbay.graph.values.call_cached", lambda *x: pytest.fail(str(x)))
    seen = look(alike, *given, passes=[fused_convolutions])
    assert seen.changes["fused_convolutions"] == 4
    assert len(asked) == len(set(asked)) == 2
    torch.testing.assert_close(seen.result, alike(*given), rtol=1e-5, atol=1e-5)


def test_the_operator_is_laid_out_as_something_else_than_its_convolution():
    for x, w in itertools.product(LAYOUTS, LAYOUTS):
        given = x(torch.randn(2, K, 5, 7)), w(torch.randn(K, K, 3, 3))
        alone = fused_convolution.convolved(*given, None, *HOW)
        for bias, other in itertools.product((None, torch.ones(K)), (None, alone.clone())):
            assert layout(OPERATOR(*given, bias, other, *HOW)) == layout(alone)


LAYOUTS = (channels_last, torch.Tensor.contiguous, lambda x: x.transpose(2, 3).clone().mT)


def used_twice(x, w, z, *n):
    y = norm(conv(x, w), *n)
    return F.relu(y) + y


def written_before(x, w, z, *n):
    y = conv(x, w)
    w.mul_(2)
    return F.relu(norm(y, *n))


def written_through_a_view(x, w, z, *n):
    y = conv(x, w)
    n[0][:3].add_(1)
    return F.relu(norm(y, *n)) * z


def cast(x, w, z, *n):
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x, w)
    return F.relu(norm(y, *n))


LEFT = {
    "used elsewhere": (used_twice, "used elsewhere"),
    "a weight is written": (written_before, "may write"),
    "statistics are written": (written_through_a_view, "may write"),
    "a mode changes": (cast, "changes a mode"),
    "training": (
        lambda x, w, z, *n: F.relu(F.batch_norm(conv(x, w), *n, training=True)),
        "is training",
    ),
    "no statistics": (
        lambda x, w, z, *n: F.relu(F.batch_norm(conv(x, w), None, None, training=True)),
        "is training",
    ),
    "channels first": (
        lambda x, w, z, *n: F.relu(conv(x.contiguous(), w.contiguous())),
        "not last",
    ),
    "odd channels": (lambda x, w, z, *n: F.relu(conv(x[:, :9], w[:, :9])), "not in eights"),
    "groups": (
        lambda x, w, z, *n: F.relu(F.conv2d(x, w[:, :8], padding=1, groups=2)),
        "2 groups",
    ),
    "another that is broadcast": (
        lambda x, w, z, *n: F.relu(conv(x, w) + z[:1]),
        "another shape",
    ),
    "another with its channels first": (
        lambda x, w, z, *n: F.relu(conv(x, w) + z.contiguous()),
        "another shape, layout",
    ),
    "another that is wider": (
        lambda x, w, z, *n: F.relu(conv(x, w) + z.double()),
        "dtypes differ",
    ),
    "double": (lambda x, w, z, *n: F.relu(conv(x.double(), w.double())), "float64"),
    "half with a batch norm": (
        lambda x, w, z, *n: F.relu(norm(conv(x.half(), w.half()), *n)),
        "vanish in float16",
    ),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("program", "reason"), LEFT.values(), ids=LEFT)
def test_what_would_be_another_program_is_fused(look, given, program, reason):
    seen = look(program, *given, passes=[fused_convolutions])
    assert not seen.changes["fused_convolutions"]
    assert len(seen.near) == 1
    assert reason in seen.near[0]
    torch.testing.assert_close(seen.result, program(*tensors(torch.float32)))


NOTHING = {
    "another activation": lambda x, w, z, *n: F.silu(norm(conv(x, w), *n)),
    "another that is written": lambda x, w, z, *n: F.relu(added(z, conv(x, w))),
    "a scaled sum": lambda x, w, z, *n: F.relu(torch.add(conv(x, w), z, alpha=2)),
    "itself": lambda x, w, z, *n: twice(conv(x, w)).relu(),
    "a number": lambda x, w, z, *n: F.relu(conv(x, w) + 1),
    "ReLU alone": lambda x, w, z, *n: F.relu(input=x) + x.relu(),
}


def twice(y):
    return y + y


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("program", NOTHING.values(), ids=NOTHING)
def test_what_is_something_else_is_fused(look, given, program):
    seen = look(program, *given, passes=[fused_convolutions])
    assert not seen.changes["fused_convolutions"]
    torch.testing.assert_close(seen.result, program(*tensors(torch.float32)))


def test_a_cpu_is_taken_for_cuda(look, given):
    seen = look(FUSED["a sum"], *given, passes=[fused_convolutions])
    assert seen.near == ["it runs on cpu: cuDNN is for CUDA"]


@pytest.mark.usefixtures("anywhere")
def test_training_loses_gradients(look, given):
    x, w, *rest = given
    seen = look(FUSED["a sum"], x, w.requires_grad_(), *rest, passes=[fused_convolutions])
    assert "gradient is wanted" in seen.near[0]
    assert seen.result.requires_grad
    with torch.no_grad():
        seen = look(FUSED["a sum"], x, w, *rest, passes=[fused_convolutions])
    assert seen.changes["fused_convolutions"] == 1


@pytest.mark.usefixtures("anywhere")
def test_autocast_computes_in_another_dtype(look, given):
    def program(x, w, z, *n):
        with torch.autocast("cpu", torch.bfloat16):
            return F.relu(conv(x, w))

    seen = look(program, *given, passes=[fused_convolutions])
    assert seen.changes["fused_convolutions"] == 1
    assert seen.result.dtype == torch.bfloat16
    torch.testing.assert_close(seen.result, program(*given))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("normed", [False, True])
def test_a_symbolic_batch_hinders_what_costs_nothing_or_is_folded_blindly(look, given, normed):
    model = nn.Sequential(nn.Conv2d(K, K, 3), nn.BatchNorm2d(K) if normed else nn.Identity())
    model.append(nn.ReLU()).to(memory_format=torch.channels_last).eval()
    with torch.no_grad():
        seen = look(model, given[0], passes=[fused_convolutions], dynamic=True)
        torch.testing.assert_close(seen.result, model(given[0]), rtol=1e-5, atol=1e-5)
    assert seen.changes["fused_convolutions"] == (not normed), seen.near
    assert not normed or "is a symbol: whether folding pays" in seen.near[0]


def test_folding_a_small_batch_pays(look, given, lift, monkeypatch):
    module = sys.modules["backbay_optimizer.passes.fused_convolutions"]
    lift(fused_convolutions, DEVICES=("cpu",))
    monkeypatch.setattr(module, "LAUNCH", 1000)  # there are 1120 results
    seen = look(FUSED["a batch norm"], *given, passes=[fused_convolutions])
    assert "folding costs more" in seen.near[0]
    assert look(FUSED["a sum"], *given, passes=[fused_convolutions]).changes.total() == 1


def pointwise(x, w, n):
    return F.relu(norm(F.conv2d(x, w), *n))


FOLDED = {
    "one": (lambda x, w, z, *n: pointwise(x, w, n) + 1, 0),
    "one, and one without a batch norm": (
        lambda x, w, z, *n: pointwise(F.relu(F.conv2d(x, w)), w, n) + 1,
        1,
    ),
    "two": (lambda x, w, z, *n: pointwise(pointwise(x, w, n), w, n) + 1, 2),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("hoists", [False, True], ids=["in every call", "hoisted"], indirect=True)
@pytest.mark.parametrize("name", FOLDED)
def test_the_price_of_all_foldings_is_paid_for_one(look, given, monkeypatch, name, hoists):
    program, fused = FOLDED[name]
    x, w, *others = given
    w = channels_last(w[..., :1, :1])
    spare = x.numel() - w.numel()
    module, hoisted = sys.modules["backbay_optimizer.passes.fused_convolutions"], hoists.hoists
    monkeypatch.setattr(module, "FOLDING", spare + 1)
    passes = [fused_convolutions, hoists]
    seen = look(program, x, w, *others, passes=passes)
    convolutions = 1 if name == "one" else 2
    assert seen.changes["fused_convolutions"] == (convolutions if hoisted else fused)
    refused = "folding costs more than all convolutions of the graph save"
    assert seen.near == [refused] * (convolutions - fused) * (not hoisted)
    torch.testing.assert_close(seen.result, program(x, w, *others), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["a batch norm", "a sum"])
def test_another_engine_is_asked_for_a_few_results(how, look, given, lift):
    lift(fused_convolutions, DEVICES=("cpu",))
    seen = look(FUSED[how], *given, passes=[fused_convolutions])
    assert not seen.changes.total()
    assert "as fast for so few" in seen.near[0]


class Block(nn.Module):
    """A stem, and two blocks of a residual network, written in place as they are in timm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, K, 3)
        self.one = nn.Conv2d(K, K, 3, padding=1, bias=False)
        self.two = nn.Conv2d(K, 2 * K, 1, stride=2)
        self.three = nn.Conv2d(2 * K, 2 * K, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(x) for x in (K, K, 2 * K, 2 * K))

    def forward(self, x):
        a, b, c, d = self.norms
        x = F.relu(a(self.stem(x)), inplace=True)
        y = F.relu(b(self.one(x)), inplace=True)
        y += x
        z = c(self.two(y))
        y = d(self.three(F.relu(z, inplace=True)))
        y += z
        return F.relu(y, inplace=True).mean((2, 3))


def marked(dtype, batch):
    """Return who runs it with Inductor, which takes seconds: CI has each dtype with one batch."""
    return pytest.mark.slow if (dtype, batch) in WITH_INDUCTOR else pytest.mark.sweep


WITH_INDUCTOR = {(torch.float32, 1), (torch.bfloat16, 3)}
NETWORKS = [
    pytest.param(codegen, dtype, batch, marks=marks)
    for dtype, batch in itertools.product((torch.float32, torch.bfloat16), (1, 3))
    for codegen, marks in (("eager", ()), ("inductor", marked(dtype, batch)))
]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("codegen", "dtype", "batch"), NETWORKS)
def test_a_network_is_wrong(prove, codegen, dtype, batch):
    torch.manual_seed(0)
    model = Block().to(dtype, memory_format=torch.channels_last).eval()
    for x in model.norms:
        for value in (x.running_mean, x.running_var, x.weight, x.bias):
            nn.init.uniform_(value, 0.5, 1.5)
    workload = Workload(model=model, args=(channels_last(torch.randn(batch, 3, 9, 9).to(dtype)),))
    changes = prove(workload, passes=[fused_convolutions], codegen=codegen, train=False)
    assert changes["fused_convolutions"] == 2  # not the stem, nor what the sum reads, too


@pytest.mark.usefixtures("anywhere")
def test_folded_batch_norms_are_computed_in_every_call_or_served_stale(reports):
    torch.manual_seed(0)
    model = Block().to(memory_format=torch.channels_last).eval()
    x = channels_last(torch.randn(3, 3, 9, 9))
    declared = {"passes": (fused_convolutions, parameter_hoist)}
    backend = type("Folding", (Backend,), declared)()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for change in (0.0, 1.0):
            for norm in model.norms:
                norm.running_mean.add_(change)
                norm.weight.add_(change)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    changes = {report.name: report.changes for report in reports}
    assert changes == {"fused_convolutions": 2, "parameter_hoist": 4}


HOW = ([1, 1], [1, 1], [1, 1], 1)


def test_the_operator_has_another_fake_than_its_kernel():
    x, w, z, b, *_ = tensors(torch.float64)
    torch.library.opcheck(OPERATOR, (*(y.double() for y in (x, w, b, z)), *HOW))
    torch.library.opcheck(OPERATOR, (x.contiguous(), w.contiguous(), None, None, *HOW))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(y) for y in (x, w, z)]
    for images, filters, added in ((x, w, z), fake):
        for other in (added.half(), added[:, :, 1:], added[:, :, :1, :1]):
            with pytest.raises(RuntimeError, match="adds what is alike"):
                OPERATOR(images, filters, None, other, *HOW)


@pytest.mark.parametrize("wanted", range(4))
def test_a_gradient_is_lost_without_a_word(wanted):
    x, w, z, b, *_ = tensors(torch.float32)
    given = [y.detach().clone() for y in (x, w, b, z)]
    given[wanted].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"torch\.no_grad\(\)"):
        OPERATOR(*given, *HOW)
    with torch.no_grad():
        assert not OPERATOR(*given, *HOW).requires_grad


def test_an_error_of_cudnn_is_taken_for_a_missing_engine(monkeypatch):
    x, w, z, *_ = tensors(torch.float32)
    how = ([1, 1], [1, 1], [1, 1], 1)
    calls = []

    class Fused:
        said = "FIND was unable to find an engine to execute this computation"

        def default(self, *_):
            calls.append(1)
            raise RuntimeError(self.said)

    class Aten:
        cudnn_convolution_add_relu = Fused()
        convolution = torch.ops.aten.convolution

    monkeypatch.setattr(fused_convolution, "_ATEN", Aten)
    monkeypatch.setattr(fused_convolution, "REFUSED", set())
    for _ in range(2):
        got = fused_convolution._by_cudnn(x, w, None, z, *how)
        torch.testing.assert_close(got, F.relu(conv(x, w) + z))
    assert len(calls) == 1
    Fused.said = "CUDA out of memory"
    with pytest.raises(RuntimeError, match="out of memory"):
        fused_convolution._by_cudnn(x[:1], w, None, z[:1], *how)
