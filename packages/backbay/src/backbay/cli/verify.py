"""``backbay verify``: is a backend right on a model, and where does it begin to be wrong."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from backbay.cli.completion import complete_backends, complete_workload
from backbay.cli.files import check_writable
from backbay.cli.model_options import built_as
from backbay.cli.output import write, written_anyway
from backbay.cli.parameters import (
    SECONDS,
    SECONDS_OR_NONE,
    ByCommas,
    compiled_as,
    configured,
    json_option,
)
from backbay.errors import InputError
from backbay.registry.names import PluginName
from backbay.verify import DEFAULT_BACKEND, Limits, Report, run
from backbay.workloads import DEFAULT

_SIZE = re.compile(r"[0-9]{1,9}")

_EXAMPLES = """
\b
Examples:
  backbay verify
  backbay verify hf:bert --backends inductor,aot_eager
  backbay verify hf:bert --mode max-autotune --options "{epilogue_fusion: true}" --dynamic
  backbay verify train.py:model --backend my_backend.py:compile --train --dtype bfloat16
"""


@click.command("verify", epilog=_EXAMPLES)
@click.argument("workload", default=DEFAULT, shell_complete=complete_workload)
@click.option("--backend", "--backends", "backends", cls=ByCommas, default=(DEFAULT_BACKEND,),
              show_default=True, shell_complete=complete_backends,
              help="Names, module:function or file.py:function, by commas.")  # fmt: skip
@configured
@compiled_as
@click.option("--train/--infer", default=None,
              help="With gradients, in training mode, or without, in eval mode.  [default: both]",
              )  # fmt: skip
@built_as
@click.option("--steps", type=click.IntRange(1, 1_000), default=3, show_default=True,
              help="Steps of training.")  # fmt: skip
@click.option("--batches", help="Further batch sizes, by commas.  [default: two]")
@click.option("--timeout", type=SECONDS, default=Limits().check_s, show_default=True,
              help="Seconds for one check and its compilation.")  # fmt: skip
@click.option("--blame", type=SECONDS_OR_NONE, default=Limits().blame_s, show_default=True,
              help="Seconds to search for the first faulty module; 0: don't.")  # fmt: skip
@json_option
def command(
    *,
    workload: str,
    backends: str,
    mode: str | None,
    options: dict[str, Any] | None,
    dynamic: bool | None,
    fullgraph: bool,
    train: bool | None,
    dtype: str,
    device: str | None,
    size: str | None,
    seed: int,
    steps: int,
    batches: str | None,
    timeout: float,
    blame: float,
    json_path: Path | None,
) -> None:
    """Prove a backend right or wrong on WORKLOAD, and name the first faulty module.

    Forward, gradients, steps of training and other batch sizes, all compared with float64. A
    WORKLOAD is named as for a race: decoder (built in, the default), hf:NAME, diffusers:NAME,
    timm:NAME, file.py:function or module:function.

    Exit code 0: everything is right. 1: something is not, or could not be proven. 2: something
    named does not exist, or a file can't be written. When interrupted, it writes what it has,
    marked partial, and ends with 130 or 143.
    """
    sys.path.append(str(Path.cwd()))  # modules named by reference are looked for here, last
    from backbay.cli.progress import progress  # noqa: PLC0415 (rich is loaded to draw only)

    check_writable(json_path)
    with written_anyway(lambda report: _write(report, json_path)), progress() as tell:
        report = run(
            workload,
            backends=[PluginName(name.strip()) for name in backends.split(",") if name.strip()],
            mode=mode,
            options=options,
            dynamic=dynamic,
            fullgraph=fullgraph,
            train=train,
            dtype=dtype,
            device=device,
            size=size,
            seed=seed,
            steps=steps,
            batches=_sizes(batches),
            limits=Limits(check_s=timeout, blame_s=blame),
            tell=tell,
        )
    _write(report, json_path)
    if not report.passed:
        sys.exit(1)


def _write(report: Report, json_path: Path | None) -> None:
    from backbay.verify.text import text  # noqa: PLC0415 (rich is loaded to draw only)

    write(report, text(report), json_path, None)


def _sizes(given: str | None) -> list[int] | None:
    if given is None:
        return None
    words = [word.strip() for word in given.split(",") if word.strip()]
    wrong = [word for word in words if not _SIZE.fullmatch(word)]
    if wrong:
        raise InputError(f"--batches takes numbers by commas, as in 3,8: {wrong[0]!r} is none")
    return [int(word) for word in words]
