"""What a race shows while it runs: lines in a log, a table that fills on a terminal."""

import io

from rich.console import Console

from backbay.cli.race_progress import _Board, watching
from backbay.race.record import Result

TRIED = Result(workload="decoder", mode="infer", backend="inductor", status="ok", compile_s=4.0)
TIMED = Result(
    workload="decoder",
    mode="infer",
    backend="inductor",
    status="ok",
    compile_s=4.0,
    median_ms=2.5,
    ratio_to_eager=2.0,
)


def test_a_log_has_a_line_for_every_round_or_none_for_a_row(capsys):
    with watching() as watch:
        watch.tell("decoder", "eager", "reference", "")
        watch.row(TRIED)
        watch.row(TRIED)
        for number in range(3):
            watch.tell("decoder", "eager, " * 30 + "inductor", "timing", f"round {number} of 3")
        watch.row(TIMED)
    said = [x.strip().partition("  ")[2] for x in capsys.readouterr().err.splitlines()]
    assert said == [
        "decoder · eager · reference",
        "decoder · inductor · ok, compiled in 4.0 s",
        f"decoder · {'eager, ' * 30}inductor · timing",
        "decoder · inductor · ok, compiled in 4.0 s, 2.50 ms, 2.00x eager",
    ]


def drawn(board):
    file = io.StringIO()
    Console(file=file, width=100).print(board)
    return file.getvalue()


def test_a_terminal_shows_another_workloads_rows_or_no_estimate():
    board = _Board()
    board.tell("decoder", "inductor", "compiling and proving", "about 1:20 left")
    board.row(TRIED)
    text = drawn(board)
    assert "about 1:20 left" in text
    assert "4.0 s" in text
    board.row(TIMED)
    assert "2.00x" in drawn(board)
    board.tell("hf:bert", "eager", "reference", "")
    assert "2.00x" not in drawn(board)
