"""The statement: its badge, its words, its page."""

import json

import msgspec
import pytest

from backbay.errors import InputError
from backbay.race.record import Machine
from backbay_conformance import scoreboard
from backbay_conformance.record import LEVELS, LevelSummary, Result, Statement
from backbay_conformance.statement import text, verdict
from merging import brief, explained_anew, merged, renewed

MACHINE = Machine(system="Linux", processor="a processor", cores=2, memory_bytes=8, device="cpu")


def statement(results, stale=(), levels=(0, 1, 2)):
    summaries = []
    for level in levels:
        here = [x for x in results if x.level == level]
        counts = {}
        for one in here:
            counts[one.status] = counts.get(one.status, 0) + 1
        known = sum(bool(x.expected) for x in here)
        summary = LevelSummary(level=level, name=LEVELS[level], counts=counts, expected=known)
        summaries.append(summary)
    return Statement(
        created="2026-01-02T03:04:05+00:00",
        backend="<tried>",
        origin="somewhere",
        profile="quick",
        device="cpu",
        seed=0,
        machine=MACHINE,
        versions={"torch": "2.13.0", "backbay": "1"},
        seconds=12.3,
        levels=tuple(summaries),
        results=tuple(results),
        stale=stale,
    )


def result(level, status="pass", *, name="x", **keywords):
    return Result(id=f"{LEVELS[level]}/{name}", level=level, status=status, **keywords)


GOOD = [result(0), result(1), result(2), result(2, "upstream", name="y", reason="torch's")]


def test_a_right_backend_gets_no_badge():
    good = statement(GOOD)
    assert (good.passed, good.badge) == (True, 2)
    assert verdict(good) == (
        "<tried>: levels 0-2 without a failure; 3 of 4 cases pass, 1 fail in torch itself"
    )


def test_a_failure_leaves_the_badge():
    bad = statement([*GOOD, result(1, "vacuous", name="z", reason="left to eager")])
    assert (bad.passed, bad.badge) == (False, 0)
    assert "NOT conforming: 1 failure;" in verdict(bad)
    assert "vacuous  contract/z: left to eager" in text(bad)


def test_a_known_failure_takes_the_badge():
    known = statement([*GOOD, result(1, "fail_value", name="z", expected="it is known")])
    assert (known.passed, known.badge) == (True, 2)
    assert ", 1 known failure" in verdict(known)


def test_an_untrue_expectation_passes():
    assert not statement(GOOD, stale=("ops/z: delete the line",)).passed
    assert "ops/z: delete the line" in text(statement(GOOD, stale=("ops/z: delete the line",)))


def test_a_run_that_shows_nothing_is_called_right():
    nothing = statement([result(0, "unsupported"), result(1, "not_runnable")])
    assert "nothing was shown" in verdict(nothing)


def test_levels_that_were_left_out_count_for_the_badge():
    assert statement(GOOD, levels=(0, 2)).badge == 0
    assert statement(GOOD, levels=(1, 2)).badge is None


def test_the_page_leaves_something_unescaped_or_loses_the_record():
    bad = statement([*GOOD, result(2, "crash", name="z", reason="<script>alert(1)</script>")])
    page = scoreboard.page([statement(GOOD), bad])
    assert "<tried>" not in page
    assert "<script>alert" not in page
    assert "1/2" in page
    assert "1/3" in page
    assert page == scoreboard.page([statement(GOOD), bad])
    embedded = page.partition('id="statements">')[2].partition("</script>")[0]
    again = msgspec.json.decode(embedded, type=list[Statement])
    assert again == [statement(GOOD), bad]


def test_a_statement_is_lost_on_disk(tmp_path):
    path = tmp_path / "statement.json"
    path.write_bytes(msgspec.json.encode(statement(GOOD)))
    assert scoreboard.read(path) == statement(GOOD)
    assert {"backend", "levels", "results", "schema"} <= json.loads(path.read_text()).keys()
    path.write_text("{}")
    with pytest.raises(InputError, match=r"statement\.json"):
        scoreboard.read(path)


def test_levels_are_lost_or_out_of_order():
    second = statement([result(1), result(1, "upstream", name="y")], levels=(1,), stale=("a line",))
    whole = merged([second, statement([result(0)], levels=(0,))], profile="full")
    assert [x.level for x in whole.levels] == [0, 1]
    assert [x.id for x in whole.results] == ["load/x", "contract/x", "contract/y"]
    assert (whole.seconds, whole.stale, whole.profile) == (24.6, ("a line",), "full")
    assert whole.badge == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [({"backend": "another"}, "backend"), ({"seed": 1}, "seed"), ({}, "repeat a level")],
)
def test_what_does_not_belong_together_is_joined(change, said):
    one = statement([result(0)], levels=(0,))
    other = msgspec.structs.replace(one, **change)
    with pytest.raises(InputError, match=said):
        merged([one, other], profile="full")


def test_a_statement_without_passes_loses_its_verdict():
    known = statement([result(0), result(0, "fail_value", name="z")], levels=(0,))
    assert [x.id for x in brief(known).results] == ["load/z"]
    assert brief(known).levels == known.levels
    assert verdict(brief(known)) == verdict(known)
    assert "1 of 2 cases pass" in verdict(known)


def test_an_old_statement_is_explained_by_the_lines_of_today():
    known = "contract/values/product_with_zero_is_taken_for_zero"
    old = Result(id=known, level=1, status="fail_value", expected="")
    other = result(1, "fail_value", name="new", expected="a line that is gone")
    made = msgspec.structs.replace(statement([old, other], levels=(1,)), backend="inductor")
    anew = explained_anew(made)
    assert [bool(x.expected) for x in anew.results] == [True, False]
    assert (anew.levels[0].expected, anew.levels[0].failed) == (1, 1)


def test_a_case_that_was_run_again_counts_as_before_and_nobody_is_told():
    first = statement([result(1), result(1, "crash", name="z")], levels=(1,))
    other = msgspec.structs.replace(MACHINE, processor="another", cores=4)
    later = statement([result(1, name="z")], levels=(0, 1))
    later = msgspec.structs.replace(later, machine=other, versions={"torch": "2.13.0"})
    anew = renewed(first, later)
    assert [(x.id, x.status) for x in anew.results] == [
        ("contract/x", "pass"),
        ("contract/z", "pass"),
    ]
    assert (anew.levels[0].counts, anew.machine) == ({"pass": 2}, MACHINE)
    assert anew.notes == ("run again on 2026-01-02 (another, 4 cores): contract/z",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed"),
        ({"versions": {"torch": "2.15.0"}}, "torch"),
        ({"results": (result(1, name="nobody's"),)}, "contract/nobody's"),
    ],
)
def test_what_is_not_the_same_case_is_put_in(change, said):
    first = statement([result(1)], levels=(1,))
    with pytest.raises(InputError, match=said):
        renewed(first, msgspec.structs.replace(first, **change))
