"""Linear layers of few rows in one kernel, on the CPU, the kernels in Triton's interpreter."""

import importlib.util
import itertools

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.source import ConstantSource  # noqa: E402
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions  # noqa: E402
from backbay_optimizer.kernels import few_row_linears as module  # noqa: E402

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(dtype, *leading, inner=12, sizes=(10, 4, 6)):
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

    weights = [draw(n, inner) for n in sizes]
    return draw(*leading, inner), weights, [None, *(draw(n) for n in sizes[1:])]


def gated_inputs(dtype, *leading, activation="silu"):
    x, (gate, up), (_, bias) = inputs(dtype, *leading, sizes=(10, 10))
    return x, gate, up, bias, None, activation


def widened(x):
    if isinstance(x, list | tuple):
        return [widened(y) for y in x]
    return x.double() if isinstance(x, torch.Tensor) else x


def test_the_reference_means_something_else_than_a_model():
    x, weights, biases = inputs(torch.float64, 2, 3)
    for found, weight, bias in zip(
        module.reference(x, weights, biases), weights, biases, strict=True
    ):
        torch.testing.assert_close(found, F.linear(x, weight, bias))
    x, gate, up, bias, *_ = gated_inputs(torch.float64, 2, 3)
    y, z = F.linear(x, gate, bias), F.linear(x, up)
    torch.testing.assert_close(module.gated_reference(x, gate, up, bias, None), F.silu(y) * z)
    found = module.gated_reference(x, gate, up, bias, None, "gelu_tanh")
    torch.testing.assert_close(found, F.gelu(y, approximate="tanh") * z)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_operators_stray_from_float64(dtype):
    given = inputs(dtype, 2, 7)
    gated = gated_inputs(dtype, 2, 7)
    found = [*module.few_row_linears(*given), module.gated_linears(*gated)]
    wanted = [*module.reference(*widened(given)), module.gated_reference(*widened(gated))]
    for y, truth in zip(found, wanted, strict=True):
        assert y.dtype == dtype
        assert y.is_contiguous()
        tolerance = TOLERANCE[dtype] * truth.abs().max().item()
        torch.testing.assert_close(y.double(), truth, rtol=TOLERANCE[dtype], atol=tolerance)


@pytest.mark.parametrize("leading", [(2, 7), (2,), (), (0,), (2, 0, 3)], ids=str)
def test_torch_finds_fault_in_the_registration(leading):
    assert callable(module.few_row_linears)
    namespace = torch.ops.backbay
    torch.library.opcheck(namespace.few_row_linears.default, inputs(torch.float32, *leading))
    torch.library.opcheck(namespace.gated_linears.default, gated_inputs(torch.float32, *leading))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(given, gated):
        x, *rest = given
        y, *others = module.few_row_linears(x * 2, *rest)
        y.add_(1)
        return y.sin(), *others, module.gated_linears(*gated)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (6, 8):
        given = inputs(torch.float32, 2, rows), gated_inputs(torch.float32, 2, rows)
        found, wanted = (f(*given) for f in (compiled, program))
        torch.testing.assert_close(found, wanted)
        assert [y.stride() for y in found] == [y.stride() for y in wanted]


INTERPRETED = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few
    from torch.testing import assert_close
    from backbay_optimizer.kernels import few_row_linears as module
    from backbay_optimizer.kernels.few_row_linears_device import gated_kernel, linears_kernel

    few(60)
    TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    PLANS = [None, module.Plan(16, 16, 16), module.Plan(32, 16, 32), module.Plan(16, 32, 64)]

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from([*TOLERANCE]))
        rows = draw(st.sampled_from([0, 1, 2, 5, 16, 33, 70]))
        inner = draw(st.sampled_from([1, 8, 16, 24, 40, 64, 136]))
        sizes = draw(st.lists(st.sampled_from([1, 8, 16, 24, 40, 64]), min_size=1, max_size=3))
        torch.manual_seed(draw(st.integers(0, 9)))
        x = torch.randn(rows, inner).to(dtype)
        if draw(st.booleans()):
            x = torch.cat((x, x), -1)[..., ::2]
        x = x[:, None] if draw(st.booleans()) else x
        scale = inner**-0.5
        weights = [(torch.randn(n, inner) * scale).to(dtype) for n in sizes]
        if draw(st.booleans()):
            weights = [torch.cat((w, w))[::2] for w in weights]
        biases = [torch.randn(n).to(dtype) if draw(st.booleans()) else None for n in sizes]
        plan = draw(st.sampled_from(PLANS))
        found = module.launch(linears_kernel, x, weights, biases, plan)
        wide = [[None if t is None else t.double() for t in y] for y in (weights, biases)]
        wanted = module.reference(x.double(), *wide)

        up = (torch.randn(sizes[0], inner) * scale).to(dtype)
        others = [torch.randn(sizes[0]).to(dtype) if draw(st.booleans()) else None]
        how = weights[0], up, biases[0], *others
        activation = draw(st.sampled_from(["silu", "gelu_tanh"]))
        found.append(module.launch_gated(gated_kernel, x, *how, activation, plan))
        wide = [None if t is None else t.double() for t in how]
        wanted.append(module.gated_reference(x.double(), *wide, activation))
        for y, truth in zip(found, wanted, strict=True):
            assert y.shape == truth.shape and y.dtype == dtype and y.is_contiguous()
            assert_close(y.double(), truth, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    def check_special_numbers():
        inf = float("inf")
        x = torch.tensor([0.0, inf, -inf, float("nan"), 1e4, -1e4, 80.0, -80.0])
        x = x.to(torch.float16)[:, None]
        one = torch.ones(1, 1, dtype=torch.float16)
        for activation in ("silu", "gelu_tanh"):
            bias = torch.zeros(1, dtype=torch.float16), torch.ones(1, dtype=torch.float16)
            given = x, one, 0 * one, *bias, activation
            y = module.launch_gated(gated_kernel, *given)
            wanted = module.gated_reference(*given)
            assert_close(y, wanted, equal_nan=True)

    check()
    check_special_numbers()
    print("right")
"""


def test_the_kernels_are_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("rows", [2, 16, 20, 64, 300])
@pytest.mark.parametrize("name", ["linears_kernel", "gated_kernel"])
def test_a_kernel_reads_weights_in_small_pieces_or_leaves_wgmma_idle(name, rows):
    """Weights are chosen by a program's number, and must be known to be aligned all the same."""
    import re

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from backbay_optimizer.kernels import few_row_linears_device as device

    kernel, is_gated = getattr(device, name), name == "gated_kernel"
    how = module.plan(rows, 2048, 2**22, is_gated=is_gated)
    values = {"is_cpu": False, "even_n": True, "even_k": True, "activation": "silu"}
    values |= {x: getattr(how, x) for x in ("block_m", "block_n", "block_k")}
    values = {x: values[x] for x in kernel.arg_names if x in values}
    kinds = {
        x: "constexpr" if x in values else "*bf16" if x.endswith("_ptr") else "i32"
        for x in kernel.arg_names
    }
    number = {x: (kernel.arg_names.index(x),) for x in kinds}
    aligned = [x for x, kind in kinds.items() if kind != "constexpr" and x != "rows"]
    code = ASTSource(
        kernel,
        kinds,
        {number[x]: y for x, y in values.items()},
        {number[x]: [["tt.divisibility", 16]] for x in aligned},
    )
    options = {"num_warps": how.warps, "num_stages": how.stages}
    made = triton.compile(code, target=GPUTarget("cuda", 90, 32), options=options)
    assert "warp_group_dot" in made.asm["ttgir"]
    copies = re.findall(r"cp\.async\.\w+\.shared\.global \[.*\], \[.*\], (\w+)", made.asm["ptx"])
    assert {*copies} == {"0x10"}
    assert made.metadata.shared <= 227 * 1024


def test_a_plan_is_no_power_of_two_or_asks_for_too_much_shared_memory():
    for rows, inner, elements in itertools.product(
        (1, 2, 16, 17, 64, 65, 128, 500), (64, 896, 2048, 8192), (2**19, 2**23, 2**27)
    ):
        for is_gated in (False, True):
            plan = module.plan(rows, inner, elements, is_gated=is_gated)
            assert all(n & (n - 1) == 0 for n in plan[:4])
            assert min(plan[:3]) >= 16
            loaded = (plan.block_n * (1 + is_gated) + plan.block_m) * plan.block_k * 2
            assert loaded * plan.stages <= 220 * 1024  # of the 227 KiB that an H100 has


def test_a_number_of_rows_that_varies_is_pinned():
    shapes = ShapeEnv()
    source = ConstantSource("rows")
    dynamic = DimDynamic.DYNAMIC
    symbol = shapes.create_symbol(24, source, dynamic_dim=dynamic, constraint_dim=None)
    rows = shapes.create_symintnode(symbol, hint=24, source=source)
    assert module.plan(rows, 2048, 2**22) == module.plan(24, 2048, 2**22)
    ranges = shapes.bound_sympy(symbol)
    assert (ranges.lower, ranges.upper) == (17, 32)


def test_weights_are_read_beyond_their_end():
    """Nothing shows in results: what is read there belongs to columns that are not written."""
    x, plan = torch.empty(2, 256), module.Plan(16, 64, 128)
    for inner, sizes, wanted in (
        (256, [64, 128], (True, True)),
        (256, [64, 72], (False, True)),
        (192, [64, 128], (True, False)),
    ):
        found = module._constants(plan, inner, sizes, x)
        assert (found["even_n"], found["even_k"]) == wanted


def test_what_was_not_measured_is_replaced():
    def why(rows=16, sizes=((4096, 4096), (1024, 4096), (1024, 4096)), *, is_gated=False):
        result = torch.empty(1, device="cuda", dtype=torch.bfloat16)
        return module.pays(result, rows, sizes, is_gated=is_gated)

    small, wide, widest = (((n, 2048),) * 3 for n in (1024, 4096, 13632))
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(module, "has_triton", lambda: True)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        assert why(2) is None
        for sizes, most, is_gated in (
            (small, 512, False),
            (wide, 256, False),
            (((7168, 5120),), 256, False),
            (widest, 16, False),
            (((8192, 2048),) * 2, 256, True),
            (((4096, 4096),) * 2, 64, True),
            (((1024, 4096),) * 3, 64, False),
            (((14336, 4096),) * 2, 128, True),
            (((28672, 8192),) * 2, 64, True),
            (((1000, 2048),) * 3, 64, False),  # columns are not in 64s
            (((1024, 1600),) * 3, 64, False),
            (((4304, 2048),) * 2, 16, True),
            (((4096, 1600),) * 2, 16, True),
        ):
            assert why(most, sizes, is_gated=is_gated) is None
            message = f"{most + 1} rows: from 2 to {most} it was faster"
            assert why(most + 1, sizes, is_gated=is_gated) == message
        assert "1 rows: from 2 to 256" in why(1)
        assert "eights" in why(sizes=((4100, 4096), (1024, 4096)))
        assert "eights" in why(sizes=((1024, 4100), (1024, 4100)))
        assert "524224 elements" in why(sizes=((2**12, 64), (4095, 64)))
        assert why(sizes=((2**12, 64), (2**12, 64))) is None
        assert why(sizes=((2**14, 2**11), (24576, 2**11))) is None
        assert "elements were not" in why(sizes=((2**14, 2**11), (24576 + 64, 2**11)))
        assert "elements were not" in why(sizes=((28672 + 64, 8192),) * 2, is_gated=True)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert "9.0" in why()
        m.setattr(module, "has_triton", lambda: False)
        assert "Triton" in why()


def test_what_the_kernels_cannot_count_or_convert_is_read():
    with (
        torch._subclasses.FakeTensorMode(),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(conditions, "has_triton", lambda: True)

        def why(*sizes, dtypes=(torch.bfloat16,) * 2):
            tensors = [torch.empty(x, device="cuda") for x in sizes]
            return module.refusal(*(t.to(d) for t, d in zip(tensors, dtypes, strict=False)))

        row, many = (1, 2**16), (2**15, 2**16)
        assert why((2, 2**16), (2**15 - 1, 2**16)) is None
        assert why((2, 64), *[(8, 64)] * 3, dtypes=(torch.bfloat16,) * 4) is None
        assert "4 layers" in why((2, 64), *[(8, 64)] * 4, dtypes=(torch.bfloat16,) * 5)
        assert "0 layers" in why((2, 64))
        assert "columns" in why((2, 64), (8, 128))
        assert "columns" in why((2, 64), (8, 64), (8, 32), dtypes=(torch.bfloat16,) * 3)
        assert "32 bits" in why((2, 2**16), many)
        assert "32 bits" in why(many, row)
        assert "32 bits" in why((2**16, 8), (2**15, 8))
        assert why((2**15, 8), (2**15, 8)) is None
        mixed = "no kernel for torch.bfloat16 by torch.float32"
        assert why(row, row, dtypes=(torch.bfloat16, torch.float32)) == mixed
        assert "single precision" in why(row, row, dtypes=(torch.float32,) * 2)
        assert "empty" in why(row, (0, 2**16))
        assert "empty" in why((0, 2**16), row)


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "wanted"),
    [
        *((128, inner, n, (128, 64, 128, 8, 4)) for inner, n in ((4096, 6144), (5120, 7168))),
        *((512, inner, n, (128, 256, 64, 8, 4)) for inner, n in ((4096, 6144), (5120, 7168))),
        *((256, inner, n, (128, 128, 64, 8, 4)) for inner, n in ((4096, 6144), (5120, 7168))),
        (48, 4096, 6144, (64, 64, 128, 4, 4)),
        (128, 2048, 3072, (32, 64, 128, 4, 4)),
        (256, 2048, 3072, (128, 64, 128, 8, 4)),
        (512, 2048, 3072, (128, 128, 64, 8, 4)),
        (512, 1024, 4096, (128, 64, 64, 8, 4)),
    ],
)
def test_a_slower_plan_is_taken(rows, inner, columns, wanted):
    """By ``benchmarks/results/2026-11-28-h200/plans_again.txt``."""
    assert module.plan(rows, inner, inner * columns) == wanted


@pytest.mark.parametrize(("inner", "columns", "depth"), [(2048, 8192, 128), (4096, 11008, 64)])
def test_a_slower_plan_of_a_gate_is_taken(inner, columns, depth):
    for rows in (96, 128):
        how = module.plan(rows, inner, 2 * inner * columns, is_gated=True)
        assert how == (128, 64, depth, 8, 3)
