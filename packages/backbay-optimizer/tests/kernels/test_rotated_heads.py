"""Heads that are normalised and turned, on the CPU: reference, registration, the kernel."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions, elsewhere  # noqa: E402
from backbay_optimizer.kernels import rotated_heads as module  # noqa: E402


def given(batch, tokens, heads, width, *, shared=True, dtype=torch.float64):
    """Return tensors of heads, their weights, cosines and sines."""
    drawn = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=drawn, dtype=torch.float64)

    angles = normal(1 if shared else batch, tokens, width)
    xs = [normal(batch, tokens, n, width).to(dtype) for n in heads]
    weights = [normal(width).to(dtype) for _ in heads]
    return xs, weights, angles.cos().to(dtype), angles.sin().to(dtype)


def written_out(xs, weights, cos, sin, how):
    """Return heads as models compute them."""
    return [one(x, weight, cos, sin, how) for x, weight in zip(xs, weights, strict=True)]


def one(x, weight, cos, sin, how):
    x = F.rms_norm(x, x.shape[-1:], weight + how.offset, how.eps).transpose(1, 2)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


@pytest.mark.parametrize("how", [module.How(), module.How(1e-3, 1.0)], ids=str)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "sizes", [(1, 1, [1, 3], 2), (2, 5, [3, 1], 64), (3, 4, [8], 128)], ids=str
)
def test_heads_are_not_those_that_are_written_out(sizes, shared, how):
    inputs = given(*sizes, shared=shared)
    ys = module.rotated_heads(*inputs, *how)
    wanted = written_out(*inputs, how)
    torch.testing.assert_close(ys, wanted)
    assert [y.stride() for y in ys] == [y.stride() for y in wanted]


def test_what_is_rounded_is_rounded_twice():
    (x,), (weight,), *angles = given(2, 50, [4], 64, dtype=torch.bfloat16)
    (y,) = module.rotated_heads([x], [weight], *angles, *module.How())
    truth = one(*(t.double() for t in (x, weight, *angles)), module.How())
    eager = one(x, weight, *angles, module.How())
    assert (y - truth).norm() < 0.8 * (eager - truth).norm()


def test_torch_finds_fault_in_the_registration():
    inputs = given(2, 5, [3, 4], 64, dtype=torch.float32)
    assert callable(module.rotated_heads)
    torch.library.opcheck(torch.ops.backbay.rotated_heads.default, (*inputs, *module.How()))


REFUSED = {  # what differs from what is taken
    "nothing": ({}, None),
    "on the CPU": ({"device": "cpu"}, "on cpu, not on cuda"),
    "of no token": ({"tokens": 0}, "it is empty"),
    "an empty second": ({"heads": [8, 0]}, "it is empty"),
    "of width 96": ({"width": 96}, "heads of 96: the kernel takes 64, 128, 256"),
    "three tensors": ({"heads": [8, 8, 8]}, "3 tensors: the kernel takes up to 2"),
    "in float64": ({"dtype": torch.float64}, "no kernel for torch.float64"),
    **{
        f"{name} in float32": ({"wide": name}, "no kernel for torch.bfloat16 by")
        for name in ("other heads", "weights", "cosines", "sines")
    },
    "cosines of each batch": ({"batches": (2, 1)}, "of several shapes"),
    "sines of each batch": ({"batches": (1, 2)}, "of several shapes"),
}
FITTING = {"device": "cuda", "tokens": 5, "heads": [8, 8], "width": 128, "batches": (1, 1)}


def faked(*, device, tokens, heads, width, batches, dtype=torch.bfloat16, wide=None):
    """Return tensors of heads and what else the operator takes, without memory."""

    def empty(name, *shape):
        kind = torch.float32 if name == wide else dtype
        return torch.empty(*shape, device=device, dtype=kind)

    with torch._subclasses.FakeTensorMode():
        names = ["heads", *["other heads"] * (len(heads) - 1)]
        xs = [empty(x, 2, tokens, n, width) for x, n in zip(names, heads, strict=True)]
        weights = [empty("weights", width) for _ in heads]
        angles = zip(("cosines", "sines"), batches, strict=True)
        return xs, *weights, *(empty(x, batch, tokens, width) for x, batch in angles)


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: elsewhere.MEASURED)


@pytest.mark.parametrize(("changed", "why"), REFUSED.values(), ids=REFUSED)
def test_the_kernel_takes_what_it_cannot_compute(measured, changed, why):
    found = module.refusal(*faked(**{**FITTING, **changed}))
    assert found is None if why is None else why in found


PAYS = {  # heads, width: why not
    (4, 64): None,
    (3, 64): "3 heads of 64: too few to fill a program",
    (4, 128): None,
    (3, 128): "3 heads of 128: too few to fill a program",
    (1, 256): None,
    (8, 96): "heads of 96",
}


@pytest.mark.parametrize(("sizes", "why"), PAYS.items(), ids=str)
def test_too_few_heads_are_taken_or_enough_are_left(measured, sizes, why):
    heads, width = sizes
    (x,), *others = faked(**{**FITTING, "heads": [heads], "width": width})
    found = module.pays(x, *others)
    assert found is None if why is None else why in found


def test_heads_are_taken_where_nothing_was_measured(measured, monkeypatch):
    (x,), *others = faked(**{**FITTING, "heads": [8]})
    assert module.pays(x, *others) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert "compute capability 9.0" in module.pays(x, *others)
    assert module.refusal([x], *others) is None
    monkeypatch.setattr(conditions, "has_triton", lambda: False)
    assert module.pays(x, *others) == "Triton is not installed"


INTERPRETED = """
    import itertools
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import rotated_heads as module
    from backbay_optimizer.kernels.rotated_heads_device import rotated_heads_kernel as kernel

    torch.manual_seed(0)
    sizes = ((1, 3, [4, 1]), (2, 5, [3]), (1, 1, [1, 40]), (2, 2, [40, 9]))
    for (batch, tokens, heads), width, shared, dtype in itertools.product(
        sizes, (64, 128, 256), (True, False), (torch.float32, torch.bfloat16)
    ):
        xs = [torch.randn(batch, tokens, n + 1, width).to(dtype)[:, :, :n] for n in heads]
        weights = [torch.randn(width).to(dtype) for _ in heads]
        angles = torch.randn(1 if shared else batch, tokens, 2 * width)[..., :width]
        inputs = (xs, weights, angles.cos().to(dtype), angles.sin().to(dtype))
        how = module.How(1e-3, 0.5)
        found, wanted = module.launch(kernel, *inputs, how), module.reference(*inputs, how)
        # The interpreter cuts numbers off where hardware rounds.
        rtol = 2**-7 if dtype == torch.bfloat16 else 1e-5
        assert_close(found, wanted, rtol=rtol, atol=1e-5)

    rows = torch.randn(1, 5, 192)[..., :64], torch.randn(1, 5, 128)[..., :64]
    columns = torch.randn(1, 64, 5).mT, torch.randn(1, 5, 128)[..., ::2]
    spread = [torch.randn(2, 5, n, 128)[..., ::2] for n in (3, 1)]
    packed = [torch.randn(2, 5, n, 64) for n in (3, 1)]
    gaps, solid = [torch.randn(128)[::2] for _ in range(2)], [torch.randn(64) for _ in range(2)]
    for xs, weights, angles in (
        (packed, solid, rows), (packed, solid, columns), (packed, solid, rows[::-1]),
        (packed, solid, columns[::-1]), (packed, gaps, rows), (spread, solid, rows),
        ([packed[0], spread[1]], [solid[0], gaps[1]], rows),
        ([spread[0], packed[1]], [gaps[0], solid[1]], rows),
    ):
        inputs = (xs, weights, *angles)
        assert_close(module.launch(kernel, *inputs, how), module.reference(*inputs, how))
    print("right")
"""


def test_the_kernel_is_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


DRAWN = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few, round_casts
    from torch.testing import assert_close
    from backbay_optimizer.kernels import rotated_heads as module
    from backbay_optimizer.kernels.rotated_heads_device import rotated_heads_kernel as kernel

    round_casts()
    few(40)
    DTYPES = [torch.float32, torch.float16, torch.bfloat16]

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from(DTYPES))
        batch, tokens = draw(st.integers(1, 2)), draw(st.integers(1, 4))
        width = draw(st.sampled_from([*module.LAUNCHES]))
        heads = draw(st.lists(st.sampled_from([1, 3, 4, 9]), min_size=1, max_size=2))
        torch.manual_seed(draw(st.integers(0, 9)))
        xs = []
        for n in heads:
            scale = draw(st.sampled_from([1.0, 1e-3, 1e4]))
            x = (torch.randn(batch, tokens, n, width) * scale).to(dtype)
            x[0, 0, 0, 3] = draw(st.sampled_from([0.0, float("inf"), float("nan")]))
            x[-1, -1, -1] = draw(st.sampled_from([0.0, 1.0]))
            how = draw(st.sampled_from(["solid", "part", "spread"]))
            x = torch.cat((x, x), -1)[..., ::2] if how == "spread" else x
            xs.append(torch.cat((x, x), 2)[:, :, :n] if how == "part" else x)
        weights = [torch.randn(width).to(dtype) for _ in heads]
        angles = 9 * torch.randn(draw(st.sampled_from([1, batch])), tokens, 2 * width)
        part = draw(st.sampled_from([slice(width), slice(None, None, 2)]))
        cos, sin = (t[..., part] for t in (angles.cos().to(dtype), angles.sin().to(dtype)))
        how = module.How(draw(st.sampled_from([1e-6, 1e-2])), draw(st.sampled_from([0.0, 1.0])))
        found = module.launch(kernel, xs, weights, cos, sin, how)
        wide = [[t.double() for t in ts] for ts in (xs, weights)]
        wanted = module.reference(*wide, cos.double(), sin.double(), how)
        for y, other in zip(found, wanted, strict=True):
            assert y.dtype == dtype and y.stride() == other.stride()
            close = {"rtol": torch.finfo(dtype).eps, "atol": 1e-5, "equal_nan": True}
            assert_close(y.double(), other.to(dtype).double(), **close)

    check()
    print("right")
"""


def test_drawn_heads_stray_from_float64(assert_right_in_interpreter):
    assert_right_in_interpreter(DRAWN)
