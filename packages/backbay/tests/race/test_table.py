import io
import re
import subprocess
import sys

import msgspec
import pytest
from rich.console import Console

from backbay.race.record import Decision, Machine, Report, Result, Settings, VerdictRecord
from backbay.race.table import table
from backbay.reporting import wording

LONG = "src/company/compilers/fusion_backend.py:fused_attention_backend"
REASON = (
    "BackendCompilerFailed: aten.scaled_dot_product_attention is not supported [bold]here[/bold], "
    "and neither is aten._scaled_dot_product_flash_attention_for_cpu at model.py:123"
)
RIGHT = VerdictRecord(passed=True, reason="agrees", ratio=0.88)
WRONG = VerdictRecord(passed=False, reason="is off", where="output[0]", ratio=41.2)
SENTENCE = "inductor is 1.62x [1.61, 1.64] eager; use inductor"


def result(backend, status="ok", **more):
    return Result(workload="bert", mode="infer", backend=backend, status=status, **more)


def timed(backend, **more):
    return result(
        backend,
        verdict=RIGHT,
        median_ms=7.654,
        ci_ms=(7.59, 7.72),
        ratio_to_eager=1.622,
        ratio_to_eager_ci=(1.605, 1.6431),
        ratio_to_inductor=1.1,
        ratio_to_inductor_ci=(1.08, 1.12),
        compile_s=11.4,
        warmup_s=6.2,
        peak_bytes=1 << 30,
        graphs=2,
        breaks=1,
        **more,
    )


def reported(*results, notes=(), decision=True):
    decided = Decision(
        workload="bert", mode="infer", winner="inductor", abstained=False, sentence=SENTENCE
    )
    return Report(
        created="2026-01-02T03:04:05Z",
        machine=Machine(
            system="Linux 6.8",
            processor="A processor",
            cores=16,
            memory_bytes=1 << 36,
            device="cpu",
        ),
        versions={"python": "3.11.9", "torch": "2.13.0"},
        settings=Settings(backends=(), mode="infer", dtype="float32", device="cpu", seed=0),
        decision=(decided,) if decision else (),
        results=results,
        notes=notes,
    )


@pytest.fixture
def report():
    return reported(
        result("eager", median_ms=12.41, ci_ms=(12.35, 12.48), ratio_to_eager=1.0),
        timed("inductor", notes=("a note on this row",)),
        timed(LONG),
        result("openvino", "wrong", reason="output[0] is off by 0.0132", verdict=WRONG),
        result("torch_tensorrt", "failed", reason=REASON),
        notes=("clocks were not locked",),
    )


def drawn(report, width, **options):
    file = io.StringIO()
    Console(file=file, width=width, **options).print(table(report))
    return file.getvalue()


WIDTHS = pytest.mark.parametrize("width", [60, 80, 100, 120, 140, 200])


@WIDTHS
def test_no_line_is_wider_than_the_terminal(report, width):
    lines = drawn(report, width).splitlines()
    too_wide = [line for line in lines if len(line) > width and LONG not in line]
    assert not too_wide


def test_what_to_look_at_next_has_no_batch():
    slow = msgspec.structs.replace(
        timed("inductor", slow=("compiled again",)), workload="decoder@tiny, batch 1, 8"
    )
    assert "see backbay explain decoder@tiny --backend inductor" in drawn(reported(slow), 140)


def test_a_verdict_about_a_busy_machine_stands_last(report):
    sentence = "cannot tell: the machine is busy (2.1 cores by others); run again when idle"
    vague = Decision(
        workload="bert", mode="infer", winner="eager", abstained=True, unclear=True,
        sentence=sentence,
    )  # fmt: skip
    lines = drawn(msgspec.structs.replace(report, decision=(vague,)), 200).splitlines()
    assert lines[0] == f"bert (infer): {sentence}"
    assert sum(sentence in line for line in lines) == 1


@pytest.mark.parametrize("width", [80, 140])
def test_nothing_is_cut_or_dropped(report, width):
    lines = drawn(report, width)
    words = " ".join(lines.split())
    for name in ("eager", "inductor", LONG, "openvino", "torch_tensorrt"):
        assert any(line.strip().startswith(name) for line in lines.splitlines())
    for expected in (
        "7.65 [7.59, 7.72]",
        "1.62x [1.60, 1.64]",
        "1.10x [1.08, 1.12]",
        "right, 0.88x eager's error",
        "wrong: output[0], 41x eager's error",
        "11 s + 6.2 s warm-up",
        "1.00 GiB",
        f"torch_tensorrt failed: {REASON}",
        "openvino wrong: output[0] is off by 0.0132",
        "inductor: a note on this row",
        "clocks were not locked",
        f"bert (infer): {SENTENCE}",
        "A processor",
        "torch 2.13.0",
    ):
        assert expected in words
    assert "2 graphs, 1 break" in words or "2/1" in words


def test_a_reason_is_not_read_as_rich_markup_or_terminal_codes():
    reason = "[red]boom[/red] \x1b[31mred\x1b[0m\x07 and\na second line"
    words = drawn(reported(result("tvm", "crashed", reason=reason)), 80)
    assert r"tvm crashed: [red]boom[/red] \x1b[31mred\x1b[0m\x07 and a second line" in words
    assert "\x1b" not in words


def test_colour_only_in_a_terminal(report):
    assert "\x1b" not in drawn(report, 80)
    assert "\x1b[32m" in drawn(
        report, 80, force_terminal=True, color_system="standard", no_color=False
    )


def test_the_fastest_comes_first_and_what_has_no_time_last():
    slow = result("slow", median_ms=9.0)
    fast = result("fast", median_ms=8.0)
    wrong = result("wrong_one", "wrong", median_ms=1.0)
    lines = drawn(reported(wrong, slow, fast), 80).splitlines()
    first = [line.split()[0] for line in lines[2:5]]
    assert first == ["fast", "slow", "wrong_one"]


def test_decimal_points_stand_in_one_column():
    report = reported(
        result("a", median_ms=8.125, ci_ms=(8.1, 8.15)),
        result("b", median_ms=123.4, ci_ms=(121, 126)),
    )
    one, other = drawn(report, 80).splitlines()[2:4]
    assert one.index("8.12") + 1 == other.index("123") + 3


def test_a_failure_without_a_reason_says_so():
    assert "tvm timeout: no reason was recorded" in drawn(reported(result("tvm", "timeout")), 80)


def test_the_verdicts_reason_stands_in_for_a_missing_one():
    assert "tvm wrong: is off" in drawn(reported(result("tvm", "wrong", verdict=WRONG)), 80)


def test_an_empty_report_says_so():
    assert "Nothing was raced" in drawn(reported(decision=False), 80)


@pytest.mark.parametrize(
    ("value", "interval", "expected"),
    [
        (12.3456, (12.1, 12.6), "12.3 [12.1, 12.6]"),
        (12.3456, (12.31, 12.38), "12.35 [12.31, 12.38]"),
        (0.01234, (0.0121, 0.0126), "0.0123 [0.0121, 0.0126]"),
        (1234.5, (1130.0, 1340.0), "1234 [1130, 1340]"),
        (0.3, (0.1, 5.0), "0.30 [0.10, 5.00]"),
        (12.3456, (12.3456, 12.3456), "12.3"),
        (12.3456, None, "12.3"),
        (None, None, wording.NOTHING),
    ],
)
def test_precision_follows_the_interval(value, interval, expected):
    assert str(wording.milliseconds(value, interval)) == expected


@pytest.mark.parametrize(
    ("value", "interval", "expected"),
    [
        (1.8234, (1.8, 1.85), "1.82x [1.80, 1.85]"),
        (1.004, (1.002, 1.006), "1.004x [1.002, 1.006]"),
        (1.2, (0.96, 1.44), "1.20x [0.96, 1.44]"),
        (0.0234, None, "0.023x"),
        (1.0, (1.0, 1.0), "1.00x"),
    ],
)
def test_a_ratio_shows_on_which_side_of_one_it_lies(value, interval, expected):
    assert str(wording.ratio(value, interval)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (1 << 30, "1.00 GiB"),
        (3 << 40, "3.00 TiB"),
    ],
)
def test_sizes(value, expected):
    assert wording.size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0"), (0.934, "0.93"), (41.2, "41"), (4120.0, "4,100"), (3.2e6, "3e6"), (1e-9, "0.000")],
)
def test_rough_numbers(value, expected):
    assert wording.rough(value) == expected


def test_calls_are_rounded_up_and_counted():
    assert wording.calls(0.2) == "1 call"
    assert wording.calls(1234.0) == "1,200 calls"
    assert wording.calls(wording.NEVER) == "never"


def test_drawing_a_table_imports_no_torch_and_no_matplotlib():
    script = (
        "import sys, backbay.race.table; "
        "print([name for name in ('torch', 'matplotlib', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert re.fullmatch(r"\[\]\s*", done.stdout)
