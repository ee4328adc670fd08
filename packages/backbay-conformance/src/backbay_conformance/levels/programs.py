"""Level programs: random programs, pairs of spellings, random options, and what fires rewrites."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

from backbay.errors import InputError
from backbay_conformance.case import Case, Cases, NotRunnable, Unsupported
from backbay_conformance.fuzz.drawing import NoProgramError
from backbay_conformance.fuzz.drawing import program as drawn
from backbay_conformance.fuzz.holding import hold
from backbay_conformance.fuzz.metamorphic import TWINS
from backbay_conformance.fuzz.options import choices
from backbay_conformance.fuzz.options import drawn as drawn_options
from backbay_conformance.fuzz.pairing import hold_function_pair, hold_pair, pair_at
from backbay_conformance.fuzz.parts import of_parts, rising
from backbay_conformance.fuzz.program import Program
from backbay_conformance.fuzz.rowwise import in_halves, rowwise
from backbay_conformance.fuzz.submodule import held_inside
from backbay_conformance.fuzz.triggers import TRIGGERS, Trigger
from backbay_conformance.running import lacks
from backbay_conformance.subject import Subject

SEEDS = range(300)
"""The programs that every backend is put to; the fuzz profile goes on from where it is told."""
PAIRS = range(4)
"""How many of each kind of pair."""
OPTIONS = range(1000, 1040)
"""Seeds of the programs that are compiled with random options."""
TIMEOUT_S = 600.0
"""A program is compiled anew for some of its sizes, forward and backward, and a pair twice as
often: Inductor took more than two minutes on a machine with other work."""
_PREFIX = "programs/fuzz/"


def cases(device: str, *, all_samples: bool) -> Cases:  # noqa: ARG001 (the same everywhere)
    """Return the cases of this level."""
    for name, trigger in TRIGGERS.items():
        run = functools.partial(_triggered, trigger)
        yield Case(id=f"programs/triggers/{name}", run=run, share=0.25)
    for seed in SEEDS:
        yield case_at(seed)
    for name in TWINS:
        for number in PAIRS:
            run = functools.partial(_paired, name, number)
            yield Case(
                id=f"programs/metamorphic/{name}/{number}", run=run, share=0.03, timeout_s=TIMEOUT_S
            )
    for number in PAIRS:
        yield Case(
            id=f"programs/metamorphic/batch_is_not_its_halves/{number}",
            run=functools.partial(_halved, number),
            share=0.03,
            timeout_s=TIMEOUT_S,
        )
        yield Case(
            id=f"programs/metamorphic/part_is_not_its_copy/{number}",
            run=functools.partial(_in_parts, number),
            share=0.03,
            timeout_s=TIMEOUT_S,
        )
        yield Case(
            id=f"programs/metamorphic/inside_a_module_is_another/{number}",
            run=functools.partial(held_inside, number),
            share=0.03,
            timeout_s=TIMEOUT_S,
        )
    for seed in OPTIONS:
        run = functools.partial(_with_options, seed)
        needs = frozenset({"options"})
        yield Case(
            id=f"programs/options/{seed}", run=run, needs=needs, share=0.03, timeout_s=TIMEOUT_S
        )


def case_at(seed: int) -> Case:
    """Return the case that runs the program of a seed."""
    return Case(
        id=f"{_PREFIX}{seed}", run=functools.partial(_fuzzed, seed), share=0.02, timeout_s=TIMEOUT_S
    )


def case_of(program: Program, name: str) -> Case:
    """Return a case that runs a given program."""
    return Case(id=name, run=functools.partial(_held, program), timeout_s=TIMEOUT_S)


def seed_of(name: str) -> int:
    """Return the seed of a case that is named after one.

    Raises:
        InputError: there is no such case.
    """
    number = name.removeprefix(_PREFIX)
    if not name.startswith(_PREFIX) or not number.isdecimal():
        raise InputError(f"no case is called {name!r}")
    return int(number)


def _fuzzed(seed: int, subject: Subject) -> None:
    _held(_program(seed), subject)


def _held(program: Program, subject: Subject, options: Mapping[str, Any] | None = None) -> None:
    _check_taken(subject, needs_of(program))
    hold(subject, program, options)


def _check_taken(subject: Subject, needs: frozenset[str]) -> None:
    lacking = lacks(subject.traits, needs)
    if lacking is not None:
        raise Unsupported(lacking)


def needs_of(program: Program) -> frozenset[str]:
    """Return the traits without which a backend need not take a program."""
    needs = {"mutation", *program.dtypes}
    if program.train:
        needs.add("training")
    if len(program.sizes) > 1 or program.dynamic:
        needs.add("dynamic_shapes")
    return frozenset(needs)


def _program(seed: int) -> Program:
    try:
        return drawn(seed)
    except NoProgramError as error:
        raise NotRunnable(str(error)) from error


def _with_options(seed: int, subject: Subject) -> None:
    possible = choices(subject.spec, subject.device.type)
    if not possible:
        raise Unsupported("it has no options that are known to leave results alone")
    options = drawn_options(seed, possible)
    try:
        _held(_program(seed), subject, options)
    except Exception as error:
        error.add_note(f"with options {options}")
        raise


def _paired(name: str, number: int, subject: Subject) -> None:
    program, twin = pair_at(name, number)
    _check_taken(subject, needs_of(program))
    hold_pair(subject, program, twin)


def _halved(number: int, subject: Subject) -> None:
    program = rowwise(number)
    generator = torch.Generator().manual_seed(number)
    rows = torch.rand(6, 8, generator=generator).to(subject.device)
    hold_function_pair(subject, program, in_halves(program), rows)


def _in_parts(number: int, subject: Subject) -> None:
    inputs = (x.to(subject.device) for x in rising(number))
    hold_function_pair(subject, *of_parts(number), *inputs)


def _triggered(trigger: Trigger, subject: Subject) -> None:
    _check_taken(subject, frozenset({"training"} if trigger.train else ()))
    subject.agrees(trigger.function, *trigger.inputs(subject.device), train=trigger.train)
