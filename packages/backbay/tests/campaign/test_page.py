"""A campaign's page and table: what each cell says, where it leads, and how it is laid out."""

import json
import re
from urllib.parse import unquote

import browser
import made_up_races as reports
import msgspec
import pytest
from rich.console import Console

from backbay.campaign.cells import cells, summaries
from backbay.campaign.page import page, pages_of, write_page, write_race
from backbay.campaign.record import Campaign
from backbay.campaign.table import table
from backbay.race.page import page as race_page
from backbay.reporting.wording import elided


@pytest.fixture(scope="module")
def whole():
    return reports.whole()


@pytest.fixture(scope="module")
def text(whole):
    return page(whole, "nightly.pages")


def test_each_row_and_arm_has_a_cell_that_leads_to_its_race(whole, text):
    for row in whole.rows:
        for cell in cells(whole, row):
            if cell.status:
                link = f'<a href="nightly.pages/{row.file.removesuffix(".json")}.html"'
                assert text.count(link) >= len(reports.ARMS)
                assert cell.text in text
    assert text.count("data-arm=") == 12 * len(reports.ARMS)
    linked = set(re.findall(r'href="(nightly[^"]*)"', text))
    assert len(linked) == 12  # a race that has not ended has no page
    assert "lost: its worker died twice" in text
    assert ">waiting<" in text
    assert "12 of 14 races, interrupted" in text


def test_the_arm_to_use_is_marked_once_a_row(whole, text):
    assert text.count(", use this") == 12
    for row in whole.rows[:12]:
        assert [x.arm for x in cells(whole, row) if x.chosen] == [row.decision.winner]


def test_a_colour_says_faster_or_slower_and_none_that_nobody_can_tell(whole, text):
    row = whole.rows[0]
    for cell in cells(whole, row):
        result = row.result(cell.arm)
        if result.ratio_to_eager_ci is None:
            assert cell.shade == 0
        else:
            assert (cell.shade > 0) == (result.ratio_to_eager_ci[0] > 1)
        for which in (f"faster-{cell.shade}", f"slower-{-cell.shade}"):
            if cell.shade and which in text:
                assert f".{which} {{ background" in text
                break
        else:
            assert not cell.shade
    tied = msgspec.structs.replace(
        row.report.results[1], ratio_to_eager=1.1, ratio_to_eager_ci=(0.9, 1.3)
    )
    report = msgspec.structs.replace(row.report, results=(tied,))
    changed = msgspec.structs.replace(row, report=report)
    assert [x.shade for x in cells(whole, changed)] == [0] * len(reports.ARMS)


def test_an_arm_is_summed_up_over_rows(whole):
    eager, *others = summaries(whole)
    assert (eager.mean, eager.right, eager.wrong) == (1.0, 12, 0)
    assert sum(x.chosen for x in (eager, *others)) == 12
    odd = others[-1]
    assert odd.wrong + odd.failed == 12
    assert odd.mean is None


def test_the_page_holds_the_campaign_and_loads_nothing(whole, text):
    embedded = re.search(r'id="campaign">(.*?)</script>', text, re.DOTALL)
    assert msgspec.json.decode(embedded[1], type=Campaign) == whole
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert all(x.startswith(("#", "nightly.pages/")) for x in links)
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= set(re.findall(r"(--[\w-]+):", text))


def test_hostile_names_are_text():
    evil = "</script><script>x</script>"
    found = reports.campaign(reports.row(evil), arms=(evil, *reports.ARMS), name=evil)
    assert page(found, "p").count("<script") == 1


@pytest.mark.parametrize("name", ["nightly.html", "100 % #1?.html"])
def test_the_pages_of_races_are_where_the_links_lead(whole, tmp_path, name):
    path = tmp_path / name
    row = whole.rows[0]
    write_race(row, path)
    write_page(reports.campaign(row), path, pages_of(path).name)
    (link,) = set(re.findall(r'href="([^"#]+)"', path.read_text()))
    assert (tmp_path / unquote(link)).read_text() == race_page(row.report)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_number_is_cut_in_a_narrow_terminal(whole, width):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table(whole))
    shown = captured.get()
    for row in whole.rows[:12]:
        for cell in cells(whole, row):
            text = f"{cell.text}*" if cell.chosen else cell.text
            assert cell.status == "unavailable" or text in shown
    assert all(len(line) <= width for line in shown.splitlines())


def test_the_table_has_everything_of_the_page(whole):
    console = Console(width=140)
    with console.capture() as captured:
        console.print(table(whole))
    lines = captured.get().splitlines()
    for row in whole.rows[:12]:
        found = [x for x in lines if elided(row.title, 32) in x and row.way in x]
        for cell in cells(whole, row):
            shown = "n/a" if cell.status == "unavailable" else cell.text
            assert shown in found[0]
    assert any("its worker died twice" in x for x in lines)
    assert json.dumps(reports.ARMS[5])[1:-1] in captured.get()


@browser.needs_browser
def test_no_text_is_clipped_or_covered_on_a_phone_or_a_screen_light_or_dark(text, tmp_path):
    browser.check_layout(text, tmp_path)


@browser.needs_browser
def test_the_check_of_a_layout_finds_faults(tmp_path):
    style = "position:absolute;left:0;top:0;width:60px;height:20px;"
    filler = "<p>fine</p>" * 20
    faulty = {
        "overlapping": f'<p style="{style}">one text</p><p style="{style}">another</p>',
        "clipped": f'<p style="{style}overflow:hidden;white-space:nowrap">{"1234567 " * 9}</p>',
        "outside": f'<p style="white-space:nowrap">{"1234567 " * 99}</p>',
    }
    for fault, body in faulty.items():
        page_of = f"<!doctype html><html lang=en><body>{filler}{body}</body></html>"
        found = browser.measured(page_of, tmp_path, width=400, theme="light")
        assert found[fault], fault
