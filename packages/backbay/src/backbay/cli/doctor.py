"""``backbay doctor``: what runs here, what does not, why, and what to do about it."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from backbay.cli.completion import complete_backend
from backbay.cli.document import written
from backbay.cli.elsewhere import elsewhere, interpreter, is_elsewhere, print_header
from backbay.cli.entry import entry, is_here, print_table
from backbay.cli.parameters import DEVICE_TYPE, SECONDS, json_option
from backbay.errors import BackendNotFound, InputError, plain
from backbay.registry import Registry, Resolution, tested, torchvision
from backbay.registry.availability import matching, of_resolution
from backbay.registry.known import KnownBackends

SCHEMA = "backbay.doctor/2"
_STILL_FOUND = "blocked here, but torch.compile(backend=...) still finds it by name"

_EXAMPLES = """
\b
Examples:
  backbay doctor
  backbay doctor --probe openvino          load it and compile with it, in a child process
  backbay doctor --probe --json > doctor.json
  backbay doctor --venv .venv              what runs in another environment
  BACKBAY_REQUIRE=inductor backbay doctor  exit code 1 unless inductor is ready
  backbay doctor openvino --fresh-venvs    install it where it is alone, try it and race it
"""
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("doctor", epilog=_EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_backend)
@click.option(
    "--device", type=DEVICE_TYPE, help="Ask for this device type; default: any that is here."
)
@click.option("--all", "all_", is_flag=True, help="Debug, experimental and absent backends too.")
@click.option("--probe", is_flag=True, help="Load and try each, in a child process; measure it.")
@click.option("--fresh", is_flag=True, help="Ignore the results of earlier probes.")
@click.option("--seconds", type=SECONDS, default=120.0, show_default=True, help="For one probe.")
@elsewhere
@json_option
@click.option("--fresh-venvs", is_flag=True,
              help="Install each engine in an environment of its own, try it and race it.",
              )  # fmt: skip
@click.option("--torch", help="With --fresh-venvs: the version of torch.  [default: the one here]")
@click.option("--constraints", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="With --fresh-venvs: a constraints file for pip.")  # fmt: skip
@click.option("--conformance", is_flag=True, help="With --fresh-venvs: run the suite, too.")
@click.option("--where", type=click.Path(file_okay=False, path_type=Path),
              help="With --fresh-venvs: the folder.  [default: in the cache folder]",
              )  # fmt: skip
@click.option("--markdown", type=_FILE, help="With --fresh-venvs: write the tables to FILE.")
def command(
    *,
    registry: KnownBackends,
    names: tuple[str, ...],
    device: str | None,
    all_: bool,
    probe: bool,
    fresh: bool,
    seconds: float,
    json_path: Path | None,
    fresh_venvs: bool,
    torch: str | None,
    constraints: Path | None,
    conformance: bool,
    where: Path | None,
    markdown: Path | None,
) -> None:
    """Show for each backend whether it runs here, if not why, and what to do.

    Without --probe nothing is imported, and `ready` says that the declared requirements hold and
    that the module to load is there. With it, each backend that is ready is loaded and compiles a
    trial function. Exit code 1: something that the policy requires is not ready.

    With --python or --venv all this is said of another environment, of which files are read and
    nothing is imported. Devices, compilers and variables are those of this machine and shell.

    With --fresh-venvs the engine of each NAME (default: of all that may run on this machine) is
    installed as catalogued, in a virtual environment of its own, beside torch. There its backends
    are tried, proven on small models and raced. It takes minutes for each; what is done is kept,
    and a run that was interrupted goes on. Exit code 1: what happened is not as catalogued.
    """
    if (probe or fresh_venvs) and is_elsewhere(registry):
        raise InputError(
            "another environment is only read, and --probe and --fresh-venvs run backends: install "
            f"Backbay there, and run {_executable(registry)} -m backbay doctor --probe"
        )
    if fresh_venvs:
        from backbay.dependencies import check_installed  # noqa: PLC0415 (as below)

        check_installed("backbay doctor --fresh-venvs")
        from backbay.cli.fresh_venvs import try_engines  # noqa: PLC0415 (needs psutil)

        sys.exit(
            try_engines(
                names,
                torch=torch,
                constraints=constraints,
                conformance=conformance,
                where=where,
                again=fresh,
                seconds=seconds,
                markdown_path=markdown,
                json_path=json_path,
            )
        )
    if torch or constraints or conformance or where or markdown:
        raise InputError(
            "--torch, --constraints, --conformance, --where and --markdown go with --fresh-venvs"
        )
    _examine(
        registry,
        names,
        device=device,
        all_=all_,
        probe=probe,
        fresh=fresh,
        seconds=seconds,
        json_path=json_path,
    )


def _examine(
    registry: KnownBackends,
    names: Sequence[str],
    *,
    device: str | None,
    all_: bool,
    probe: bool,
    fresh: bool,
    seconds: float,
    json_path: Path | None,
) -> NoReturn:
    """Show whether backends run here, and exit."""
    if probe:
        from backbay.dependencies import check_installed  # noqa: PLC0415 (imports importlib.util)

        check_installed("backbay doctor --probe")
    chosen = [registry.resolution(name) for name in names] or [
        x for x in registry.resolutions().values() if all_ or is_here(x)
    ]
    here = registry.environment
    entries = [
        entry(x, of_resolution(x, here, device))
        | {"limits": [limit.reason for limit in matching(x.spec.limits, x.spec, here)]}
        for x in chosen
    ]
    refused = (
        _probe(registry, chosen, entries, device=device, fresh=fresh, seconds=seconds)
        if probe and isinstance(registry, Registry)
        else []
    )
    unmet = _unmet(registry, entries, device)
    blocked = [name for name, x in registry.resolutions().items() if x.standing == "blocked"]
    notes = [f"note: {', '.join(blocked)}: {_STILL_FOUND}"] if blocked else []
    notes += [f"note: {x}" for x in refused]
    notes += [f"note: {x}" for x in (tested.problem(here), torchvision.problem(here)) if x]
    advice = [*(row["remedy"] for row in entries), *notes]
    if is_elsewhere(registry) and any("pip install" in x for x in advice):
        python = shlex.quote(_executable(registry))
        notes.append(f"note: pip installs there as: pip --python {python} install")
    document = {"schema": SCHEMA, "interpreter": interpreter(registry), "backends": entries}
    document |= {"unmet": unmet, "notes": notes, "problems": list(registry.problems)}
    if not written(document, json_path):
        print_header(registry)
        print_table(entries, _explanation, probed=probe)
        for line in [*notes, *(f"unreadable: {x}" for x in registry.problems), *unmet]:
            click.echo(plain(line), err=True)
    sys.exit(1 if unmet else 0)


def _executable(registry: KnownBackends) -> str:
    return registry.environment.interpreter.executable


def _probe(
    registry: Registry,
    chosen: list[Resolution],
    entries: list[dict[str, Any]],
    *,
    device: str | None,
    fresh: bool,
    seconds: float,
) -> list[str]:
    """Try what is ready, put the result into its row, and return what was not believed."""
    from backbay.registry.probe import try_out  # noqa: PLC0415 (starts processes)

    refused = dict[str, None]()
    for resolution, row in zip(chosen, entries, strict=True):
        if row["state"] != "ready":
            continue
        result = try_out(registry, resolution.spec, device=device, fresh=fresh, seconds=seconds)
        if result is None:
            row["reason"] = "registered by this process: a child process can't load it"
            continue
        if result.refused:
            refused[result.refused] = None
        row["probe"] = {
            "passed": result.passed,
            "stage": result.stage,
            "import_ms": result.import_ms,
            "modules": result.modules,
            "rss_mb": result.rss_mb,
            "initialised_cuda": result.initialised_cuda,
            "when": result.when,
            "cached": result.cached,
        }
        row["reason"] = result.reason
        if result.cached:
            row["reason"] += f" (tried on {result.when[:10]}; --fresh tries again)"
        if not result.passed:
            row["state"] = "broken"
            row["remedy"] = f"see `backbay info {resolution.name}`, or report it to its authors"
    return list(refused)


def _unmet(registry: KnownBackends, entries: list[dict[str, Any]], device: str | None) -> list[str]:
    states = {row["name"]: row["state"] for row in entries}
    unmet = []
    for name, source in registry.policy.required.items():
        try:
            state = states.get(name) or registry.availability(name, device).state
        except BackendNotFound:
            state = "unknown"
        if state != "ready":
            unmet.append(f"{source} requires {name}, which is {state}")
    return unmet


def _explanation(row: dict[str, Any]) -> str:
    limits = "; ".join(row["limits"]) if row["state"] == "ready" else ""
    said = [row["reason"], row["remedy"], f"known limits: {limits}" if limits else ""]
    return "; ".join(x for x in said if x)
