"""Random programs of what passes look for: rewritten, they are as right as eager."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from held_programs import hold
from loose_passes import PASSES, let_loose
from pass_programs import FAMILIES, program_of
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (its usual name)

from backbay.graph.rewrite import call_before
from backbay.kit import Pass, PassContext, Rewrite
from backbay.kit.passes import Call
from backbay_conformance.fuzz.source import source

SEEDS = {"eager": range(1), "aot_eager": range(1, 200), "inductor": range(200, 212)}
"""By what runs the rewritten graphs. CI has the first."""
FIRED = 0.15
"""Of a sweep's programs: as many at least are changed by the pass that they are for."""


@pytest.fixture(autouse=True)
def _loose() -> Iterator[None]:
    with let_loose():
        yield


def passes_for(name: str) -> tuple[Pass, ...]:
    """Return the pass that a family of programs is for, with what it needs beside it."""
    if name == "all":
        return PASSES
    wanted = {name, "parameter_hoist"} if name == "horizontal_fusion" else {name}
    return tuple(x for x in PASSES if x.name in wanted)


def check(name: str, seed: int, codegen: str) -> Counter[str] | None:
    """Hold one program; return what passes changed, or None where there is nothing to hold."""
    program = program_of(name, seed)
    held = hold(program, passes_for(name), codegen)
    if held.wrong and codegen != "inductor":  # what users get has the last word
        held = hold(program, passes_for(name), "inductor")
    if held.skipped or (held.wrong and hold(program, (), "inductor").wrong):
        return None
    assert not held.wrong, f"{name} {seed}: {held.wrong}\n{program.dynamic=}\n{source(program)}"
    return held.changes


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rewritten_program_is_not_as_right_as_eager(name):
    for seed in SEEDS["eager"]:
        check(name, seed, "eager")


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAMILIES)
def test_of_many_rewritten_programs_one_is_not_as_right_as_eager(name):
    held = [x for x in (check(name, seed, "aot_eager") for seed in SEEDS["aot_eager"]) if x]
    changed = sum(any(x.values()) if name == "all" else x[name] > 0 for x in held)
    assert changed >= FIRED * len(SEEDS["aot_eager"]), f"{changed} programs were changed"


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAMILIES)
def test_a_rewritten_program_is_not_as_right_as_eager_where_inductor_compiles_it(name):
    for seed in SEEDS["inductor"]:
        check(name, seed, "inductor")


@dataclass(frozen=True, kw_only=True)
class Another(Rewrite[Call]):
    """Takes one activation for another."""

    targets = (F.silu,)

    def replacement(self, site: Call, context: PassContext) -> Node:
        return call_before(site.node, F.relu, site.node.args[0])


@dataclass(frozen=True, kw_only=True)
class Raises(Rewrite[Call]):
    """Has a fault of its own."""

    targets = (F.silu,)

    def replacement(self, site: Call, context: PassContext) -> Node:
        raise ZeroDivisionError


@pytest.mark.parametrize(("wrong", "said"), [(Another(), "fail_"), (Raises(), "ZeroDivision")])
def test_a_fault_goes_unseen(wrong, said):
    programs = [program_of("group_norm_silu", seed) for seed in range(8)]
    seen = [hold(x, (wrong,), "eager").wrong for x in programs if "silu(" in source(x)]
    assert any(said in x for x in seen), seen


def test_a_seed_names_two_programs():
    assert program_of("all", 0) == program_of("all", 0)
