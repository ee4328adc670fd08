"""Types of options that several commands have."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from backbay.errors import InputError
from backbay.ranges import LARGEST_SEED, LONGEST_S


class _Seconds(click.FloatRange):
    """A time to wait."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):  # no comparison with a bound sees it
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


class _Matching(click.types.StringParamType):
    """Text of one form."""

    def __init__(self, name: str, pattern: str, wanted: str) -> None:
        self.name = name
        self._pattern, self._wanted = pattern, wanted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if re.fullmatch(self._pattern, value) is None:
            self.fail(f"{value!r} is not {self._wanted}.", param, ctx)
        return str(value)


class ByCommas(click.Option):
    """An option that takes several by commas, and is added to where it is given again."""

    def __init__(self, *declared: Any, **settings: Any) -> None:
        super().__init__(*declared, **settings | {"multiple": True})

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return all of them by commas; None where there are none."""
        given = super().process_value(ctx, value)
        return ",".join(given) if given else None


class _Batches(click.ParamType):  # type: ignore[type-arg] # generic in newer clicks only
    """Numbers of rows, by commas."""

    name = "batches"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        words = [x.strip() for x in value.split(",") if x.strip()]
        wrong = [x for x in words if not re.fullmatch(r"[1-9][0-9]{0,8}", x)]
        if wrong or not words:
            self.fail(f"{value!r} is not numbers of rows by commas, as in 1,8,64.", param, ctx)
        return tuple(map(int, words))


class _Options(click.ParamType):  # type: ignore[type-arg] # as above
    """Options of a backend, as an arm has them."""

    name = "options"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        from backbay.decisions import parse_options  # noqa: PLC0415 (SQLite, for few commands)

        try:
            return parse_options(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


class _JsonFile(click.Path):
    """A file for JSON; what is more likely another argument, after ``--json`` alone, is refused."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        name = Path(value).name
        if value != "-" and (":" in name or ("." not in name and os.sep not in str(value))):
            self.fail(
                f"{str(value)!r} looks like no file: write --json last, or name a FILE.json.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


BATCHES = _Batches()
OPTIONS = _Options()
SECONDS = _Seconds(min=0, min_open=True, max=LONGEST_S)
SECONDS_OR_NONE = _Seconds(min=0, max=LONGEST_S)
SEED = click.IntRange(min=0, max=LARGEST_SEED)
DEVICE = _Matching(
    "text", r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]{0,2}))?", "a device such as cpu, cuda or cuda:1"
)
DEVICE_TYPE = _Matching("text", r"[a-z][a-z0-9_]*", "a device type such as cpu or cuda")

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add ``--json [FILE]``: everything as JSON, alone on standard output if no file is named.

    Messages, and what a command would draw, go to standard error then; exit codes are the same.
    """
    option = click.option(
        "--json",
        "json_path",
        type=_JsonFile(),
        is_flag=False,
        flag_value="-",
        default=None,
        metavar="[FILE]",
        help="Write everything as JSON: to FILE, else to standard output.",
    )
    return option(command)


def compiled_as(command: Command) -> Command:
    """Add what torch.compile is asked for beside a backend, mode and options."""
    dynamic = click.option(
        "--dynamic/--no-dynamic", default=None, help="As torch.compile(dynamic=...)."
    )
    fullgraph = click.option("--fullgraph", is_flag=True, help="As torch.compile(fullgraph=True).")
    return dynamic(fullgraph(command))


def configured(command: Command) -> Command:
    """Add mode and options of a backend; both may be given, unlike to torch.compile."""
    mode = click.option("--mode", help="As torch.compile(mode=...).")
    options = click.option(
        "--options",
        type=OPTIONS,
        metavar="{NAME: VALUE, ...}",
        help="As torch.compile(options=...), written as in an arm of a race.",
    )
    return mode(options(command))
