"""The exercises of PyTorch's tutorials, as scripts: each runs, and its numbers are right."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
RIGHT = "right, and so are the gradients: True"


def printed(name):
    command = [sys.executable, EXAMPLES / name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_report_counts_wrong_or_changes_the_graph():
    assert printed("tutorial_report.py") == [
        "Graph: 12 ops, 3 fusable groups",
        "  fusable: add relu",
        "  fusable: sigmoid mul",
        "  fusable: sub mul tanh",
        "tensors as eager's, bit for bit: 1 of 1",
        "gradients as eager's, bit for bit: 7 of 7",  # three layers of two, and the input
    ]


def test_folding_misses_a_chain_or_folds_what_rounds_otherwise():
    assert printed("tutorial_folding.py") == [
        "folds: 2",  # 4 * (x * 2).mul(3), nothing else
        "factors left: 2 24 0.1 0.2 8",
        "difference from eager: 0.0",
        RIGHT,
    ]


def test_gelu_is_missed_in_a_spelling_or_found_where_it_is_not():
    before, after, matches, difference, verdict = printed("tutorial_gelu.py")
    assert before == "Graph: 27 ops, 3 fusable groups, 3x tanh, 0x gelu"  # 3 layers, 3 times 8
    assert after == "Graph: 13 ops, 1 fusable group, 1x tanh, 2x gelu"
    assert matches == "matches: 2"
    measured = re.fullmatch(r"difference from eager: (\S+)", difference)
    assert measured is not None
    assert 0 < float(measured[1]) < 1e-5  # it rounds once, where eager rounds eight times
    assert verdict == RIGHT
