"""The table of faults and levels: its arithmetic, its bars, and runs that end at a failure."""

from typing import Any

import pytest

import kill_table
from backbay.registry import Traits
from backbay_conformance import pool
from backbay_conformance.record import Profile, Result
from backbay_conformance.requests import (
    Ran,
    Ready,
    Refer,
    Referred,
    Reply,
    Request,
    Run,
    SuiteSetup,
)
from kill_table import Cell, Row, Table

CAUGHT = Cell(cases=3, seconds=1.0, caught_by="contract/x/y", status="fail_value", reason="off")
MISSED = Cell(cases=9, seconds=2.0)


def row(name: str, *, level: str = "contract", **details: Any) -> Row:
    return Row(name=name, family="numerics", fault="It is wrong.", level=level, **details)


def table(*rows: Row, profile: Profile = "quick", **twins: tuple[str, ...]) -> Table:
    return Table(profile=profile, rows=rows, twins=twins)


def test_an_equivalent_fault_that_counts() -> None:
    found = table(row("a", cells={"contract": CAUGHT}), row("b", equivalent="nobody sees it"))
    assert found.counts() == (1, 1)
    assert found.rate() == 1.0
    assert not found.missed()
    assert not list(found.missed_bars())


def test_faults_set_aside_that_are_not_counted_apart() -> None:
    found = table(
        row("a", cells={"contract": CAUGHT}),
        row("b", cells={"contract": MISSED}, held_out=True),
        row("c", cells={"contract": CAUGHT}, held_out=True),
    )
    assert found.counts() == (2, 3)
    assert found.counts(held_out=False) == (1, 1)
    assert found.counts(held_out=True) == (1, 2)


def test_a_fault_caught_elsewhere_that_passes_in_full() -> None:
    elsewhere = row("a", level="ops", cells={"ops": MISSED, "contract": CAUGHT})
    assert table(elsewhere).counts() == (1, 1)
    full = table(elsewhere, profile="full")
    assert full.counts() == (0, 1)
    assert [x.name for x in full.missed()] == ["a"]
    assert list(full.missed_bars()) == ["0.0% of the faults are caught, and 100% must be"]


@pytest.mark.parametrize(("missed", "holds"), [(1, True), (2, False)])
def test_a_bar_that_is_not_held(missed: int, holds: bool) -> None:
    rows = [row(str(i), cells={"contract": MISSED if i < missed else CAUGHT}) for i in range(20)]
    assert (not list(table(*rows).missed_bars())) is holds
    assert list(table(*rows, profile="full").missed_bars())


def test_a_good_backend_that_fails_unseen() -> None:
    found = table(row("a", cells={"contract": CAUGHT}), good_aot=("ops/add/plain",), good_boxed=())
    assert list(found.missed_bars()) == [
        "good_aot, which is good, fails 1 cases, the first ops/add/plain"
    ]


def test_an_equivalent_fault_that_is_caught_unseen() -> None:
    found = table(row("a", equivalent="nobody sees it", cells={"contract": CAUGHT}))
    assert list(found.missed_bars()) == ["a is argued to be equivalent, and is caught"]


def test_a_level_before_the_one_that_is_named() -> None:
    present = ["load", "contract", "ops", "programs"]
    assert kill_table.order("programs", present) == ["programs", "contract", "load", "ops"]
    assert kill_table.order("contract", present) == ["contract", "load", "ops", "programs"]
    assert kill_table.order("shapes", present) == ["contract", "load", "ops", "programs"]


def test_markdown_that_hides_what_missed() -> None:
    text = kill_table.markdown(
        table(
            row("a", level="ops", cells={"ops": MISSED, "contract": CAUGHT}, link="https://x/1"),
            row("b", cells={"contract": MISSED}, held_out=True),
            row("c", equivalent="nobody sees it", cells={"contract": MISSED}),
            good_aot=(),
        )
    ).splitlines()
    assert text[0] == "# Seeded faults, and the levels that catch them: `quick`"
    start = next(i for i, x in enumerate(text) if x.startswith("| fault"))
    said, rows = text[:start], text[start:]
    assert "- quick, all: 1 of 2 caught (50.0%)." in said
    assert "- quick, set aside: 0 of 1 caught (0.0%)." in said
    assert "- Equivalent, counted in none of these: 1; caught: 0." in said
    assert "- Caught by another level than the one named: a." in said
    assert "- Missed: b." in said
    assert rows[0] == "| fault | family | contract | ops | first case |"
    assert rows[2] == (
        "| [a](https://x/1) | numerics | caught | **no** | `contract/x/y` (fail_value) |"
    )
    assert rows[3] == "| b | numerics, set aside | **no** |  |  |"
    assert rows[4] == "| c | numerics | **no** |  | nobody sees it |"


def test_what_an_earlier_table_caught_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(name: str, **_: object) -> Row:
        ran.append(name)
        return row(name, cells={"contract": CAUGHT})

    monkeypatch.setattr(kill_table, "row_of", run)
    before = table(
        row("a", cells={"contract": CAUGHT}),
        row("b", cells={"contract": MISSED}),
        row("c", level="ops", cells={"ops": MISSED, "contract": CAUGHT}),
        good_aot=("ops/x",),
    )
    found = kill_table.make_table(
        ["a", "b", "c", "d"], profile="full", device="cpu", seed=0, side_by_side=1, before=before
    )
    assert ran == ["b", "c", "d"]
    assert found.rows[0] is before.rows[0]
    assert found.twins == {"good_aot": ("ops/x",)}


def test_a_name_that_no_fault_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert kill_table.main(["--only", "no_such_fault"]) == 2
    assert "no_such_fault" in capsys.readouterr().out


class Client:
    """Answers that the second case of four fails."""

    asked: list[str]

    def __init__(self) -> None:
        self.asked = []

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        if isinstance(request, SuiteSetup):
            cases = tuple((f"contract/{x}", 1.0) for x in "abcd")
            known = tuple(x for x, _ in cases)
            return Ready(
                cases=cases, reference_backends=(), known=known, device_name="cpu", traits=Traits()
            )
        if isinstance(request, Refer):
            return Referred(openings=(), asked=0)
        assert isinstance(request, Run)
        self.asked.append(request.id)
        status = "fail_value" if request.id == "contract/b" else "pass"
        return Ran(result=Result(id=request.id, level=1, status=status))

    def stop(self) -> None: ...

    def resume(self) -> None: ...

    def end(self) -> None:
        """Nothing was started."""


@pytest.mark.parametrize(("stops", "count"), [(True, 2), (False, 4)])
def test_a_run_that_goes_on_after_its_end(
    stops: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "judge_in", lambda _: Client)
    setup = SuiteSetup(backend="x", device="cpu", seed=0, levels=(1,), profile="full")
    client = Client()
    _, results, _ = pool.run_all(
        setup,
        workers=1,
        tell=lambda _: None,
        open_client=lambda: client,
        ends=lambda result: stops and result.failed,
    )
    assert len(results) == len(client.asked) == count
    failed = kill_table.first_failure(results)
    assert failed is not None
    assert failed.id == "contract/b"
