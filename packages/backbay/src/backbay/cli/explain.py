"""``backbay explain``: what torch.compile and a backend do with a model."""

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from backbay.cli.completion import complete_backend, complete_workload_or_code
from backbay.cli.document import written
from backbay.cli.files import check_writable
from backbay.cli.model_options import built_as, end, fail_on
from backbay.cli.output import write
from backbay.cli.parameters import compiled_as, configured, json_option
from backbay.explain import Code, Explanation, failing, named, run, selection
from backbay.registry.names import PluginName
from backbay.workloads import DEFAULT

FINDING = "backbay.finding/1"

_EXAMPLES = """
\b
Examples:
  backbay explain
  backbay explain train.py:model --backend backbay_silu --html explain.html
  backbay explain hf:bert --backend my_backend.py:compile --train --json -
  backbay explain train.py:model --backend inductor --mode reduce-overhead --dynamic
  backbay explain train.py:model --fail-on BB1,BB204
  backbay explain BB101
"""


@click.command("explain", epilog=_EXAMPLES)
@click.argument("workload", default=DEFAULT, shell_complete=complete_workload_or_code)
@click.option("--backend", shell_complete=complete_backend,
              help="A name, module:function or file.py:function.")  # fmt: skip
@configured
@compiled_as
@click.option("--train/--infer", default=False, help="Forward and backward, or forward alone.")
@built_as
@click.option("--once", is_flag=True, help="Call it once: look for no recompiles.")
@fail_on
@json_option
@click.option("--html", "html_path", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Write one self-contained HTML page, with the graphs drawn.")  # fmt: skip
def command(
    *,
    workload: str,
    backend: str | None,
    mode: str | None,
    options: dict[str, Any] | None,
    dynamic: bool | None,
    fullgraph: bool,
    train: bool,
    dtype: str,
    device: str | None,
    size: str | None,
    seed: int,
    once: bool,
    codes: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Explain what torch.compile and a backend do with WORKLOAD.

    What to change, with your own lines: graph breaks, what is compiled again, copies, patterns that
    nearly fit. Then graphs, passes, guards and calls. A WORKLOAD is named as for a race: decoder
    (built in, the default), hf:NAME, diffusers:NAME, timm:NAME, file.py:function or
    module:function. In place of it, the code of a finding says what that is.

    What the model and the backend print goes to standard error. Exit code 1: the model or the
    backend raised, and the explanation says what, and where; or --fail-on names what was found.
    """
    code = named(workload)
    if code is not None:
        _say(code, json_path)
        return
    wanted = selection(codes)
    sys.path.append(str(Path.cwd()))  # modules named by reference are looked for here, last
    check_writable(json_path, html_path)
    with contextlib.redirect_stdout(sys.stderr):
        explanation = run(
            workload,
            backend=None if backend is None else PluginName(backend),
            mode=mode,
            options=options,
            dynamic=dynamic,
            fullgraph=fullgraph,
            train=train,
            dtype=dtype,
            device=device,
            size=size,
            seed=seed,
            again=not once,
        )
    _write(explanation, json_path, html_path)
    end(failing(explanation, wanted), raised=explanation.problem is not None)


def _say(code: Code, json_path: Path | None) -> None:
    document = {"schema": FINDING, **dataclasses.asdict(code), "page": code.page}
    if written(document, json_path):
        return
    click.echo(f"{code.code}: {code.title} ({code.severity})")
    for text in (code.what, code.why, code.fix, f"An example: {code.page}"):
        click.echo(f"  {text}")


def _write(explanation: Explanation, json_path: Path | None, html_path: Path | None) -> None:
    from backbay.explain.text import text  # noqa: PLC0415 (rich is loaded to draw only)

    def page(path: Path) -> None:
        from backbay.explain.page import write_page  # noqa: PLC0415 (jinja2)

        write_page(explanation, path)

    html = (html_path, page) if html_path is not None else None
    write(explanation, text(explanation), json_path, html)
