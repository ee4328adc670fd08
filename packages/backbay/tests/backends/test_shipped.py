"""Every backend that ships is right, and is found by name; `test_golden_sweep` has the decoder."""

import pytest
import torch

import backbay
from backbay import compile_log
from backbay.backends.folding import backbay_fold
from backbay.backends.gelu import backbay_gelu
from backbay.backends.silu import backbay_silu
from backbay.proof import Workload, make_golden, observe

SHIPPED = ["backbay_print", "backbay_report", "backbay_silu", "backbay_gelu", "backbay_fold"]


class Spelled(torch.nn.Module):
    """SiLU, GELU and chains of numbers, as people write them."""

    def __init__(self):
        super().__init__()
        self.lift, self.drop = torch.nn.Linear(6, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        h = self.lift(x)
        h = h * torch.sigmoid(h)
        h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3)))
        return self.drop(h * 2 * 4) + torch.arange(4).to(x.dtype) * 0.5


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    compile_log.clear()


# By object, not by name: torch's registry would keep the name, and show it to every later test.


def proof_of(workload, backend, **options):
    golden = make_golden(workload, train=True)
    with golden.context():
        call = torch.compile(workload.model, backend=backbay.lookup_backend(backend), **options)
        return golden.judge(observe(call, golden.at(workload), train=True))


@pytest.mark.slow
@pytest.mark.parametrize("backend", SHIPPED)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_each_rewrites_is_right_in_bfloat16_too(backend, dynamic):
    torch.manual_seed(0)
    model = Spelled().to(torch.bfloat16)
    workload = Workload(model=model, args=(torch.randn(5, 6, dtype=torch.bfloat16),))
    proof = proof_of(workload, backend, dynamic=dynamic)
    assert proof.passed, proof.worst


@pytest.mark.parametrize(
    ("backend", "fired"),
    [
        (backbay_silu, {"rewrite_silu"}),
        (backbay_gelu, {"rewrite_gelu"}),
        (backbay_fold, {"fold_scalar_chain"}),
    ],
)
def test_each_does_what_it_is_for(backend, fired, reports):
    backend.reset()
    x = torch.randn(5, 6)
    compiled = torch.compile(Spelled(), backend=backend)
    with torch.no_grad():
        compiled(x)
    assert fired <= {r.name for r in reports if r.changes}


def test_they_are_found_by_name_and_hidden_from_a_plain_list():
    everything = backbay.list_backends(exclude_tags=())
    assert set(SHIPPED) <= set(everything)
    assert not set(SHIPPED) & set(backbay.list_backends())


def test_print_shows_the_users_lines(capsys):
    torch.compile(Spelled(), backend=backbay.lookup_backend("backbay_print"))(torch.randn(2, 6))
    said = capsys.readouterr().out
    assert "h = h * torch.sigmoid(h)" in said


def test_report_counts(capsys):
    report = backbay.lookup_backend("backbay_report")
    torch.compile(lambda x: (x * 2).relu().sum(), backend=report)(torch.randn(4))
    assert capsys.readouterr().out.splitlines()[0] == "Graph: 3 ops, 1 fusable group"
