"""Whether a diagnosis is right: six models with one defect each, and seven as libraries have them.

    python benchmarks/diagnose_models.py --state FOLDER --out FILE [--device cuda] [--only NAME ...]

Of a seeded model the first finding must name the defect and its line, and what was tried against it
must be confirmed by a race. Of the others the first gain that is claimed must be confirmed, or none
be claimed. The race is a process of its own with an empty cache: both sides are compiled anew,
proven, and timed in turns. On a GPU at least 95 % of the time in kernels must have a line of the
user's. The exit code is 1 where a bar is missed. What is in the state folder is not measured again.
"""

import argparse
import datetime as dt
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backbay import diagnose
from backbay.campaign.here import device_name
from backbay.decisions import Arm
from backbay.diagnose.record import (
    Diagnosis,
    OutsideRecord,
    RankedFinding,
    TrialRecord,
    WhiteBox,
)
from backbay.diagnose.remedies import Remedies
from backbay.diagnose.requests import SERVICE, Tried, Try
from backbay.errors import InputError
from backbay.race.caches import variables
from backbay.race.requests import ArmSetup
from backbay.registry import default_registry
from backbay.reporting import machine
from backbay.reporting.machine import Load, Machine
from backbay.reporting.wording import short
from backbay.session import NoReply
from backbay.workloads.setup import checked_setup

SCHEMA = "benchmarks.diagnose_models/1"
CASES_FILE = Path(__file__).with_name("diagnose_cases.py")
_REQUEST_S = 1200.0
_LEAST_WITH_LINES = 0.95


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model."""

    name: str
    reference: str
    codes: tuple[str, ...] = ()
    """Of a seeded defect: what names it; empty for a model that has none."""
    code: str = ""
    """The line that has the defect."""
    gpu: bool = False
    """Whether it is a defect on a GPU alone."""


def seeded(name: str, codes: Sequence[str], code: str, *, gpu: bool = False) -> Case:
    """Return a case of the file beside this one."""
    reference = f"{CASES_FILE}:{name}"
    return Case(name=name, reference=reference, codes=tuple(codes), code=code, gpu=gpu)


CASES = (
    seeded("printing", ["BB101", "BB105"], 'print("a layer is done")'),
    seeded("reading", ["BB102"], "scale = h.abs().max().item()"),
    seeded("caching", ["BB201", "BB205"], "self.seen = torch.cat([self.seen, self.lift(x)])"),
    seeded("counting", ["BB202"], "self.calls += 1"),
    seeded("varying", ["BB201", "BB205"], "return torch.nn.functional.gelu(self.lift(x))"),
    seeded(
        "convolving", ["BB704"], "y: torch.Tensor = self.second(self.first(x).relu())", gpu=True
    ),
    Case(name="bert", reference="hf:bert@tiny"),
    Case(name="gpt2", reference="hf:gpt2@tiny"),
    Case(name="llama", reference="hf:llama@tiny"),
    Case(name="vit_tiny", reference="timm:vit_tiny_patch16_224@tiny"),
    Case(name="resnet10t", reference="timm:resnet10t@tiny"),
    Case(name="mobilenetv3", reference="timm:mobilenetv3_small_050@tiny"),
    Case(name="dit", reference="diffusers:dit@tiny"),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one model."""

    name: str
    reference: str
    skipped: str = ""
    """Why it was not diagnosed; empty where it was."""
    first: RankedFinding | None = None
    """The first finding."""
    claimed: TrialRecord | None = None
    """The first gain that is claimed, of the first finding that has one."""
    claimed_for: str = ""
    """The code of that finding."""
    raced: TrialRecord | None = None
    """The same remedy, in a race of its own."""
    missed: str = ""
    """Which bar is missed, and how; empty where none is."""
    device_ms: float | None = None
    """Of a step, in kernels and copies on a GPU; ``null`` on a CPU, and where nothing was seen."""
    lineless: tuple[OutsideRecord, ...] = ()
    """What of that has no line of the user's; longest first."""
    sentence: str = ""
    diagnosed_s: float = 0.0
    busy_cores: float = 0.0
    """Cores that other processes used meanwhile."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The whole."""

    schema: str = SCHEMA
    created: str
    command: str
    machine: Machine
    versions: dict[str, str]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked for."""

    state: Path
    out: Path | None
    device: str
    only: Sequence[str]
    budget_s: float
    timing_s: float


def main() -> None:
    """Diagnose, race, print the table, and say which bars are missed."""
    asked = parsed()
    asked.state.mkdir(parents=True, exist_ok=True)
    rows = [known(case, asked) for case in CASES]
    document = Document(
        created=dt.datetime.now(dt.UTC).date().isoformat(),
        command=f"python benchmarks/diagnose_models.py --device {asked.device} "
        f"--budget {asked.budget_s:g} --timing {asked.timing_s:g}",
        machine=machine.machine(device_name(asked.device)),
        versions=versions(),
        rows=tuple(rows),
    )
    text = "\n".join(lines(document)) + "\n"
    print(text)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text, encoding="utf-8")
        data = msgspec.json.format(msgspec.json.encode(document), indent=2)
        asked.out.with_suffix(".json").write_bytes(data + b"\n")
    missed = [f"{x.name}: {x.missed}" for x in rows if x.missed]
    sys.stderr.writelines(f"{x}\n" for x in missed)
    sys.exit(1 if missed else 0)


def parsed() -> Asked:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--state", type=Path, required=True, help="folder of what was measured")
    parser.add_argument("--out", type=Path, help="file for the table; its JSON goes beside it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=[], help="names of models")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds to try remedies")
    parser.add_argument("--timing", type=float, default=3.0, help="seconds to time a step")
    given = parser.parse_args()
    return Asked(
        state=given.state,
        out=given.out,
        device=given.device,
        only=given.only,
        budget_s=given.budget,
        timing_s=given.timing,
    )


def known(case: Case, asked: Asked) -> Row:
    """Return what the state folder has of a model; else diagnose it."""
    path = asked.state / f"{case.name}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Row)
    if asked.only and case.name not in asked.only:
        return Row(name=case.name, reference=short(case.reference), skipped="not measured yet")
    row = measured(case, asked)
    path.write_bytes(msgspec.json.encode(row))
    print(f"{case.name}: {row.missed or row.skipped or row.sentence}", file=sys.stderr)
    return row


def measured(case: Case, asked: Asked) -> Row:
    """Diagnose a model, and race what is claimed."""
    if case.gpu and not asked.device.startswith("cuda"):
        why = "on a CPU the layout is Inductor's to choose: it is a defect on a GPU"
        return Row(name=case.name, reference=short(case.reference), skipped=why)
    load, start = Load(), time.monotonic()
    told = diagnose.run(
        case.reference,
        device=asked.device,
        limits=diagnose.Limits(
            budget_s=asked.budget_s, timing_s=asked.timing_s, request_s=_REQUEST_S
        ),
    )
    diagnosed_s = time.monotonic() - start
    claims = ((x, y) for x in told.findings for y in x.trials if y.status == "confirmed")
    finding, claimed = next(claims, (None, None))
    raced = None
    if finding is not None and claimed is not None:
        raced = race(case, told, finding, claimed, asked)
    first = told.findings[0] if told.findings else None
    device_ms, lineless = on_device(told.inside, asked.device)
    missed = [*bars(case, first, claimed, raced), *line_bar(device_ms, lineless)]
    return Row(
        name=case.name,
        reference=short(case.reference),
        first=None if first is None else msgspec.structs.replace(first, line=short(first.line)),
        claimed=claimed,
        claimed_for="" if finding is None else finding.code,
        raced=raced,
        device_ms=device_ms,
        lineless=lineless,
        missed="; ".join(missed),
        sentence=short(told.sentence),
        diagnosed_s=diagnosed_s,
        busy_cores=load.others(),
    )


def race(
    case: Case, told: Diagnosis, finding: RankedFinding, claimed: TrialRecord, asked: Asked
) -> TrialRecord:
    """Compile both sides anew, in a process of its own, and time them in turns."""
    setup = checked_setup(
        case.reference,
        mode="infer",
        dtype="float32",
        device=asked.device,
        size=None,
        seed=0,
        registry=default_registry,
    )
    arm = ArmSetup(arm=Arm(backend="inductor"))
    remedies = Remedies(
        explanation=told.explanation, arm=arm, device=setup.device, registry=default_registry
    )
    remedy = next(x for x in remedies.of(finding) if x.name == claimed.remedy)
    request = Try(setup=setup, arm=arm, remedy=remedy, timing_s=asked.timing_s)
    with (
        tempfile.TemporaryDirectory(prefix="backbay-diagnose-models-") as folder,
        SERVICE.session(variables(str(Path(folder) / "cache"))) as session,
    ):
        try:
            reply = session.ask(request, timeout_s=_REQUEST_S)
        except (NoReply, InputError) as error:
            return TrialRecord(remedy=remedy.name, status="failed", sentence=str(error))
    assert isinstance(reply, Tried)
    return reply.trial


def bars(
    case: Case,
    first: RankedFinding | None,
    claimed: TrialRecord | None,
    raced: TrialRecord | None,
) -> Iterator[str]:
    """Yield which bars are missed."""
    if case.codes:
        if first is None or first.code not in case.codes:
            yield f"the first finding is {first.code if first else 'none'}"
        elif case.code not in first.line:
            yield f"the first finding is at {first.line or 'no line'}"
        if first is None or claimed is None or claimed not in first.trials:
            yield "nothing that was tried for it is confirmed"
    if claimed is not None and (raced is None or raced.status != "confirmed"):
        yield f"a gain is claimed, and the race says: {raced.status if raced else 'nothing'}"


def on_device(
    inside: WhiteBox | None, device: str
) -> tuple[float | None, tuple[OutsideRecord, ...]]:
    """Return a GPU's milliseconds of a step, and those that no line of the user's explains."""
    if inside is None or not device.startswith("cuda"):
        return None, ()
    kernels = [x for graph in inside.graphs for x in graph.kernels]
    lineless = [OutsideRecord(name=x.name, ms=x.ms) for x in kernels if x.ms and not x.lines]
    lineless += (x for x in inside.outside if not x.lines)
    if inside.step.copies_ms:
        lineless.append(OutsideRecord(name="copies", ms=inside.step.copies_ms))
    whole = inside.step.kernels_ms + inside.step.outside_ms + inside.step.copies_ms
    return whole, tuple(sorted(lineless, key=lambda x: -x.ms))


def line_bar(device_ms: float | None, lineless: Sequence[OutsideRecord]) -> Iterator[str]:
    """Yield whether too much of the time on a GPU has no line."""
    if device_ms and with_lines(device_ms, lineless) < _LEAST_WITH_LINES:
        yield f"{with_lines(device_ms, lineless):.1%} of the time in kernels has a line"


def with_lines(device_ms: float, lineless: Sequence[OutsideRecord]) -> float:
    """Return the share of the time that has a line."""
    return 1.0 - sum(x.ms for x in lineless) / device_ms


def lines(document: Document) -> Iterator[str]:
    """Yield the table, and where it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in document.versions.items())
    diagnosed = [x for x in document.rows if not x.skipped]
    yield "# Thirteen models, diagnosed"
    yield ""
    yield f"    {document.command}"
    yield ""
    here = document.machine
    name = here.processor if here.device == "cpu" else here.device
    yield f"{document.created}; {name}, {here.cores} cores; {versions}."
    busy = [x.busy_cores for x in diagnosed]
    if busy:
        yield f"Other processes used {min(busy):.1f} to {max(busy):.1f} cores meanwhile."
    yield ""
    whole, missed = len(document.rows), sum(bool(x.missed) for x in diagnosed)
    yield f"**Of {whole} models {len(diagnosed)} were diagnosed; {missed} miss a bar.**"
    yield ""
    yield "| model | first finding | at | claimed | diagnosis | race | bar | s |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in document.rows:
        yield f"| {' | '.join(cells(row))} |"
    yield from line_table([x for x in diagnosed if x.device_ms])


def line_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of a GPU's time by lines; nothing where there was no GPU."""
    if not rows:
        return
    yield ""
    yield "## Time in kernels that has a line of the model's"
    yield ""
    yield "| model | kernels and copies, ms a step | with a line | without |"
    yield "|---|---|---|---|"
    for row in rows:
        assert row.device_ms, "they were picked so"
        without = ", ".join(f"`{escaped(x.name)}` {x.ms:.3g} ms" for x in row.lineless)
        share = with_lines(row.device_ms, row.lineless)
        name = row.name if CASES_FILE.name in row.reference else row.reference
        yield f"| {name} | {row.device_ms:.3f} | {share:.1%} | {without} |"


def cells(row: Row) -> Iterator[str]:
    """Yield a row of the table."""
    name = row.name if CASES_FILE.name in row.reference else row.reference
    yield name
    if row.skipped:
        yield from ("", "", "", "", "", f"skipped: {row.skipped}", "")
        return
    yield f"{row.first.code}: {escaped(row.first.message)}" if row.first else "none"
    place = row.first.line if row.first else ""
    yield f"`{escaped(place)}`" if place else ""
    yield f"{row.claimed_for}: `{escaped(row.claimed.remedy)}`" if row.claimed else "nothing"
    yield escaped(row.claimed.sentence) if row.claimed else ""
    yield f"{row.raced.status}: {escaped(row.raced.sentence)}" if row.raced else ""
    yield f"missed: {row.missed}" if row.missed else "held"
    yield f"{row.diagnosed_s:.0f}"


def escaped(text: str) -> str:
    """Return a text as a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def versions() -> dict[str, str]:
    """Return the versions that the numbers depend on."""
    extra = ("transformers", "timm", "diffusers")
    return machine.versions(default_registry.environment, [], extra)


if __name__ == "__main__":
    main()
