"""Linear layers that read the same become one where nobody can tell, and not elsewhere."""

import pytest
import torch
from layers_of_one_input import (
    BOTH,
    NARROW,
    ON,
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
    under_autocast,
    with_a_cache,
    with_a_copy,
)
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay import compile_log, explain
from backbay.kit.observing import verified
from backbay.proof import Workload
from backbay_optimizer.backend import backbay as optimizing
from backbay_optimizer.passes.horizontal_fusion import horizontal_fusion

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
    assert seen.changes["horizontal_fusion"] == saved, seen.near
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
    "a bias of one number": (
        lambda m, x: F.linear(x, m.k.weight, m.one) * F.linear(x, m.v.weight, m.one),
        "not one number for each feature",
    ),
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
        one.odd, one.one = nn.Parameter(torch.ones(3, D)), nn.Parameter(torch.ones(1))
        one.wide = nn.Parameter(torch.ones(NARROW, D).double())
    x = inputs()
    with torch.no_grad():
        seen = look(model, x.clone(), passes=BOTH)
        expected = twin(x)
    assert not seen.changes["horizontal_fusion"]
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
    assert not seen.changes["horizontal_fusion"]
    assert any("may depend on how it is laid out" in x for x in seen.near)


def test_one_result_that_must_stay_keeps_the_others_apart(look):
    with torch.no_grad():
        seen = look(Model(lambda m, x: (gated(m, x), m.q(x))), inputs(), passes=BOTH)
    assert seen.changes["horizontal_fusion"] == 1
    assert seen.calls("linear") == 2


def test_weights_are_laid_side_by_side_in_every_call(look):
    model, x = Model(gated), inputs()
    off = {"parameter_hoist": False}
    with torch.no_grad():
        for passes, options in (([horizontal_fusion], None), (BOTH, off), (BOTH[::-1], None)):
            seen = look(model, x, passes=passes, options=options)
            assert not seen.changes["horizontal_fusion"]


def test_training_loses_gradients(look):
    seen = look(Model(gated), inputs(), passes=BOTH)
    assert not seen.changes["horizontal_fusion"]
    assert seen.result.requires_grad


def test_parameters_of_others_are_taken_for_the_models(look):
    weights = [torch.randn(NARROW, D) for _ in range(2)]
    with torch.no_grad():
        seen = look(
            lambda x, k, v: F.linear(x, k).exp() * F.linear(x, v), inputs(), *weights, passes=BOTH
        )
    assert not seen.changes["horizontal_fusion"]


def test_it_is_not_verified(look):
    with torch.no_grad(), verified():
        seen = look(Model(attention), inputs(), passes=BOTH)
    assert seen.changes["horizontal_fusion"] == 2


def test_a_decoder_has_more_than_four_products(look):
    torch.manual_seed(0)
    model, x = nn.Sequential(Layer(), Layer()), inputs()
    with torch.no_grad():
        seen = look(model, x, passes=BOTH)
        torch.testing.assert_close(seen.result, model(x), rtol=1e-5, atol=1e-5)
    assert seen.changes == {"horizontal_fusion": 6, "parameter_hoist": 4}
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
    assert changes["horizontal_fusion"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh")
def test_the_backend_hoists_without_being_asked_or_not_when_it_is(reports):
    model, x = Layer(), inputs()
    for options, names in (({}, []), (ON, ["horizontal_fusion", "parameter_hoist"])):
        torch.compiler.reset()
        call = torch.compile(model, backend=optimizing, options=options)
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=1e-5, atol=1e-5)
        assert [y.name for y in reports if y.changes] == names


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
    said = [y.why for y in compile_log.records() if "times as fast as without rewrites" in y.why]
    assert len(said) == 2
    assert all("horizontal_fusion" in y and "parameter_hoist" in y for y in said)


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh")
def test_near_misses_are_not_explained():
    workload = Workload(model=Model(lambda m, x: (m.q(x), m.k(x))), args=(inputs(),))
    with torch.no_grad():
        found = explain.run(workload, backend="backbay", options=ON, again=False)
    passes = [y for graph in found.graphs for stage in graph.stages for y in stage.passes]
    (one,) = [y for y in passes if y.name == "horizontal_fusion"]
    assert {y.reason for y in one.near} == {"the caller gets its result, or a view of it"}
