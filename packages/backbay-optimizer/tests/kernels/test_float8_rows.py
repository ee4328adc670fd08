"""Rows in float8 on the CPU: reference, registration, the kernel in Triton's interpreter."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions  # noqa: E402
from backbay_optimizer.kernels import float8_rows as module  # noqa: E402

RECIPE = module.Recipe("", 1e-5, 0.0, 1e-12)


def normal(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_of(kind, x):
    return {"": None, "rms_norm": x.new_ones(x.shape[-1]) * 1.5, "silu": x.flip(0)}[kind]


def before(x, kind, by, offset=0.0):
    """What is rounded, in float64."""
    x = x.double()
    if kind == "rms_norm":
        return F.rms_norm(x, x.shape[-1:], by.double() + offset, RECIPE.eps)
    return F.silu(x) * by.double() if kind == "silu" else x


@pytest.mark.parametrize("kind", module.KINDS)
@pytest.mark.parametrize("shape", [(5, 33), (1, 8), (2, 3, 7), (9,)], ids=str)
def test_rows_are_further_from_the_truth_than_rounding_takes_them(shape, kind):
    x = normal(*shape)
    by = by_of(kind, x)
    recipe = RECIPE._replace(kind=kind, offset=0.5 if kind == "rms_norm" else 0.0)
    y, scale, total = module.float8_rows(x, by, None, *recipe)
    assert (y.dtype, y.shape, total.numel()) == (module.FLOAT8, x.shape, 0)
    assert (scale.dtype, scale.shape) == (torch.float32, (*x.shape[:-1], 1))
    truth = before(x, kind, by, recipe.offset)
    torch.testing.assert_close(scale.double(), truth.abs().amax(-1, keepdim=True) / 448)
    # Float8 has three bits behind the first, and 2^-9 between its smallest numbers.
    error = (y.double() * scale - truth).abs()
    assert (error <= truth.abs() * (2**-4 + 1e-5) + scale * 2**-10).all()


def test_a_residual_is_added_otherwise_than_in_its_dtype():
    x, residual, weight = normal(4, 24), normal(4, 24, seed=1), normal(24, seed=2)
    recipe = RECIPE._replace(kind="rms_norm")
    y, scale, total = module.float8_rows(x, weight, residual, *recipe)
    assert torch.equal(total, x + residual)
    wanted, other, _ = module.float8_rows(total, weight, None, *recipe)
    assert torch.equal(y.float(), wanted.float())
    assert torch.equal(scale, other)


SPECIAL = st.sampled_from([0.0, 1.0, -3.5, 60.0, float("inf"), float("-inf"), float("nan")])


@given(rows=st.lists(st.lists(SPECIAL, min_size=4, max_size=4), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_rows_with_infinities_and_nan_have_other_results(rows):
    x = torch.tensor(rows)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    wanted = (x / scale).clamp(-448, 448).to(module.FLOAT8)
    y, found, _ = module.float8_rows(x, None, None, *RECIPE)
    torch.testing.assert_close(found, scale, equal_nan=True)
    torch.testing.assert_close(y.float(), wanted.float(), equal_nan=True)


def test_torch_finds_fault_in_the_registration():
    x = normal(4, 24)
    for kind in module.KINDS:
        for residual in (None, x * 2):
            given = (x, by_of(kind, x), residual, *RECIPE._replace(kind=kind))
            torch.library.opcheck(torch.ops.backbay.float8_rows.default, given)


class Nothing:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **constants: self.launches.append((grid, given, constants))


@pytest.mark.parametrize(
    ("columns", "kind", "width", "warps"),
    [
        (2048, "rms_norm", 2048, 2),
        (14336, "", 16384, 16),
        (14336, "rms_norm", 16384, 8),
        (8192, "rms_norm", 8192, 8),
        (40, "", 64, 1),
    ],
)
def test_a_row_does_not_fit_in_its_program(columns, kind, width, warps):
    kernel, x = Nothing(), normal(3, columns)
    module.launch(kernel, x, by_of(kind, x), None, RECIPE._replace(kind=kind))
    ((grid, _, constants),) = kernel.launches
    assert grid == (3,)
    assert (constants["columns"], constants["width"]) == (columns, width)
    assert constants["num_warps"] == warps


def test_rows_of_a_part_are_copied():
    kernel, whole = Nothing(), normal(6, 80)
    gate, up = whole.chunk(2, -1)
    module.launch(kernel, gate, up, None, RECIPE._replace(kind="silu"))
    ((_, given, _),) = kernel.launches
    assert given[0].data_ptr() == gate.data_ptr()
    assert given[1].data_ptr() == up.data_ptr()
    assert given[6:9] == (80, 80, 0)


def test_numbers_of_rows_that_are_symbols_cannot_be_launched():
    kernel = Nothing()
    make_fx(lambda x: module.launch(kernel, x, None, None, RECIPE), tracing_mode="symbolic")(
        normal(6, 8)
    )
    assert len(kernel.launches) == 1


INTERPRETED = """
    import itertools
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import float8_rows as module
    from backbay_optimizer.kernels import float8_rows_device as device

    # The interpreter loses carries where it rounds to float8: what is rounded is compared.
    module.FLOAT8 = torch.float32
    torch.manual_seed(0)
    kinds = {"": None, "rms_norm": 1, "silu": 2}
    for columns, dtype, kind, added in itertools.product(
        (1, 40, 200), (torch.float32, torch.bfloat16), kinds, (False, True)
    ):
        x, residual, gated = (torch.randn(3, 4, 2 * columns).to(dtype) for _ in range(3))
        # The interpreter cuts numbers off where hardware rounds: sums here are exact in 16 bits.
        x, residual = ((16 * t).round() / 16 if added else t for t in (x.clamp(-3, 3), residual))
        x, gated, residual = x[..., :columns], gated[..., columns:], residual[..., :columns].clone()
        by = (None, torch.randn(columns).to(dtype), gated)[kinds[kind] or 0]
        recipe = module.Recipe(kind, 1e-5, 0.5 if kind == "rms_norm" else 0.0, 1e-3, 440.0)
        given = (x, by, residual if added else None, recipe)
        y, scale, total = module.launch(device.float8_rows_kernel, *given)
        wanted, other, sums = module.reference(*given)
        assert_close(scale, other, rtol=1e-5, atol=0)
        assert_close(total, sums, rtol=0, atol=0)
        assert_close(y, wanted, rtol=1e-5, atol=1e-4)

    strided, recipe = torch.randn(400)[::10], module.Recipe("rms_norm", 1e-6)
    given = (torch.randn(3, 40), strided, None, recipe)
    found, wanted = module.launch(device.float8_rows_kernel, *given), module.reference(*given)
    assert_close(found[1], wanted[1], rtol=1e-5, atol=0)

    x = torch.zeros(3, 40)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    for floor in (0.0, 1e-3):
        given = (x, None, None, module.Recipe(floor=floor))
        found, wanted = module.launch(device.float8_rows_kernel, *given), module.reference(*given)
        assert_close(found[1], wanted[1], equal_nan=True)
        assert_close(found[0], wanted[0], equal_nan=True)
    print("right")
"""


def test_the_kernel_is_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("kind", module.KINDS)
def test_a_gpu_loses_nan_in_a_maximum(kind):
    """The interpreter never does."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from backbay_optimizer.kernels.float8_rows_device import float8_rows_kernel as kernel

    values = {"residual_ptr": None, "total_ptr": None, "columns": 40, "width": 64, "kind": kind}
    kinds = {"y_ptr": "*fp8e4nv", "scale_ptr": "*fp32"} | dict.fromkeys(values, "constexpr")
    numbers = ("eps", "offset", "floor", "most")
    for name in kernel.arg_names:
        usual = "*bf16" if name.endswith("_ptr") else "fp64" if name in numbers else "i32"
        kinds.setdefault(name, usual)
    code = ASTSource(
        kernel,
        {x: kinds[x] for x in kernel.arg_names},
        {(kernel.arg_names.index(x),): y for x, y in values.items()},
    )
    text = triton.compile(code, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm
    assert "max.NaN.f32" in text["ptx"]
    assert "max.f32" not in text["ptx"]


DRAWN = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few, round_casts
    from torch.testing import assert_close
    from backbay_optimizer.kernels import float8_rows as module
    from backbay_optimizer.kernels import float8_rows_device as device

    round_casts()
    few(40)
    DTYPES = [torch.float32, torch.float16, torch.bfloat16]
    # The interpreter loses carries where it rounds to float8: what is rounded is compared.
    module.FLOAT8 = torch.float32
    SPECIAL = [None, 0.0, float("inf"), float("-inf"), float("nan")]

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from(DTYPES))
        columns = draw(st.sampled_from([1, 7, 8, 33, 64, 200]))
        leading = draw(st.sampled_from([(), (1,), (5,), (2, 3)]))
        torch.manual_seed(draw(st.integers(0, 9)))

        def rows(scale):
            x = (torch.randn(*leading, columns) * scale).to(dtype)
            step = draw(st.sampled_from(["solid", "part", "spread"]))
            x = torch.cat((x, x), -1)[..., ::2] if step == "spread" else x
            return torch.cat((x, x), -1)[..., :columns] if step == "part" else x

        x = rows(draw(st.sampled_from([1.0, 1e-3, 1e3])))
        special = draw(st.sampled_from(SPECIAL))
        if special is not None:
            x[(0,) * len(leading)][columns // 2 :] = special
        kind = draw(st.sampled_from(module.KINDS))
        weight = torch.randn(2 * columns).to(dtype)[:: draw(st.integers(1, 2))][:columns]
        by = {"": None, "rms_norm": weight, "silu": rows(1.0)}[kind]
        residual = rows(1.0) if draw(st.booleans()) else None
        offset = draw(st.sampled_from([0.0, 1.0])) if kind == "rms_norm" else 0.0
        floor, most = draw(st.sampled_from([0.0, 1e-2])), draw(st.sampled_from([448.0, 440.0]))
        recipe = module.Recipe(kind, 1e-5, offset, floor, most)
        y, scale, total = module.launch(device.float8_rows_kernel, x, by, residual, recipe)
        assert total.dtype == dtype and total.numel() == (x.numel() if residual is not None else 0)
        if residual is not None:
            x = x + residual
            assert_close(total, x, rtol=0, atol=0, equal_nan=True)
        by = None if by is None else by.double()
        wanted, other, _ = module.reference(x.double(), by, None, recipe)
        assert_close(scale, other, rtol=1e-5, atol=0, equal_nan=True)
        assert_close(y, wanted, rtol=2e-5, atol=1e-5, equal_nan=True)

    check()
    print("right")
"""


def test_drawn_rows_stray_from_float64(assert_right_in_interpreter):
    assert_right_in_interpreter(DRAWN)


def test_a_gpu_gets_the_kernel_that_has_no_such_float8(monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(1, 5, device="cuda")
        for capability, found in (((8, 6), True), ((8, 9), False), ((9, 0), False)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
            assert ("8.9" in (module.refusal(x) or "")) == found
            large = torch.empty(8192, 4096, device="cuda", dtype=torch.bfloat16)
            assert ("8.9" in (module.pays(large) or "")) == found


def test_no_rows_are_given_to_the_kernel_or_get_numbers(monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    with torch._subclasses.FakeTensorMode():
        for shape in ((0, 5), (3, 0)):
            assert module.refusal(torch.empty(shape, device="cuda")) == "it is empty"
    for shape in ((0, 5), (2, 0, 5)):
        x = torch.empty(shape)
        for kind in module.KINDS:
            for residual in (None, x):
                by = by_of(kind, x)
                y, scale, total = module.float8_rows(x, by, residual, *RECIPE._replace(kind=kind))
                assert (y.dtype, y.shape, scale.shape) == (module.FLOAT8, shape, (*shape[:-1], 1))
                assert total.shape == ((0,) if residual is None else shape)
    with pytest.raises(IndexError, match="non-zero size"):  # as of eager's maximum
        module.float8_rows(torch.empty(3, 0), None, None, *RECIPE)
