"""Float64 truth: what it must see through, and what it must leave alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Golden, ProofImpossible, Workload, in_float64, make_golden, observe
from backbay.proof.truth import raised


class CastsInside(nn.Module):
    def __init__(self, *, autocast=False):
        super().__init__()
        self.autocast = autocast
        self.linear = nn.Linear(16, 16)
        self.hidden = torch.full((16,), 0.1)  # a plain attribute: no .double() finds it

    def forward(self, x):
        h = self.linear(x).float()
        h = h * h.to(torch.float32).softmax(-1, dtype=torch.float32)
        h = h + torch.ones(16, dtype=torch.float32) / 3 + self.hidden
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            return F.linear(h.to(self.linear.weight.dtype), self.linear.weight)


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        noise = torch.randn_like(x) + torch.rand(16, device=x.device)
        noise = noise + torch.empty_like(x).uniform_(1, 2)
        h = F.dropout(self.linear(x + noise), 0.25)
        return F.rrelu(h, training=True) * torch.bernoulli(torch.full_like(h, 0.5))


@pytest.fixture
def x():
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("autocast", [False, True])
def test_cast_inside_does_not_reach_the_truth(x, autocast):
    model = CastsInside(autocast=autocast)
    golden = make_golden(Workload(model=model, args=(x,)), train=False)
    w, b = model.linear.weight.double(), model.linear.bias.double()
    h = x.double() @ w.t() + b
    wanted = (h * h.softmax(-1) + 1 / 3 + model.hidden.double()) @ w.t()
    assert (golden.truth.tensors["output"] - wanted).abs().max() < 1e-12
    assert golden.working == (torch.bfloat16 if autocast else torch.float32)


def test_double_alone_is_not_the_truth(x):
    workload = Workload(model=CastsInside(), args=(x,))
    golden = make_golden(workload, train=False)
    naive = raised(workload)
    error = (naive.model(*naive.args) - golden.truth.tensors["output"]).abs().max()
    assert 1e-9 < error < 1e-5


def test_backward_runs_in_float64_too(x):
    seen = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(_, value):
            return value * 2

        @staticmethod
        def backward(_, gradient):
            seen.append((gradient.dtype, (gradient.float() * 1).dtype))
            return gradient * 2

    class Model(nn.Module):
        def forward(self, value):
            return Spy.apply(value)

    golden = make_golden(Workload(model=Model(), args=(x,)), train=True)
    assert (torch.float64, torch.float64) in seen
    assert golden.truth.gradients["gradient of args[0]"].dtype == torch.float64


@pytest.mark.parametrize("train", [False, True])
def test_truth_draws_what_eager_drew(x, train):
    model = Dropped()
    golden = make_golden(Workload(model=model, args=(x,)), train=train, seed=7)
    assert golden.draws_random
    eager, truth = golden.eager.tensors["output"], golden.truth.tensors["output"]
    assert torch.equal(eager == 0, truth == 0)
    assert (eager - truth).abs().max() < 1e-5


def test_dropout_in_attention_is_drawn_alike(x):
    class Attention(nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    q = x.view(1, 1, 8, 16)
    golden = make_golden(Workload(model=Attention(), args=(q,)), train=True)
    assert golden.draws_random
    assert (golden.eager.tensors["output"] - golden.truth.tensors["output"]).abs().max() < 1e-5


def test_other_draws_are_wrong(x):
    workload = Workload(model=Dropped(), args=(x,))
    golden = make_golden(workload, train=False, seed=1)
    assert golden.judge(observe(workload.model, workload, train=False, seed=1)).passed
    assert not golden.judge(observe(workload.model, workload, train=False, seed=2)).passed


def test_model_and_default_dtype_are_left_alone(x):
    model = CastsInside()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    make_golden(Workload(model=model, args=(x,)), train=True)
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)
    assert model.hidden.dtype == torch.float32
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])


def test_default_dtype_is_restored_after_an_error():
    def fail():
        assert torch.get_default_dtype() == torch.float64
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"), in_float64():
        fail()
    assert torch.get_default_dtype() == torch.float32


def test_tied_parameters_stay_tied(x):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(16, 16)
            self.b = nn.Linear(16, 16)
            self.b.weight = self.a.weight

        def forward(self, value):
            return self.b(self.a(value))

    model = raised(Workload(model=Tied(), args=(x,))).model
    assert model.a.weight is model.b.weight
    assert model.a.weight.dtype == torch.float64


def test_what_is_written_to_a_plain_attribute_is_read_again(x):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.zeros(8, 16)

        def forward(self, value):
            self.cache[:4] = value[:4] / 3
            return self.cache * 2

    golden = make_golden(Workload(model=Cached(), args=(x,)), train=False)
    wanted = x.double()[:4] / 3 * 2
    assert (golden.truth.tensors["output"][:4] - wanted).abs().max() < 1e-15


def test_reading_bits_has_no_truth(x):
    class Bits(nn.Module):
        def forward(self, value):
            return value.view(torch.int32) + 1

    with pytest.raises(ProofImpossible, match="bits"):
        make_golden(Workload(model=Bits(), args=(x,)), train=False)


def test_bits_of_integers_have_a_truth():
    x = torch.arange(6)
    model = Function(lambda x: x.view(torch.int32) + 1)
    workload = Workload(model, (x,))
    golden = make_golden(workload, train=False)
    assert golden.judge(observe(model, workload, train=False)).passed
    wrong = observe(Function(lambda x: x.view(torch.int32) + 2), workload, train=False)
    assert not golden.judge(wrong).passed


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


@pytest.mark.parametrize("part", ["whole", "row", "columns", "transposed"])
def test_inputs_that_share_memory_are_apart_in_the_truth(part):
    parts = {
        "whole": lambda x: x,
        "row": lambda x: x[1],
        "columns": lambda x: x[:, ::2],
        "transposed": lambda x: x.t(),
    }
    x = torch.rand(3, 3)

    def write_and_read(x, y):
        x.mul_(3)
        return y + 1

    golden = make_golden(Workload(Function(write_and_read), (x, parts[part](x))), train=False)
    wanted = parts[part](3 * x.double()) + 1
    assert torch.allclose(golden.truth.tensors["output"], wanted, rtol=1e-12)


def test_draws_that_depend_on_precision_are_refused(x):
    class Fickle(nn.Module):
        def forward(self, value):
            return torch.rand_like(value) if value.dtype == torch.float32 else value * 1

    with pytest.raises(ProofImpossible, match="fewer random tensors"):
        make_golden(Workload(model=Fickle(), args=(x,)), train=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_truth_on_a_gpu_reaches_the_autograd_thread(tmp_path):
    model = Dropped().cuda()
    workload = Workload(model=model, args=(torch.randn(8, 16, device="cuda"),))
    golden = make_golden(workload, train=True)
    golden.save(tmp_path / "golden.pt")
    loaded = Golden.load(tmp_path / "golden.pt")
    assert {x.dtype for x in loaded.truth.gradients.values()} == {torch.float64}
    assert loaded.judge(observe(model, workload, train=True)).passed
