"""``backbay doctor --fresh-venvs``: engines, each where it is alone."""

from collections.abc import Sequence
from pathlib import Path

import click

from backbay.cache import cache_folder
from backbay.cli.files import check_writable, whole
from backbay.cli.output import write, written_anyway
from backbay.cli.progress import progress
from backbay.engines import Report, run
from backbay.engines.api import Limits, Plan
from backbay.engines.tables import markdown, table
from backbay.registry import default_registry


def try_engines(
    names: Sequence[str],
    *,
    torch: str | None,
    constraints: Path | None,
    conformance: bool,
    where: Path | None,
    again: bool,
    seconds: float,
    markdown_path: Path | None,
    json_path: Path | None,
) -> int:
    """Try the engines, write what came of it, interrupted or not, and return the exit code."""

    def write_it(report: Report) -> None:
        write(report, table(report), json_path, None)
        if markdown_path is not None:
            with whole(markdown_path) as file:
                file.write_text(markdown(report), encoding="utf-8")

    check_writable(json_path, markdown_path)
    here = default_registry.environment.torch_build.get("__version__") or ""
    plan = Plan(
        folder=where or cache_folder() / "fresh-venvs",
        torch=torch or here.partition("+")[0],
        constraints=constraints,
        conformance=conformance,
        again=again,
        limits=Limits(probe_s=seconds),
    )
    with written_anyway(write_it), progress() as tell:
        report = run(names, plan, tell=tell)
    write_it(report)
    for row in report.strange:
        click.echo(f"backbay: {row.backend}: what happened is not as catalogued", err=True)
    return 1 if report.strange else 0
