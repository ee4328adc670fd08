import re
from pathlib import Path

from backbay_conformance.suite import chosen, collected, heavy

TABLES = (
    "benchmarks/results/2026-11-22-cpu/faults_full.md",
    "benchmarks/results/2026-11-22-cpu/faults_quick.md",
)
ROOT = Path(__file__).parents[3]


def test_the_list_names_a_case_that_is_gone():
    levels = {x.partition("/")[0] for x in heavy()}
    assert levels == {"load", "contract", "context", "honesty"}
    assert heavy() <= collected("cpu", {0, 1, 6, 10}).keys()


def test_a_case_that_catches_a_seeded_fault_first_is_left_out():
    tables = "".join((ROOT / x).read_text(encoding="utf-8") for x in TABLES)
    catches = set(re.findall(r"\| `([^`]+)` \(\w+\) \|$", tables, re.MULTILINE))
    assert len(catches) > 70
    assert not catches & heavy()


def test_quick_has_no_longer_the_case_that_caught_a_fault_in_it_first():
    table = (ROOT / TABLES[-1]).read_text(encoding="utf-8")
    catches = set(re.findall(r"\| `([^`]+)` \(\w+\) \|$", table, re.MULTILINE))
    assert len(catches) > 70
    assert catches <= {x.id for x in chosen(collected("cpu").values(), profile="quick", seed=0)}


def test_quick_has_few_that_take_long_and_all_others_of_these_levels():
    cases = collected("cpu", {1}).values()
    quick = {x.id for x in chosen(cases, profile="quick", seed=0)}
    usual = {x.id for x in cases if x.share is None} - heavy()
    assert usual <= quick
    assert len(quick & heavy()) < len(heavy()) / 10
    assert {x.id for x in cases} == {x.id for x in chosen(cases, profile="full", seed=0)}
