"""A record as one HTML file, which needs nothing else: no network, no font.

Everything that comes from a record is escaped by the template; the record itself is embedded as
JSON, so that the page is also the record. ``page.html.jinja`` beside this file is what every page
extends: it has the theme, the order of things and the embedded record.
"""

import math
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
import msgspec

from backbay.errors import escaped, plain
from backbay.reporting.embedding import embedded
from backbay.reporting.wording import counted, short, size


def rendered(
    package: str,
    record: msgspec.Struct,
    *,
    noun: str,
    most_embedded: float = math.inf,
    **values: Any,
) -> str:
    """Return a package's ``page.html.jinja``, filled in.

    Args:
        package: where the template is.
        record: what the page shows; the template knows it as ``record``.
        noun: what the page calls the record.
        most_embedded: characters of JSON; a longer record is not embedded, and the page says so.
        values: what else the template needs.
    """
    environment = jinja2.Environment(
        loader=jinja2.PrefixLoader(
            {
                "reporting": jinja2.PackageLoader("backbay.reporting", ""),
                "own": jinja2.PackageLoader(package, ""),
            }
        ),
        autoescape=True,
        finalize=visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(plain=plain, short=short)
    template = environment.get_template("own/page.html.jinja")
    json = embedded(record)
    return template.render(
        record=record,
        noun=noun,
        json=json if len(json) <= most_embedded else "",
        json_size=size(len(json)),
        counted=counted,
        **values,
    )


def visible(value: Any) -> Any:
    """Return what a template prints, escaped; what is made of markup is ours, and is left."""
    return escaped(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def compiled_as(dynamic: bool | None, *, fullgraph: bool) -> Iterator[str]:
    """Yield the options of a command that ask for what torch.compile was asked for."""
    if dynamic is not None:
        yield "--dynamic" if dynamic else "--no-dynamic"
    if fullgraph:
        yield "--fullgraph"


def command(
    question: str,
    workloads: Iterable[str],
    chosen: Iterable[str],
    *,
    mode: str,
    dtype: str,
    device: str,
    seed: int,
) -> str:
    """Return the command that asks a question again, quoted for a shell.

    Args:
        question: the command's name.
        workloads: references.
        chosen: further options and their values.
        mode: ``infer`` or ``train``.
        dtype: as the command takes it.
        device: likewise.
        seed: likewise.
    """
    train = ["--train"] if mode == "train" else []
    where = ["--dtype", dtype, "--device", device, "--seed", str(seed)]
    return shlex.join(["backbay", question, *workloads, *chosen, *train, *where])
