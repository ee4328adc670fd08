"""The expectations file: what it explains, and when it is not true."""

import pytest

from backbay.errors import InputError
from backbay_conformance import expecting
from backbay_conformance.record import Result

LINE = (
    '"ops/sin/float32" = {status = "fail_value", reason = "rounds twice", link = "https://x/1"}\n'
)


def expected(lines):
    return expecting.Expected(backend="tried", device="cpu", torch="2.13.0", lines=lines)


def result(status="fail_value", case_id="ops/sin/float32"):
    return Result(id=case_id, level=2, status=status, reason="because")


def stale(results, lines, known=("ops/sin/float32",), levels=(2,)):
    return expected(lines).stale(results, known=known, levels=levels)


def test_a_known_failure_is_held_against_the_backend():
    lines = expecting.parse(LINE, "here")
    (found,) = expected(lines).explained([result()])
    assert found.expected == "rounds twice (https://x/1)"
    assert not found.failed
    assert stale([found], lines) == []


@pytest.mark.parametrize("status", ["pass", "crash", "fail_grad"])
def test_a_line_that_is_not_true_goes_unseen(status):
    lines = expecting.parse(LINE, "here")
    (found,) = expected(lines).explained([result(status)])
    assert not found.expected
    (said,) = stale([found], lines)
    assert "ops/sin/float32" in said
    assert ("delete the line" in said) == (status == "pass")


def test_a_line_that_names_no_case_goes_unseen():
    lines = expecting.parse(LINE, "here")
    assert "no case is called so" in stale([], lines, known=("ops/cos/float32",))[0]
    assert stale([], lines) == []  # it was not chosen this time
    assert stale([], lines, known=(), levels=(1,)) == []  # its level was not run


def test_a_line_of_no_level_goes_unseen():
    lines = expecting.parse(LINE.replace("ops/", "oops/"), "here")
    assert "no case is called so" in stale([], lines)[0]


@pytest.mark.parametrize("bound", ['device = "cuda"', 'torch = "<2.13"'])
def test_a_line_speaks_of_another_machine(bound):
    lines = expecting.parse(LINE.replace("}", f", {bound}}}"), "here")
    (found,) = expected(lines).explained([result()])
    assert found.failed
    assert stale([result("pass")], lines) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not TOML"),
        (LINE.replace("fail_value", "oops"), "ops/sin/float32"),
        (LINE.replace("rounds twice", " "), "reason is compulsory"),
        (LINE.replace("fail_value", "pass"), "needs no line"),
        (LINE.replace("link", "url"), "url"),
        (LINE.replace("}", ', torch = "new"}'), "torch"),
    ],
)
def test_a_file_that_cannot_be_understood_is_taken(text, said):
    with pytest.raises(InputError, match=said):
        expecting.parse(text, "here")


def test_a_missing_file_is_not_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml"):
        expecting.read(tmp_path / "none.toml")


def test_collecting_loses_a_reason_or_keeps_what_passes():
    lines = expecting.parse(
        LINE
        + LINE.replace("sin", "cos")
        + LINE.replace("sin", "tan").replace("}", ', device = "cuda"}'),
        "here",
    )
    results = [result(), result("pass", "ops/cos/float32"), result("crash", "ops/new/float32")]
    found = expected(lines).collected(results)
    assert set(found) == {"ops/sin/float32", "ops/tan/float32", "ops/new/float32"}
    assert found["ops/sin/float32"].reason == "rounds twice"
    assert (found["ops/new/float32"].status, found["ops/new/float32"].reason) == (
        "crash",
        "because",
    )
    written = expecting.text(found)
    assert expecting.parse(written, "written") == found
    assert written.splitlines()[2:] == sorted(written.splitlines()[2:])


def test_what_is_shipped_cannot_be_read():
    assert expecting.shipped("no such backend").keys() == expecting.shipped("upstream").keys()
    for line in expecting.shipped("inductor").values():
        assert line.reason


def test_any_text_is_written_on_one_line_and_read_again():
    reason = 'é 😀 "quoted" \\ \n\x7f\x1b[31m ' + "1." * 200
    lines = {
        case_id: expecting.Expectation(status="fail_value", reason=reason)
        for case_id in ("ops/linalg.pinv/complex64", "a 😀\n\x7f", "#", "a.b", "")
    }
    written = expecting.text(lines)
    assert len(written.splitlines()) == len(expecting.text({}).splitlines()) + len(lines)
    assert expecting.parse(written, "x") == lines
