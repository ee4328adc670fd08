"""Torch's data bases: read by one file, lazily, and held to what was counted."""

import hashlib
import re
import subprocess
import sys

import pytest

from backbay.errors import InputError
from backbay_conformance import expecting, suite
from backbay_conformance.levels import counts, floor, opinfo, sampled
from backbay_conformance.record import LEVELS

OF_OPERATORS = ("ops", "dtypes", "training", "shapes", "errors", "properties")


def _ids(*levels: str) -> list[str]:
    return list(suite.collected("cpu", [LEVELS.index(x) for x in levels]))


def test_torchs_data_bases_changed_unnoticed():
    assert counts.drift() is None


def test_a_drift_is_not_told(monkeypatch):
    version = counts.minor(opinfo.torch.__version__)
    wrong = {**counts.counted(), "modules": 1}
    monkeypatch.setitem(counts.COUNTS, version, wrong)
    assert re.search(r"has \d+ modules, and not 1$", counts.drift() or "")
    monkeypatch.delitem(counts.COUNTS, version)
    assert "nobody has counted" in (counts.drift() or "")


def test_listing_makes_samples(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a sample was made while cases were listed")

    monkeypatch.setattr(opinfo.Operator, "_made", refuse)
    monkeypatch.setattr(opinfo.ModuleEntry, "made", refuse)
    ids = _ids(*OF_OPERATORS)
    assert len(ids) > 10_000
    assert all(re.fullmatch(r"[A-Za-z0-9._/-]+", x) for x in ids)


def test_levels_lost_the_greater_part_of_their_cases():
    """The floors are the sizes measured for torch 2.11, rounded down."""
    sizes = {x: len(_ids(x)) for x in OF_OPERATORS}
    floors = {
        "ops": 1700,
        "dtypes": 5300,
        "training": 1350,
        "shapes": 690,
        "errors": 600,
        "properties": 1300,
    }
    assert {x: n for x, n in sizes.items() if n < floors[x]} == {}


def test_ids_differ_from_process_to_process():
    ids = "\n".join(_ids("ops", "errors", "properties"))
    program = (
        "from backbay_conformance import suite; import hashlib;"
        "ids = '\\n'.join(suite.collected('cpu', [2, 7, 8]));"
        "print(hashlib.sha256(ids.encode()).hexdigest())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said[-1] == hashlib.sha256(ids.encode()).hexdigest()


def test_an_input_depends_on_what_was_made_before():
    operator = opinfo.operators()["sin"]
    device = opinfo.torch.device("cpu")

    def made(case_id: str):
        sampled.seed(case_id, 0)
        return next(iter(operator.samples(device, "float32"))).args[0]

    one = made("ops/sin/float32")
    other = made("ops/cos/float32")
    assert opinfo.torch.equal(made("ops/sin/float32"), one)
    assert not opinfo.torch.equal(one, other)


def test_a_moved_data_base_leaves_the_levels_empty(monkeypatch):
    def moved(*args):
        raise opinfo.DriftError("op_db is not there")

    monkeypatch.setattr(opinfo, "operators", moved)
    monkeypatch.setattr(opinfo, "modules", moved)
    monkeypatch.setattr(opinfo, "optimizers", moved)
    sampled.known.cache_clear()
    try:
        for level in ("ops", "dtypes", "training", "shapes", "properties"):
            ids = _ids(level)
            assert f"{level}/data-base" in ids
            assert len(ids) > len(floor.OPERATORS)
    finally:
        sampled.known.cache_clear()


def test_a_data_base_of_another_form_is_taken_for_ours(monkeypatch):
    monkeypatch.setattr(opinfo, "_read", lambda module, name: [object()])
    opinfo.operators.cache_clear()
    try:
        with pytest.raises(opinfo.DriftError, match="have no full_name"):
            opinfo.operators()
    finally:
        opinfo.operators.cache_clear()


def test_a_missing_package_is_not_named():
    program = (
        "import sys; sys.modules['expecttest'] = None\n"
        "from backbay_conformance.levels import opinfo\n"
        "from backbay.errors import InputError\n"
        "try: opinfo.operators()\n"
        "except InputError as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "'expecttest', which is not installed: run pip install expecttest" in said
    assert issubclass(InputError, Exception)


def test_a_random_operator_is_seeded_where_dynamo_cannot_follow():
    operator = opinfo.operators()["nn.functional.rrelu"]
    sample = next(iter(operator.samples(opinfo.torch.device("cpu"), "float32")))
    one, other = (sample.function(*sample.args, **sample.kwargs) for _ in range(2))
    assert not opinfo.torch.equal(one, other)


def test_an_upstream_line_names_no_case():
    lines = expecting.shipped("aot_eager")
    levels = {x.partition("/")[0] for x in lines} & {*OF_OPERATORS}
    known = set(_ids(*levels)) if levels else set()
    version = opinfo.torch.__version__
    stray = [
        name
        for name, line in lines.items()
        if name.partition("/")[0] in levels and line.applies("cpu", version) and name not in known
    ]
    assert stray == []


@pytest.mark.parametrize("operator", floor.OPERATORS, ids=lambda x: x.name)
def test_an_operator_of_our_own_does_not_run_in_eager(operator):
    for dtype in operator.dtypes("cpu"):
        for make in (operator.samples, operator.noncontiguous_samples):
            sample = next(iter(make(opinfo.torch.device("cpu"), dtype)))
            sample.function(*sample.args, **sample.kwargs)
