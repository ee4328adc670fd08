"""A campaign as an HTML file, and beside it a folder with each race's own page."""

from pathlib import Path
from urllib.parse import quote

from backbay.campaign.cells import cells, summaries
from backbay.campaign.record import Campaign, Row
from backbay.reporting import wording
from backbay.reporting.page import rendered


def write_page(campaign: Campaign, path: Path, folder: str) -> None:
    """Write a campaign's page to a file; `write_race` writes those of its races.

    Args:
        campaign: as far as it has come.
        path: the file.
        folder: where the races' own pages are, seen from the page.
    """
    path.write_text(page(campaign, folder), encoding="utf-8")


def write_race(row: Row, path: Path) -> None:
    """Write the page of a row's race beside the campaign's."""
    from backbay.race.page import write_page as write_race_page  # noqa: PLC0415 (matplotlib)

    if row.report is None:
        return
    folder = pages_of(path)
    folder.mkdir(exist_ok=True)
    write_race_page(row.report, folder / _page_of(row))


def pages_of(path: Path) -> Path:
    """Return the folder of the single races' pages."""
    return path.with_name(f"{path.stem}.pages")


def page(campaign: Campaign, folder: str) -> str:
    """Return a campaign's page.

    Args:
        campaign: as far as it has come.
        folder: where the races' own pages are, seen from this one.
    """
    rows = [
        (row, quote(f"{folder}/{_page_of(row)}") if row.report is not None else "", shown)
        for row, shown in ((x, cells(campaign, x)) for x in campaign.rows)
    ]
    done = sum(row.status == "raced" for row in campaign.rows)
    return rendered(
        "backbay.campaign",
        campaign,
        noun="campaign",
        rows=rows,
        summaries=[(x, wording.ratio(x.mean, None).value) for x in summaries(campaign)],
        done=f"{done} of {wording.counted(len(campaign.rows), 'race')}",
        nothing=wording.NOTHING,
    )


def _page_of(row: Row) -> str:
    return f"{Path(row.file).stem}.html"
