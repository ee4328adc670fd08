"""``backbay conform``: is a backend right, level by level."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from backbay.cli.completion import complete_backend, completing
from backbay.cli.files import check_writable
from backbay.cli.output import write, written_anyway
from backbay.cli.parameters import DEVICE, SECONDS, SEED, json_option
from backbay.dependencies import check_installed
from backbay.errors import escaped, plain
from backbay_conformance import Profile, Result, Statement, conform
from backbay_conformance.record import LEVELS

if TYPE_CHECKING:
    from backbay_conformance.fuzz.report import FuzzReport

_EXAMPLES = """
\b
Examples:
  backbay conform aot_eager
  backbay conform my_backend.py:compile --level load --level contract
  backbay conform my_backend --profile full --expectations conformance.toml --json full.json
  backbay conform my_backend --json conformance.json --badge conformance.svg
  backbay conform inductor --case 'ops/linalg.*' --html ops.html --beside aot_eager.json
  backbay conform my_backend --fuzz 600 --repros finds/
"""
_FILE = click.Path(dir_okay=False, path_type=Path)
_EVERY = 25
"""Cases after which a log says how many there were."""


def _levels() -> dict[str, str]:
    return {name: f"level {number}" for number, name in enumerate(LEVELS)}


@click.command("conform", epilog=_EXAMPLES)
@click.argument("backend", required=False, shell_complete=complete_backend)
@click.option("--profile", type=click.Choice(get_args(Profile)), default="quick",
              show_default=True, help="A share of each level, or all of it.")  # fmt: skip
@click.option(
    "--level",
    "levels",
    multiple=True,
    shell_complete=completing(_levels),
    help="Name, number, or 0-3; may be repeated.",
)
@click.option("--case", "only", multiple=True, metavar="PATTERN",
              help="Cases by id, as in a shell; may be repeated.")  # fmt: skip
@click.option("--all-samples", is_flag=True, help="Every sample input of each operator.")
@click.option(
    "--device", type=DEVICE, help="cpu, cuda, cuda:1, ...  [default: the accelerator, if any]"
)
@click.option("--seed", type=SEED, default=0, show_default=True)
@click.option("--workers", type=click.IntRange(1, 1_000),
              help="Processes side by side.  [default: one for each core]")  # fmt: skip
@click.option("--ray", is_flag=False, flag_value="", default=None, metavar="[ADDRESS]",
              help="Run the cases on a Ray cluster; without an address (then write it last), on "
                   "one that runs here or is started here.")  # fmt: skip
@click.option("--expectations", type=_FILE, help="The known failures and their reasons.")
@click.option("--collect", is_flag=True, help="Write the expectations file anew.")
@json_option
@click.option("--html", "html_path", type=_FILE, help="Write one self-contained HTML page.")
@click.option("--badge", type=_FILE, help="Write a README's badge, as an SVG.")
@click.option("--beside", type=_FILE, multiple=True,
              help="JSON of another statement for the page; may be repeated.")  # fmt: skip
@click.option("--repros", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Write each failure as one short file of plain torch.")  # fmt: skip
@click.option("--fuzz", "seconds", type=SECONDS, metavar="SECONDS",
              help="Run random programs instead of the suite, from --seed on.")  # fmt: skip
def command(
    *,
    backend: str | None,
    json_path: Path | None,
    html_path: Path | None,
    badge: Path | None,
    beside: tuple[Path, ...],
    repros: Path | None,
    seconds: float | None,
    **suite: Any,
) -> None:
    """Run BACKEND through graded levels of cases, each compared with eager and float64.

    BACKEND is a registered name, module:function or file.py:function. A failure that torch's own
    eager or aot_eager has too is attributed to torch. Without BACKEND, only the page of the
    statements named by --beside is made.

    Exit code 1: a failure is attributed to the backend, or an expectation is stale. When
    interrupted, it writes the results that it has, marked partial, and ends with 130 or 143.
    """
    check_installed("backbay conform")
    sys.path.append(str(Path.cwd()))  # modules named by reference are looked for here, last
    if suite["collect"] and suite["expectations"] is None:
        raise click.UsageError("--collect writes the file that --expectations names: give one")
    check_writable(json_path, html_path, badge)
    others = _read(beside) if beside else []
    if backend is None:
        if html_path is None or not others:
            raise click.UsageError("name a BACKEND, or statements with --beside and a page --html")
        _page(others)(html_path)
        return
    if seconds is not None:
        if suite["ray"] is not None or badge is not None:
            raise click.UsageError("--ray and --badge are of the suite, not of the fuzzer")
        _fuzz(backend, seconds, suite, json_path, repros)
        return
    with (
        written_anyway(lambda statement: _write(statement, json_path, html_path, others)),
        _progress() as tell,
    ):
        statement = conform(backend, tell=tell, **suite)
    _write(statement, json_path, html_path, others)
    if badge is not None:
        from backbay_conformance.badge import write_badge  # noqa: PLC0415 (only where asked for)

        write_badge(statement, badge)
    if repros is not None:
        _write_repros(statement, repros)
    if not statement.passed:
        sys.exit(1)


def _fuzz(
    backend: str, seconds: float, suite: dict[str, Any], json_path: Path | None, repros: Path | None
) -> None:
    from backbay_conformance.fuzz.run import FIRST, fuzz  # noqa: PLC0415 (only where asked for)

    how = {x: suite[x] for x in ("device", "workers")}
    with (
        written_anyway(lambda report: _write_finds(report, json_path, repros)),
        _progress() as tell,
    ):
        report = fuzz(backend, seconds=seconds, seed=suite["seed"] or FIRST, tell=tell, **how)
    _write_finds(report, json_path, repros)
    if not report.passed:
        sys.exit(1)


def _read(paths: tuple[Path, ...]) -> list[Statement]:
    from backbay_conformance.scoreboard import read  # noqa: PLC0415 (jinja2: only for a page)

    return [read(x) for x in paths]


def _page(statements: list[Statement]) -> Callable[[Path], None]:
    def write_it(path: Path) -> None:
        from backbay_conformance.scoreboard import write_page  # noqa: PLC0415 (as above)

        write_page(statements, path)

    return write_it


def _write(
    statement: Statement, json_path: Path | None, html_path: Path | None, others: list[Statement]
) -> None:
    from rich.text import Text  # noqa: PLC0415 (rich is loaded to draw only)

    from backbay_conformance.statement import text  # noqa: PLC0415 (with it)

    page = (html_path, _page([statement, *others])) if html_path is not None else None
    write(statement, Text(escaped(text(statement).rstrip())), json_path, page)


def _write_repros(statement: Statement, folder: Path) -> None:
    from backbay_conformance.repro import Repro, write  # noqa: PLC0415 (only where asked for)

    def tell(repro: Repro) -> None:
        said = f" ({repro.note})" if repro.note else ""
        click.echo(f"repro: {repro.path or repro.case}{said}", err=True)

    write(statement, folder, tell=tell)


def _write_finds(report: "FuzzReport", json_path: Path | None, folder: Path | None) -> None:
    from rich.text import Text  # noqa: PLC0415 (rich is loaded to draw only)

    from backbay_conformance.fuzz.report import as_text  # noqa: PLC0415 (only where asked for)

    write(report, Text(escaped(as_text(report).rstrip())), json_path, None, wraps=False)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for find in (x for x in report.finds if x.repro):
            path = folder / f"{find.standing}_{find.seeds[0]}.py"
            path.write_text(find.repro, encoding="utf-8")
            click.echo(f"repro: {path}", err=True)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Result], None]]:
    """Return a function that shows each result: live on a terminal, else failures and a count."""
    from rich.text import Text  # noqa: PLC0415 (rich is loaded to draw only)

    from backbay.cli.console import Screen  # noqa: PLC0415 (as above)

    console = Screen(stderr=True)
    count = failed = 0
    with contextlib.ExitStack() as stack:
        status = stack.enter_context(console.status("starting")) if console.is_terminal else None

        def tell(result: Result) -> None:
            nonlocal count, failed
            count, failed = count + 1, failed + result.failed
            so_far = f"{count} cases, {failed} failed"
            if status is not None:
                status.update(Text(f"{so_far} · {plain(result.id)}"))
                return
            if result.failed:
                console.print(Text(f"{result.status}  {plain(result.id)}"))
            if count % _EVERY == 0:
                console.print(Text(so_far), style="dim")

        yield tell
