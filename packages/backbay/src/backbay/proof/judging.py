"""Hold one outcome against the golden one: every tensor by the rule, everything else exactly."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from backbay.proof.noise import Noise
from backbay.proof.oracle import Kind, Verdict, compare
from backbay.proof.outcome import Outcome

_AGREE = "as eager's"
_SEEDED = (
    "was seeded by the run, and eager's does not seed it: what is drawn later is the same after "
    "each run (torch.random.fork_rng puts the state back)"
)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was compared of one backend's outcome, and whether all of it is right."""

    verdicts: tuple[Verdict, ...]
    """One for each tensor and each property, the worst first; never empty."""

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def worst(self) -> Verdict:
        """The verdict that went furthest beyond what is allowed, or came closest to it."""
        return self.verdicts[0]

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The verdicts that did not pass."""
        return tuple(verdict for verdict in self.verdicts if not verdict.passed)

    def raise_if_wrong(self) -> None:
        """Raise AssertionError with the worst verdict's reason, unless passed."""
        self.worst.raise_if_wrong()


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What an outcome is held against."""

    eager: Outcome
    truth: Outcome
    noise: dict[str, Noise]
    working: torch.dtype

    def judge(self, outcome: Outcome) -> Proof:
        """Compare an outcome with eager's, tensor by tensor and property by property."""
        verdicts = [*self._properties(outcome), *self._values(outcome)]
        return Proof(verdicts=tuple(sorted(verdicts, key=lambda v: (v.passed, -v.severity))))

    def _values(self, outcome: Outcome) -> Iterator[Verdict]:
        eager, truth = self.eager, self.truth
        yield from self._tensors(outcome.tensors, eager.tensors, truth.tensors, "was not returned")
        yield from (_of("gradient", x) for x in self._gradients(outcome))
        yield from (_of("mutation", x) for x in self._changes(outcome))

    def _gradients(self, outcome: Outcome) -> Iterator[Verdict]:
        eager, truth = self.eager, self.truth
        given, wanted, true = (_reached(x.gradients) for x in (outcome, eager, truth))
        unreached = "is None: backward does not reach it"
        yield from self._tensors(given, wanted, true, unreached, strides=False)
        for name in outcome.gradients.keys() - eager.gradients.keys():
            yield _broken(name, "is given, though eager has none")
        for name in given.keys() & eager.gradients.keys() - wanted.keys():
            yield _broken(name, "is given, though eager's is None")

    def _changes(self, outcome: Outcome) -> Iterator[Verdict]:
        eager, truth = self.eager, self.truth
        given, wanted, true = (_after(x.changed) for x in (outcome, eager, truth))
        yield from self._tensors(given, wanted, true, "was not updated, and eager updates it")
        for name in outcome.changed.keys() - eager.changed.keys():
            yield _broken(name, "was changed by the run, and eager leaves it as it is")
        for name in outcome.seeded:
            if name not in eager.seeded:
                yield _broken(f"torch's random generator ({name})", _SEEDED)
        for name, value in eager.parameters.items():
            if outcome.parameters.get(name) != value:
                yield _broken(name, "was overwritten by the run, and eager leaves it as it is")

    def _tensors(
        self,
        given: dict[str, torch.Tensor],
        eager: dict[str, torch.Tensor],
        truth: dict[str, torch.Tensor],
        absent: str,
        *,
        strides: bool = True,
    ) -> Iterator[Verdict]:
        for name, wanted in eager.items():
            if name not in given or given[name].is_meta:
                yield _broken(name, absent)
                continue
            # A state that changes in the working precision alone changes by less than its
            # rounding: eager's own value is as true as any.
            true = truth.get(name)
            yield compare(
                given[name],
                wanted,
                _doubled(wanted) if true is None else true,
                working=self.working,
                name=name,
                noise=self.noise.get(name),
                strides=strides,
            )

    def _properties(self, outcome: Outcome) -> Iterator[Verdict]:
        eager = self.eager
        yield _equal("output structure", outcome.structure, eager.structure)
        for name, value in eager.plain.items():
            yield self._plain(name, outcome.plain.get(name), value)
        for name in outcome.tensors.keys() - eager.tensors.keys():
            yield _broken(name, "is returned, and eager returns no such tensor")
        for name, home in eager.devices.items():
            found = outcome.devices.get(name, home)
            if found != home:
                yield _broken(name, f"is on {found}, and eager's is on {home}")
        for name, wanted in eager.requires_grad.items():
            yield _differentiable(name, got=outcome.requires_grad.get(name), wanted=wanted)
        for name, owner in eager.aliases - outcome.aliases:
            yield _broken(name, f"is a copy, and eager's shares memory with {owner}")
        for name, owner in outcome.aliases - eager.aliases:
            yield _broken(name, f"shares memory with {owner}, and eager's does not")

    def _plain(self, name: str, got: Any, wanted: Any) -> Verdict:
        """Compare a leaf that is no tensor; a float may have been computed, as one by `item` is."""
        noise, true = self.noise.get(name), self.truth.plain.get(name)
        if noise is None or not (_is_finite(got) and _is_finite(wanted) and _is_finite(true)):
            return _equal(name, got, wanted)
        given = number_of(got), number_of(wanted), number_of(true)
        return compare(*given, working=self.working, name=name, noise=noise)


def number_of(value: float) -> torch.Tensor:
    """Return a float as a tensor, which the rule takes."""
    return torch.tensor(value, dtype=torch.float64)


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, float) and math.isfinite(value)


def _reached(gradients: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    return {name: x for name, x in gradients.items() if x is not None}


def _after(changed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{name} after the run": x for name, x in changed.items()}


def _doubled(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _equal(name: str, got: Any, wanted: Any) -> Verdict:
    # NaN is equal to NaN here: what matters is that eager gave it too.
    if got == wanted or (got != got and wanted != wanted):  # noqa: PLR0124
        return Verdict(passed=True, reason=_AGREE, where=name)
    return _broken(name, f"is {got!r}, and eager's is {wanted!r}")


def _differentiable(name: str, *, got: bool | None, wanted: bool) -> Verdict:
    if got == wanted:
        return Verdict(passed=True, reason=_AGREE, where=name)
    if wanted:
        reason = "is detached: it does not require grad, and eager's does"
    else:
        reason = "requires grad, and eager's does not"
    return _of("gradient", _broken(name, reason))


def _of(kind: Kind, verdict: Verdict) -> Verdict:
    return dataclasses.replace(verdict, kind=kind)


def _broken(name: str, reason: str) -> Verdict:
    return Verdict(passed=False, reason=reason, where=name, severity=math.inf, kind="metadata")
