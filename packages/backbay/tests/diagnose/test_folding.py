"""What repeats in a sequence is found, as far as it is worth folding, and nothing is lost."""

import itertools

import hypothesis
import hypothesis.strategies as st
import pytest

from backbay.diagnose.folding import Stretch, stretches


def folds(text):
    return [(text[x.begin : x.end], x.times) for x in stretches(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("abc", [("abc", 0)]),
        ("abcabc", [("abc", 0), ("abc", 1)]),
        ("xabcabcabcy", [("xabc", 0), ("abcabc", 2), ("y", 0)]),
        ("ababab", [("ababab", 0)]),  # fewer than three are no layer
        ("aaaaaaa", [("aaa", 0), ("aaa", 1), ("a", 0)]),
        ("a" * 16, [("aaa", 0), ("a" * 12, 4), ("a", 0)]),  # as much as by fours, and shorter
        ("abcabcdefdef", [("abc", 0), ("abc", 1), ("def", 0), ("def", 1)]),
    ],
)
def test_what_repeats_is_folded(text, expected):
    assert folds(text) == expected


def test_what_folds_most_is_folded_and_not_what_repeats_inside_of_it():
    layer = "abcabcd"
    assert folds(layer * 4) == [(layer, 0), (layer * 3, 3)]


@hypothesis.given(st.text("abc", max_size=60))
def test_stretches_are_the_whole_sequence_and_each_fold_repeats_what_is_before_it(text):
    found = list(stretches(text))
    assert "".join(text[x.begin : x.end] for x in found) == text
    for before, one in itertools.pairwise(found):
        if one.times:
            period = (one.end - one.begin) // one.times
            assert before == Stretch(before.begin, one.begin)
            assert text[one.begin : one.end] == text[one.begin - period : one.begin] * one.times
