"""Softmax and losses become operators of ours; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.kit import Backend
from backbay.proof import Workload
from backbay_optimizer.kernels import conditions
from backbay_optimizer.kernels import softmax as kernel
from backbay_optimizer.passes.softmaxes import softmaxes

ROWS, COLUMNS = 6, 40


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(softmaxes, DEVICES=("cpu",))
    monkeypatch.setattr(kernel, "pays", lambda _, **__: None)


def logits(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape or (ROWS, COLUMNS), generator=generator) * 3).to(dtype)


def targets(rows=ROWS):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(COLUMNS, (rows,), generator=generator).index_fill_(
        0, torch.tensor([1]), -100
    )


COLUMN = targets().clamp_min(0)[:, None]


def assert_as_eager(found, wanted, eps=2**-22):
    if found.dtype != torch.float32:
        eps = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, wanted, rtol=eps, atol=eps, equal_nan=True)
    assert found.stride() == wanted.stride()


SOFTMAXES = {
    "torch's": lambda x: torch.softmax(x, -1),
    "of a positive dimension": lambda x: torch.softmax(x, dim=1),
    "a method": lambda x: x.softmax(-1),
    "functional": lambda x: F.softmax(x, dim=-1),
    "special": lambda x: torch.special.softmax(x, -1),
    "in another dtype": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "a method in another dtype": lambda x: x.softmax(-1, dtype=torch.float32),
    "of a cast": lambda x: x.float().softmax(-1),
    "of a cast back": lambda x: F.softmax(x.to(torch.float32), -1, dtype=torch.bfloat16),
    "at a temperature": lambda x: torch.softmax(x.float() / 0.7, -1),
    "times a number": lambda x: torch.softmax(2 * x.to(dtype=torch.float32), -1),
    "of a view of a cast": lambda x: torch.softmax(x.float().view(2, 3, -1) / 0.5, -1),
    "of rows that are cut": lambda x: torch.softmax(x[1:4].float(), -1),
    "of every second row": lambda x: torch.softmax(x[::2], -1),
    "a module": nn.Softmax(-1),
    "log-softmax": lambda x: torch.log_softmax(x, -1),
    "log-softmax of a cast": lambda x: F.log_softmax(x.float(), -1),
    "log-softmax, a method": lambda x: x.log_softmax(1),
    "log-softmax, special": lambda x: torch.special.log_softmax(x, -1),
    "log-softmax, gathered": lambda x: x.float().log_softmax(-1).gather(1, COLUMN),
    "read by what is fused": lambda x: torch.softmax(x, -1).float().square().sum(-1),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_a_softmax_is_left_or_differs(look, anywhere, name):
    program, x = SOFTMAXES[name], logits()
    seen = look(lambda x: program(x), x, passes=[softmaxes])
    assert seen.changes["softmaxes"] == 1, seen.near
    assert_as_eager(seen.result, program(x))
    (call,) = seen.nodes("softmax")
    assert call.args[0].meta["example_value"].dtype == torch.bfloat16


def dynamic_rows(*tensors):
    for x in tensors:
        torch._dynamo.mark_dynamic(x, 0)


def mean_of(x, t, **how):
    return F.cross_entropy(x, t, **how)


LOSSES = {
    "of 16 bits": mean_of,
    "of a cast": lambda x, t: mean_of(x.float(), t),
    "a sum": lambda x, t: mean_of(x.float(), t, reduction="sum"),
    "of each row": lambda x, t: mean_of(x.float(), t, reduction="none"),
    "without its second target": lambda x, t: mean_of(x.float(), t, ignore_index=IGNORED),
    "a module": lambda x, t: nn.CrossEntropyLoss()(x, t),
    "of rows of tokens": lambda x, t: mean_of(x.view(2, 3, -1).float().view(-1, COLUMNS), t),
    "at a temperature": lambda x, t: mean_of(x / 2, t),
    "spelled apart": lambda x, t: F.nll_loss(F.log_softmax(x.float(), -1), t),
    "of a view whose input is named": lambda x, t: mean_of(
        torch.reshape(input=x.float(), shape=(-1, COLUMNS)), t
    ),
    "of what is gathered": lambda x, t: (
        F.log_softmax(x.float(), -1).gather(-1, t.clamp_min(0)[:, None]).sum()
    ),
}
GATHERED = "of what is gathered"
IGNORED = int(targets()[2])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loss_is_left_or_it_or_its_gradient_differs(look, anywhere, name, dynamic):
    program, t = LOSSES[name], targets()
    if "second" in name:
        t[1] = 0
    x = logits().requires_grad_()
    if dynamic:
        dynamic_rows(x, t)
    seen = look(lambda x, t: program(x, t), x, t, passes=[softmaxes])
    if dynamic and name == GATHERED:  # there may be fewer indices than rows
        assert seen.near == ["what is gathered from it is not an element of each row"]
        return
    assert seen.changes["softmaxes"] == 1, seen.near
    wanted = program(x, t)
    assert_as_eager(seen.result, wanted)
    found, other = (torch.autograd.grad(y.sum(), x)[0] for y in (seen.result, wanted))
    assert_as_eager(found, other)
    (call,) = seen.nodes("cross_entropy")
    assert call.args[0].meta["example_value"].dtype == torch.bfloat16


def test_a_graph_is_compiled_again_for_another_number_of_rows(anywhere):
    backend = type("Tried", (Backend,), {"passes": (softmaxes,), "codegen": "aot_eager"})()
    torch.compiler.reset()
    call = torch.compile(mean_of, backend=backend)
    for rows in (6, 5, 7):
        x, t = logits(rows, COLUMNS).requires_grad_(), targets(rows)
        dynamic_rows(x, t)
        with torch.compiler.set_stance("fail_on_recompile" if rows != 6 else "default"):
            found = call(x, t)
        assert_as_eager(found, mean_of(x, t))
        assert_as_eager(*(torch.autograd.grad(y, x)[0] for y in (found, mean_of(x, t))))


def test_what_no_row_counts_for_or_is_infinite_is_another(look, anywhere):
    x = logits(ROWS, COLUMNS, dtype=torch.float32)
    x[0] = -torch.inf
    x[1, 3] = torch.nan
    x[2, 4] = torch.inf
    x[3, :30] = -torch.inf
    for program in (SOFTMAXES["torch's"], SOFTMAXES["log-softmax"]):
        assert_as_eager(look(program, x, passes=[softmaxes]).result, program(x))
    for t in (targets(), torch.full((ROWS,), -100)):
        x.requires_grad_()
        seen = look(lambda x, t: mean_of(x, t, reduction="none"), x, t, passes=[softmaxes])
        wanted = mean_of(x, t, reduction="none")
        assert_as_eager(seen.result, wanted)
        given = torch.ones(ROWS)
        found, other = (torch.autograd.grad(y, x, given)[0] for y in (seen.result, wanted))
        assert_as_eager(found, other)
        assert_as_eager(look(mean_of, x, t, passes=[softmaxes]).result, mean_of(x, t))


def test_no_row_at_all_has_another_mean(look, anywhere):
    seen = look(mean_of, logits(0, COLUMNS), targets(2)[:0], passes=[softmaxes])
    assert seen.changes["softmaxes"] == 1
    assert seen.result.isnan()


def test_under_autocast_a_loss_has_another_dtype(look, anywhere):
    def program(x, w, t):
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(x, w)
            return mean_of(y, t), torch.softmax(y.detach(), -1)

    x, w = (logits(n, 16, dtype=torch.float32).requires_grad_() for n in (ROWS, COLUMNS))
    seen = look(program, x, w, targets(), passes=[softmaxes])
    assert seen.changes["softmaxes"] == 2, seen.near
    wanted = program(x, w, targets())
    for one, other in zip(seen.result, wanted, strict=True):
        assert one.dtype == other.dtype
        assert_as_eager(one, other)
    found, other = (torch.autograd.grad(y[0], w)[0] for y in (seen.result, wanted))
    torch.testing.assert_close(found, other, rtol=2e-2, atol=1e-3)


class Classifier(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.head = nn.Linear(16, COLUMNS, dtype=dtype)

    def forward(self, x):
        y = self.head(x)
        return mean_of(y.float(), targets()), torch.softmax(y.detach().float() / 0.7, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("codegen", ["eager", "aot_eager"])
def test_the_rewritten_model_is_further_from_the_truth(prove, anywhere, dtype, codegen):
    torch.manual_seed(0)
    x = logits(ROWS, 16, dtype=dtype).requires_grad_()
    work = Workload(model=Classifier(dtype), args=(x,))
    assert prove(work, passes=[softmaxes], codegen=codegen)["softmaxes"] == 2


def written_later(x, t):
    y = x * 1.0
    w = torch.ones(COLUMNS, COLUMNS, dtype=x.dtype)
    z = F.linear(y, w)
    loss = mean_of(z.float(), t)
    z.zero_()
    return loss


def written_between(x, t):
    z = F.linear(x, torch.ones(COLUMNS, COLUMNS, dtype=x.dtype)).detach()
    wide = z.float()
    z.zero_()
    return torch.softmax(wide, -1)


def cast_is_written(x, t):
    wide = x.float()
    wide[:, 3] = -torch.inf
    return mean_of(wide, t)


def quotient_is_written(x, t):
    wide = x.detach() / 0.7
    wide.view(-1)[3].fill_(9)
    return torch.softmax(wide, -1)


def logarithms_of_what_is_written(x, t):
    wide = x.float()
    y = wide.mul_(2)
    return F.nll_loss(F.log_softmax(wide, -1), t) + y.sum() * 0


def returned_beside(x, t):
    wide = F.linear(x, torch.ones(COLUMNS, COLUMNS, dtype=x.dtype)).float()
    return mean_of(wide, t), wide


def shifted(x, t):
    return mean_of(x.view(2, 3, -1)[:, :-1].float().view(-1, COLUMNS), t[:4])


def strided(x, t):
    wide = x[:, :32].float()
    return mean_of(wide.as_strided((ROWS, 32), (32, 1)), t.clamp_max(31))


def detached_on_the_way(x, t):
    with torch.no_grad():
        wide = x.float()
    return mean_of(wide, t)


LEFT = {
    "of another dimension": (lambda x, _: torch.softmax(x.detach(), 0), "not over the last"),
    "in training": (lambda x, _: torch.softmax(x, -1), "of all of it"),
    "a logarithm in training": (lambda x, _: x.log_softmax(-1) * 2, "of all of it"),
    "read twice": (
        lambda x, _: (y := x.log_softmax(-1)).gather(1, COLUMN).sum() + y.sum(),
        "of all of it",
    ),
    "gathered by columns": (
        lambda x, _: x.log_softmax(-1).gather(0, COLUMN.mT * 0),
        "of rows of a matrix",
    ),
    "gathered twice a row": (
        lambda x, _: x.log_softmax(-1).gather(1, COLUMN.expand(-1, 2)),
        "an element of each row",
    ),
    "of what is pointwise": (lambda x, _: torch.softmax(x.detach().tanh(), -1), "computed with it"),
    "a loss of what is pointwise": (lambda x, t: mean_of(x.float().tanh(), t), "computed with it"),
    "by a negative number": (lambda x, _: torch.softmax(x.detach() * -1, -1), "computed with it"),
    "by a large number": (lambda x, _: torch.softmax(x.detach() * 1e30, -1), "computed with it"),
    "by a tensor": (lambda x, _: torch.softmax((x * x[0, 0]).detach(), -1), "computed with it"),
    "of columns with gaps": (lambda x, _: torch.softmax(x.detach()[:, ::2], -1), "one behind"),
    "of columns": (lambda x, _: torch.softmax(x.detach().mT, -1), "one behind"),
    "of rows in another order": (
        lambda x, _: torch.softmax(x.detach().view(2, 3, -1).transpose(0, 1), -1),
        "one behind",
    ),
    "rounded first": (
        lambda x, _: torch.softmax(x.detach(), -1, dtype=torch.float16),
        "to torch.float16 first",
    ),
    "in double precision": (
        lambda x, _: torch.softmax(x.detach(), -1, dtype=torch.float64),
        "float64",
    ),
    "of classes with weights": (
        lambda x, t: mean_of(x, t, weight=torch.ones(COLUMNS, dtype=x.dtype)),
        "have weights",
    ),
    "of old": (lambda x, t: mean_of(x, t, size_average=True), "as of old"),
    "of smoothed labels": (lambda x, t: mean_of(x, t, label_smoothing=0.1), "smoothed"),
    "of probabilities": (lambda x, t: mean_of(x.float(), x.detach().float()), "not indices"),
    "of one row": (lambda x, t: mean_of(x[0], t[0]), "rows of a matrix"),
    "of pixels": (lambda x, t: mean_of(x.view(2, -1, 3), t.view(2, 3).clamp(0, 9)), "rows of a"),
    "written before backward": (written_later, "backward may read"),
    "written between": (written_between, "may write"),
    "written after the cast": (cast_is_written, "may write"),
    "written after it is divided": (quotient_is_written, "may write"),
    "a logarithm of what is written": (logarithms_of_what_is_written, "may write"),
    "of a cast that is returned": (returned_beside, "the caller gets"),
    "of rows that are cut, then joined": (shifted, "laid out otherwise"),
    "of memory at strides": (strided, "computed with it"),
    "of a view of other numbers": (
        lambda x, t: mean_of(x.float().view(torch.float32), t),
        "computed with it",
    ),
    "gathered by 32 bits": (
        lambda x, _: x.log_softmax(-1).gather(1, COLUMN.int()),
        "not of 64 bits",
    ),
    "of a cast without a gradient": (detached_on_the_way, "changes a mode"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_cannot_take_is_replaced(look, anywhere, name):
    program, why = LEFT[name]
    x = logits().requires_grad_()
    seen = look(program, x, targets(), passes=[softmaxes])
    assert not seen.changes["softmaxes"]
    assert any(why in x for x in seen.near), seen.near


@pytest.mark.parametrize(("few", "changes"), [(2, 1), (264, 0), (501, 1)])
def test_a_range_of_rows_is_narrowed(look, anywhere, few, changes, monkeypatch):
    monkeypatch.setattr(kernel, "FEW_ROWS", few)
    x, t = logits().requires_grad_(), targets()
    for tensor in (x, t):
        torch._dynamo.mark_dynamic(tensor, 0, min=2, max=500)
    seen = look(lambda x, t: mean_of(x.float(), t), x, t, passes=[softmaxes])
    assert seen.changes["softmaxes"] == changes
    assert bool(changes) != any("narrow the range" in x for x in seen.near)


def test_rows_that_only_a_run_counts_are_taken(look, anywhere, monkeypatch):
    monkeypatch.setattr(kernel, "pays", lambda x, **_: None if x.numel() else "it is empty")
    x, t = logits().requires_grad_(), targets()
    for tensor in (x, t):
        torch._dynamo.decorators.mark_unbacked(tensor, 0)
    seen = look(lambda x, t: mean_of(x.float(), t), x, t, passes=[softmaxes])
    assert not seen.changes["softmaxes"]
    assert seen.near == ["only a run tells the number of its rows"]


def test_columns_that_are_a_symbol_are_taken(look, anywhere):
    x = logits()
    torch._dynamo.mark_dynamic(x, 1)
    seen = look(SOFTMAXES["torch's"], x, passes=[softmaxes])
    assert not seen.changes["softmaxes"]
    assert any("is a symbol" in x for x in seen.near)


def pays(x, is_written=True):
    return kernel.pays(x, is_written=is_written)


def test_what_was_not_measured_is_replaced():
    def rows(count=8192, columns=32000, dtype=torch.bfloat16):
        return torch.empty(count, columns, device="cuda", dtype=dtype)

    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(conditions, "has_triton", lambda: True)
        m.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        for is_written in (True, False):
            assert pays(rows(), is_written) is None
            assert "Inductor is as fast" in pays(rows(columns=1024), is_written)
            assert "elements" in pays(rows(count=2000), is_written)
            assert "in 16 bits" in pays(rows(dtype=torch.float32), is_written)
            assert "no kernel for torch.float64" in pays(rows(dtype=torch.float64), is_written)
            assert "it is empty" in pays(rows(count=0), is_written)
        how = {"device": "cuda", "dtype": torch.bfloat16}
        for x in (rows(columns=50257), torch.empty_strided((8192, 32000), (32004, 1), **how)):
            assert "begin anywhere" in pays(x)
            assert pays(x, is_written=False) is None
        m.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert "9.0" in pays(rows())
        m.setattr(conditions, "has_triton", lambda: False)
        assert "Triton" in pays(rows())
