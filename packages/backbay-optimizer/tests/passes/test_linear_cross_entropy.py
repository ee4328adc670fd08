"""Losses of linear layers are computed without all logits, and nothing else is."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.kit import Backend, collected
from backbay.proof import Workload
from backbay_optimizer.backend import backbay
from backbay_optimizer.kernels import linear_cross_entropy as kernel
from backbay_optimizer.passes.linear_cross_entropy import linear_cross_entropy
from backbay_optimizer.passes.slice_pushdown import slice_pushdown
from backbay_optimizer.tuning import variants

ROWS, FEATURES, WORDS = 30, 8, 70


@pytest.fixture
def anywhere(monkeypatch):
    monkeypatch.setattr(kernel, "FEWEST_ROWS", 4)
    monkeypatch.setattr(kernel, "pays", lambda *_, **__: None)


def normal(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def given(rows=ROWS, dtype=torch.bfloat16):
    """Return rows, a weight, a bias and targets."""
    shapes = ((rows, FEATURES), (WORDS, FEATURES), (WORDS,))
    made = [normal(*x, dtype=dtype, seed=i).requires_grad_() for i, x in enumerate(shapes)]
    t = torch.randint(WORDS, (rows,), generator=torch.Generator().manual_seed(3))
    return *made, t.index_fill_(0, torch.tensor([1]), -100)


TARGETS = given()[3]


def assert_as_eager(seen, program, inputs):
    """Assert that results and gradients are eager's, but for the order in which they are summed."""
    tensors = inputs[:-1]
    wanted = program(*inputs)
    eps = torch.finfo(tensors[0].dtype).eps
    torch.testing.assert_close(seen.result, wanted, rtol=eps, atol=0)
    wanting = [t for t in tensors if t.requires_grad]
    how = {"allow_unused": True, "retain_graph": True}
    found, other = (torch.autograd.grad(y * 0.7, wanting, **how) for y in (seen.result, wanted))
    for one, that in zip(found, other, strict=True):
        assert (one is None) == (that is None)
        if one is not None:
            assert (one - that).norm() <= 2 * eps * that.norm()


def tokens(x, t, last=slice(None), first=slice(None)):
    """Return rows as two sequences of tokens, cut."""
    return x.view(2, -1, x.shape[-1])[:, last], t.view(2, -1)[:, first]


def of_tokens(x, w, b, t):
    logits = F.linear(x.view(2, -1, FEATURES), w).float()
    labels = F.pad(t.view(2, -1), (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, WORDS), labels.view(-1), ignore_index=-100)


def of_a_sum_of_items(x, w, b, t):
    logits = F.linear(x.view(2, -1, FEATURES), w)
    loss = F.cross_entropy(logits.float().view(-1, WORDS), t, reduction="sum", ignore_index=-100)
    return loss / (t != -100).sum()


LOSSES = {
    "plain": lambda x, w, b, t: F.cross_entropy(F.linear(x, w), t),
    "of a cast": lambda x, w, b, t: F.cross_entropy(F.linear(x, w).float(), t),
    "with a bias": lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b).float(), t),
    "with a bias that is named": lambda x, w, b, t: F.cross_entropy(
        F.linear(input=x, bias=b, weight=w).float(), t
    ),
    "a sum": lambda x, w, b, t: F.cross_entropy(F.linear(x, w).float(), t, reduction="sum"),
    "of items": of_a_sum_of_items,
    "of tokens": of_tokens,
    "reshaped": lambda x, w, b, t: F.cross_entropy(
        torch.flatten(F.linear(x.view(2, 3, -1, FEATURES), w), 0, 2).contiguous(), t
    ),
    "at a temperature": lambda x, w, b, t: F.cross_entropy(F.linear(x, w).float() / 2, t),
    "scaled": lambda x, w, b, t: F.cross_entropy(0.5 * F.linear(x, w).float(), t),
    "another ignored": lambda x, w, b, t: F.cross_entropy(
        F.linear(x, w).float(), t.clamp(min=0), ignore_index=0
    ),
    "a module": lambda x, w, b, t: nn.CrossEntropyLoss()(F.linear(x, w).float(), t),
    "frozen rows": lambda x, w, b, t: F.cross_entropy(F.linear(x.detach(), w), t),
    "a frozen weight": lambda x, w, b, t: F.cross_entropy(F.linear(x, w.detach(), b), t),
    "of what is written before": lambda x, w, b, t: F.cross_entropy(
        F.linear((x * 1).mul_(2), w), t
    ),
    "of a weight with two readers": lambda x, w, b, t: F.cross_entropy(
        F.linear(F.embedding(t.clamp(min=0), w) + x, w).float(), t
    ),
}


OF_SOME_ROWS = {"of items", "of tokens", "reshaped"}
"""What reads an even number of rows, or one in sixes."""
CASES = [(x, is_dynamic) for x in LOSSES for is_dynamic in {False, x not in OF_SOME_ROWS}]


@pytest.mark.parametrize(("name", "dynamic"), CASES)
def test_a_loss_is_left_or_it_or_its_gradient_differs(look, anywhere, name, dynamic):
    program, inputs = LOSSES[name], given()
    if dynamic:
        for x in (inputs[0], inputs[3]):
            torch._dynamo.mark_dynamic(x, 0)
    seen = look(lambda *x: program(*x), *inputs, passes=[linear_cross_entropy])
    assert seen.changes["linear_cross_entropy"] == 1, seen.near
    assert_as_eager(seen, program, inputs)
    assert not [n for g in seen.graphs for n in g.graph.nodes if n.target is F.linear]


@pytest.mark.parametrize("cut", ["rows", "logits"])
def test_tokens_that_are_shifted_are_left(look, anywhere, cut):
    def program(x, w, b, t):
        x, t = tokens(x, t, first=slice(1, None))
        logits = F.linear(x[:, :-1], w) if cut == "rows" else F.linear(x, w)[..., :-1, :]
        return F.cross_entropy(logits.reshape(-1, WORDS).float(), t.reshape(-1))

    inputs = given()
    seen = look(lambda *x: program(*x), *inputs, passes=[slice_pushdown, linear_cross_entropy])
    assert seen.changes["linear_cross_entropy"] == 1, seen.near
    assert_as_eager(seen, program, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_a_gradient_is_rounded(look, anywhere, dtype):
    def program(x, w, b, t):
        with torch.autocast("cpu", dtype):
            return F.cross_entropy(F.linear(x, w, b), t)

    inputs = given(dtype=torch.float32)
    seen = look(program, *inputs, passes=[linear_cross_entropy])
    assert seen.changes["linear_cross_entropy"] == 1, seen.near
    wanted = program(*inputs)
    torch.testing.assert_close(seen.result, wanted)
    rounded = [t.to(dtype).double().detach().requires_grad_() for t in inputs[:3]]
    truth = torch.autograd.grad(F.cross_entropy(F.linear(*rounded), inputs[3]), rounded)
    found, other = (torch.autograd.grad(y, inputs[:3]) for y in (seen.result, wanted))
    for one, that, exact in zip(found, other, truth, strict=True):
        assert one.dtype == torch.float32
        assert (one - exact).norm() < 1.2 * (that - exact).norm()
    one, that, exact = found[1], other[1], truth[1]
    assert (one - exact).norm() < 0.95 * (that - exact).norm()


def test_without_gradients_some_are_computed(look, anywhere):
    inputs = given()

    def program(x, w, b, t):
        with torch.no_grad():
            return F.cross_entropy(F.linear(x, w), t)

    seen = look(program, *inputs, passes=[linear_cross_entropy])
    assert seen.changes["linear_cross_entropy"] == 1, seen.near
    (call,) = seen.nodes("linear_cross_entropy")
    assert call.args[-3:] == (False, False, False)
    torch.testing.assert_close(seen.result, program(*inputs), rtol=2**-7, atol=0)


def test_what_is_frozen_gets_a_gradient(look, anywhere):
    x, w, b, t = given()
    seen = look(
        LOSSES["with a bias"],
        *(x, w.detach(), b, t),
        passes=[linear_cross_entropy],
    )
    (call,) = seen.nodes("linear_cross_entropy")
    assert call.args[-3:] == (True, False, True)


def test_a_mean_of_nothing_is_another(look, anywhere):
    x, w, b, t = given()
    for target in (torch.full_like(t, -100), t[:0]):
        seen = look(
            *(LOSSES["plain"], x[: len(target)], w, b, target), passes=[linear_cross_entropy]
        )
        assert seen.changes["linear_cross_entropy"] == 1
        assert seen.result.isnan()
        assert not any(y.any() for y in torch.autograd.grad(seen.result, (x, w)))


def test_a_graph_is_compiled_again_for_another_number_of_rows(anywhere):
    backend = type("Tried", (Backend,), {"passes": (linear_cross_entropy,)})
    backend = type("Aot", (backend,), {"codegen": "aot_eager"})()
    torch.compiler.reset()
    call = torch.compile(LOSSES["of a cast"], backend=backend)
    for rows in (30, 7, 64):
        x, w, b, t = given(rows)
        for tensor in (x, t):
            torch._dynamo.mark_dynamic(tensor, 0)
        with torch.compiler.set_stance("fail_on_recompile" if rows != 30 else "default"):
            found = call(x, w, b, t)
        torch.testing.assert_close(found, LOSSES["of a cast"](x, w, b, t))


class Head(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES, dtype=dtype)
        self.head = nn.Linear(FEATURES, WORDS, bias=False, dtype=dtype)

    def forward(self, x):
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, WORDS), TARGETS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("codegen", ["eager", "aot_eager"])
def test_the_rewritten_model_is_further_from_the_truth(prove, anywhere, dtype, codegen):
    torch.manual_seed(0)
    x = normal(2, ROWS // 2, FEATURES, dtype=dtype).requires_grad_()
    work = Workload(model=Head(dtype), args=(x,))
    assert prove(work, passes=[linear_cross_entropy], codegen=codegen)["linear_cross_entropy"] == 1


def written_between(x, w, b, t):
    y = x * 1
    logits = F.linear(y, w)
    y.zero_()
    return F.cross_entropy(logits, t)


def logits_written(x, w, b, t):
    logits = F.linear(x, w)
    logits[:, 3] = -torch.inf
    return F.cross_entropy(logits, t)


def inferred(x, w, b, t):
    with torch.inference_mode():
        return F.cross_entropy(F.linear(x, w), t)


def detached(x, w, b, t):
    with torch.no_grad():
        logits = F.linear(x, w)
    return F.cross_entropy(logits, t) + 0 * x.sum()


def returned(x, w, b, t):
    logits = F.linear(x, w)
    return F.cross_entropy(logits.float(), t), logits


def counted(x, w, b, t):
    logits = F.linear(x, w)
    return F.cross_entropy(logits.float(), t) + 0 * (logits.argmax(-1) == t).sum()


LEFT = {
    "of each row": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x, w), t, reduction="none").sum(),
        "a loss of its own",
    ),
    "of logits that are returned": (returned, "something else reads"),
    "of logits that are counted": (counted, "something else reads"),
    "of logits that are written": (logits_written, "something else reads"),
    "of rows that are written between": (written_between, "may write"),
    "without a gradient at first": (detached, "changes a mode"),
    "in inference mode": (inferred, "not recorded there"),
    "capped": (
        lambda x, w, b, t: F.cross_entropy(torch.tanh(F.linear(x, w) / 30) * 30, t),
        "not a linear layer's alone",
    ),
    "of an input": (lambda x, w, b, t: F.cross_entropy(x, t.clamp(max=7)), "not a linear layer"),
    "of sequences": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x, w).view(2, -1, WORDS).mT, t.view(2, -1)),
        "rows of a matrix",
    ),
    "of rows turned": (
        lambda x, w, b, t: F.cross_entropy(
            F.linear(x, w).view(2, -1, WORDS).mT.reshape(-1, 15), t[0].clamp(0, 9).expand(140)
        ),
        "not a linear layer's alone",
    ),
    "of rows of another length": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x, w).view(-1, 35), t.clamp(0, 9).repeat(2)),
        "of another length",
    ),
    "of other bits": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x, w).view(torch.float16), t),
        "not a linear layer's alone",
    ),
    "of smoothed labels": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x, w), t, label_smoothing=0.1),
        "smoothed",
    ),
    "in double precision": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x.double(), w.double()), t),
        "was not tried",
    ),
    "of one row": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x[0], w).view(1, -1), t[:1]),
        "one dimension",
    ),
    "by a weight that is turned": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x, w.mT.contiguous().mT), t),
        "in one piece",
    ),
    "with a bias for each row": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b[:1]), t),
        "a number for each column",
    ),
    "of no features": (
        lambda x, w, b, t: F.cross_entropy(F.linear(x[:, :0], w[:, :0]), t),
        "in one",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_operator_cannot_take_is_replaced(look, anywhere, name):
    program, why = LEFT[name]
    seen = look(lambda *x: program(*x), *given(), passes=[linear_cross_entropy])
    assert not seen.changes["linear_cross_entropy"]
    assert any(why in x for x in seen.near), seen.near


def test_rows_that_only_a_run_counts_are_taken(look, monkeypatch):
    x, w, b, t = given()
    for tensor in (x, t):
        torch._dynamo.decorators.mark_unbacked(tensor, 0)
    seen = look(LOSSES["plain"], x, w, b, t, passes=[linear_cross_entropy])
    assert seen.near == ["only a run tells the number of its rows"]


def test_what_gains_nothing_is_replaced(look):
    seen = look(LOSSES["plain"], *given(), passes=[linear_cross_entropy])
    assert any("would be held" in x for x in seen.near), seen.near


def test_a_tangent_is_lost(look, anywhere):
    x, w, b, t = given(dtype=torch.float32)
    with torch.autograd.forward_ad.dual_level():
        seen = look(LOSSES["plain"], x, w, b, t, passes=[linear_cross_entropy])
    assert seen.near == ["it may be differentiated forward"]


@pytest.mark.parametrize("codegen", ["eager", "aot_eager"])
def test_a_second_derivative_is_silently_wrong(anywhere, codegen):
    backend = type("Tried", (Backend,), {"passes": (linear_cross_entropy,), "codegen": codegen})()
    torch.compiler.reset()
    x, w, b, t = given(dtype=torch.float32)
    loss = torch.compile(LOSSES["plain"], backend=backend)(x, w, b, t)
    (once,) = torch.autograd.grad(loss, w, create_graph=True)
    with pytest.raises(RuntimeError, match=r"autograd formula|double backward"):
        torch.autograd.grad(once.square().sum(), (x, w), allow_unused=True)


@pytest.mark.usefixtures("_fresh", "anywhere")
def test_what_is_asked_for_is_timed_and_left_out(monkeypatch):
    """It takes longer here, and would be."""
    tried = set()
    monkeypatch.setattr(variants, "timed", lambda arms, _: tried.update(arms))
    with collected() as reports:
        options = {"linear_cross_entropy": True, "tune": "full", "cuda_graphs": False}
        torch.compile(LOSSES["of a cast"], backend="backbay", options=options)(*given())
    (report,) = (x for x in reports if x.name == "linear_cross_entropy")
    assert report.changes == 1
    assert not any("linear_cross_entropy" in off for off in tried)


def test_it_is_not_asked_for():
    (known,) = (x for x in backbay.passes if x.name == "linear_cross_entropy")
    assert not known.enabled
