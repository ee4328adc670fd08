"""Count what each rule catches and rejects."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from backbay.proof.oracle import compare
from calibration.cases import Case, cases
from calibration.programs import Program
from calibration.rules import Rule, others

OURS = "ours"
DTYPES = (torch.float32, torch.bfloat16)
FULL_BAR, VISIBLE_BAR, REDUCED_BAR = 1.0, 0.89, 0.78
EVERY_FLOAT32 = "every float32 fault"
VISIBLE_BFLOAT16 = "89 % of visible bfloat16 faults"
ALL_BFLOAT16 = "78 % of all bfloat16 faults"
NO_HONEST = "no honest result rejected"

Key = tuple[str, torch.dtype]
"""Rule and precision."""


@dataclass
class Tally:
    """Counts of one set of programs and seeds."""

    faults: Counter[torch.dtype] = field(default_factory=Counter)
    visible: Counter[torch.dtype] = field(default_factory=Counter)
    """Of these, the ones with an element off by more than a unit in the last place."""
    honest: Counter[torch.dtype] = field(default_factory=Counter)
    caught_faults: Counter[Key] = field(default_factory=Counter)
    caught_visible: Counter[Key] = field(default_factory=Counter)
    rejected_honest: Counter[Key] = field(default_factory=Counter)
    missed: dict[torch.dtype, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Faults that our rule let pass, by program and fault."""
    wronged: list[str] = field(default_factory=list)
    """Honest results that our rule rejected."""

    def rules(self) -> list[str]:
        """Return the rules' names, ours last."""
        return [*others(), OURS]

    def share(self, rule: str, dtype: torch.dtype) -> float:
        """Return the share of all faults that a rule caught."""
        return self.caught_faults[rule, dtype] / max(1, self.faults[dtype])

    def visible_share(self, rule: str, dtype: torch.dtype) -> float:
        """Return the share of visible faults that a rule caught."""
        return self.caught_visible[rule, dtype] / max(1, self.visible[dtype])

    def missed_bars(self) -> list[str]:
        """Return the bars that our rule misses."""
        held = {
            EVERY_FLOAT32: self.share(OURS, torch.float32) >= FULL_BAR,
            VISIBLE_BFLOAT16: self.visible_share(OURS, torch.bfloat16) >= VISIBLE_BAR,
            ALL_BFLOAT16: self.share(OURS, torch.bfloat16) >= REDUCED_BAR,
            NO_HONEST: not self.wronged,
        }
        return [bar for bar, holds in held.items() if not holds]

    def caught(self, rule: str, dtype: torch.dtype) -> str:
        """Word the share of all faults, and of visible ones, that a rule caught."""
        return f"{self.share(rule, dtype):.1%} / {self.visible_share(rule, dtype):.1%}"

    def rejected(self, rule: str, dtype: torch.dtype) -> str:
        """Word how many honest results a rule rejected."""
        return f"{self.rejected_honest[rule, dtype]} of {self.honest[dtype]}"

    def exceptions(self, *, missed: bool) -> Iterator[str]:
        """Word what our rule got wrong; with ``missed``, every kind of missed fault."""
        yield from self.wronged
        for dtype, kinds in self.missed.items():
            if missed or dtype == torch.float32:
                yield from (f"missed in {dtype}: {k} ({n}x)" for k, n in kinds.most_common())

    def add(self, case: Case, dtype: torch.dtype, rules: dict[str, Rule]) -> None:
        """Put one case to every rule."""
        accepted = {name: _accepted(case, rule) for name, rule in rules.items()}
        reason = _rejected_by_us(case)
        accepted[OURS] = reason is None
        if case.honest:
            self.honest[dtype] += 1
            self.rejected_honest.update((name, dtype) for name, ok in accepted.items() if not ok)
            if reason is not None:
                self.wronged.append(f"rejected: {case.program}, {case.what}, {dtype}: {reason}")
            return
        caught = [(name, dtype) for name, ok in accepted.items() if not ok]
        visible = case.is_visible()
        self.faults[dtype] += 1
        self.caught_faults.update(caught)
        self.visible[dtype] += visible
        self.caught_visible.update(caught if visible else [])
        if reason is None:
            kind = "visible" if visible else "within one unit"
            self.missed[dtype][f"{case.program}: {case.what} ({kind})"] += 1


def tally(
    programs: Iterable[Program],
    seeds: Iterable[int],
    *,
    device: torch.device,
    backends: tuple[str, ...] = (),
) -> Tally:
    """Put every case of the programs to every rule."""
    counted, rules, seeds = Tally(), others(), tuple(seeds)
    for program in programs:
        for seed in seeds:
            for dtype in DTYPES:
                # A program is compiled once: later seeds would only repeat it.
                compiled = backends if seed == seeds[0] else ()
                for case in cases(
                    program, dtype=dtype, seed=seed, device=device, backends=compiled
                ):
                    counted.add(case, dtype, rules)
    return counted


def _accepted(case: Case, rule: Rule) -> bool:
    return all(rule(*case.of(name)) for name in case.touched)


def _rejected_by_us(case: Case) -> str | None:
    """Return why our rule rejects a case, if it does."""
    for name in case.touched:
        verdict = compare(
            *case.of(name),
            working=case.golden.working,
            noise=case.golden.noise[name],
            name=name,
        )
        if not verdict.passed:
            return f"{name}: {verdict.reason}"
    return None
