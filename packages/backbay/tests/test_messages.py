"""Text from outside can't act on a terminal, a page or an error, and can't hide."""

import msgspec
import pytest

from backbay.causes import one_line
from backbay.cli.progress import progress
from backbay.errors import BackbayError, InvalidPreflight, escaped, plain
from backbay.reporting.embedding import embedded
from backbay.reporting.page import visible

HIDDEN = {
    "a terminal code": ("\x1b[31m", r"\x1b[31m"),
    "a bell": ("\x07", r"\x07"),
    "delete": ("\x7f", r"\x7f"),
    "a C1 code": ("\x9b2J", r"\x9b2J"),
    "carriage return": ("\r", r"\r"),
    "a turn to the left": ("\u202e", r"\u202e"),
    "an isolate": ("\u2066", r"\u2066"),
    "no width": ("\u200b", r"\u200b"),
    "a joiner": ("\u200d", r"\u200d"),
    "a byte order mark": ("\ufeff", r"\ufeff"),
    "a soft hyphen": ("\xad", r"\xad"),
    "a tag": ("\U000e0041", r"\U000e0041"),
    "a variation": ("\U000e0101", r"\U000e0101"),
    "a filler": ("\u3164", r"\u3164"),
    "an empty pattern": ("\u2800", r"\u2800"),
    "half a character": ("\ud83d", r"\ud83d"),
    "private use": ("\ue000", r"\ue000"),
    "a space of another width": ("\u2003", r"\u2003"),
    "the end of a paragraph": ("\u2029", r"\u2029"),
}


@pytest.mark.parametrize(("character", "code"), HIDDEN.values(), ids=HIDDEN)
def test_what_is_hidden_is_shown_as_its_code_everywhere(character, code):
    text = f"a{character}b"
    assert escaped(text) == f"a{code}b"
    assert visible(text) == f"a{code}b"
    assert str(BackbayError(text)) == f"a{code}b"
    assert str(InvalidPreflight(text, [text])) == f"a{code}b cannot work:\n  - a{code}b"
    assert character not in plain(text)
    assert character not in one_line(ValueError(text))


def test_what_can_be_read_is_left_as_it_is():
    for text in ("plain", "é ü ß", "日本語", "Привет", "😀", "[/x].py", "<b>", "a\n\tb"):
        assert escaped(text) == text
    assert plain("two \t words\r\nand a line") == "two words and a line"


def test_an_embedded_record_hides_nothing_and_is_the_same_record():
    class Record(msgspec.Struct):
        text: str

    record = Record("".join(x for x, _ in HIDDEN.values() if x != "\ud83d") + "</script>&é😀")
    text = embedded(record)
    assert text.replace("é", "").replace("😀", "").isprintable()
    assert "<" not in text
    assert msgspec.json.decode(text, type=Record) == record


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_reads_no_markup_in_a_workload_or_backend(terminal, monkeypatch, capsys):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    with progress() as tell:
        tell("[/x].py", "[bold]b[/bold]\x1b]0;t\x07", "[red] of :smile:", "round 1")
    shown = capsys.readouterr().err
    assert "\x1b]0;" not in shown
    if not terminal:
        assert shown == "[/x].py · [bold]b[/bold]\\x1b]0;t\\x07 · [red] of :smile:\n"
