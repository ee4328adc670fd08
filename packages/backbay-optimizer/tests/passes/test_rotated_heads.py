"""Heads are normalised and turned by one operator, and nothing else is."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from turned_heads import (
    HALF,
    B,
    D,
    H,
    T,
    given,
    heads,
    lift_all,
    normal,
    normed,
    rms_norm,
    root,
    rotate_half,
    turned,
)

from backbay.kit import Backend
from backbay_optimizer.kernels import rotated_heads as kernel
from backbay_optimizer.passes.rotated_heads import rotated_heads


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift_all(lift, monkeypatch)


@pytest.fixture
def as_on_a_gpu(lift, monkeypatch):
    lift(rotated_heads, DEVICES=("cpu",))
    for name in ("unfit", "unmeasured"):
        monkeypatch.setattr(kernel, name, lambda *_: None)
    monkeypatch.setattr(kernel, "LAUNCHES", {D: (8, 4)})
    monkeypatch.setattr(kernel, "FEWEST", {D: 1})
    monkeypatch.setattr(kernel, "launch", lambda _, *inputs: kernel.reference(*inputs))


def by_chunks(x, w, cos, sin):
    x = normed(x, w)
    first, second = x.chunk(2, dim=-1)
    return cos[0] * x + torch.cat((-second, first), dim=-1) * sin[0]


TURNED = {
    "as Qwen3's": lambda x, w, c, s: turned(normed(x, w), c, s),
    "as Gemma 3's": lambda x, w, c, s: turned(rms_norm(heads(x).transpose(1, 2), w, 1.0), c, s),
    "by a function": lambda x, w, c, s: turned(
        F.rms_norm(heads(x), (D,), w, 1e-6).transpose(-2, -3), c, s
    ),
    "by chunks, without a batch": by_chunks,
    "of a large epsilon": lambda x, w, c, s: turned(
        rms_norm(heads(x), w, eps=0.5).transpose(1, 2), c, s
    ),
}


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize(
    "sizes",
    [{}, {"batch": B}, {"heads": 1}, {"tokens": 1}, {"tokens": 1, "heads": 1}],
    ids=str,
)
def test_heads_are_left_or_differ(look, anywhere, name, sizes):
    program, inputs = TURNED[name], given(**sizes)
    seen = look(lambda *x: program(*x), *inputs, passes=[rotated_heads])
    assert seen.changes["rotated_heads"] == 1, seen.near
    wanted = program(*inputs)
    assert seen.result.stride() == wanted.stride()
    truth = program(*(t.double() for t in inputs))
    assert (seen.result - truth).norm() <= (wanted - truth).norm()
    assert not [n for g in seen.graphs for n in g.graph.nodes if n.target is torch.cat]


@pytest.mark.parametrize("where", ["anywhere", "as_on_a_gpu"])
def test_another_number_of_tokens_is_compiled_again(look, request, where):
    request.getfixturevalue(where)
    inputs = given()
    for x in (inputs[0], *inputs[2:]):
        torch._dynamo.mark_dynamic(x, 1)

    def program(x, w, c, s):
        return turned(rms_norm(x.view(B, -1, H, D), w).transpose(1, 2), c, s)

    seen = look(program, *inputs, passes=[rotated_heads])
    assert seen.changes["rotated_heads"] == 1, seen.near
    torch.testing.assert_close(seen.result, program(*inputs), rtol=2e-2, atol=2e-2)


def test_an_epsilon_that_may_change_is_passed_over_in_silence(look, anywhere):
    seen = look(TURNED["as Qwen3's"], *given(), passes=[rotated_heads], dynamic=True)
    assert seen.near == ["its epsilon is no number, as with dynamic=True"]


def turned_by_parts(x, w, c, s, *, read=(), write=None):
    """Return turned heads and some of what they are made of, one of which may be written."""
    y = normed(x, w)
    joined = rotate_half(y)
    straight, crossed = y * c[0], joined * s[0]
    if write is not None:
        (x, w, c, s)[write].zero_()
    parts = {"moved": y, "joined": joined, "straight": straight, "crossed": crossed}
    return straight + crossed, *(parts[name] for name in read)


def read_by_others(x, w, c, s):
    y = normed(x, w)
    return turned(y, c, s) + y[..., :1]


def half_is_read(x, w, c, s):
    y = normed(x, w)
    first = y[..., :HALF]
    return y * c[0] + torch.cat((-y[..., HALF:], first), -1) * s[0], first


def joined_otherwise(join, width=D):
    """Return a program whose halves are joined by a function of the heads."""

    def program(x, w, c, s):
        y = rms_norm(heads(x, width), w[:width]).transpose(1, 2)
        return y * c[0, : x.shape[1], :width] + join(y) * s[0, : x.shape[1], :width]

    return program


def joined_of_one(join, batch, tokens, width):
    """Return such a program of parts of the input: with sizes of one, all is broadcast."""
    program = joined_otherwise(join, width)
    return lambda x, *others: program(x[:batch, :tokens], *others)


def second_by_first(y, joined_dim, *dim):
    first, second = y.chunk(2, *dim)
    return torch.cat((-second, first), joined_dim)


def two_of_four(y):
    first, second = y.chunk(4, -1)
    return torch.cat((-second, first), -1)


def two_of_them_moved(x, w, c, s):
    x = x[:, :B, : B * D].view(B, B, B, D)
    return turned(rms_norm(x, w).transpose(0, 2), c[:, :B], s[:, :B])


def moved_before_by_others(x, w, c, s):
    x = x[:, :B, : B * D].view(B, B, B, D)
    return turned(rms_norm(x.transpose(0, 2), w), c[:, :B], s[:, :B])


def angles_of_heads(x, w, c, s):
    y = normed(x, w)
    return y * c[:, :H, None] + rotate_half(y) * s[:, :H, None]


def of_odd_width(x, *others):
    program = joined_otherwise(lambda y: torch.cat((-y[..., 7:], y[..., :7]), -1), 15)
    return program(x[..., :45], *others)


def cast_is_written(x, w, c, s):
    wide = heads(x).float()
    wide.mul_(w.float())
    return turned((w * (wide * root(wide)).to(x.dtype)).transpose(1, 2), c, s)


def factor_is_written(x, w, c, s):
    factor = 1.0 + w.float()
    factor.mul_(3)
    wide = heads(x).float()
    return turned((wide * root(wide) * factor).to(x.dtype).transpose(1, 2), c, s)


def written_behind_its_factor(x, w, c, s):
    factor = 1.0 + w.float()
    w.zero_()
    wide = heads(x).float()
    return turned((wide * root(wide) * factor).to(x.dtype).transpose(1, 2), c, s)


def into(name):
    """Return a program one of whose parts is written into memory that others read."""

    def program(x, w, c, s):
        out = {
            "square": torch.empty(B, T, H, D),
            "mean": torch.empty(B, T, H, 1),
            "rsqrt": torch.empty(B, T, H, 1),
            "neg": x[0].view(B, H, T, HALF),
            "cat": x.view(B, H, T, D),
        }
        out = {name: out[name]}
        wide = heads(x).float()
        square = torch.square(wide, out=out.get("square"))
        mean = torch.mean(square, -1, keepdim=True, out=out.get("mean"))
        y = w * (wide * torch.rsqrt(mean + 1e-6, out=out.get("rsqrt"))).to(x.dtype)
        y = y.transpose(1, 2)
        second = torch.neg(y[..., HALF:], out=out.get("neg"))
        joined = torch.cat((second, y[..., :HALF]), -1, out=out.get("cat"))
        result = y * c[0] + joined * s[0]
        return result if name in {"neg", "cat"} else (result, out[name])

    return program


LEFT = {
    "read by others": (read_by_others, "something else reads"),
    "of which a half is read": (half_is_read, "something else reads"),
    "read before they are moved": (
        lambda x, w, c, s: (turned((y := rms_norm(heads(x), w)).transpose(1, 2), c, s), y),
        None,
    ),
    "read before they are turned": (
        lambda *x: turned_by_parts(*x, read=["moved"]),
        "something else reads",
    ),
    "whose joined halves are read": (lambda *x: turned_by_parts(*x, read=["joined"]), None),
    "one product of which is read": (lambda *x: turned_by_parts(*x, read=["straight"]), None),
    "whose other product is read": (lambda *x: turned_by_parts(*x, read=["crossed"]), None),
    "with a product more": (lambda x, w, c, s: (turned(y := normed(x, w), c, s), y * c), None),
    "turned the other way": (
        joined_otherwise(lambda y: torch.cat((y[..., HALF:], -y[..., :HALF]), -1)),
        None,
    ),
    "whose halves stay": (
        joined_otherwise(lambda y: torch.cat((-y[..., :HALF], y[..., HALF:]), -1)),
        None,
    ),
    "joined of one half twice": (
        joined_otherwise(lambda y: torch.cat((-y[..., HALF:], y[..., HALF:]), -1)),
        None,
    ),
    "joined of the other half twice": (
        joined_otherwise(lambda y: torch.cat((-y[..., :HALF], y[..., :HALF]), -1)),
        None,
    ),
    "joined of unequal parts": (
        joined_otherwise(lambda y: torch.cat((-y[..., 4:], y[..., :4]), -1)),
        None,
    ),
    "joined without a sign": (
        joined_otherwise(lambda y: torch.cat((y[..., HALF:], y[..., :HALF]), -1)),
        None,
    ),
    "joined with another sign": (
        joined_otherwise(lambda y: torch.cat((y[..., HALF:].abs(), y[..., :HALF]), -1)),
        None,
    ),
    "joined of parts of all dimensions": (
        joined_otherwise(lambda y: torch.cat((-y[:, :, :, HALF:], y[:, :, :, :HALF]), -1)),
        None,
    ),
    "joined as rows": (
        joined_of_one(lambda y: torch.cat((-y[..., 1:], y[..., :1]), -2), B, 1, 2),
        None,
    ),
    "joined as batches": (
        joined_of_one(lambda y: torch.cat((-y[..., 1:], y[..., :1])), 1, T, 2),
        None,
    ),
    "halves of tokens": (joined_otherwise(lambda y: second_by_first(y, -2, -2)), None),
    "halves of two tokens as columns": (
        joined_of_one(lambda y: second_by_first(y, -1, -2), B, 2, 1),
        None,
    ),
    "halves of two batches as columns": (
        joined_of_one(lambda y: second_by_first(y, -1), B, T, 1),
        None,
    ),
    "chunks of four": (joined_of_one(two_of_four, B, T, 2), None),
    "subtracted": (lambda x, w, c, s: (y := normed(x, w)) * c[0] - rotate_half(y) * s[0], None),
    "summed in another order": (
        lambda x, w, c, s: rotate_half(y := normed(x, w)) * s[0] + y * c[0],
        "laid out otherwise",
    ),
    "added twice": (
        lambda x, w, c, s: torch.add((y := normed(x, w)) * c[0], rotate_half(y) * s[0], alpha=2),
        None,
    ),
    "moved by other dimensions": (two_of_them_moved, None),
    "moved by other dimensions before": (moved_before_by_others, None),
    **{
        f"whose {name} are written between": (
            lambda *x, number=number: turned_by_parts(*x, write=number),
            "may write",
        )
        for number, name in enumerate(("inputs", "weights", "cosines", "sines"))
    },
    "of a cast that is written": (cast_is_written, "may write"),
    "of a factor that is written": (factor_is_written, "may write"),
    "whose weight is written behind its factor": (written_behind_its_factor, "may write"),
    **{
        f"written by {name}": (into(name), "writes what others may read")
        for name in ("square", "mean", "rsqrt", "neg", "cat")
    },
    "turned by angles of heads": (angles_of_heads, "not those of tokens"),
    "turned by angles of two shapes": (
        lambda x, w, c, s: (y := normed(x, w)) * c[:, None] + rotate_half(y) * s[0],
        "not those of tokens",
    ),
    "of what is pointwise": (
        lambda x, w, c, s: TURNED["as Qwen3's"](x.sin(), w, c, s),
        "computed with it",
    ),
    "turned by wider angles": (
        lambda x, w, c, s: TURNED["as Qwen3's"](x, w, c.float(), s.float()),
        "of several dtypes",
    ),
    "of a wider result": (
        lambda x, w, c, s: turned(((y := heads(x).float()) * root(y) * w).transpose(1, 2), c, s),
        "of several dtypes",
    ),
    "of an epsilon that torch knows": (
        lambda x, w, c, s: turned(F.rms_norm(heads(x), (D,), w).transpose(1, 2), c, s),
        "its epsilon is no number",
    ),
    "of rows with gaps": (
        lambda x, w, c, s: turned(rms_norm(x.view(B, T, D, H).mT, w).transpose(1, 2), c, s),
        "side by side",
    ),
    "of an odd width": (of_odd_width, "side by side"),
    "with a weight of each head": (
        lambda x, w, c, s: turned(rms_norm(heads(x).transpose(1, 2), w.expand(H, 1, D)), c, s),
        "one number for each column",
    ),
    "of a weight with gaps": (
        lambda x, w, c, s: turned(normed(x, torch.cat((w, w))[::2]), c, s),
        "in one piece",
    ),
    "of a weight that is one number": (
        lambda x, w, c, s: turned(normed(x, w[:1].expand(D)), c, s),
        "in one piece",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_cannot_take_is_replaced(look, anywhere, name):
    program, why = LEFT[name]
    inputs = given()
    seen = look(lambda *x: program(*x), *inputs, passes=[rotated_heads])
    assert not seen.changes["rotated_heads"]
    assert [why in x for x in seen.near] == [True] * (why is not None), seen.near


@pytest.mark.parametrize("number", range(4))
def test_a_gradient_is_lost(look, anywhere, number):
    inputs = given()
    inputs[number].requires_grad_()
    seen = look(TURNED["as Qwen3's"], *inputs, passes=[rotated_heads])
    assert not seen.changes["rotated_heads"]
    assert seen.near == ["a gradient is wanted"]


def test_a_refusal_of_the_kernel_is_ignored(look, lift):
    lift(rotated_heads, DEVICES=("cpu",))
    seen = look(TURNED["as Qwen3's"], *given(), passes=[rotated_heads])
    assert not seen.changes["rotated_heads"]
    assert seen.near == ["the tensor is on cpu, not on cuda"]


def test_a_width_that_changes_is_asked_for(anywhere):
    backend = type("Tried", (Backend,), {"passes": (rotated_heads,), "codegen": "eager"})()
    torch.compiler.reset()

    def program(x, w, c, s):
        return turned(rms_norm(x, w).transpose(1, 2), c, s)

    call = torch.compile(program, backend=backend)
    for width in (D, 2 * D, 3 * D):
        inputs = normal(B, T, H, width), normal(width), normal(1, T, width), normal(1, T, width)
        for x in inputs:
            torch._dynamo.mark_dynamic(x, x.dim() - 1)
        with torch.compiler.set_stance("fail_on_recompile" if width != D else "default"):
            torch.testing.assert_close(call(*inputs), program(*inputs))


def test_a_number_of_tokens_that_only_a_run_tells_ends_the_compilation(look, as_on_a_gpu):
    x, w, c, s = given()
    torch._dynamo.decorators.mark_unbacked(x, 1)

    def program(x, w, c, s):
        y = rms_norm(x.view(B, -1, H, D), w).transpose(1, 2)
        return turned(y, *(t[:, :1].expand(1, y.shape[2], D) for t in (c, s)))

    seen = look(program, x, w, c, s, passes=[rotated_heads])
    assert not seen.changes["rotated_heads"]
    assert seen.near == ["it depends on a size that is known only when it runs"]
