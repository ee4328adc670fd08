"""What is asked of the processes of a judge, and what they reply. No torch here."""

import msgspec

from backbay.session import Service
from backbay.workloads.setup import WorkloadSetup


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Run eager and float64 truth for every set of inputs, and keep the results in a file."""

    setup: WorkloadSetup
    bank: str
    """Path of the file to write."""
    seeds: tuple[int, ...]
    """What further sets of inputs are drawn from; backends don't get them."""


class Keep(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """Open the file of results, which nobody else can open afterwards."""

    bank: str


class Reveal(msgspec.Struct, frozen=True, kw_only=True, tag="reveal"):
    """Write the inputs of one set to a file."""

    inputs: int
    path: str


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a backend gave."""

    path: str
    inputs: int
    """Which set it was called with."""
    what: str
    """Which call it was, for the verdict."""
    picked: int | None = None
    """What the elements were drawn from that were handed on; all were if there is none."""
    row: bool = False
    """Whether it was two calls in a row."""
    timed: bool = False
    """Whether it was called while a clock ran: then nobody looked at the parameters."""


class Compare(msgspec.Struct, frozen=True, kw_only=True, tag="compare"):
    """Compare what a backend gave with the truth."""

    pieces: tuple[Piece, ...]


Request = Prepare | Keep | Reveal | Compare


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """The results are in the file."""

    workload: str
    """Its canonical name."""
    digest: str
    """Of its parameters and inputs: who builds it anew must get the same."""
    device_name: str
    peak_bytes: int | None
    """Of one step of eager."""
    free_bytes: int | None
    """Of the device, or of the machine where that is a CPU."""
    seeds: tuple[int, ...]
    """Of each set of inputs, what the elements are drawn from that are kept; the first keeps all,
    and has 0 here."""
    reduced: bool
    """Whether the inputs are smaller than the workload's own."""
    draws_random: bool
    math_attention: bool
    changes_state: bool
    """Whether a step changes buffers or inputs."""
    state_matters: bool
    """Whether the next one then gives something else."""
    row: tuple[int, ...]
    """Which sets of inputs calls in a row have that can be judged; none if they can't."""
    calls: tuple[str, ...]
    """What a step's calls differ by, where it has several."""
    notes: tuple[str, ...]


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag="kept"):
    """The results are in this process."""


class Revealed(msgspec.Struct, frozen=True, kw_only=True, tag="revealed"):
    """The inputs are in the file."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what was compared is right, and the worst of it."""

    passed: bool
    reason: str
    """Why it failed, or what it passed; one sentence."""
    where: str | None = None
    """The tensor with the largest error relative to what is allowed, for example ``output[0]``."""
    worst: float | None = None
    """The largest absolute difference from float64 truth in that tensor."""
    index: tuple[int, ...] | None = None
    """Where in that tensor it is."""
    ulps: float | None = None
    """The same difference in units in the last place of the working dtype."""
    ratio: float | None = None
    """Root-mean-square error over eager's own root-mean-square error, in that tensor."""
    allowed: float | None = None
    """The error over what is allowed, by the strictest of the tests: above 1 is wrong."""
    tensors: int = 0
    """How many tensors were compared of one call, the one of which most were."""


class Judged(Judgement, frozen=True, kw_only=True, tag="judged"):
    """The judgement of all calls."""

    what: str
    """Which call was the worst."""


Reply = Prepared | Kept | Revealed | Judged

SERVICE = Service[Request, Reply](
    "backbay.judge.handler:JudgeHandler",
    {Prepare: Prepared, Keep: Kept, Reveal: Revealed, Compare: Judged},
)
