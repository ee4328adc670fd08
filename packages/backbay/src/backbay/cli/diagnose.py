"""``backbay diagnose``: what makes a model slow under torch.compile, and what helps."""

import sys
from pathlib import Path
from typing import Any

import click

from backbay.cli.completion import complete_backend, complete_workload
from backbay.cli.files import check_writable
from backbay.cli.model_options import built_as, end, fail_on
from backbay.cli.output import write
from backbay.cli.parameters import (
    SECONDS,
    SECONDS_OR_NONE,
    compiled_as,
    configured,
    json_option,
)
from backbay.diagnose import Diagnosis, Limits, run
from backbay.explain import failing, selection
from backbay.registry.names import PluginName
from backbay.workloads import DEFAULT

_EXAMPLES = """
\b
Examples:
  backbay diagnose
  backbay diagnose train.py:model --train --budget 300
  backbay diagnose hf:bert --backend backbay --json report.json
  backbay diagnose timm:resnet18 --html report.html
  backbay diagnose train.py:model --fail-on BB1,BB204
"""


@click.command("diagnose", epilog=_EXAMPLES)
@click.argument("workload", default=DEFAULT, shell_complete=complete_workload)
@click.option("--backend", default="inductor", show_default=True, shell_complete=complete_backend,
              help="A name, module:function or file.py:function.")  # fmt: skip
@configured
@compiled_as
@click.option("--train/--infer", default=False, help="Forward and backward, or forward alone.")
@built_as
@click.option("--budget", type=SECONDS_OR_NONE, default=Limits().budget_s, show_default=True,
              help="Seconds to try remedies; 0: don't.")  # fmt: skip
@click.option("--timeout", type=SECONDS, default=Limits().request_s, show_default=True,
              help="Seconds for one compilation.")  # fmt: skip
@fail_on
@json_option
@click.option("--html", "html_path", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Write one self-contained HTML page, with code and graphs.")  # fmt: skip
def command(
    *,
    workload: str,
    backend: str,
    mode: str | None,
    options: dict[str, Any] | None,
    dynamic: bool | None,
    fullgraph: bool,
    train: bool,
    dtype: str,
    device: str | None,
    size: str | None,
    seed: int,
    budget: float,
    timeout: float,
    codes: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Find what makes WORKLOAD slow under torch.compile, and try what may help.

    What to fix first comes first. Each remedy that can be carried out is tried: proven right, and
    timed beside what there was. Then: where a step's time goes, kernel by kernel, with your own
    lines. A WORKLOAD is named as for a race: decoder (built in, the default), hf:NAME,
    diffusers:NAME, timm:NAME, file.py:function or module:function.

    Exit code 1: the model or the backend raised, or --fail-on names what was found.
    """
    wanted = selection(codes)
    sys.path.append(str(Path.cwd()))  # modules named by reference are looked for here, last
    from backbay.cli.progress import progress  # noqa: PLC0415 (rich is loaded to draw only)

    check_writable(json_path, html_path)
    with progress() as tell:
        diagnosis = run(
            workload,
            backend=PluginName(backend),
            mode=mode,
            options=options,
            dynamic=dynamic,
            fullgraph=fullgraph,
            train=train,
            dtype=dtype,
            device=device,
            size=size,
            seed=seed,
            limits=Limits(budget_s=budget, request_s=timeout),
            tell=tell,
        )
    report(diagnosis, json_path, html_path)
    end(failing(diagnosis, wanted), raised=diagnosis.explanation.problem is not None)


def report(
    diagnosis: Diagnosis, json_path: Path | None, html_path: Path | None, *, stderr: bool = False
) -> None:
    """Draw a diagnosis, and write it as it is asked for.

    Args:
        diagnosis: what was found.
        json_path: a file, or ``-`` for standard output.
        html_path: a file for the page.
        stderr: whether it is drawn to standard error anyway.
    """
    from backbay.diagnose.text import text  # noqa: PLC0415 (rich is loaded to draw only)

    def page(path: Path) -> None:
        from backbay.diagnose.page import write_page  # noqa: PLC0415 (jinja2)

        write_page(diagnosis, path)

    html = (html_path, page) if html_path is not None else None
    write(diagnosis, text(diagnosis), json_path, html, stderr=stderr)
