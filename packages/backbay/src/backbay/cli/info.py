"""``backbay info``: everything that is known of one backend."""

from pathlib import Path
from typing import Any

import click

from backbay.cli.completion import complete_backend
from backbay.cli.document import written
from backbay.cli.elsewhere import elsewhere, interpreter, print_header
from backbay.cli.entry import entry, sources
from backbay.cli.parameters import DEVICE_TYPE, json_option
from backbay.errors import escaped
from backbay.registry import BackendSpec, KnownFault, Option, Resolution
from backbay.registry.availability import matching
from backbay.registry.known import KnownBackends
from backbay.registry.spec import as_data

SCHEMA = "backbay.info/2"

_EXAMPLES = """
\b
Examples:
  backbay info inductor
  backbay info openvino --device cpu
  backbay info tensorrt --json
  backbay info openvino --venv .venv    as another environment has it
"""


@click.command("info", epilog=_EXAMPLES)
@click.argument("name", shell_complete=complete_backend)
@click.option(
    "--device", type=DEVICE_TYPE, help="Ask for this device type; default: any that is here."
)
@elsewhere
@json_option
def command(
    *, registry: KnownBackends, name: str, device: str | None, json_path: Path | None
) -> None:
    """Show what is known of backend NAME, without importing it.

    Every candidate for the name is shown: which one wins and by which rule, what it shadows, and
    what is blocked by which setting. What nobody has declared is unknown, and is left out.
    """
    resolution = registry.resolution(name)
    document = _document(registry, resolution, device)
    said = {"schema": SCHEMA, "interpreter": interpreter(registry), **document}
    if not written(said, json_path):
        print_header(registry)
        _print(document, resolution.spec)


def _document(
    registry: KnownBackends, resolution: Resolution, device: str | None
) -> dict[str, Any]:
    spec, here = resolution.spec, registry.environment
    document = entry(resolution, registry.availability(resolution.name, device))
    limits = matching(spec.limits, spec, here)
    return {
        **document,
        "spec": as_data(spec),
        "requires": as_data(spec.requires),
        "install": spec.install_beside(here.torch_build.get("__version__")),
        "shadowed": [str(x.spec.origin) for x in resolution.candidates[1:]],
        "limits_here": [as_data(x) for x in limits],
        "candidates": [
            {"origin": str(x.spec.origin), "standing": x.standing, "why": x.why}
            for x in resolution.candidates
        ],
        "policy": sources(registry),
    }


def _print(document: dict[str, Any], spec: BackendSpec) -> None:
    from rich.table import Table  # noqa: PLC0415 (rich only where something is drawn)
    from rich.text import Text  # noqa: PLC0415

    from backbay.cli.console import Screen  # noqa: PLC0415

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {**_state(document), **_declared(document, spec), **_rest(document)}
    for label, value in rows.items():
        if value:
            table.add_row(label, Text(escaped(str(value))))
    Screen().print(table)


def _state(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "backend": document["name"],
        "summary": document["summary"] or "not declared",
        "state": document["state"],
        "why": document["reason"],
        "what to do": document["remedy"],
        "origin": document["origin"],
        "tags": ", ".join(document["tags"]),
    }


def _declared(document: dict[str, Any], spec: BackendSpec) -> dict[str, Any]:
    requires, traits = spec.requires, spec.traits
    flags = ("training", "dynamic_shapes", "mutation", "boxed", "mode", "options", "name")
    said = {flag: getattr(traits, flag) for flag in flags}
    promises = {"run_to_run": traits.run_to_run, "batch_invariant": traits.batch_invariant}
    needs = [
        *requires.distributions,
        *([f"torch{requires.torch}"] if requires.torch else []),
        *([f"Python{requires.python}"] if requires.python else []),
        *requires.platforms,
        *(f"module {x}" for x in requires.modules),
        *(f"${x}" for x in requires.environment),
        *(f"{tool} (for {device})" for device, tool in requires.tools),
    ]
    return {
        "another name of": spec.alias_of,
        "devices": ", ".join(spec.devices) or "not declared",
        "dtypes": ", ".join(traits.dtypes or ()),
        "takes": ", ".join(flag for flag, yes in said.items() if yes),
        "does not take": ", ".join(flag for flag, yes in said.items() if yes is False),
        "promises": ", ".join(promise for promise, yes in promises.items() if yes),
        "does not promise": ", ".join(promise for promise, yes in promises.items() if yes is False),
        "options": _options(spec),
        "reserved names": ", ".join(spec.reserved_launch_param_names or ()),
        "needs": ", ".join(needs),
        "install": document["install"],
        "home page": spec.homepage,
        "described by": spec.declared_by,
    }


def _options(spec: BackendSpec) -> str:
    inductors = "those of torch._inductor.config"
    if spec.options == "inductor":
        return inductors
    lines = [_option(x) for x in spec.options or ()]
    if spec.further_options == "inductor":
        lines.append(f"and {inductors}" if lines else inductors)
    return "\n".join(lines)


def _option(option: Option) -> str:
    default = "" if option.default is None else f" = {option.default!r}"
    choices = f"one of {', '.join(map(repr, option.choices))}" if option.choices else ""
    return ", ".join(
        x for x in (f"{option.name}: {option.type}{default}", choices, option.help) if x
    )


def _rest(document: dict[str, Any]) -> dict[str, Any]:
    others = document["candidates"][1:]
    limits = [KnownFault(**x) for x in document["limits_here"]]
    rest = {
        "rule": document["candidates"][0]["why"],
        "policy": "\n".join(document["policy"]),
        "known limits": "\n".join(
            x.reason + (f" ({x.remedy})" if x.remedy else "") for x in limits
        ),
    }
    for number, x in enumerate(others, 1):
        rest[f"also claimed {number}"] = f"{x['origin']}: {x['standing']}: {x['why']}"
    return rest
