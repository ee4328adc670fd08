"""The gallery has what the site and the README show, and nothing that is too large."""

import re

from gallery import GALLERY, KEPT_RACE, KEPT_STATEMENTS, LARGEST_BYTES, NAMES, PICTURES, ROOT, SHOTS

from backbay.race.reading import read
from backbay_conformance import scoreboard
from backbay_conformance.statement import verdict


def test_a_page_of_the_gallery_is_missing_or_too_large():
    pages = {x.stem: x for x in GALLERY.iterdir()}
    assert set(pages) == set(NAMES)
    assert {x.suffix for x in pages.values()} == {".html"}
    assert [x.name for x in pages.values() if x.stat().st_size > LARGEST_BYTES] == []
    assert {x.stem for x in PICTURES.glob("*.png")} == set(SHOTS)


def test_a_page_of_the_gallery_is_linked_from_nowhere():
    page = (ROOT / "docs" / "gallery.md").read_text()
    linked = re.findall(r'href="gallery/([\w.]+)', page)
    assert sorted(linked) == sorted(x.name for x in GALLERY.iterdir())


def test_the_race_of_the_gallery_is_not_the_one_that_was_kept():
    sentence = read(KEPT_RACE).decision[0].sentence
    assert sentence in (GALLERY / "race.html").read_text()
    drawn = re.sub(r"<[^>]+>|&#160;|\s+", " ", (PICTURES / "race_table.svg").read_text())
    assert "2.97x" in drawn
    assert sentence.partition(" [")[0] in " ".join(drawn.split())


def test_the_statements_of_the_gallery_have_another_verdict_than_those_that_were_kept():
    page = (GALLERY / "conform.html").read_text()
    for kept in KEPT_STATEMENTS:
        assert verdict(scoreboard.read(kept)) in page
