"""What is asked of the process that holds goldens and compares, and what it replies. No torch."""

import msgspec

from backbay.judge import Piece
from backbay.session import Service
from backbay.verify.record import CheckRecord
from backbay.workloads.setup import Mode


class Keep(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """Open the files of one mode, which nobody else can open afterwards."""

    mode: Mode
    bank: str
    goldens: tuple[tuple[str, str], ...]
    """Name and file of each, those of trained parameters too."""


class KeepOne(msgspec.Struct, frozen=True, kw_only=True, tag="keep_one"):
    """Open one more golden, in the place of an earlier one of that name."""

    mode: Mode
    name: str
    path: str


class Reveal(msgspec.Struct, frozen=True, kw_only=True, tag="reveal"):
    """Write the inputs of one set to a file."""

    mode: Mode
    inputs: int
    path: str


class Weigh(msgspec.Struct, frozen=True, kw_only=True, tag="weigh"):
    """Compare what one run of a backend gave with a golden."""

    mode: Mode
    golden: str
    check: str
    """How the check is called."""
    path: str
    divided: bool
    """Whether forward, gradients and state are checks of their own."""


class WeighCalls(msgspec.Struct, frozen=True, kw_only=True, tag="weigh_calls"):
    """Compare what several calls gave; the worst counts."""

    mode: Mode
    check: str
    pieces: tuple[Piece, ...]


class Drift(msgspec.Struct, frozen=True, kw_only=True, tag="drift"):
    """Compare the parameters that a free training ended at."""

    mode: Mode
    path: str


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag="kept"):
    """It was done."""


class Weighed(msgspec.Struct, frozen=True, kw_only=True, tag="weighed"):
    """What came of it."""

    checks: tuple[CheckRecord, ...]


class Drifted(msgspec.Struct, frozen=True, kw_only=True, tag="drifted"):
    """Distance of the trained parameters from the truth's, over that of eager's."""

    drift: float | None


Request = Keep | KeepOne | Reveal | Weigh | WeighCalls | Drift
Reply = Kept | Weighed | Drifted

SERVICE = Service[Request, Reply](
    "backbay.verify.weighing:WeighingHandler",
    {
        Keep: Kept,
        KeepOne: Kept,
        Reveal: Kept,
        Weigh: Weighed,
        WeighCalls: Weighed,
        Drift: Drifted,
    },
)
