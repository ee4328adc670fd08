"""Write the table "What was tried" of docs/adapters.md: each workload with each engine.

    python benchmarks/adapters.py [--engines tvm,iree] [--workloads hf:gpt2] [--again] [--limit 900]
        [--rows FILE] [--page FILE]

Each workload is compiled by each adapter, once for inference and once for training, in a process of
its own with an empty cache, and is run with batches of 4, 7 and 1 rows, one after the other.
What each gives is held against float64 truth by the golden check, in training gradients too. The
share is that of operators that the engine ran itself, of all graphs that were compiled.

Engines that are installed are tried by default. Rows are kept in a JSON file. A later run makes
those that it is asked for and lack, with --again all that it is asked for, and writes the page from
all rows.
"""

import argparse
import contextlib
import dataclasses
import importlib
import itertools
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "adapters.md"
BEGIN, END = "<!-- tried -->", "<!-- /tried -->"
BATCHES = (4, 7, 1)
ENGINES = {
    "executorch": ("ExecuTorch", "executorch"),
    "iree": ("IREE", "iree-base-compiler"),
    "onnxruntime": ("ONNX Runtime", "onnxruntime"),
    "onnxruntime_cuda": ("ONNX Runtime, CUDA", "onnxruntime-gpu"),
    "openvino": ("OpenVINO", "openvino"),
    "tvm": ("TVM", "apache-tvm"),
}
"""What an adapter's engine is called, and the distribution that has it."""
WORKLOADS = (
    "decoder",
    "hf:bert",
    "hf:gpt2",
    "hf:llama",
    "timm:resnet18",
    "timm:vit_tiny_patch16_224",
)
MODES = ("infer", "train")
KINDS = ("inference", "forward", "backward")
HEAD = """\
| workload | engine | inference | training | forward | backward |
| --- | --- | --- | --- | --- | --- |"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One workload with one engine, in inference or training."""

    workload: str
    engine: str
    mode: str
    status: str
    """``right``, ``wrong``, ``failed``, ``crashed`` or ``timeout``."""
    reason: str = ""
    owned: dict[str, tuple[int, int]] = {}
    """Of each kind of graph, how many operators the engine ran, and how many there are."""
    left: tuple[str, ...] = ()
    """What PyTorch ran in the engine's place, with the reasons."""
    seconds: float = 0.0
    """The whole process: the golden check, and compiling for each batch."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a row is told apart by."""
        return self.workload, self.engine, self.mode


class Tried(msgspec.Struct, kw_only=True):
    """What the file holds."""

    versions: dict[str, str] = {}
    rows: list[Row] = []


def main() -> int:
    """Make the rows that are asked for, and write the page."""
    asked = _arguments()
    if asked.one:
        sys.stdout.write(msgspec.json.encode(tried(*asked.one)).decode() + "\n")
        return 0
    known = (
        msgspec.json.decode(asked.rows.read_bytes(), type=Tried) if asked.rows.exists() else None
    )
    found = known or Tried()
    rows = {x.key: x for x in found.rows}
    for engine, workload, mode in itertools.product(asked.engines, asked.workloads, asked.modes):
        key = workload, engine, mode
        if key in rows and not asked.again:
            continue
        rows[key] = in_child(*key, asked.limit)
        sys.stderr.write(f"{' '.join(key)}: {cell(rows[key])}, {rows[key].seconds:.0f} s\n")
        found.rows = [rows[x] for x in sorted(rows)]
        found.versions |= _versions(engine)
        asked.rows.parent.mkdir(parents=True, exist_ok=True)
        asked.rows.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    before, _, rest = asked.page.read_text("utf-8").partition(BEGIN)
    asked.page.write_text(f"{before}{BEGIN}\n{page(found)}\n{END}{rest.partition(END)[2]}", "utf-8")
    return 1 if any(x.status != "right" for x in rows.values()) else 0


def _arguments() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=names, default=list(filter(_version, ENGINES)))
    parser.add_argument("--workloads", type=names, default=list(WORKLOADS))
    parser.add_argument("--modes", type=names, default=list(MODES))
    parser.add_argument("--again", action="store_true", help="make rows that are known, too")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for each row")
    default = HERE / "results" / "2026-11-26-cpu" / "adapters.json"
    parser.add_argument("--rows", type=Path, default=default, help="the file that keeps rows")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table is written")
    parser.add_argument("--one", nargs=3, metavar=("WORKLOAD", "ENGINE", "MODE"))
    return parser.parse_args()


def _version(engine: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(ENGINES[engine][1])
    return None


def _versions(engine: str) -> dict[str, str]:
    return {"torch": metadata.version("torch"), ENGINES[engine][1]: _version(engine) or "absent"}


def in_child(workload: str, engine: str, mode: str, limit_s: float) -> Row:
    """Return the row that a process of its own makes, whatever becomes of that."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "BACKBAY_CACHE": folder, "BACKBAY_CONFIG": "off"}
        command = [sys.executable, __file__, "--one", workload, engine, mode]
        try:
            ended = subprocess.run(
                command, capture_output=True, timeout=limit_s, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            reason = f"not done within {limit_s:g} s"
            row = Row(workload=workload, engine=engine, mode=mode, status="timeout", reason=reason)
        else:
            row = _row(workload, engine, mode, ended)
    return msgspec.structs.replace(row, seconds=round(time.monotonic() - began, 1))


def _row(workload: str, engine: str, mode: str, ended: "subprocess.CompletedProcess[bytes]") -> Row:
    said = ended.stdout.decode("utf-8", "replace").splitlines()[-1:]
    if ended.returncode == 0 and said:
        return msgspec.json.decode(said[0], type=Row)
    last = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    reason = f"the process ended with {ended.returncode}: {''.join(last)}"
    return Row(workload=workload, engine=engine, mode=mode, status="crashed", reason=reason)


def tried(workload: str, engine: str, mode: str) -> Row:
    """Compile a workload and run it with every batch, in this process."""
    import torch  # noqa: PLC0415 (in the child alone)

    from backbay import compile_log  # noqa: PLC0415 (likewise)
    from backbay.causes import one_line  # noqa: PLC0415 (likewise)
    from backbay.proof import make_golden, observe  # noqa: PLC0415 (likewise)
    from backbay.workloads import load  # noqa: PLC0415 (likewise)
    from backbay.workloads.batches import with_batch  # noqa: PLC0415 (likewise)

    train = mode == "train"
    row = Row(workload=workload, engine=engine, mode=mode, status="right")
    backend = getattr(importlib.import_module(f"backbay_adapters.{engine}"), f"backbay_{engine}")
    device = torch.device(backend.devices[0])
    given = load(workload, seed=0, dtype=torch.float32, device=device, train=train, size="tiny")
    call = torch.compile(given.model, backend=backend)
    try:
        for batch in BATCHES:
            # A loss of its own keeps labels for its own batch; without, all outputs have gradients.
            one = dataclasses.replace(with_batch(given, batch), loss=None)
            golden = make_golden(one, train=train)
            with golden.context():
                proof = golden.judge(observe(call, golden.at(one), train=train))
            if not proof.passed:
                worst = f"batch {batch}: {proof.worst.where}: {proof.worst.reason}"
                row = msgspec.structs.replace(row, status="wrong", reason=worst)
                break
    except Exception as error:  # noqa: BLE001 (whatever an engine raises is the result)
        reason = f"batch {batch}: {one_line(error)}"
        row = msgspec.structs.replace(row, status="failed", reason=reason)
    owned, left = dict[str, tuple[int, int]](), dict[str, None]()
    for record in compile_log.records():
        kind = record.why.partition(" ")[0]
        ours, all_ = owned.get(kind, (0, 0))
        owned[kind] = ours + (record.owned or 0), all_ + record.nodes
        if "; " in record.why:
            left[f"{kind}: {record.why.partition('; ')[2]}"] = None
    return msgspec.structs.replace(row, owned=owned, left=tuple(left))


def page(found: Tried) -> str:
    """Return what stands between the markers."""
    rows = {x.key: x for x in found.rows}
    versions = ", ".join(f"{name} {found.versions[name]}" for name in sorted(found.versions))
    return "\n".join(
        [textwrap.fill(f"With {versions}:", 100), "", HEAD, *_lines(rows), *_reasons(found.rows)]
    )


def _lines(rows: Mapping[tuple[str, str, str], Row]) -> Iterator[str]:
    for workload, engine in itertools.product(WORKLOADS, ENGINES):
        infer, train = (rows.get((workload, engine, mode)) for mode in MODES)
        shares = [share(train, x) for x in KINDS[1:]]
        cells = [f"`{workload}`", ENGINES[engine][0], cell(infer), status(train), *shares]
        if infer is not None or train is not None:
            yield f"| {' | '.join(cells)} |"


def cell(row: Row | None) -> str:
    """Return a row's status, and the shares of its graphs."""
    shares = [share(row, x) for x in KINDS]
    return ", ".join([status(row), *(x for x in shares if x != "·")])


def status(row: Row | None) -> str:
    """Return a row's status; a dot where there is no row."""
    return "·" if row is None else row.status


def share(row: Row | None, kind: str) -> str:
    """Return what part of a kind of graph the engine ran itself; a dot where there is none."""
    ours, all_ = (row.owned.get(kind) if row is not None else None) or (0, 0)
    return f"{int(100 * ours / all_)} %" if all_ else "·"


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    failed = [x for x in rows if x.status != "right"]
    if failed:
        yield ""
    for row in failed:
        said = (
            f"- `{row.workload}`, {ENGINES[row.engine][0]}, {row.mode}: {row.status}: {row.reason}"
        )
        yield textwrap.fill(said, 100, subsequent_indent="  ", break_long_words=False)


if __name__ == "__main__":
    sys.exit(main())
