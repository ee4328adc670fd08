"""Prove every backend and every pass that ships: forward and backward, on models.

    python tools/golden_sweep.py [WORKLOAD ...] [--only NAME ...] > LOG

Each backend, and each pass as the only one of a small backend, is held against eager and float64
truth, in float32 and in bfloat16, with static shapes and with ``dynamic=True``. With dynamic shapes
a second batch size is proven too, by what was compiled for the first. Torch's own ``aot_eager`` and
``inductor`` are in the table to tell whose a failure is, and how often Dynamo itself compiles anew.

Where torch's own backend fails in the same words, the row is TORCH'S, and what it could not show is
shown another way: with three batch sizes, the size being the only symbol that Dynamo makes, once it
has seen two. A row that fails like torch's own there, too, is not right.

A pass that changes nothing is trivially right: the table says how much each changed, and the end
names those that changed nothing anywhere. Exit code 1: something is wrong.
"""

import argparse
import contextlib
import dataclasses
import datetime as dt
import importlib.metadata
import io
import itertools
import os
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters

from backbay.causes import one_line
from backbay.kit import rewrites
from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.passes import Pass
from backbay.proof import Golden, Proof, Verdict, Workload, make_golden, observe
from backbay.registry import CompilerFn, default_registry
from backbay.workloads import parse
from backbay.workloads.loading import load
from backbay.workloads.timm_models import CrossEntropy
from backbay_optimizer.backend import Optimizing

WORKLOADS = (
    "decoder",
    "hf:bert",
    "hf:gpt2",
    "timm:convnext_tiny",
    "timm:resnet18",
    f"{__file__}:spelled",
)
CONTROLS = ("aot_eager", "inductor")
"""Torch's own, by which a failure of ours is told from one of theirs."""
DTYPES = (torch.float32, torch.bfloat16)
PASSES: tuple[Pass, ...] = (
    *(dataclasses.replace(x, enabled=True) for x in Optimizing.passes),
    *(getattr(rewrites, x) for x in rewrites.__all__),
)
AT_BOTH = (
    "common_subexpressions",
    "fold_constants",
    "fold_scalar_chain",
    "remove_dead_code",
    "rewrite_silu",
)
"""Passes that are written for ATen graphs, too."""
INFERENCE = (
    "eager_convolutions",
    "few_row_linears",
    "float8_rows",
    "fused_convolutions",
    "linear_epilogues",
    "horizontal_fusion",
    "one_row_linears",
    "one_token_attention",
    "parameter_hoist",
    "product_epilogues",
    "rotated_heads",
)
"""Passes that leave training alone; five of them are for CUDA, and here shown to do nothing."""
DEVICE = torch.device("cpu")
TORCH_BACKENDS = "TORCH'S"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is proven: a backend that ships, or one made of a single pass."""

    name: str
    compiler: CompilerFn
    is_control: bool = False
    is_aten: bool = False
    """Whether it is a pass on ATen graphs. AOTAutograd itself shares and drops nodes of training
    graphs, and of others not: such a pass is proven in inference, too."""

    @property
    def infers(self) -> bool:
        """Whether it is proven in inference: on ATen graphs, or with passes for that alone."""
        own = {x.name for x in getattr(self.compiler, "passes", ())}
        return self.is_aten or not own.isdisjoint(INFERENCE)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What it is proven on: golden outcomes of a workload, and how it is compiled."""

    name: str
    train: bool
    dtype: torch.dtype
    dynamic: bool | None
    """As torch.compile takes it; None: sizes become symbols once they are seen to differ."""
    goldens: tuple[tuple[Workload, Golden], ...]
    """One for each batch size, in the order in which they are run."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one subject in one case."""

    case: Case
    subject: Subject
    verdict: str
    """``right``, ``WRONG``, ``FAILED``: it raised, ``TORCH'S``: so did torch's own, in the same
    words, or ``ANEW``: compiled again where torch's own is not, for a later batch size."""
    reason: str = ""
    worst: Verdict | None = None
    graphs: tuple[int, ...] = ()
    """Compiled for each batch size."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """By pass."""

    def __str__(self) -> str:
        """Return the line of the table."""
        cells = (
            self.case.name,
            self.subject.name,
            "train" if self.case.train else "infer",
            str(self.case.dtype).removeprefix("torch."),
            SHAPES[self.case.dynamic],
            self.verdict,
            "" if self.worst is None else f"{self.worst.severity:.2f}",
            "" if self.worst is None or self.worst.ratio is None else f"{self.worst.ratio:.2f}",
            "+".join(map(str, self.graphs)),
            self._changed(),
        )
        return line(cells)

    def _changed(self) -> str:
        made = ", ".join(f"{name} {count}" for name, count in self.changes.items() if count)
        return made or ("nothing" if self.changes else "")


SHAPES: Mapping[bool | None, str] = {True: "dynamic", False: "static", None: "batch"}
"""What is a symbol: every size that can be, none, or the batch size."""
COLUMNS: Mapping[str, int] = {
    "workload": 23,
    "what": 29,
    "mode": 5,
    "dtype": 8,
    "shapes": 7,
    "verdict": 7,
    "of allowed": 10,
    "of eager's": 10,
    "graphs": 6,
    "changes": 0,
}
"""Heads of the table, and their widths in characters."""
LEGEND = """\
of allowed: the largest error of any tensor over what is allowed there; above 1 is wrong
of eager's: root-mean-square error over eager's own, in that tensor
shapes: dynamic: each size is a symbol; batch: the one that differs is, once that was seen
graphs: compiled for the first batch size, and anew for each other
changes: how many each pass made, to forward and backward graphs
"""


def main() -> int:
    """Prove everything, print the table, and tell whether all of it is right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these, beside torch's own")
    arguments = parser.parse_args()
    chosen = list(subjects())
    if arguments.only is not None:
        unknown = set(arguments.only) - {x.name for x in chosen}
        if unknown:
            parser.error(f"nothing that ships is called {', '.join(sorted(unknown))}")
        chosen = [x for x in chosen if x.is_control or x.name in arguments.only]
    print_head()
    rows = []
    with tempfile.TemporaryDirectory(prefix="golden-sweep-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # no result of an earlier run
        for case in itertools.chain.from_iterable(map(cases, arguments.workloads)):
            for row in swept_until_shown(case, chosen):
                print(row, flush=True)
                rows.append(row)
    print_summary(rows)
    return exit_code(rows)


def exit_code(rows: Sequence[Row]) -> int:
    """Return 0 if something of ours was proven and all of it is right, else 1."""
    ours = [x for x in rows if not x.subject.is_control and not _is_shown_elsewhere(x, rows)]
    return 0 if ours and all(x.verdict == "right" for x in ours) else 1


def _is_shown_elsewhere(row: Row, rows: Sequence[Row]) -> bool:
    """Whether what torch's own failure hid was proven right with the batch size alone."""
    case = dataclasses.replace(row.case, dynamic=None, goldens=())
    others = (x for x in rows if x.case.dynamic is None and x.subject.name == row.subject.name)
    same = [x for x in others if dataclasses.replace(x.case, goldens=()) == case]
    return row.verdict == TORCH_BACKENDS and any(x.verdict == "right" for x in same)


def subjects() -> Iterator[Subject]:
    """Yield torch's own backends, then each backend that ships, then each pass alone."""
    for name in CONTROLS:
        compiler = default_registry.lookup_backend(name)
        yield Subject(name=name, compiler=compiler, is_control=True, is_aten=name == "aot_eager")
    for name in shipped():
        yield Subject(name=name, compiler=default_registry.lookup_backend(name))
    for one in PASSES:
        yield alone(one)
        if one.name in AT_BOTH:
            yield alone(one.at("aten"))


def shipped() -> list[str]:
    """Return the names of Backbay's backends; one that only chooses another is none of its own."""
    names = default_registry.list_backends(exclude_tags=("alias",))
    ours = (default_registry.spec(name) for name in names)
    made_here = {"backbay", "backbay-optimizer"}
    return [x.name for x in ours if x.origin.distribution in made_here]


def alone(one: Pass) -> Subject:
    """Make a backend of a single pass, whose graph is then run as it is."""
    made = type("Alone", (Backend,), {"passes": (one,), "codegen": "eager"})()
    where = "" if one.level == "torch" else f" at {one.level}"
    return Subject(name=f"{one.name}{where}", compiler=made, is_aten=one.level == "aten")


def cases(reference: str) -> Iterator[Case]:
    """Build a workload in each dtype, and make its golden outcomes at two batch sizes."""
    for train, dtype in itertools.product((True, False), DTYPES):
        workload = load(reference, seed=0, dtype=dtype, device=DEVICE, train=train)
        name = workload.name if parse(reference).kind != "own" else reference.rpartition(":")[2]
        both = tuple((x, make_golden(x, train=train)) for x in (workload, one_more(workload)))
        yield Case(name=name, train=train, dtype=dtype, dynamic=False, goldens=both[:1])
        yield Case(name=name, train=train, dtype=dtype, dynamic=True, goldens=both)


def one_more(workload: Workload) -> Workload:
    """Return the workload with a batch that has one row more, like none of the others."""
    loss = workload.loss
    if isinstance(loss, CrossEntropy):
        loss = CrossEntropy(_longer(loss.labels))
    return dataclasses.replace(
        workload,
        args=tuple(map(_longer, workload.args)),
        kwargs={name: _longer(x) for name, x in workload.kwargs.items()},
        loss=loss,
        reduced=None,
    )


def _longer(batch: Any) -> Any:
    return torch.cat([batch, batch[:1].roll(len(batch), dims=-1)])


def by_batch(case: Case) -> Case:
    """Return the case with a third batch size, the sizes being found out by Dynamo itself."""
    workload = one_more(case.goldens[-1][0])
    third = (workload, make_golden(workload, train=case.train))
    return dataclasses.replace(case, dynamic=None, goldens=(*case.goldens, third))


def swept_until_shown(case: Case, chosen: Sequence[Subject]) -> Iterator[Row]:
    """Prove each subject on one case, and those that torch's failures hid by batch size alone."""
    hidden = []
    for row in swept(case, chosen):
        yield row
        if row.verdict == TORCH_BACKENDS:
            hidden.append(row.subject)
    if hidden:
        yield from swept(by_batch(case), [x for x in chosen if x.is_control or x in hidden])


def swept(case: Case, chosen: Sequence[Subject]) -> Iterator[Row]:
    """Prove each subject on one case, torch's own first."""
    usual: tuple[int, ...] = ()
    torchs = set[str]()
    for subject in (x for x in chosen if case.train or x.infers):
        row = proven(subject, case)
        anew = len(usual) > 1 and row.graphs[1:] > usual[1:]
        if subject.is_control and row.verdict == "FAILED":
            torchs.add(_words(row.reason))
        elif row.verdict == "FAILED" and _words(row.reason) in torchs:
            row = dataclasses.replace(row, verdict=TORCH_BACKENDS)
        elif not subject.is_control and row.verdict == "right" and anew:
            reason = f"torch's own compiled {usual}: it made a size a constant"
            row = dataclasses.replace(row, verdict="ANEW", reason=reason)
        usual = usual or row.graphs
        yield row


def _words(reason: str) -> str:
    """A reason without its numbers: those of symbols and nodes differ from graph to graph."""
    return re.sub(r"\d+", "", reason)


def proven(subject: Subject, case: Case) -> Row:
    """Compile a workload's model once, and judge what it gives for each batch size."""
    torch.compiler.reset()
    reset = getattr(subject.compiler, "reset", None)
    if reset is not None:
        reset()
    try:
        # Some print what they are given.
        with contextlib.redirect_stdout(io.StringIO()), collected() as reports:
            proofs, graphs = _run(subject.compiler, case)
    except Exception as error:  # noqa: BLE001 (whatever is raised is the row's reason)
        return Row(case=case, subject=subject, verdict="FAILED", reason=one_line(error))
    changes = Counter[str]()
    for report in reports:
        changes[report.name] += report.changes
    worst = max((x.worst for x in proofs), key=lambda x: (not x.passed, x.severity))
    return Row(
        case=case,
        subject=subject,
        verdict="right" if worst.passed else "WRONG",
        reason="" if worst.passed else f"{worst.where}: {worst.reason}",
        worst=worst,
        graphs=tuple(graphs),
        changes=changes,
    )


def _run(compiler: CompilerFn, case: Case) -> tuple[list[Proof], list[int]]:
    proofs, graphs = [], []
    model = case.goldens[0][0].model
    call = torch.compile(model, backend=compiler, dynamic=case.dynamic)
    for workload, golden in case.goldens:
        counters.clear()
        with golden.context():
            proofs.append(golden.judge(observe(call, golden.at(workload), train=case.train)))
        graphs.append(int(counters["stats"]["unique_graphs"]))
    if not graphs[0]:
        raise AssertionError("Dynamo captured no graph: nothing was compiled")
    return proofs, graphs


class Spelled(torch.nn.Module):
    """What the passes look for and published models have seldom: SiLU by hand, numbers in rows."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.drop = torch.nn.Linear(24, 48), torch.nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, T, 24) for (B, T, 24)."""
        self.lift(x).exp()
        h = self.lift(x)
        h = h * torch.sigmoid(h) + h / (1 + torch.exp(-h))
        h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3)))
        h = h * 2 * 4 / 1 + torch.sigmoid(h) * torch.sigmoid(h)
        place = torch.arange(48, device=h.device).to(h.dtype) / 48
        h = h * (x > 0).any() + (x > 0).any()  # no gradient flows through these twins
        return self.drop(h + place) + self.drop(h)[:, :1]  # type: ignore[no-any-return] # torch's modules give Any


def spelled() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return the workload that has something for every pass."""
    return Spelled(), (torch.randn(2, 16, 24),)


def print_head() -> None:
    """Print the date, the versions and the table's head."""
    packages = ("torch", "transformers", "timm")
    versions = [f"{x} {importlib.metadata.version(x)}" for x in packages]
    today = dt.datetime.now(dt.UTC).date()
    print(f"{today}, Python {platform.python_version()}, {', '.join(versions)}, {DEVICE}")
    print(
        "sizes tiny; train: forward and all gradients; infer: passes on ATen graphs, or for that\n"
    )
    print(LEGEND)
    print(line(COLUMNS))


def line(cells: Iterable[str]) -> str:
    """Return a line of the table."""
    padded = (cell.ljust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True))
    return "  ".join(padded).rstrip()


def print_summary(rows: Sequence[Row]) -> None:
    """Print what is not right with its reason, and what was never put to the test."""
    ours = [x for x in rows if not x.subject.is_control]
    total = Counter[str]()  # not by pass alone: one that changes Dynamo's graphs may miss ATen's
    for row in ours:
        made = {name: x for name, x in row.changes.items() if name in {y.name for y in PASSES}}
        total.update({f"{name} in {row.subject.name}": x for name, x in made.items()})
    print(f"\nproven: {len(ours)}, right: {sum(x.verdict == 'right' for x in ours)}")
    for row in rows:
        if row.verdict != "right":
            print(f"{row}\n    {row.reason}")
    print("\nchanges in all:")
    for name, count in total.items():
        print(f"  {name}: {count or 'none, so it was not put to the test'}")


if __name__ == "__main__":
    sys.exit(main())
