"""Arms as text: what is written is read again, and a mistake is one line that says where."""

import math

import msgspec
import pytest

from backbay.decisions import Arm, parse_arm, parse_arms, parse_options
from backbay.errors import InputError

ROUND = [
    "inductor",
    "inductor@max-autotune-no-cudagraphs",
    "backbay{parameter_hoist: true}",
    "backbay@reduce-overhead{a: 1, b: 0.5, c: null, d: -3}",
    "inductor{name: max-autotune, triton.cudagraphs: true}",
    'x{a: "true", b: "3", c: "two words", d: "a, b} c", e: ""}',
    'x{a: [1, [2, "}"]], b: {"c": [true, null]}}',
    'x{a: "it\'s \\"quoted\\" \\\\"}',
    "module.sub:attribute@mode",
    "x{a: ü}",
    "inductor on blocks",
    "inductor@max-autotune{a: 1} on text_model.encoder.layers.3",
    "some on b.py:function",
    'x{a: "b on c"}',
]


@pytest.mark.parametrize("text", ROUND)
def test_what_is_written_is_read_as_something_else(text):
    assert str(parse_arm(text)) == text
    assert parse_arms(f"eager, {text},{text}") == [Arm(backend="eager"), *[parse_arm(text)] * 2]


def test_options_in_another_order_or_another_spelling_are_another_arm():
    one = parse_arm('x@m{b: "word", a: True, c: None, e: 0x10, d: [1,2]}')
    assert str(one) == "x@m{a: true, b: word, c: null, d: [1, 2], e: 16}"
    assert one == Arm(
        backend="x", mode="m", options={"a": True, "b": "word", "c": None, "d": [1, 2], "e": 16}
    )
    assert parse_arm("x{}") == parse_arm(" x ") == Arm(backend="x")


def test_an_at_in_a_path_is_taken_for_a_mode():
    arm = parse_arm("/home/me@work/file.py:function@max-autotune")
    assert (arm.backend, arm.mode) == ("/home/me@work/file.py:function", "max-autotune")
    assert parse_arm("/home/me@work/file.py:function").mode is None


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("inductor{a: }", 10, "option 'a' has no value"),
        ("inductor{a}", 10, "option 'a' has no value"),
        ("inductor{a: 1,}", 15, "an option is missing"),
        ("inductor{a: 1, a: 2}", 16, "given twice"),
        ("inductor{a: two words}", 12, "quote text that is more than a word"),
        ("inductor{a: [b]}", 12, "quote text"),
        ("inductor{a b: 1}", 10, "'a b' is no option's name"),
        ("inductor{a: 1", 14, "not closed by '}'"),
        ("inductor{a: [1}", 13, "'[' is not closed"),
        ("inductor{a: 1}]}", 14, "'}' closes nothing"),
        ("inductor@", 10, "no mode after '@'"),
        ("{a: 1}", 1, "no backend is named"),
        ("@mode", 1, "no backend is named"),
        ("inductor{a: 1e999}", 12, "is no value"),
        ("inductor{a: {1, 2}}", 12, "is no value"),
    ],
)
def test_a_mistake_is_many_lines_or_says_not_where(text, at, said):
    with pytest.raises(InputError) as caught:
        parse_arm(text)
    assert "\n" not in str(caught.value)
    assert f"arm {text!r}, character {at}: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["b: x, a: 1", "{b: x, a: 1}", " {b: x, a: 1} "])
def test_options_alone_need_braces(text):
    assert parse_options(text) == {"a": 1, "b": "x"}
    assert parse_options("") == {}


def test_a_scope_is_part_of_a_backends_name():
    arm = parse_arm("backbay{a: 1} on vae")
    assert (arm.backend, arm.options, arm.scope) == ("backbay", {"a": 1}, "vae")
    assert not parse_arm("backbay on vae").plain
    assert parse_arm("x on whole") == Arm(backend="x")
    with pytest.raises(InputError, match="no part of a model can be named 'a b'"):
        Arm(backend="x", scope="a b")


def test_a_brace_that_nobody_closes_ends_in_another_arm():
    with pytest.raises(InputError, match=r"character 9: '\{' is not closed"):
        parse_arms("inductor{a: 1, eager")


@pytest.mark.parametrize("value", [(1, 2), {1}, math.nan, print, {1: 2}, [object()]])
def test_an_option_that_cannot_be_written_is_kept(value):
    with pytest.raises(InputError, match="option 'a' of x is a"):
        Arm(backend="x", options={"a": value})
    with pytest.raises(InputError, match="can't be named"):
        Arm(backend="x", options={"a b": 1})


def test_an_arm_is_the_same_after_json():
    for text in ROUND:
        arm = parse_arm(text)
        assert msgspec.json.decode(msgspec.json.encode(arm), type=Arm) == arm
