"""Linear layers that read the same become one where nobody can tell, and not elsewhere."""

import sys

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.testing._internal.two_tensor import TwoTensor

from backbay import explain, ledger
from backbay.backends import tuning
from backbay.backends.optimizing import Optimizing
from backbay.backends.optimizing import backbay as optimizing
from backbay.kit.observing import verified
from backbay.passes import merged_linears, parameter_hoist
from backbay.proof import Workload

BOTH = (merged_linears, parameter_hoist)
ON = {"parameter_hoist": True}
B, T, D, H, HD = 2, 5, 16, 4, 8
WIDE, NARROW = H * HD, 2 * HD
MODULE = sys.modules["backbay.passes.merged_linears"]
OTHER_READER = MODULE._other_reader


@pytest.fixture
def anywhere(monkeypatch):
    """Let training merge what `attention` has here, on the CPU, in every dtype, for any reader."""
    monkeypatch.setattr(MODULE, "DEVICES", ("cpu",))
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    monkeypatch.setattr(MODULE, "DTYPES", dtypes)
    monkeypatch.setattr(MODULE, "ROWS", (B * T, B * T))
    monkeypatch.setattr(MODULE, "COPIED", (WIDE + 2 * NARROW) * D)
    monkeypatch.setattr(MODULE, "_other_reader", lambda node: None)


class Model(nn.Module):
    """A program of an input and of layers that are the model's own."""

    def __init__(self, program, *, bias=False, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.q = nn.Linear(D, WIDE, bias=bias, dtype=dtype)
        self.k = nn.Linear(D, NARROW, bias=bias, dtype=dtype)
        self.v = nn.Linear(D, NARROW, bias=bias, dtype=dtype)
        self.o = nn.Linear(WIDE, D, bias=bias, dtype=dtype)
        self.register_buffer("cache", torch.zeros(B, 2, T, HD, dtype=dtype))
        self.program = program

    def forward(self, x):
        return self.program(self, x)


def inputs(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(B, T, D).to(dtype)


def heads(x):
    return x.view(*x.shape[:-1], -1, HD).transpose(1, 2)


def attention(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m.o(y.transpose(1, 2).reshape(*x.shape[:-1], -1))


def rotated(m, x):
    first, second = heads(m.q(x)).chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1) + heads(m.k(x)).repeat_interleave(2, dim=1)


def gated(m, x):
    return F.silu(m.k(x)) * m.v(x)


def with_a_cache(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    index = torch.arange(T)
    m.cache.index_copy_(2, index, v)
    y = F.scaled_dot_product_attention(q, k * 2, m.cache, enable_gqa=True)
    return m.o(y.transpose(1, 2).flatten(2))


def with_a_copy(m, x):
    return m.q(x).reshape(-1, 2).sum(1), m.k(x).flatten().exp()


def under_autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return F.silu(m.k(x)) * m.v(x)


MERGED = {
    "attention": (attention, 2),
    "rotated heads": (rotated, 1),
    "a gate": (gated, 1),
    "a cache that a slice is copied to": (with_a_cache, 2),
    "a view that must be a copy": (with_a_copy, 1),
    "a vector": (lambda m, x: gated(m, x[0, 0]), 1),
    "many dimensions": (lambda m, x: gated(m, x[:, None, None]), 1),
    "an input with gaps": (lambda m, x: gated(m, x.transpose(0, 1)), 1),
    "no rows": (lambda m, x: gated(m, x[:0]), 1),
    "names": (lambda m, x: F.linear(input=x, weight=m.k.weight).exp() + gated(m, x), 2),
    "the same weight": (lambda m, x: m.k(x).sin() + F.linear(x, m.k.weight).cos(), 1),
    "inside autocast": (under_autocast, 1),
    "an input that is written later": (lambda m, x: gated(m, y := x + 1) * y.mul_(2).sum(), 1),
}


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("program", "saved"), MERGED.values(), ids=MERGED)
def test_layers_of_one_input_are_several_products(look, program, saved, dynamic, bias):
    alone = {
        MERGED["names"][0],
        MERGED["the same weight"][0],
    }  # without a bias, whatever others have
    saved -= bias and program in alone
    model, twin, x = Model(program, bias=bias), Model(program, bias=bias), inputs()
    with torch.no_grad():
        seen = look(model, x, passes=BOTH, dynamic=dynamic)
        expected = twin(x)
    assert seen.changes["merged_linears"] == saved, seen.near
    torch.testing.assert_close(
        seen.result, expected, rtol=2e-2, atol=1e-2 if "cast" in str(program) else 1e-5
    )
    strides = [
        [y.stride() for y in (z if isinstance(z, tuple) else (z,))] for z in (seen.result, expected)
    ]
    assert strides[0] == strides[1]
    assert not seen.calls("cat") or program is rotated
    with torch.no_grad():
        model.k.weight.mul_(2)


def written(m, x):
    y = m.k(x)
    y.view(-1)[0] = 3
    return y * m.v(x)


def input_written_between(m, x):
    x = x + 1
    y = m.k(x)
    x.mul_(2)
    return y * m.v(x)


def weight_written(m, x):
    y = m.k(x) * m.v(x)
    m.v.weight.data.mul_(2)
    return y


def mode_between(m, x):
    y = m.k(x).sum()
    with torch.autocast("cpu", torch.bfloat16):
        return m.v(x) * y


def others_between(m, x):
    y = m.o(m.q(x).sin())
    return m.k(y).sum() + m.v(x).exp()


LEFT = {
    "layers far from each other": (others_between, "kept for long"),
    "what the caller gets": (lambda m, x: (m.q(x), m.k(x)), "the caller gets its result"),
    "a view that the caller gets": (lambda m, x: (heads(m.q(x)), m.k(x)), "the caller gets its"),
    "a result that is written": (written, "may be written"),
    "an activation in place": (
        lambda m, x: F.relu(m.k(x), inplace=True) + m.v(x),
        "may be written",
    ),
    "an input that is written between": (input_written_between, "may write its input"),
    "autocast between": (mode_between, ""),
    "two inputs": (lambda m, x: m.k(x) * m.v(x + 1), ""),
    "a weight that is computed": (
        lambda m, x: F.linear(x, m.k.weight * x.sum()) * m.v(x),
        "no plain parameter",
    ),
    "a weight that is written": (weight_written, "is written"),
    "a memory that is read as it is": (
        lambda m, x: torch.as_strided(m.k(x), (4,), (3,)) + m.v(x).sum(),
        "may depend on how it is laid out",
    ),
    "a view that a slice has not": (
        lambda m, x: m.k(x).view(-1)[:2] + m.v(x).view(-1)[:2],
        "takes no slice",
    ),
    "results that are not in eights": (
        lambda m, x: F.linear(x, m.k.weight[:3]) * m.v(x).sum() + F.linear(x, m.odd).sum(),
        "not in eights",
    ),
    "weights of two dtypes": (lambda m, x: m.k(x) * F.linear(x.double(), m.wide).float(), ""),
}


@pytest.mark.parametrize(("program", "reason"), LEFT.values(), ids=LEFT)
def test_what_somebody_can_tell_apart_is_merged(look, program, reason):
    model, twin = Model(program), Model(program)
    for one in (model, twin):
        one.odd, one.wide = (
            nn.Parameter(torch.ones(3, D)),
            nn.Parameter(torch.ones(NARROW, D).double()),
        )
    x = inputs()
    with torch.no_grad():
        seen = look(model, x.clone(), passes=BOTH)
        expected = twin(x)
    assert not seen.changes["merged_linears"]
    assert any(reason in y for y in seen.near) or not reason, seen.near
    torch.testing.assert_close(seen.result, expected)


@torch.library.custom_op("backbay_tests::first_rows", mutates_args=())
def first_rows(x: torch.Tensor) -> torch.Tensor:
    """Read memory as if it had no gaps."""
    return x.as_strided((2,), (1,)).clone()


@first_rows.register_fake
def _(x):
    return x.new_empty(2)


def test_an_operator_of_others_gets_a_slice(look):
    with torch.no_grad():
        seen = look(Model(lambda m, x: first_rows(m.k(x)) + m.v(x).sum()), inputs(), passes=BOTH)
    assert not seen.changes["merged_linears"]
    assert any("may depend on how it is laid out" in x for x in seen.near)


def test_one_result_that_must_stay_keeps_the_others_apart(look):
    with torch.no_grad():
        seen = look(Model(lambda m, x: (gated(m, x), m.q(x))), inputs(), passes=BOTH)
    assert seen.changes["merged_linears"] == 1
    assert seen.calls("linear") == 2


def test_weights_are_laid_side_by_side_in_every_call(look):
    model, x = Model(gated), inputs()
    off = {"parameter_hoist": False}
    with torch.no_grad():
        seen = look(model, x, passes=[merged_linears], options=off)
    assert not seen.changes["merged_linears"]


def test_training_loses_gradients(look):
    seen = look(Model(gated), inputs(), passes=BOTH)
    assert not seen.changes["merged_linears"]
    assert seen.result.requires_grad


def test_parameters_of_others_are_taken_for_the_models(look):
    weights = [torch.randn(NARROW, D) for _ in range(2)]
    with torch.no_grad():
        seen = look(
            lambda x, k, v: F.linear(x, k).exp() * F.linear(x, v), inputs(), *weights, passes=BOTH
        )
    assert not seen.changes["merged_linears"]


def test_it_is_not_verified(look):
    with torch.no_grad(), verified():
        seen = look(Model(attention), inputs(), passes=BOTH)
    assert seen.changes["merged_linears"] == 2


class Layer(nn.Module):
    """A decoder's layer as Llama's: norms, grouped attention, and a gated network."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.attention = Model(attention, dtype=dtype)
        self.norms = nn.ModuleList(nn.RMSNorm(D, dtype=dtype) for _ in range(2))
        self.gate, self.up, self.down = (
            nn.Linear(*x, bias=False, dtype=dtype) for x in ((D, 40), (D, 40), (40, D))
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def test_a_decoder_has_more_than_four_products(look):
    torch.manual_seed(0)
    model, x = nn.Sequential(Layer(), Layer()), inputs()
    with torch.no_grad():
        seen = look(model, x, passes=BOTH)
        torch.testing.assert_close(seen.result, model(x), rtol=1e-5, atol=1e-5)
    assert seen.changes == {"merged_linears": 6, "parameter_hoist": 4}
    assert seen.calls("linear") == 8
    assert not seen.calls("cat")


def test_dynamic_sizes_are_made_numbers():
    torch.manual_seed(0)
    torch.compiler.reset()
    counters.clear()
    model = Layer()
    call = torch.compile(model, backend=codegen("aot_eager"), dynamic=True)
    with torch.no_grad():
        for rows, length in ((2, 5), (3, 6), (4, 9), (3, 17)):
            x = torch.randn(rows, length, D)
            torch.testing.assert_close(call(x), model(x), rtol=1e-5, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


def codegen(name):
    from backbay.kit.backend import Backend

    return type("Ending", (Backend,), {"passes": BOTH, "codegen": name})()


def test_a_weight_that_is_changed_is_not_seen(look):
    torch.manual_seed(0)
    torch.compiler.reset()
    model, other, x = Layer(), Layer(), inputs()
    call = torch.compile(model, backend=codegen("eager"))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(call(x), model(x), rtol=1e-5, atol=1e-5)
            model.attention.k.weight.mul_(2)
            model.up.weight = nn.Parameter(torch.randn(40, D))
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(call(x), other(x), rtol=1e-5, atol=1e-5)


# Inductor takes seconds for each: in CI it has two of the dtypes, with one kind of shape each.
WITH_INDUCTOR = {(torch.float32, True), (torch.bfloat16, False)}
MODELS = [
    pytest.param(codegen, dtype, dynamic, marks=marks)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for dynamic in (False, True)
    for codegen, marks in (
        ("eager", ()),
        ("inductor", pytest.mark.slow if (dtype, dynamic) in WITH_INDUCTOR else pytest.mark.sweep),
    )
]


@pytest.mark.parametrize(("codegen", "dtype", "dynamic"), MODELS)
def test_a_model_is_wrong(prove, codegen, dtype, dynamic):
    torch.manual_seed(0)
    workload = Workload(model=Layer(dtype), args=(inputs(dtype),))
    changes = prove(workload, passes=BOTH, codegen=codegen, dynamic=dynamic, train=False)
    assert changes["merged_linears"] == 3


@pytest.fixture
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "BUDGET_S", 0.05)
    torch.compiler.reset()
    ledger.clear()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh")
def test_the_backend_hoists_without_being_asked_or_not_when_it_is():
    model, x = Layer(), inputs()
    for options, names in (({}, []), (ON, ["merged_linears", "parameter_hoist"])):
        torch.compiler.reset()
        call = torch.compile(model, backend=optimizing, options=options)
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=1e-5, atol=1e-5)
        assert [y.name for y in optimizing.reports if y.changes] == names


class AsItIs(Optimizing):
    """The backend with its graphs run as they are: Inductor takes seconds for each variant."""

    def compile(self, graph_module, example_inputs):
        return graph_module.forward


@pytest.mark.usefixtures("_fresh")
def test_what_is_tuned_is_not_hoisted_or_not_timed():
    model, x, backend = Layer(), inputs(), AsItIs()
    for _ in range(2):
        torch.compiler.reset()
        call = torch.compile(model, backend=backend, options={**ON, "tune": "full"})
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(call(x), model(x), rtol=1e-5, atol=1e-5)
                model.up.weight.mul_(1.5)
    said = [y.why for y in ledger.records() if "times as fast as without rewrites" in y.why]
    assert len(said) == 2
    assert all("merged_linears" in y and "parameter_hoist" in y for y in said)


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh")
def test_near_misses_are_not_explained():
    workload = Workload(model=Model(lambda m, x: (m.q(x), m.k(x))), args=(inputs(),))
    with torch.no_grad():
        found = explain.run(workload, backend="backbay", options=ON, again=False)
    passes = [y for graph in found.graphs for stage in graph.stages for y in stage.passes]
    (one,) = [y for y in passes if y.name == "merged_linears"]
    assert {y.reason for y in one.near} == {"the caller gets its result, or a view of it"}


# In training


def gradients(program, model, x):
    """Give the result, and the gradients of what wants one: none where none reaches it."""
    result = program(x)
    wanted = {"x": x, **dict(model.named_parameters())}
    wanted = {k: y for k, y in wanted.items() if y.requires_grad}
    torch.manual_seed(0)
    cotangent = torch.randint(-8, 9, result.shape).to(result.dtype) / 8  # the same in each dtype
    found = torch.autograd.grad(result, list(wanted.values()), cotangent, allow_unused=True)
    return {"result": result, **dict(zip(wanted, found, strict=True))}


def seen_gradients(look, model, x, **changed):
    """Give what was made of a model, and its result and gradients then."""
    seen = []

    def call(x):
        seen.append(look(model, x, passes=BOTH, **changed))
        return seen[0].result

    found = gradients(call, model, x)
    return seen[0], found


def with_the_same_weight(m, x):
    again = F.linear(x, m.k.weight, m.k.bias)
    return m.k(x).sin() * again.cos() + m.v(x)


def beside_no_grad(m, x):
    with torch.no_grad():
        y = attention(m, x)
    return attention(m, x) - y * x


def a_reader_without_gradient(m, x):
    with torch.no_grad():
        size = m.q(x).abs().amax(-1, keepdim=True)
    return attention(m, x) / size


def normed(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    q, k = (F.rms_norm(y, (HD,)) for y in (q, k))
    y = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    return m.o(y.transpose(1, 2).flatten(2))


def spread(m, x):
    return m.q(x).sin().sum(-1, keepdim=True) * m.k(x).cos() * m.v(x)


TRAINED = {
    "three factors": spread,
    "attention": attention,
    "normed heads": normed,
    "the same weight": with_the_same_weight,
    "beside no_grad": beside_no_grad,
    "also read without gradients": a_reader_without_gradient,
    "an input that is computed": lambda m, x: attention(m, F.rms_norm(x, (D,))) + x,
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("wanted", [False, True], ids=["of parameters", "of the input"])
@pytest.mark.parametrize("program", TRAINED.values(), ids=TRAINED)
def test_gradients_differ_from_eager(look, program, wanted, bias):
    model = Model(program, bias=bias, dtype=torch.float64)
    x = inputs(torch.float64).requires_grad_(wanted)
    seen, found = seen_gradients(look, model, x)
    assert seen.changes == {"merged_linears": 2, "parameter_hoist": 0}, seen.near
    assert seen.calls("cat") == 1 + bias
    torch.testing.assert_close(found, gradients(model, model, x), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("anywhere")
def test_weights_are_copied_long_before_they_are_read(look):
    model = Model(lambda m, x: attention(m, x.sin().cos()))
    seen = look(model, inputs(), passes=BOTH)
    (cat,) = seen.nodes("cat")
    assert cat.next.target is F.linear


APART = {
    "two layers": (gated, {}, "2 layers with gradients: copying their weights costs more"),
    "too many weights": (attention, {"COPIED": 1023}, "weights of 1024 elements"),
    "too few rows": (attention, {"ROWS": (11, 99)}, "10 rows"),
    "too many rows": (attention, {"ROWS": (1, 9)}, "10 rows"),
    "another device": (attention, {"DEVICES": ("cuda",)}, "it runs on cpu"),
    "AMD's GPUs": (attention, {"_IS_HIP": True}, "measured on CUDA"),
    "single precision": (attention, {"DTYPES": (torch.bfloat16,)}, "it is of torch.float32"),
    "what the caller gets": (
        lambda m, x: (m.v(x), rotated(m, x)),
        {},
        "2 layers with gradients",
    ),
    "a memory that is read as it is": (
        lambda m, x: torch.as_strided(m.q(x), (4,), (3,)).sum() * gated(m, x),
        {},
        "2 layers with gradients",
    ),
    "a vector": (lambda m, x: spread(m, x[0, 0]), {}, "1 rows"),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("program", "changed", "reason"), APART.values(), ids=APART)
def test_what_does_not_pay_is_merged_in_training(look, monkeypatch, program, changed, reason):
    for name, value in changed.items():
        monkeypatch.setattr(MODULE, name, value)
    seen = look(Model(program), inputs(), passes=BOTH)
    assert not seen.changes["merged_linears"]
    assert any(reason in y for y in seen.near), seen.near


def with_positions(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    y = F.scaled_dot_product_attention(q * 2, k.cos(), v, is_causal=True, enable_gqa=True)
    return m.o(y.transpose(1, 2).reshape(*x.shape[:-1], -1))


def with_a_value_too(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m.o(y.transpose(1, 2).reshape(*x.shape[:-1], -1)) + v.sum()


READERS = {
    "attention": (attention, 2, []),
    "positions": (with_positions, 0, ["mul", "cos"]),
    "a gate beside attention": (
        lambda m, x: m.o(F.silu(m.gate(x))) * attention(m, x),
        2,
        ["silu"],
    ),
    "attention, and something else": (
        with_a_value_too,
        0,
        ["sum_1"],
    ),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("program", "saved", "others"), READERS.values(), ids=READERS)
def test_layers_are_merged_that_others_read(look, monkeypatch, program, saved, others):
    monkeypatch.setattr(MODULE, "_other_reader", OTHER_READER)
    model, x = Model(program, dtype=torch.float64), inputs(torch.float64)
    model.gate = nn.Linear(D, WIDE, dtype=torch.float64)
    seen, found = seen_gradients(look, model, x)
    assert seen.changes["merged_linears"] == saved
    said = [y.partition(" reads it: ")[0] for y in seen.near if " reads it: " in y]
    assert said == others
    torch.testing.assert_close(found, gradients(model, model, x), rtol=1e-12, atol=1e-12)


def test_a_condition_was_not_measured():
    assert MODULE.DEVICES == ("cuda",)
    assert set(MODULE.DTYPES) == {torch.bfloat16, torch.float16}
    assert MODULE.LAYERS == 3
    assert MODULE.ROWS == (512, 8192)
    assert 2048 * 3072 <= MODULE.COPIED < 4096 * 6144


@pytest.mark.usefixtures("anywhere")
def test_limits_of_training_are_taken_for_those_of_inference(look, monkeypatch):
    monkeypatch.setattr(MODULE, "DEVICES", ())
    with torch.no_grad():
        seen = look(Model(gated), inputs(), passes=BOTH)
    assert seen.changes == {"merged_linears": 1, "parameter_hoist": 1}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("train", [True, False], ids=["training", "inference"])
def test_readers_are_asked_with_other_gradients(look, monkeypatch, train):
    refusal, asked = MODULE._refusal, []  # on CUDA attention's layout depends on them

    def noted(node, part):
        asked.append(part.requires_grad)
        return refusal(node, part)

    monkeypatch.setattr(MODULE, "_refusal", noted)
    with torch.set_grad_enabled(train):
        look(Model(attention), inputs(), passes=BOTH)
    assert asked == [train] * 3


@pytest.mark.usefixtures("anywhere")
def test_rows_of_a_symbol_are_taken_for_a_number(look):
    seen = look(Model(attention), inputs(), passes=BOTH, dynamic=True)
    assert not seen.changes["merged_linears"]
    assert any("the number of its rows is a symbol" in y for y in seen.near), seen.near


@pytest.mark.usefixtures("anywhere")
def test_a_subclass_is_taken_for_an_ordinary_tensor(look):
    model, x = Model(attention), inputs()
    seen = look(model, TwoTensor(x, x.clone()), passes=BOTH)
    assert not seen.changes["merged_linears"]
    assert any("of a subclass" in y for y in seen.near), seen.near
    torch.testing.assert_close(seen.result.a, model(x))


def with_another(m, x):
    return attention(m, x) * m.other(x).mean(-1, keepdim=True)


FROZEN = {
    "a layer": lambda m: [m.other.weight, m.other.bias],
    "a weight": lambda m: [m.other.weight],
    "a bias": lambda m: [m.other.bias],
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_gradients_of_what_is_frozen_are_computed(look, frozen):
    model = Model(with_another, bias=True, dtype=torch.float64)
    model.other = nn.Linear(D, NARROW, dtype=torch.float64)
    for parameter in frozen(model):
        parameter.requires_grad_(requires_grad=False)
    x = inputs(torch.float64).requires_grad_()
    seen, found = seen_gradients(look, model, x)
    assert seen.changes["merged_linears"] == 2, seen.near
    assert any("frozen" in y for y in seen.near), seen.near
    torch.testing.assert_close(found, gradients(model, model, x), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("wanted", [False, True], ids=["of nothing", "of the input"])
def test_weights_that_are_all_frozen_are_copied_in_every_call(look, wanted):
    model = Model(attention).requires_grad_(requires_grad=False)
    seen = look(model, inputs().requires_grad_(wanted), passes=BOTH)
    assert not seen.changes["merged_linears"]
    reason = "is frozen" if wanted else "no gradient of it is wanted"
    assert any(reason in y for y in seen.near), seen.near


def read_without_gradient(m, x):
    with torch.no_grad():
        scale = m.other.weight.sum()
    y = m.other(x)
    with torch.no_grad():
        scale = scale + y.sum()
    return attention(m, x) * scale


UNREACHED = {
    "detached": lambda m, x: attention(m, x) * m.other(x).detach().sum(),
    "read in no_grad": read_without_gradient,
    "compared": lambda m, x: attention(m, x) * (m.other(x) > 0).sum(),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("program", UNREACHED.values(), ids=UNREACHED)
def test_a_gradient_of_zeros_is_given_for_none(look, program):
    model = Model(program)
    model.other = nn.Linear(D, NARROW, bias=False)
    seen, found = seen_gradients(look, model, inputs())
    assert seen.changes["merged_linears"] == 2, seen.near
    assert any("no gradient reaches it" in y for y in seen.near)
    assert found["other.weight"] is None
    assert all(found[f"{x}.weight"] is not None for x in "qkvo")


def with_gradients_inside(m, x):
    with torch.enable_grad():
        return attention(m, x)


@pytest.mark.usefixtures("anywhere")
def test_weights_lose_gradients_that_are_recorded_inside(look):
    model, x = Model(with_gradients_inside), inputs()
    with torch.no_grad():
        seen = look(model, x, passes=BOTH)
        expected = model(x)
    assert not seen.changes["merged_linears"]
    assert any("the graph begins where none is recorded" in y for y in seen.near), seen.near
    assert seen.result.requires_grad == expected.requires_grad


AUTOCASTS = [
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float16),  # `cat` refuses to mix them
    (torch.float16, torch.bfloat16),
]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("train", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(("dtype", "lower"), AUTOCASTS, ids=str)
def test_autocast_is_forgotten(look, dtype, lower, train, inside):
    def program(m, x):
        with torch.autocast("cpu", lower, enabled=inside):
            return attention(m, x)

    model, x = Model(program if inside else attention, bias=True, dtype=dtype), inputs(dtype)
    with torch.autocast("cpu", lower, enabled=not inside), torch.set_grad_enabled(train):
        if train:
            seen, found = seen_gradients(look, model, x)
            expected = gradients(model, model, x)
        else:
            seen = look(model, x, passes=BOTH)
            found, expected = {"result": seen.result}, {"result": model(x)}
    assert seen.changes["merged_linears"] == 2, seen.near
    assert found["result"].dtype == lower
    for name, one in found.items():
        assert one.dtype == expected[name].dtype
        torch.testing.assert_close(one, expected[name], rtol=5e-2, atol=5e-2, msg=name)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_less_accurate_than_eager(look, dtype):
    model, x = Model(attention, bias=True, dtype=dtype), inputs(dtype).requires_grad_()
    seen, found = seen_gradients(look, model, x)
    assert seen.changes["merged_linears"] == 2, seen.near
    eager = gradients(model, model, x)
    truth = gradients(model.double(), model, x.detach().double().requires_grad_())
    for name, true in truth.items():
        errors = [(y[name].double() - true).square().mean().sqrt() for y in (found, eager)]
        assert errors[0] <= 1.1 * errors[1], name


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("name", ["eager", "aot_eager"])
@pytest.mark.parametrize("to_none", [True, False], ids=["to None", "to zeros"])
def test_gradients_do_not_add_up(name, to_none):
    torch.compiler.reset()
    models = [Model(attention, bias=True, dtype=torch.float64) for _ in range(2)]
    backend = codegen(name)
    calls = [torch.compile(models[0], backend=backend), models[1]]
    learn = [torch.optim.SGD(x.parameters(), 0.1, momentum=0.9) for x in models]
    for step in range(3):
        for optimizer in learn:
            optimizer.zero_grad(set_to_none=to_none)
        for x in (inputs(torch.float64), inputs(torch.float64) * (step + 2)):
            for call in calls:
                call(x).square().mean().backward()
        for optimizer in learn:
            optimizer.step()
        for one, other in zip(*(x.parameters() for x in models), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert [y.changes for y in backend.reports if y.name == "merged_linears"] == [2]


@pytest.mark.usefixtures("anywhere")
def test_training_is_not_verified(look):
    with verified():
        seen = look(Model(attention), inputs(), passes=BOTH)
    assert seen.changes["merged_linears"] == 2


# Inductor takes seconds for each, as above.
LEARNT = [
    pytest.param(codegen, dtype, marks=marks)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for codegen, marks in (
        ("eager", ()),
        ("aot_eager", ()),
        ("inductor", pytest.mark.slow if dtype == torch.bfloat16 else pytest.mark.sweep),
    )
]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("codegen", "dtype"), LEARNT)
def test_a_model_learns_wrong(prove, codegen, dtype):
    torch.manual_seed(0)
    workload = Workload(model=Layer(dtype), args=(inputs(dtype).requires_grad_(),))
    changes = prove(workload, passes=BOTH, codegen=codegen, dynamic=False, train=True)
    assert changes == {"merged_linears": 2, "parameter_hoist": 0}


ASKED = [({}, 2), ({"parameter_hoist": False}, 2), (ON, 2), ({"merged_linears": False}, 0)]


@pytest.mark.usefixtures("_fresh", "anywhere")
@pytest.mark.parametrize(("options", "saved"), ASKED, ids=str)
def test_training_asks_for_the_hoist_or_not_for_the_option(options, saved):
    backend = AsItIs()
    torch.compile(Model(attention), backend=backend, options=options)(inputs())
    assert sum(y.changes for y in backend.reports if y.name == "merged_linears") == saved
