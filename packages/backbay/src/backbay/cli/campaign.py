"""``backbay race CAMPAIGN.toml``: many races, of which those that are done are not run again."""

import sys
from pathlib import Path

import click

from backbay.campaign import Campaign, Row, run
from backbay.campaign.cluster import Cluster
from backbay.campaign.here import Here
from backbay.campaign.page import pages_of, write_page, write_race
from backbay.campaign.table import table
from backbay.cli.files import check_writable, whole
from backbay.cli.output import write, written_anyway
from backbay.cli.progress import progress
from backbay.decisions import Store
from backbay.errors import InputError, plain
from backbay.reporting.wording import counted

OPTIONS = frozenset(
    {"workloads", "results", "ray", "device_name", "anew", "keep", "json_path", "html_path"}
)
"""What a campaign takes from the command line; the rest stands in its file."""


def named(workloads: tuple[str, ...]) -> Path | None:
    """Return the campaign's file, where one is named.

    Raises:
        InputError: it is not the only one.
    """
    files = [x for x in workloads if x.endswith(".toml")]
    if not files:
        return None
    if len(workloads) > 1:
        raise InputError(f"{files[0]} is a campaign: race it alone, its workloads stand in it")
    return Path(files[0])


def check_options(context: click.Context, path: Path) -> None:
    """Check that nothing was given that the file says.

    Raises:
        InputError: something was.
    """
    source = click.core.ParameterSource.COMMANDLINE
    given = [x for x in context.params if context.get_parameter_source(x) is source]
    refused = [x for x in context.command.params if x.name in given and x.name not in OPTIONS]
    if refused:
        names = ", ".join(x.opts[0] for x in refused)
        raise InputError(f"{path} says how its workloads are raced: write {names} there")


def race(
    path: Path,
    *,
    results: Path | None,
    ray: str | None,
    device_name: str | None,
    anew: bool,
    keep: bool,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Race a campaign, and write what is asked for; the page is written anew after each race."""
    check_writable(json_path, html_path)
    if device_name is not None and ray is None:
        raise InputError("--device-name chooses among a cluster's devices: give --ray")
    with (
        written_anyway(lambda campaign: _write(campaign, json_path, html_path)),
        progress() as tell,
    ):
        away = None
        if ray is not None:
            away = Cluster(address=ray, only=device_name, keep=keep, tell=tell)
        campaign = run(
            path,
            results=results,
            anew=anew,
            placement=away or Here(store=Store() if keep else None, tell=tell),
            show=lambda so_far, row: _show(so_far, row, html_path),
        )
    _write(campaign, json_path, html_path)
    for row in campaign.failures:
        click.echo(f"backbay: {plain(f'{row.title}, {row.way}: {_why(row)}')}", err=True)
    if campaign.failures:
        sys.exit(1)


def _show(campaign: Campaign, row: Row, html_path: Path | None) -> None:
    done = sum(x.status != "waiting" for x in campaign.rows)
    head = f"{done} of {counted(len(campaign.rows), 'race')}: {row.title}, {row.way}"
    click.echo(plain(f"{head}: {_why(row)}"), err=True)
    if html_path is not None:
        write_race(row, html_path)
        _write_page(campaign, html_path)


def _why(row: Row) -> str:
    decision = row.decision
    return decision.sentence if decision is not None else row.reason or "no decision"


def _write(campaign: Campaign, json_path: Path | None, html_path: Path | None) -> None:
    if html_path is not None:
        for row in campaign.rows:
            if row.kept:
                write_race(row, html_path)
    html = None
    if html_path is not None:
        folder = pages_of(html_path).name
        html = (html_path, lambda file: write_page(campaign, file, folder))
    write(campaign, table(campaign), json_path, html)


def _write_page(campaign: Campaign, html_path: Path) -> None:
    with whole(html_path) as file:
        write_page(campaign, file, pages_of(html_path).name)
