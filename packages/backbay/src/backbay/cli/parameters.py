"""Types of options that several commands have."""

import math
import re
from typing import Any

import click

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


BATCHES = _Batches()
SECONDS = _Seconds(min=0, min_open=True, max=LONGEST_S)
SECONDS_OR_NONE = _Seconds(min=0, max=LONGEST_S)
SEED = click.IntRange(min=0, max=LARGEST_SEED)
DEVICE = _Matching(
    "text", r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]{0,2}))?", "a device such as cpu, cuda or cuda:1"
)
DEVICE_TYPE = _Matching("text", r"[a-z][a-z0-9_]*", "a device type such as cpu or cuda")
