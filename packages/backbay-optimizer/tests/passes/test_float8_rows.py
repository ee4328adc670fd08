"""Rows that are rounded to float8 become calls of our operator; let loose on the CPU here."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels import float8_rows as kernel
from backbay_optimizer.passes.float8_rows import float8_rows

ROWS, COLUMNS = 6, 40
FLOAT8, MOST = torch.float8_e4m3fn, 448.0
EPS = 1e-6


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(float8_rows, DEVICES=("cpu",))
    monkeypatch.setattr(kernel, "pays", lambda *_: None)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (ROWS, COLUMNS), generator=generator).bfloat16()


X, UP, WEIGHT = normal(), normal(seed=1), normal(COLUMNS, seed=2)
X[2] *= 2**-12  # so small that bounds of scales count


def memories(results):
    return [
        [x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() for y in results]
        for x in results
    ]


def assert_rounded_alike(found, wanted):
    """Within a step of float8 each: what is between is not rounded to 16 bits here."""
    assert memories(found) == memories(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        step = 2.0**-3 if one.dtype == FLOAT8 else 2.0**-7
        torch.testing.assert_close(one.float(), other.float(), rtol=step, atol=2.0**-9)


def rounded(y, *, floor=1e-12):
    """Round as most write it."""
    scale = y.abs().amax(-1, keepdim=True).float().clamp(min=floor) / MOST
    return (y.float() / scale).clamp(-MOST, MOST).to(FLOAT8), scale


def wide_norm(x, weight, eps=EPS):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def by_a_factor(x):
    scale = MOST / torch.clamp(torch.amax(torch.abs(x), dim=-1, keepdim=True).double(), min=1e-12)
    scale = scale.to(torch.float32)
    return torch.clamp(x.float() * scale, min=-MOST, max=MOST).to(FLOAT8), scale.reciprocal()


def by_a_reciprocal(x):
    scale = x.abs().max(dim=-1, keepdim=True)[0].float().clamp_min(1e-4) * (1 / MOST)
    return (x * scale.reciprocal()).to(FLOAT8), scale


def of_rows_alone(x):
    scale = (x.float().abs().amax(1) / MOST).clamp(min=1 / (MOST * 512))
    return (x / scale.unsqueeze(-1)).to(FLOAT8), scale


def rounded_by(top, x):
    scale = top.float() / MOST
    return (x / scale).to(FLOAT8), scale


def of_views(x):
    y, scale = rounded(x.view(2, 3, COLUMNS))
    return y.view(-1, COLUMNS), scale


FORMS = {
    "as most write it": rounded,
    "by a factor": by_a_factor,
    "by a reciprocal": by_a_reciprocal,
    "without a bound": lambda x: (rounded(x, floor=0)[0],),
    "a scale of rows alone": of_rows_alone,
    "of views": of_views,
    "by Python's abs": lambda x: rounded_by(abs(x).amax(-1, keepdim=True), x),
}


@pytest.mark.parametrize("name", FORMS)
def test_rows_in_memory_are_left_or_differ(look, anywhere, name):
    program = FORMS[name]
    seen = look(lambda x: program(x), X, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 1, seen.near
    assert_rounded_alike(seen.result, program(X))


def gemma_norm(x, weight):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (wide * (1.0 + weight.float())).to(x.dtype)


NORMS = {
    "called": lambda x, w: rounded(F.rms_norm(x, (COLUMNS,), w, EPS)),
    "written out": lambda x, w: rounded(wide_norm(x, w)),
    "by one plus a weight": lambda x, w: rounded(gemma_norm(x, w)),
    "kept wide": lambda x, w: rounded(wide_norm(x, w).float()),
    "by a factor": lambda x, w: by_a_factor(wide_norm(x, w)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_before_it_is_left_or_differs(look, anywhere, name):
    program = NORMS[name]
    seen = look(lambda *given: program(*given), X, WEIGHT, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 1, seen.near
    assert_rounded_alike(seen.result, program(X, WEIGHT))
    (call,) = seen.nodes("float8_rows")
    assert call.args[3] == "rms_norm"
    assert not seen.nodes("rsqrt")


GATES = {
    "of 16 bits": lambda x, up: rounded(F.silu(x) * up),
    "the other way round": lambda x, up: rounded(up * F.silu(x)),
    "kept wide": lambda x, up: rounded(F.silu(x.float()) * up),
    "chunks": lambda x, _: rounded(F.silu(x[:, : COLUMNS // 2]) * x[:, COLUMNS // 2 :]),
}


@pytest.mark.parametrize("name", GATES)
def test_a_gate_before_it_is_left_or_differs(look, anywhere, name):
    program = GATES[name]
    seen = look(lambda *given: program(*given), X, UP, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 1, seen.near
    assert_rounded_alike(seen.result, program(X, UP))
    (call,) = seen.nodes("float8_rows")
    assert call.args[3] == "silu"


def test_a_residual_before_a_norm_is_left_or_differs(look, anywhere):
    def program(x, residual, weight):
        total = x + residual
        return *rounded(wide_norm(total, weight)), total * 2

    seen = look(program, X, UP, WEIGHT, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 1, seen.near
    (call,) = seen.nodes("float8_rows")
    assert call.args[2] is not None
    assert_rounded_alike(seen.result, program(X, UP, WEIGHT))


def test_a_second_layer_reads_what_the_first_gives(look, anywhere):
    def program(x, residual, weight):
        total = x + residual
        one, scale = rounded(wide_norm(total, weight))
        total = F.linear(one.bfloat16() * scale.bfloat16(), SQUARE) + total
        return *rounded(wide_norm(total, weight)), total

    seen = look(program, X, UP, WEIGHT, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 2, seen.near
    (one, scale, _), (other, wanted, _) = seen.result, program(X, UP, WEIGHT)
    # A step of float8 in the first layer is one of several percent in the second.
    torch.testing.assert_close(one.float() * scale, other.float() * wanted, rtol=0.2, atol=0.2)


SQUARE = normal(COLUMNS, COLUMNS, seed=3)


def wide(y, scale):
    return y.float() * scale


def test_what_is_rounded_for_three_layers_is_computed_more_than_once(look, anywhere):
    def program(x, weight):
        y = wide_norm(x, weight)
        return tuple(wide(*rounded(y)) * n for n in range(3))

    seen = look(program, X, WEIGHT, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 3, seen.near
    assert len(seen.nodes("float8_rows")) == 1
    for one, other in zip(seen.result, program(X, WEIGHT), strict=True):
        torch.testing.assert_close(one, other, rtol=2.0**-3, atol=2.0**-9)


def test_results_share_memory_that_the_caller_gets_twice(look, anywhere):
    def program(x, weight):
        y = wide_norm(x, weight)
        return *rounded(y), *rounded(y), *rounded(y)

    seen = look(program, X, WEIGHT, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 3, seen.near
    assert len(seen.nodes("float8_rows")) == 3
    assert_rounded_alike(seen.result, program(X, WEIGHT))


def test_a_call_is_shared_across_a_mode(look, anywhere):
    def program(x):
        with torch.inference_mode():
            one = wide(*rounded(x))
        return one.sum(), wide(*rounded(x))

    seen = look(program, X, passes=[float8_rows])
    assert len(seen.nodes("float8_rows")) in {0, 2}
    assert seen.result[1].is_inference() is program(X)[1].is_inference()


def test_a_parameter_in_inference_is_refused(look, anywhere):
    weight = torch.nn.Parameter(WEIGHT.clone())
    with torch.no_grad():
        seen = look(NORMS["written out"], X, weight, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 1, seen.near


def test_a_scale_of_two_that_is_written_is_anothers_too(look, anywhere):
    def program(x):
        (one, scale), (other, second) = rounded(x), rounded(x)
        scale.mul_(2)
        return wide(one, scale), wide(other, second)

    seen = look(program, X, passes=[float8_rows])
    for one, other in zip(seen.result, program(X), strict=True):
        torch.testing.assert_close(one, other, rtol=2.0**-3, atol=2.0**-9)


@pytest.mark.parametrize("rows", [6, COLUMNS])
def test_symbols_are_compared_with_sizes(look, anywhere, rows):
    def program(x, bias, weight):
        total = x + bias
        return *rounded(wide_norm(total, weight)), total * 2

    given = normal(rows, COLUMNS), normal(COLUMNS, seed=4), WEIGHT
    torch._dynamo.mark_dynamic(given[0], 0)
    seen = look(program, *given, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 0
    assert_rounded_alike(seen.result, program(*given))


def linear(x, scale, weight, by):
    return torch._scaled_mm(x, weight.t(), scale, by.t(), out_dtype=torch.bfloat16)


def test_a_layer_in_float8_is_left_in_part(look, anywhere):
    def program(x, residual, norm, *weights):
        gate, up, down = weights
        total = x + residual
        y, scale = rounded(wide_norm(total, norm))
        inner = F.silu(linear(y, scale, *gate)) * linear(y, scale, *up)
        return total + linear(*rounded(inner), *down)

    rows, columns = 16, 32
    weights = [rounded(normal(columns, columns, seed=n)) for n in range(3)]
    given = (normal(rows, columns), normal(rows, columns, seed=4), normal(columns, seed=5))
    seen = look(program, *given, *weights, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 2, seen.near
    assert [x.args[3] for x in seen.nodes("float8_rows")] == ["rms_norm", "silu"]
    found, wanted = seen.result.float(), program(*given, *weights).float()
    assert (found - wanted).norm() < 0.05 * wanted.norm()


def added(function):
    """Do something between the scale and what is divided by it."""

    def program(x, up, weight):
        scale = x.abs().amax(-1, keepdim=True).float() / MOST
        scale = function(x, scale)
        return (x.float() / scale).clamp(-MOST, MOST).to(FLOAT8), scale

    return program


def with_itself(x, up, weight):
    y = F.silu(x) * up
    return *rounded(y), y


def with_its_magnitude(x, up, weight):
    top = x.abs().amax(-1, keepdim=True).float()
    return (x.float() / (top / MOST)).clamp(-MOST, MOST).to(FLOAT8), top


def with_its_magnitude_in_16_bits(x, up, weight):
    top = x.abs().amax(-1, keepdim=True)
    return (x.float() / (top.float() / MOST)).clamp(-MOST, MOST).to(FLOAT8), top


def divided_in_16_bits(x, up, weight):
    top = x.abs().amax(-1, keepdim=True).clamp(min=1e-6)
    return ((x / top).to(FLOAT8),)


def written_between(x, up, weight):
    y = F.silu(x) * up
    scale = y.abs().amax(-1, keepdim=True).float() / MOST
    y.mul_(0.5)
    return (y.float() / scale).clamp(-MOST, MOST).to(FLOAT8), scale


def a_sum_written_before_its_norm(x, up, weight):
    total = x + up
    total.mul_(2)
    return *rounded(wide_norm(total, weight)), total


def of_a_sum_alone(x, up, weight):
    return rounded(wide_norm(x + up, weight))


def by_the_scale_of_another(x, up, weight):
    scale = up.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / MOST
    return (x.float() / scale).clamp(-MOST, MOST).to(FLOAT8), scale


def by_columns(x, up, weight):
    scale = x.abs().amax(0, keepdim=True).float().clamp(min=1e-12) / MOST
    return (x.float() / scale).clamp(-MOST, MOST).to(FLOAT8), scale


def by_a_scale_of_16_bits(x, up, weight):
    scale = x.abs().amax(-1, keepdim=True) / MOST
    return (x / scale).float().clamp(-MOST, MOST).to(FLOAT8), scale


def turned_over(x, up, weight):
    scale = MOST / x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12)
    return (x.float() / scale).clamp(-MOST, MOST).to(FLOAT8), scale


def to_half(x, up, weight):
    scale = MOST / x.abs().amax(-1, keepdim=True).float()
    return (x.float() * scale).to(FLOAT8), scale


def computed_by_inductor(x, up, weight):
    return rounded(x.sin())


def a_row_written_between_two(x, up, weight):
    one = rounded(x)
    x.mul_(2)
    return *one, *rounded(x)


def rounded_norm_by(x, factor):
    v = x.float()
    n = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + EPS)
    return rounded((n * factor).to(x.dtype))


def a_weight_written_behind_its_factor(x, up, weight):
    factor = 1.0 + weight.float()
    weight.mul_(3)
    return rounded_norm_by(x, factor)


def a_factor_that_is_written(x, up, weight):
    factor = 1.0 + weight.float()
    factor.mul_(3)
    return rounded_norm_by(x, factor)


def two_scales(x, up, weight):
    scale = x.abs().amax(-1, keepdim=True).float() / MOST
    other = scale.clamp(min=0)
    return (x / other).to(FLOAT8), scale, other


def two_inverses(x, up, weight):
    scale = MOST / x.abs().amax(-1).float().clamp(min=1e-6)
    other = scale.unsqueeze(-1)
    return (x * other).clamp(-MOST, MOST).to(FLOAT8), scale, other


def written_by_the_first_part(x, up, weight):
    magnitude = torch.abs(x, out=up)
    scale = magnitude.amax(-1, keepdim=True).float().clamp(min=1e-12) / MOST
    return (x / scale).to(FLOAT8), scale, up * 1


def a_number_added_before(x, up, weight):
    total = x + 1.5
    return *rounded(wide_norm(total, weight)), total


def bounded_by_nan(x, up, weight):
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=float("nan")) / MOST
    return (x / scale).to(FLOAT8), scale


REFUSED = {
    "rows that are written between two": a_row_written_between_two,
    "names of numpy's": lambda x, *_: rounded_by(torch.amax(x=x.abs(), dim=-1, keepdim=True), x),
    "a weight that is written behind its factor": a_weight_written_behind_its_factor,
    "a factor that is written": a_factor_that_is_written,
    "two scales that the caller gets": two_scales,
    "two inverses that the caller gets": two_inverses,
    "what its first part writes": written_by_the_first_part,
    "a number added before its norm": a_number_added_before,
    "a bound that is no number": bounded_by_nan,
    "a bound that is written": added(lambda x, s: s.clamp_(min=1e-3)),
    "a scale that is written and passed on": added(lambda x, s: (s.mul_(2), s)[1]),
    "a scale of two tensors": added(lambda x, s: s * x[:, :1].float().abs().add(1)),
    "a scale with a bound above": added(lambda x, s: s.clamp(min=1e-3, max=1.0)),
    "a scale times a negative number": added(lambda x, s: s * -1.0),
    "a scale that makes rows too large": added(lambda x, s: s / 2),
    "read by others": with_itself,
    "a magnitude that is read by others": with_its_magnitude,
    "a magnitude in 16 bits that is read by others": with_its_magnitude_in_16_bits,
    "rows that are divided in 16 bits": divided_in_16_bits,
    "rows that are written between": written_between,
    "a sum that is written before its norm": a_sum_written_before_its_norm,
    "a sum that nothing else reads": of_a_sum_alone,
    "a scale of other rows": by_the_scale_of_another,
    "a scale of each column": by_columns,
    "a scale of 16 bits": by_a_scale_of_16_bits,
    "divided where it would be multiplied": turned_over,
    "a row of zeros that is not clamped": to_half,
    "what Inductor computes with it": computed_by_inductor,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_something_else_is_rounded_or_differs(look, anywhere, name):
    program = REFUSED[name]
    given = [t.clone() for t in (X, UP, WEIGHT)]
    seen = look(lambda *given: program(*given), *given, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 0
    wanted = program(*(t.clone() for t in (X, UP, WEIGHT)))
    assert memories(seen.result) == memories(wanted)
    for one, other in zip(seen.result, wanted, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("wanted", [X, WEIGHT], ids=["rows", "weight"])
def test_a_gradient_is_lost(look, anywhere, wanted):
    given = [t.clone().requires_grad_(t is wanted) for t in (X, WEIGHT)]
    program = NORMS["written out"]
    seen = look(lambda *given: program(*given), *given, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 0
    assert seen.near


def test_a_norm_switches_gradients_off_in_part(look, anywhere):
    def program(x, weight):
        with torch.no_grad():
            y = wide_norm(x, weight)
        return rounded(y)

    seen = look(program, X, WEIGHT, passes=[float8_rows])
    assert_rounded_alike(seen.result, program(X, WEIGHT))


def test_numbers_of_rows_are_guarded(look, anywhere):
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    seen = look(lambda x: rounded(x), x, passes=[float8_rows])
    assert seen.changes["float8_rows"] == 1, seen.near
    assert_rounded_alike(seen.result, rounded(X))
