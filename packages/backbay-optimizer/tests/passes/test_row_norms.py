"""LayerNorm and RMSNorm become an operator of ours; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils.checkpoint import checkpoint

from backbay.kit import Backend
from backbay.proof import Workload
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import row_norm as kernel
from backbay_optimizer.passes.row_norms import row_norms

N = 32
EPS = 1e-5


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(row_norms, DEVICES=("cpu",))
    monkeypatch.setattr(kernel, "pays", lambda *_: None)


def drawn(*shapes, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(x, generator=generator).to(dtype).requires_grad_() for x in shapes]


def inputs(dtype=torch.bfloat16):
    """Return rows, and a weight and a bias for them."""
    x, weight, bias = drawn((2, 3, N), (N,), (N,), dtype=dtype)
    return x, weight, bias


def root(wide):
    return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)


def llama(x, weight, _):
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(variance + EPS)
    return weight * wide.to(x.dtype)


def gemma(x, weight, _):
    wide = x.float()
    return (wide * root(wide) * (1.0 + weight.float())).type_as(x)


def t5(x, weight, _):
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    normal = x * torch.rsqrt(variance + EPS)
    return weight * normal.to(weight.dtype)


NORMS = {
    "functional": lambda x, w, b: F.layer_norm(x, (N,), w, b, EPS),
    "torch's": lambda x, w, b: torch.layer_norm(x, (N,), w, b, EPS),
    "of the usual epsilon": lambda x, w, b: F.layer_norm(x, (N,), weight=w, bias=b),
    "without a bias": lambda x, w, _: F.layer_norm(x, [N], w, eps=EPS),
    "root mean square": lambda x, w, _: F.rms_norm(x, (N,), w, EPS),
    "torch's root mean square": lambda x, w, _: torch.rms_norm(x, (N,), w, EPS),
    "Llama's": llama,
    "Gemma's": gemma,
    "T5's": t5,
    "OLMo's": lambda x, w, _: (w * (x.float() * root(x.float()))).to(x.dtype),
    "a square": lambda x, w, _: (
        (x.float() * (torch.square(x.float()).mean(dim=-1, keepdim=True) + EPS).rsqrt()).to(x.dtype)
        * w
    ),
    "a product with itself": lambda x, w, _: (
        (torch.rsqrt(EPS + torch.mean((y := x.float()) * y, (2,), keepdim=True)) * y).bfloat16() * w
    ),
    "one plus": lambda x, w, _: (x.float() * root(x.float())).to(x.dtype) * (w + 1),
}


def assert_as_eager(found, wanted, rtol=2**-6):
    """Assert that values are eager's, which rounds to 16 bits on the way."""
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        size = other.abs().float().sum().item() / max(1, other.numel())
        torch.testing.assert_close(one, other, rtol=rtol, atol=4 * rtol * size)


def with_gradients(y, given):
    results = y if isinstance(y, tuple) else (y,)
    cotangents = [torch.cos(torch.arange(z.numel())).view(z.shape).to(z.dtype) for z in results]
    wanted = torch.autograd.grad(results, given, cotangents, allow_unused=True)
    return [*results, *(g for g in wanted if g is not None)]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_norm_is_left_or_it_or_its_gradient_differs(look, anywhere, name, dynamic):
    program, given = NORMS[name], inputs()
    if dynamic:
        torch._dynamo.mark_dynamic(given[0], 1)
    seen = look(lambda *given: program(*given), *given, passes=[row_norms])
    assert seen.changes["row_norms"] == 1, seen.near
    assert_as_eager(with_gradients(seen.result, given), with_gradients(program(*given), given))
    (call,) = seen.nodes("row_norm")
    assert call.args[0].op == call.args[1].op == "placeholder"
    assert (call.args[2] is not None) == (name in {"functional", "torch's", "of the usual epsilon"})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_the_weight_of_gemmas_norm_has_another_dtype(look, anywhere, dtype):
    x, weight, _ = inputs()
    given = x, weight.detach().to(dtype).requires_grad_(), _
    seen = look(gemma, *given, passes=[row_norms])
    assert seen.changes["row_norms"] == 1, seen.near
    assert_as_eager(with_gradients(seen.result, given), with_gradients(gemma(*given), given))


def decoder(x, weight, bias, *layers):
    """Compute a layer whose norms have several readers, and a residual branch each."""
    q, k, v = layers
    y = F.layer_norm(x, (N,), weight, bias)
    h = x + F.linear(F.linear(y, q) * F.linear(y, k) + F.linear(y, v), q)
    z = llama(h, weight, None)
    return h + F.linear(F.silu(F.linear(z, k)) * F.linear(z, v), q)


def encoder(x, weight, bias, *layers):
    """Compute a layer with norms behind the residual sums."""
    q, k, v = layers
    y = F.layer_norm(x + F.linear(F.linear(x, q) * F.linear(x, v), k), (N,), weight, bias)
    return F.layer_norm(y + F.linear(F.gelu(F.linear(y, q)), k), (N,), weight, bias)


def parallel(x, weight, bias, *layers):
    """Compute two norms of one tensor, which is returned, too."""
    q, k, v = layers
    y, z = F.layer_norm(x, (N,), weight, bias), gemma(x, weight, bias)
    return x + F.linear(y, q) + F.linear(F.linear(z, k), v), x


def viewed(x, weight, bias, *layers):
    q, k, v = layers
    y = F.layer_norm(x, (N,), weight, bias).view(-1, N)
    return F.linear(F.linear(y, q) + F.linear(y, k), v).view(x.shape) + x


LAYERS = {
    decoder: [{0, 1, 2, 3}, {0, 1, 3}],
    encoder: [{0, 1}, {0}],
    parallel: [{0, 3}, {0, 3}],
    viewed: [{0, 3}],
}


@pytest.mark.parametrize("program", LAYERS)
def test_readers_share_a_gradient_or_a_layer_differs(look, anywhere, program):
    given = [*inputs(), *drawn((N, N), (N, N), (N, N))]
    given[3:] = [(w / N**0.5).detach().requires_grad_() for w in given[3:]]
    if program is parallel:
        given[0] = given[0].detach().requires_grad_()
    seen = look(program, *given, passes=[row_norms])
    assert seen.changes["row_norms"] == len(LAYERS[program]), seen.near
    taken = [{x.args[1] for x in call.users} for call in seen.nodes("row_norm")]
    assert taken == LAYERS[program]
    wanted = with_gradients(program(*given), given)
    assert_as_eager(with_gradients(seen.result, given), wanted, rtol=2**-5)


def test_what_precedes_a_norm_reads_what_follows_it(look, anywhere):
    def program(x, weight, bias):
        before = F.linear(x, weight[None] * torch.ones(N, 1, dtype=x.dtype))
        return F.layer_norm(x, (N,), weight, bias) + before

    given = inputs()
    seen = look(program, *given, passes=[row_norms])
    assert seen.changes["row_norms"] == 1, seen.near
    assert_as_eager(with_gradients(seen.result, given), with_gradients(program(*given), given))


def test_a_graph_is_compiled_again_for_another_number_of_rows(anywhere):
    backend = type("Tried", (Backend,), {"passes": (row_norms,), "codegen": "aot_eager"})()
    torch.compiler.reset()
    program = NORMS["functional"]
    call = torch.compile(lambda *given: program(*given), backend=backend)
    for rows in (6, 5, 7):
        x, weight, bias = drawn((rows, N), (N,), (N,))
        torch._dynamo.mark_dynamic(x, 0)
        with torch.compiler.set_stance("fail_on_recompile" if rows != 6 else "default"):
            found = call(x, weight, bias)
        given = (x, weight, bias)
        assert_as_eager(with_gradients(found, given), with_gradients(program(*given), given))


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_or_one_has_other_gradients(look, anywhere, rows):
    given = drawn((rows, N), (N,), (N,))
    program = NORMS["functional"]
    seen = look(lambda *given: program(*given), *given, passes=[row_norms])
    assert seen.changes["row_norms"] == 1, seen.near
    assert_as_eager(with_gradients(seen.result, given), with_gradients(program(*given), given))


class Layer(nn.Module):
    def __init__(self, dtype, *, checkpointed=False):
        super().__init__()
        self.norm = nn.LayerNorm(N, dtype=dtype)
        self.scale = nn.Parameter(torch.linspace(-1, 1, N, dtype=dtype))
        self.layers = nn.ModuleList(nn.Linear(N, N, dtype=dtype) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x):
        run = self.branches
        return checkpoint(run, x, use_reentrant=False) if self.checkpointed else run(x)

    def branches(self, x):
        one, other, last = self.layers
        y = self.norm(x)
        x = x + last(one(y) * other(y))
        return x + last(F.gelu(one(llama(x, self.scale, None))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("codegen", ["eager", "aot_eager", "inductor"])
def test_the_rewritten_model_is_further_from_the_truth(prove, anywhere, dtype, codegen):
    torch.manual_seed(0)
    work = Workload(model=Layer(dtype), args=drawn((2, 3, N), dtype=dtype))
    assert prove(work, passes=[row_norms], codegen=codegen)["row_norms"] == 2
    if codegen == "inductor":  # once more, from the caches
        prove(work, passes=[row_norms], codegen=codegen, cached=True)


def test_a_checkpoint_is_looked_into_or_differs(prove, anywhere):
    torch.manual_seed(0)
    args = drawn((2, 3, N))
    inside = Workload(model=Layer(torch.bfloat16, checkpointed=True), args=args)
    assert not prove(inside, passes=[row_norms], codegen="aot_eager")["row_norms"]


def test_a_compiled_layer_in_a_checkpoint_differs(anywhere):
    torch.manual_seed(0)
    backend = type("Tried", (Backend,), {"passes": (row_norms,), "codegen": "aot_eager"})()
    torch.compiler.reset()
    layer, (x,) = Layer(torch.bfloat16), drawn((2, 3, N))
    compiled = torch.compile(layer, backend=backend)
    given = [x, *layer.parameters()]
    found = with_gradients(checkpoint(compiled, x, use_reentrant=False), given)
    assert_as_eager(found, with_gradients(layer(x), given), rtol=2**-5)


def test_under_autocast_a_norm_is_taken_in_16_bits(look, anywhere):
    def program(x, weight, bias):
        with torch.autocast("cpu", torch.bfloat16):
            return F.layer_norm(x, (N,), weight, bias) + llama(x, weight, bias)

    given = inputs()
    seen = look(program, *given, passes=[row_norms])
    wanted = program(*given)
    assert seen.result.dtype == wanted.dtype
    assert_as_eager(with_gradients(seen.result, given), with_gradients(wanted, given))


def written_later(x, weight, bias):
    x = x * 1.0
    y = F.layer_norm(x, (N,), weight, bias)
    x.mul_(2)
    return y + x


def result_is_written(x, weight, bias):
    y = llama(x, weight, bias)
    y.mul_(2)
    return y


def cast_is_written(x, weight, _):
    wide = x.float()
    total = root(wide)
    wide.mul_(2)
    return (wide * total).to(x.dtype) * weight


def factor_is_written(x, weight, _):
    wide, factor = x.float(), 1.0 + weight.float()
    factor.mul_(3)
    return (wide * root(wide) * factor).to(x.dtype)


def gradients_off(x, weight, _):
    wide = x.float()
    with torch.no_grad():
        factor = root(wide)
    return (wide * factor).to(x.dtype) * weight


def weight_without_gradients(x, weight, _):
    with torch.no_grad():
        factor = 1.0 + weight.float()
    wide = x.float()
    return (wide * root(wide) * factor).to(x.dtype)


def read_elsewhere(x, weight, _):
    wide = x.float()
    factor = root(wide)
    return (wide * factor).to(x.dtype) * weight, factor


def mode_changes(x, weight, _):
    wide = x.float()
    factor = root(wide)
    with torch.autocast("cpu", torch.float16):
        wide = wide * factor
    return wide.to(x.dtype) * weight


LEFT = {
    "of two dimensions": (
        lambda x, w, b: F.layer_norm(x, (3, N), w.expand(3, N), b.expand(3, N)),
        "not of one dimension",
    ),
    "without a weight": (lambda x, *_: F.layer_norm(x, (N,)), "no weight"),
    "written out, without a weight": (
        lambda x, *_: (x.float() * root(x.float())).to(x.dtype),
        "no weight",
    ),
    "times a number": (lambda x, *_: (x.float() * root(x.float()) * 2.0).to(x.dtype), "no weight"),
    "of a weight that gets no gradient": (weight_without_gradients, "its gradient is cut off"),
    "in another mode": (mode_changes, "changes a mode"),
    "of a frozen weight": (
        lambda x, w, b: F.layer_norm(x, (N,), w.detach(), b),
        "not wanted of all",
    ),
    "of a frozen input": (
        lambda x, w, b: F.layer_norm(x.detach(), (N,), w, b),
        "not wanted of all",
    ),
    "of a frozen bias": (
        lambda x, w, b: F.layer_norm(x, (N,), w, b.detach()),
        "not wanted of all",
    ),
    "in inference": (torch.no_grad()(NORMS["functional"]), "not wanted of all"),
    "of an epsilon that torch knows": (lambda x, w, _: F.rms_norm(x, (N,), w), "epsilon is not"),
    "of a wide result": (
        lambda x, w, _: x.float() * root(x.float()) * w,
        "it is of torch.float32",
    ),
    "of columns": (lambda x, w, b: F.layer_norm(x.transpose(0, 1), (N,), w, b), "one behind"),
    "of a weight with gaps": (
        lambda x, w, b: F.layer_norm(x, (N,), torch.cat((w, w))[::2], b),
        "one number for each",
    ),
    "not in single precision": (lambda x, w, _: x * root(x) * w, "single precision"),
    "in part read elsewhere": (read_elsewhere, "something else reads"),
    "of a root without a gradient": (gradients_off, "cut off"),
    "written before backward": (written_later, "something writes"),
    "written": (result_is_written, "something writes"),
    "of a cast that is written": (cast_is_written, "something writes"),
    "of a factor that is written": (factor_is_written, "something writes"),
    "read by what is pointwise": (
        lambda x, w, b: F.layer_norm(x, (N,), w, b).tanh(),
        "comes from tanh",
    ),
    "of what else is pointwise": (
        lambda x, w, b: F.linear(F.layer_norm(x, (N,), w, b), w[None]) + x.tanh(),
        "comes from tanh",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_cannot_take_is_replaced(look, anywhere, name):
    program, why = LEFT[name]
    seen = look(lambda *given: program(*given), *inputs(), passes=[row_norms])
    assert not seen.changes["row_norms"]
    assert any(why in x for x in seen.near), seen.near


def test_a_width_that_changes_ends_the_compilation(look, anywhere):
    given = inputs()
    seen = look(
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        *given,
        passes=[row_norms],
        dynamic=True,
    )
    assert not seen.changes["row_norms"]
    assert seen.near == ["it is not of one dimension, whose size is a number"]


NO_NORMS = {
    "of a sum": lambda x, *_: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPS),
    "of cubes": lambda x, *_: x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + EPS),
    "of another dimension": lambda x, *_: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + EPS),
    "of another tensor": lambda x, w, _: w * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS),
    "that is read as it is": lambda x, *_: root(x),
    "that keeps no dimension": lambda x, w, _: (
        (y := x[0, :, :3].float()) * torch.rsqrt(y.pow(2).mean(-1) + EPS) * w[:3]
    ),
}


@pytest.mark.parametrize("name", NO_NORMS)
def test_what_is_no_norm_is_noted(look, anywhere, name):
    program = NO_NORMS[name]
    seen = look(lambda *given: program(*given), *inputs(), passes=[row_norms])
    assert not seen.changes["row_norms"]
    assert not seen.near


def test_a_refusal_of_the_kernel_is_ignored(look, lift):
    lift(row_norms, DEVICES=("cpu",))
    seen = look(decoder, *inputs(), *drawn((N, N), (N, N), (N, N)), passes=[row_norms])
    assert not seen.changes["row_norms"]
    assert seen.near == ["the tensor is on cpu, not on cuda"] * 2


def test_what_it_asks_of_a_tensor_is_not_what_was_measured():
    assert set(row_norms.requires.dtypes) < set(conditions.DTYPES)
    assert row_norms.requires.devices == ("cuda",)
    assert not row_norms.requires.rocm
