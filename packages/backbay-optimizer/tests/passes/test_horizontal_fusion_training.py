"""In training, layers that attention reads become one, and gradients are those of each."""

import pytest
import torch
from layers_of_one_input import (
    BOTH,
    HD,
    MODULE,
    NARROW,
    ON,
    OTHER_READER,
    WIDE,
    AsItIs,
    D,
    Layer,
    Model,
    attention,
    codegen,
    gated,
    heads,
    inputs,
    rotated,
)
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.testing._internal.two_tensor import TwoTensor

from backbay.kit.observing import verified
from backbay.proof import Workload
from backbay_optimizer.passes.horizontal_fusion import horizontal_fusion


def gradients(program, model, x):
    """Return the result, and the gradients of what wants one: none where none reaches it."""
    result = program(x)
    wanted = {"x": x, **dict(model.named_parameters())}
    wanted = {k: y for k, y in wanted.items() if y.requires_grad}
    torch.manual_seed(0)
    cotangent = torch.randint(-8, 9, result.shape).to(result.dtype) / 8  # the same in each dtype
    found = torch.autograd.grad(result, list(wanted.values()), cotangent, allow_unused=True)
    return {"result": result, **dict(zip(wanted, found, strict=True))}


def seen_gradients(look, model, x, **changed):
    """Return what was made of a model, and its result and gradients then."""
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


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("wanted", [False, True], ids=["of parameters", "of the input"])
@pytest.mark.parametrize("program", TRAINED.values(), ids=TRAINED)
def test_gradients_differ_from_eager(look, program, wanted, bias):
    model = Model(program, bias=bias, dtype=torch.float64)
    x = inputs(torch.float64).requires_grad_(wanted)
    seen, found = seen_gradients(look, model, x)
    assert seen.changes == {"horizontal_fusion": 2, "parameter_hoist": 0}, seen.near
    assert seen.calls("cat") == 1 + bias
    torch.testing.assert_close(found, gradients(model, model, x), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("layers_anywhere")
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
    "AMD's GPUs": (attention, {"IS_HIP": True}, "measured on CUDA"),
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


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize(("program", "changed", "reason"), APART.values(), ids=APART)
def test_what_does_not_pay_is_merged_in_training(look, lift, program, changed, reason):
    lift(horizontal_fusion, **changed)
    seen = look(Model(program), inputs(), passes=BOTH)
    assert not seen.changes["horizontal_fusion"]
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


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize(("program", "saved", "others"), READERS.values(), ids=READERS)
def test_layers_are_merged_that_others_read(look, monkeypatch, program, saved, others):
    monkeypatch.setattr(MODULE, "_other_reader", OTHER_READER)
    model, x = Model(program, dtype=torch.float64), inputs(torch.float64)
    model.gate = nn.Linear(D, WIDE, dtype=torch.float64)
    seen, found = seen_gradients(look, model, x)
    assert seen.changes["horizontal_fusion"] == saved
    said = [y.partition(" reads it: ")[0] for y in seen.near if " reads it: " in y]
    assert said == others
    torch.testing.assert_close(found, gradients(model, model, x), rtol=1e-12, atol=1e-12)


def test_a_condition_was_not_measured():
    assert horizontal_fusion.requires.devices == ("cuda",)
    assert set(horizontal_fusion.requires.dtypes) == {torch.bfloat16, torch.float16}
    assert MODULE.LAYERS == 3
    assert MODULE.ROWS == (512, 8192)
    assert 2048 * 3072 <= MODULE.COPIED < 4096 * 6144


@pytest.mark.usefixtures("layers_anywhere")
def test_limits_of_training_are_taken_for_those_of_inference(look, lift):
    lift(horizontal_fusion, DEVICES=())
    with torch.no_grad():
        seen = look(Model(gated), inputs(), passes=BOTH)
    assert seen.changes == {"horizontal_fusion": 1, "parameter_hoist": 1}


@pytest.mark.usefixtures("layers_anywhere")
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


@pytest.mark.usefixtures("layers_anywhere")
def test_rows_of_a_symbol_are_taken_for_a_number(look):
    seen = look(Model(attention), inputs(), passes=BOTH, dynamic=True)
    assert not seen.changes["horizontal_fusion"]
    assert any("the number of its rows is a symbol" in y for y in seen.near), seen.near


@pytest.mark.usefixtures("layers_anywhere")
def test_a_subclass_is_taken_for_an_ordinary_tensor(look):
    model, x = Model(attention), inputs()
    seen = look(model, TwoTensor(x, x.clone()), passes=BOTH)
    assert not seen.changes["horizontal_fusion"]
    assert any("of a subclass" in y for y in seen.near), seen.near
    torch.testing.assert_close(seen.result.a, model(x))


def with_another(m, x):
    return attention(m, x) * m.other(x).mean(-1, keepdim=True)


FROZEN = {
    "a layer": lambda m: [m.other.weight, m.other.bias],
    "a weight": lambda m: [m.other.weight],
    "a bias": lambda m: [m.other.bias],
}


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_gradients_of_what_is_frozen_are_computed(look, frozen):
    model = Model(with_another, bias=True, dtype=torch.float64)
    model.other = nn.Linear(D, NARROW, dtype=torch.float64)
    for parameter in frozen(model):
        parameter.requires_grad_(requires_grad=False)
    x = inputs(torch.float64).requires_grad_()
    seen, found = seen_gradients(look, model, x)
    assert seen.changes["horizontal_fusion"] == 2, seen.near
    assert any("frozen" in y for y in seen.near), seen.near
    torch.testing.assert_close(found, gradients(model, model, x), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize("wanted", [False, True], ids=["of nothing", "of the input"])
def test_weights_that_are_all_frozen_are_copied_in_every_call(look, wanted):
    model = Model(attention).requires_grad_(requires_grad=False)
    seen = look(model, inputs().requires_grad_(wanted), passes=BOTH)
    assert not seen.changes["horizontal_fusion"]
    reason = "is frozen" if wanted else "no gradient of it is wanted"
    assert any(reason in y for y in seen.near), seen.near


def read_without_gradient(m, x):
    with torch.no_grad():
        scale = m.other.weight.sum()
    y = m.other(x)
    with torch.no_grad():
        scale = scale + y.sum()
    return attention(m, x) * scale


def viewed_without_gradient(m, x):
    y = m.other(x)
    with torch.no_grad():
        y = y.flatten()
    return attention(m, x) * y.square().sum()


UNREACHED = {
    "viewed in no_grad": viewed_without_gradient,
    "detached": lambda m, x: attention(m, x) * m.other(x).detach().sum(),
    "read in no_grad": read_without_gradient,
    "compared": lambda m, x: attention(m, x) * (m.other(x) > 0).sum(),
}


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize("program", UNREACHED.values(), ids=UNREACHED)
def test_a_gradient_of_zeros_is_given_for_none(look, program):
    model = Model(program)
    model.other = nn.Linear(D, NARROW, bias=False)
    seen, found = seen_gradients(look, model, inputs())
    assert seen.changes["horizontal_fusion"] == 2, seen.near
    assert any("no gradient reaches it" in y for y in seen.near)
    assert found["other.weight"] is None
    assert all(found[f"{x}.weight"] is not None for x in "qkvo")


def with_gradients_inside(m, x):
    with torch.enable_grad():
        return attention(m, x)


@pytest.mark.usefixtures("layers_anywhere")
def test_weights_lose_gradients_that_are_recorded_inside(look):
    model, x = Model(with_gradients_inside), inputs()
    with torch.no_grad():
        seen = look(model, x, passes=BOTH)
        expected = model(x)
    assert not seen.changes["horizontal_fusion"]
    assert any("the graph begins where none is recorded" in y for y in seen.near), seen.near
    assert seen.result.requires_grad == expected.requires_grad


AUTOCASTS = [
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float16),  # `cat` refuses to mix them
    (torch.float16, torch.bfloat16),
]


@pytest.mark.usefixtures("layers_anywhere")
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
    assert seen.changes["horizontal_fusion"] == 2, seen.near
    assert found["result"].dtype == lower
    for name, one in found.items():
        assert one.dtype == expected[name].dtype
        torch.testing.assert_close(one, expected[name], rtol=5e-2, atol=5e-2, msg=name)


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_less_accurate_than_eager(look, dtype):
    model, x = Model(attention, bias=True, dtype=dtype), inputs(dtype).requires_grad_()
    seen, found = seen_gradients(look, model, x)
    assert seen.changes["horizontal_fusion"] == 2, seen.near
    eager = gradients(model, model, x)
    truth = gradients(model.double(), model, x.detach().double().requires_grad_())
    for name, true in truth.items():
        errors = [(y[name].double() - true).square().mean().sqrt() for y in (found, eager)]
        assert errors[0] <= 1.1 * errors[1], name


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize("name", ["eager", "aot_eager"])
@pytest.mark.parametrize("to_none", [True, False], ids=["to None", "to zeros"])
def test_gradients_do_not_add_up(name, to_none, reports):
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
    assert [y.changes for y in reports if y.name == "horizontal_fusion"] == [2]


@pytest.mark.usefixtures("layers_anywhere")
def test_training_is_not_verified(look):
    with verified():
        seen = look(Model(attention), inputs(), passes=BOTH)
    assert seen.changes["horizontal_fusion"] == 2


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


@pytest.mark.usefixtures("layers_anywhere")
@pytest.mark.parametrize(("codegen", "dtype"), LEARNT)
def test_a_model_learns_wrong(prove, codegen, dtype):
    torch.manual_seed(0)
    workload = Workload(model=Layer(dtype), args=(inputs(dtype).requires_grad_(),))
    changes = prove(workload, passes=BOTH, codegen=codegen, dynamic=False, train=True)
    assert changes == {"horizontal_fusion": 2, "parameter_hoist": 0}


ASKED = [({}, 2), ({"parameter_hoist": False}, 2), (ON, 2), ({"horizontal_fusion": False}, 0)]


@pytest.mark.usefixtures("_fresh", "layers_anywhere")
@pytest.mark.parametrize(("options", "saved"), ASKED, ids=str)
def test_training_asks_for_the_hoist_or_not_for_the_option(options, saved, reports):
    backend = AsItIs()
    torch.compile(Model(attention), backend=backend, options=options)(inputs())
    assert sum(y.changes for y in reports if y.name == "horizontal_fusion") == saved
