"""Random numbers: from torch's state, as seeded, anew each time, and of the right distribution.

The draws themselves need not be eager's: a compiler may use another generator.
"""

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from backbay_conformance.case import Collection
from backbay_conformance.levels.contract.state import STATES
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("contract", "randomness")

_MANY = 40_000


def _program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.rand_like(x), torch.randn_like(x) + x, F.dropout(x, 0.3)


@theme.case()
def seed_is_ignored(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 64)
    call(x)
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(call(x))
    said = "the same seed does not give the same draws"
    subject.same_as_each_other(*results, status="fail_behaviour", what=said)


@theme.case()
def every_call_draws_the_same(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 64)
    first, second = call(x), call(x)
    with subject.must("fail_behaviour", "two calls draw the same numbers"):
        assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@theme.case()
def state_of_the_generator_stays_where_it_was(subject: Subject) -> None:
    call, x, read = subject.compile(_program), normal(subject, 64), STATES["random_state"]
    call(x)
    before = read(subject.device)
    call(x)
    with subject.must("fail_behaviour", "drawing does not advance torch's generator"):
        assert read(subject.device) != before


@theme.case()
def draws_in_one_graph_are_the_same(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.rand_like(x), torch.rand_like(x[:32])

    one, two, three = subject.compile(program)(normal(subject, 64))
    with subject.must("fail_value", "two draws of one program are the same numbers"):
        assert not torch.equal(one, two)
        assert not torch.equal(one[:32], three)
        assert not torch.equal(two[:32], three)


@theme.case()
def distribution_is_another(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = torch.randint(0, 5, x.shape, device=x.device).float()
        return torch.rand_like(x), torch.randn_like(x), whole, torch.bernoulli(x)

    x = torch.full((_MANY,), 0.25, device=subject.device)
    # By name: mean, standard deviation, and bounds.
    wanted = {
        "rand": (0.5, 12**-0.5, 0.0, 1.0),
        "randn": (0.0, 1.0, -8.0, 8.0),
        "randint": (2.0, 2**0.5, 0.0, 4.0),
        "bernoulli": (0.25, 0.1875**0.5, 0.0, 1.0),
    }
    results = subject.compile(program)(x)
    for (name, (mean, std, low, high)), got in zip(wanted.items(), results, strict=True):
        with subject.must("fail_value", f"the distribution of {name}"):
            # Six standard errors: once in 5e8 honest runs.
            assert abs(got.mean().item() - mean) < 6 * std / _MANY**0.5
            assert abs(got.std().item() - std) < 0.03 * std
            assert low <= got.min().item()
            assert got.max().item() <= high


@theme.case()
def dropout_is_of_another_strength(subject: Subject) -> None:
    strengths = (0.1, 0.5, 0.9)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.dropout(x, p, training=True) for p in strengths]

    results = subject.compile(program)(torch.ones(_MANY, device=subject.device))
    for p, got in zip(strengths, results, strict=True):
        dropped = (got == 0).float().mean().item()
        with subject.must("fail_value", f"dropout({p}) drops {dropped:.3f}"):
            assert abs(dropped - p) < 6 * (p * (1 - p) / _MANY) ** 0.5
        kept = got[got != 0]
        with subject.must("fail_value", f"dropout({p}) does not scale what it keeps by 1/(1-p)"):
            assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - p)))


@theme.case()
def dropout_works_in_evaluation(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).to(subject.device)
    subject.agrees(model.eval(), normal(subject, 5, 8))


@theme.case(needs={"training"})
def backward_drops_other_elements(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.4) * 3

    call = subject.compile(program)
    for _ in range(2):
        x = torch.ones(256, device=subject.device, requires_grad=True)
        result = call(x)
        result.sum().backward()
        # The program is linear: on ones, the gradient is the result.
        subject.near_each_other(x.grad, result.detach(), what="gradient through dropout")
