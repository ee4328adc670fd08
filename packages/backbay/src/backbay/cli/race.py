"""``backbay race``: which backend is right and fastest on a model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import replace

from backbay.cli import campaign
from backbay.cli.completion import complete_backends, complete_workload
from backbay.cli.files import check_writable
from backbay.cli.model_options import built_as
from backbay.cli.output import write, written_anyway
from backbay.cli.parameters import BATCHES, SECONDS, ByCommas, compiled_as, json_option
from backbay.decisions import Store
from backbay.decisions.arm import WHOLE
from backbay.errors import InputError, plain
from backbay.race import Limits, Objective, Report, run
from backbay.race.against import check_comparable, compared
from backbay.race.objective import KINDS, Kind, parse_size
from backbay.race.reading import read
from backbay.registry.names import PluginName
from backbay.workloads import DEFAULT
from backbay.workloads.setup import Mode

_EXAMPLES = """
\b
Examples:
  backbay race
  backbay race hf:llama hf:bert timm:resnet50 --backends eager,aot_eager,inductor
  backbay race hf:bert --arms "inductor,inductor@max-autotune,backbay{parameter_hoist: true}"
  backbay race hf:bert --backends all,tvm   every ready one, and a row that says why tvm is not
  backbay race hf:bert --objective total --calls 1000
  backbay race hf:bert --batch 1,8,64       one compiled model for all three; decide for the mix
  backbay race train.py:model --train --dtype bfloat16 --html race.html
  backbay race campaign.toml --html campaign.html
  backbay race train.py:model --against kept.json --fail-below 0.97   for CI: exit code 1 if slower
"""


@click.command("race", epilog=_EXAMPLES)
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", shell_complete=complete_workload)
@click.option("--backends", cls=ByCommas, shell_complete=complete_backends,
              help="Names, module:function or file.py:function, by commas; all: every ready one.  "
                   "[default: all, or none beside --arms]")  # fmt: skip
@click.option("--arms", cls=ByCommas, shell_complete=complete_backends,
              help="Backends with mode and options, by commas: "
                   "inductor@reduce-overhead,backbay{parameter_hoist: true}.")  # fmt: skip
@click.option("--scope", "scopes", default=WHOLE, show_default=True,
              help="What is compiled: whole, blocks (repeated layers, in place), or a submodule's "
                   "name; several by commas, each a row.")  # fmt: skip
@click.option("--objective", type=click.Choice(KINDS), default=KINDS[0], show_default=True,
              help="What arms are compared by: calls back to back; calls that each finish before "
                   "the next; peak memory; compilation plus --calls.")  # fmt: skip
@click.option("--calls", type=click.IntRange(min=1), help="Number of calls, for a total.")
@click.option("--warm", is_flag=True, help="For a total: compile from a warm cache.")
@click.option("--memory-limit", metavar="SIZE",
              help="Choose no arm whose step needs more, as in 8GiB.")  # fmt: skip
@compiled_as
@click.option("--require-all", is_flag=True, help="Refuse to race unless all named are ready.")
@click.option("--train/--infer", default=False, help="Forward and backward, or forward alone.")
@built_as
@click.option("--batch", type=BATCHES, metavar="N[,N...]",
              help="Batch size; with several, a step calls the model with each.",
              )  # fmt: skip
@click.option("--timeout", type=SECONDS, default=Limits().backend_s, show_default=True,
              help="Seconds to compile and judge one backend, or to time it.")  # fmt: skip
@click.option("--seconds", type=SECONDS, default=Limits().timing_s, show_default=True,
              help="Seconds of timing for each workload.")  # fmt: skip
@click.option("--timing-limit", type=SECONDS, default=Limits().whole_s, show_default=True,
              help="Seconds after which a workload's timing is cut off.")  # fmt: skip
@click.option("--quick", is_flag=True,
              help="A first answer: Inductor and what builds on it, two at once, 5 s of timing.",
              )  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1),
              help="Arms that are compiled at the same time.  [default: as cores and memory allow]",
              )  # fmt: skip
@click.option("--against", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="OLD.json", help="Compare with an earlier race, row by row.")  # fmt: skip
@click.option("--fail-below", type=click.FloatRange(min=0, min_open=True), metavar="RATIO",
              help="With --against: exit code 1 if a row is certainly less than RATIO times as "
              "fast as then, or no longer right.")  # fmt: skip
@click.option("--results", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="For a campaign: where its races are kept.  [default: CAMPAIGN.results]",
              )  # fmt: skip
@click.option("--ray", is_flag=False, flag_value="", default=None, metavar="[ADDRESS]",
              help="For a campaign: race on a Ray cluster; without an address, on one that runs "
                   "here or is started here.")  # fmt: skip
@click.option("--device-name", help="With --ray: use only devices of this name.")
@click.option("--anew", is_flag=True, help="For a campaign: race everything again.")
@click.option("--keep/--no-keep", default=True, show_default=True,
              help="Keep the decision: backend='backbay.auto' applies it.")  # fmt: skip
@json_option
@click.option("--html", "html_path", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Write one self-contained HTML page.")  # fmt: skip
def command(
    *,
    workloads: tuple[str, ...],
    backends: str | None,
    arms: str | None,
    scopes: str,
    objective: Kind,
    calls: int | None,
    warm: bool,
    memory_limit: str | None,
    dynamic: bool | None,
    fullgraph: bool,
    require_all: bool,
    train: bool,
    dtype: str,
    device: str | None,
    size: str | None,
    batch: tuple[int, ...] | None,
    seed: int,
    timeout: float,
    seconds: float,
    timing_limit: float,
    quick: bool,
    jobs: int | None,
    against: Path | None,
    fail_below: float | None,
    results: Path | None,
    ray: str | None,
    device_name: str | None,
    anew: bool,
    keep: bool,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Race arms on WORKLOADs: prove each right, time them side by side, say which to use.

    A WORKLOAD is decoder (built in, the default), hf:NAME, diffusers:NAME, timm:NAME, or your own
    file.py:function or module:function that returns (model, args), (model, args, kwargs) or a
    backbay.Workload.

    CAMPAIGN.toml in place of WORKLOADs lists many, each with its arms. Finished races are kept.

    An arm is a backend with a mode and options: backend[@mode][{option: value, ...}][ on SCOPE].
    A named backend that is not ready is a row with its reason.

    Exit code 0: every workload was raced, even if a backend failed. 1: a workload could not be
    raced, because it died or eager failed; or with --fail-below a row failed. 2: something named
    does not exist, or a file can't be written; a backend does not take its mode or options; none of
    the named backends is ready, or with --require-all one is not. An interrupted race writes what
    it has, marked partial, and ends with 130 or 143.
    """
    sys.path.append(str(Path.cwd()))  # modules named by reference are looked for here, last
    from backbay.cli.race_progress import watching  # noqa: PLC0415 (rich is loaded to draw only)

    check_writable(json_path, html_path)
    if ray is not None and ray.endswith(".toml"):  # it stands where an address may
        workloads, ray = (*workloads, ray), ""
    file = campaign.named(workloads)
    if file is not None:
        campaign.check_options(click.get_current_context(), file)
        campaign.race(
            file,
            results=results,
            ray=ray,
            device_name=device_name,
            anew=anew,
            keep=keep,
            json_path=json_path,
            html_path=html_path,
        )
        return
    if ray is not None:
        raise InputError("--ray races a campaign: name its TOML file")
    earlier = _earlier(against, fail_below, mode="train" if train else "infer", dtype=dtype)
    decided_by = Objective(
        kind=objective,
        calls=calls,
        warm=warm,
        memory_limit=None if memory_limit is None else parse_size(memory_limit),
    )
    names = None
    if backends is not None:
        names = [PluginName(name.strip()) for name in backends.split(",") if name.strip()]

    def finished(report: Report) -> Report:
        if earlier is not None:
            report = replace(report, against=compared(report, earlier, fail_below))
        _write(report, json_path, html_path)
        return report

    with written_anyway(finished), watching() as watch:
        report = run(
            workloads or DEFAULT,
            backends=names,
            arms=arms or (),
            scopes=[x.strip() for x in scopes.split(",") if x.strip()],
            objective=decided_by,
            dynamic=dynamic,
            fullgraph=fullgraph,
            require_all=require_all,
            train=train,
            dtype=dtype,
            device=device,
            size=size,
            batch=batch,
            seed=seed,
            limits=Limits(backend_s=timeout, timing_s=seconds, whole_s=timing_limit, at_once=jobs),
            quick=quick,
            store=Store() if keep else None,
            tell=watch.tell,
            on_row=watch.row,
        )
    failures = list(_failures(finished(report)))
    for failure in failures:
        click.echo(f"backbay: {plain(failure)}", err=True)
    if failures:
        sys.exit(1)


def _earlier(
    path: Path | None, fail_below: float | None, *, mode: Mode, dtype: str
) -> Report | None:
    if path is None:
        if fail_below is not None:
            raise InputError("--fail-below needs an earlier race: name it with --against OLD.json")
        return None
    report = read(path)
    check_comparable(report, mode=mode, dtype=dtype)
    return report


def _failures(report: Report) -> Iterator[str]:
    """Yield what the exit code 1 is for."""
    for decision in report.unraced:
        yield f"{decision.workload}: {decision.sentence}"
    comparison = report.against
    if comparison is None or comparison.fail_below is None:
        return
    if not any(row.compared for row in comparison.rows):
        yield comparison.sentence
    for row in comparison.failed:
        yield f"{row.workload} with {row.arm}: {row.reason}"


def _write(report: Report, json_path: Path | None, html_path: Path | None) -> None:
    from backbay.race.table import table  # noqa: PLC0415 (rich is loaded to draw only)

    def page(path: Path) -> None:
        from backbay.race.page import write_page  # noqa: PLC0415 (matplotlib takes a second)

        write_page(report, path)

    write(report, table(report), json_path, (html_path, page) if html_path is not None else None)
