"""Linear layers with what follows them, on the CPU, the kernel in Triton's interpreter."""

import importlib.util
import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions  # noqa: E402
from backbay_optimizer.kernels import linear_epilogue as module  # noqa: E402

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(dtype, *leading, inner=12, columns=10, images=2):
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

    vectors = [draw(columns), draw(columns), draw(columns).square() + 0.5, draw(columns)]
    bias, mean, var, scale = vectors
    x, weight = draw(*leading, inner), draw(columns, inner)
    residual, gate = draw(*leading, columns), draw(images, inner)
    norm = [draw(inner), draw(inner).square() + 0.5, draw(inner), draw(inner)]
    how = "gelu", mean, var, scale, draw(columns), 1e-3, residual, gate, *norm, "silu", 1e-2
    return x, weight, bias, *how


def widened(given):
    return [x.double() if isinstance(x, torch.Tensor) else x for x in given]


def steps(x, weight, bias, activation, *given):
    """Compute it as a model does: an image for each factor of the gate."""
    mean, var, scale, shift, eps, residual, gate, *norm, entry, entry_eps = given
    image = x.reshape(gate.shape[0], -1, 1, x.shape[-1]).movedim(-1, 1)
    image = getattr(F, entry)(F.batch_norm(image, *norm, training=False, eps=entry_eps))
    y = F.conv2d(image * gate[:, :, None, None], weight[:, :, None, None], bias)
    y = F.batch_norm(y, mean, var, scale, shift, training=False, eps=eps)
    y = getattr(F, activation)(y).movedim(1, -1)
    return y.reshape(residual.shape) + residual


@pytest.mark.parametrize("activation", ["gelu", "silu", "relu", "hardswish"])
def test_the_reference_means_something_else_than_a_model(activation):
    given = [*inputs(torch.float64, 2, 3, 4)]
    given[3] = activation
    torch.testing.assert_close(module.reference(*given), steps(*given))
    x, weight, bias, *_ = given
    torch.testing.assert_close(module.reference(x, weight, bias), F.linear(x, weight, bias))
    y = module.reference(x, weight, None, scale=given[6], residual=given[9])
    torch.testing.assert_close(y, F.linear(x, weight) * given[6] + given[9])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_operator_strays_from_float64(dtype):
    given = inputs(dtype, 2, 7)
    y = module.linear_epilogue(*given)
    wanted = module.reference(*widened(given))
    assert y.dtype == dtype
    assert y.is_contiguous()
    torch.testing.assert_close(y.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("leading", [(2, 7), (2,), (0,), (2, 0, 3)], ids=str)
def test_torch_finds_fault_in_the_registration(leading):
    assert callable(module.linear_epilogue)
    operator = torch.ops.backbay.linear_epilogue.default
    torch.library.opcheck(operator, inputs(torch.float32, *leading))
    torch.library.opcheck(operator, inputs(torch.float32, *leading)[:4])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(x, *given):
        return module.linear_epilogue(x * 2, *given).sin()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (6, 8):
        given = inputs(torch.float32, 2, rows)
        found, wanted = (f(*given) for f in (compiled, program))
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


def test_a_product_of_no_columns_is_refused():
    x, weight, bias = torch.randn(2, 3, 0), torch.randn(5, 0), torch.randn(5)
    found = module.linear_epilogue(x, weight, bias, "gelu")
    torch.testing.assert_close(found, F.gelu(F.linear(x, weight, bias)))


INTERPRETED = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few
    from torch.testing import assert_close
    from backbay_optimizer.kernels import linear_epilogue as module
    from backbay_optimizer.kernels.linear_epilogue_device import linear_kernel

    few(40)
    TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 6e-2}

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from([*TOLERANCE]))
        images, pixels = draw(st.integers(0, 3)), draw(st.sampled_from([1, 5, 16, 33]))
        inner, columns = (draw(st.sampled_from([1, 8, 16, 24, 40])) for _ in range(2))
        torch.manual_seed(draw(st.integers(0, 9)))

        def tensor(*sizes):
            if not draw(st.booleans()):
                return None
            return torch.randn(*sizes).to(dtype)

        x = torch.randn(images, pixels, inner).to(dtype)
        if draw(st.booleans()):
            x = torch.cat((x, x), -1)[..., ::2]
        weight = (torch.randn(columns, inner) * inner**-0.5).to(dtype)
        bias, mean, scale, shift = (tensor(columns) for _ in range(4))
        var = None if mean is None else torch.rand(columns).to(dtype) + 0.5
        residual, gate = tensor(images, pixels, columns), tensor(images, inner)
        activation = draw(st.sampled_from(["none", "gelu", "silu", "relu", "hardswish"]))
        plans = [None, module.Plan(16, 16, 16), module.Plan(32, 16, 32), module.Plan(16, 32, 64)]
        plans += [module.Plan(16, 16, 64, sweep=True)]
        plan = draw(st.sampled_from(plans))
        entry = draw(st.sampled_from(["none", "silu", "hardswish"]))
        norm = [None] * 4
        if draw(st.booleans()):
            norm = [torch.rand(inner).to(dtype) + 0.5 for _ in range(4)]
        how = x, weight, bias, activation, mean, var, scale, shift, 1e-3, residual, gate, *norm
        y = module.launch(linear_kernel, *how, entry, 1e-3, chosen=plan)
        norms = dict(zip(("mean", "var", "scale", "shift"), norm))
        rows = module.reference(x.float(), torch.eye(inner), None, entry, **norms, eps=1e-3)
        entered = (rows if gate is None else rows * gate[:, None].float()).to(dtype)
        wide = [t.double() if isinstance(t, torch.Tensor) else t for t in how]
        wanted = module.reference(entered.double(), *wide[1:10])
        assert y.shape == wanted.shape and y.dtype == dtype
        assert_close(y.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    def check_special_numbers():
        inf = float("inf")
        x = torch.tensor([0.0, inf, -inf, float("nan"), 1e4, -1e4] * 2).to(torch.float16)[:, None]
        one = torch.ones(1, 1, dtype=torch.float16)
        for activation in ("gelu", "silu", "relu", "hardswish"):
            y = module.launch(linear_kernel, x, one, None, activation)
            wanted = module.reference(x, one, None, activation)
            if activation == "gelu":  # torch's, on a CPU, has NaN for infinity
                wanted = (x.float() * 0.5 * (1 + torch.erf(x.float() * 0.5**0.5))).half()
            assert_close(y, wanted, equal_nan=True)

    def check_gelu():
        x = torch.linspace(-12, 12, 4001).to(torch.float16)[:, None]
        one = torch.ones(1, 1, dtype=torch.float16)
        wanted = torch.nn.functional.gelu(x.double())
        y = module.launch(linear_kernel, x, one, None, "gelu").double()
        ours, eager = ((z - wanted).abs() for z in (y, torch.nn.functional.gelu(x).double()))
        small = 2.0**-24  # the least that float16 has: what is less is rounded to it, or to zero
        assert (ours <= 1.05 * eager + 2.0**-11 * 1.1 * wanted.abs() + small).all()

    def check_a_product_of_nothing():
        x, weight, bias = torch.randn(2, 3, 0), torch.randn(5, 0), torch.randn(5)
        y = module.launch(linear_kernel, x, weight, bias, "gelu")
        assert_close(y, torch.nn.functional.gelu(bias).expand(2, 3, 5))

    check()
    check_a_product_of_nothing()
    check_special_numbers()
    check_gelu()
    print("right")
"""


def test_the_kernel_is_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_float_that_inductor_gives_makes_it_compute_in_double_precision():
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from backbay_optimizer.kernels.linear_epilogue_device import linear_kernel

    kinds = {"rows": "i32", "each": "i32", "eps": "fp64", "entry_eps": "fp64"}
    values = {"inner": 64, "columns": 64, "block_m": 64, "block_n": 64, "block_k": 64}
    values |= {"activation": "none", "entry_activation": "silu"}
    values |= {"few": True, "is_cpu": False, "sweep": False}
    names = linear_kernel.arg_names
    kinds |= {x: "*bf16" for x in names if x.endswith("_ptr")} | dict.fromkeys(values, "constexpr")
    kinds = {x: kinds[x] for x in names}
    code = ASTSource(linear_kernel, kinds, {(names.index(x),): y for x, y in values.items()})
    made = triton.compile(code, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert "xf32>" in made.asm["ttir"]
    assert "xf64>" not in made.asm["ttir"]


def test_a_plan_is_no_power_of_two_or_a_sweep_of_less_than_a_row():
    sizes = (8, 16, 24, 96, 112, 144, 192, 320, 768, 1280)
    kinds = [{}, {"is_normed": True}, {"is_normed": True, "is_gated": True}]
    kinds.append({"is_gated": True, "is_entered": True})
    for given in itertools.product((1, 49, 25088, 3211264), sizes, sizes, (2, 4)):
        for kind in kinds:
            plan = module.plan(*given, **kind)
            assert all(n & (n - 1) == 0 for n in plan[:4])
            assert min(plan[:3]) >= 16
            assert not plan.sweep or plan.block_k >= given[1]
            loaded = plan.block_n + plan.block_m * (2 if "is_entered" in kind else 1)
            loaded *= plan.block_k * plan.stages * given[3]
            assert loaded <= 220 * 1024  # of the 227 KiB of shared memory that an H100 has


def test_what_was_not_measured_is_replaced():
    def why(rows=25088, inner=384, columns=1536, *, is_activated=True, is_gated=False):
        result = torch.empty(1, device="cuda", dtype=torch.bfloat16)
        how = {"is_activated": is_activated, "is_gated": is_gated}
        return module.pays(result, rows, inner, columns, **how)

    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(module, "has_triton", lambda: True)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        assert why() is None
        assert "eights" in why(columns=1500)
        assert "eights" in why(inner=100)
        assert "2097152" in why(rows=1024)
        assert why(6272, 480, 80, is_activated=False, is_gated=True) is None
        assert "2097152" in why(6272, 480, 80, is_activated=False)
        assert why(inner=1024) is None
        assert "fewer" in why(inner=1024, columns=512)
        assert "1032 products" in why(inner=1032)
        assert why(inner=1032, is_activated=False, is_gated=True) is None
        assert "776 products" in why(inner=776, is_activated=False)
        assert why(inner=768, is_activated=False) is None
        m.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert "9.0" in why()
        m.setattr(module, "has_triton", lambda: False)
        assert "Triton" in why()


def test_a_weight_that_the_kernel_cannot_count_or_convert_is_read():
    with (
        torch._subclasses.FakeTensorMode(),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(conditions, "has_triton", lambda: True)
        x = torch.empty(1, 2**16, device="cuda", dtype=torch.bfloat16)
        assert "32 bits" in module.refusal(x, x.expand(2**15, -1))
        mixed = "no kernel for torch.bfloat16 by torch.float32"
        assert module.refusal(x, x.float()) == mixed
        assert module.refusal(x, x.expand(2**15 - 1, -1)) is None
