"""Feed damaged manifests and entry points to the registry, from the file on disk to the list.

    python tools/fuzz_manifest.py --inputs 100000 [--seed 1] [--keep DIR]

Each input is made from the catalogue, from a manifest that uses every key, or from an
``entry_points.txt``, by a few random edits: bytes, tokens, lines, or one thing many thousand times.
It is written into an installation of one distribution, and that is listed as ``backbay list
--all`` lists it: found, read, resolved, checked and made into JSON. Nothing of it is imported.

Exit code 1: an exception came out, an input took longer than a second, or memory grew by more than
200 MB. ``--keep`` writes the guilty inputs down; the same seed makes the same inputs again.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backbay.registry import Environment, Policy, Registry, manifest
from backbay.registry.availability import of_resolution
from backbay.registry.distributions import scan
from backbay.registry.spec import as_data

SLOWEST_S = 1.0
MOST_GROWTH_MB = 200.0
WARM_UP = 200  # inputs, before memory is looked at

WHOLE = """
schema = 1

[[backend]]
name = "mine"
summary = "Fuses pointwise operators"
aliases = ["also_mine"]
tags = ["alias", "debug"]
experimental = true
homepage = "https://example.org/mine"
install = "pip install mine[runtime]"
reserved_launch_param_names = ["stream"]
registers = "callable"
target = "mine.backend:make"
factory = true

[backend.traits]
devices = ["cpu", "cuda"]
dtypes = ["float32"]
training = false

[backend.requires]
distributions = ["fuzzed>=0.5; python_version >= '3.11'", "packaging"]
torch = ">=2.11,<2.16"
python = "!=3.12.*, >= 3.11"
platforms = ["linux", "darwin-arm64"]
modules = ["mine.native"]
environment = ["MINE_HOME"]
tools = { cuda = "triton", cpu = "c++" }

[backend.options.level]
type = "int"
default = 2
choices = [0, 1, 2]

[backend.options.passes]
type = "dict"
default = { first = ["a", { b = 1.5 }] }

[[backend.broken]]
torch = ">=2.14"
version = "<1.2"
reason = "it reads a field that is gone"
"""
ENTRY_POINTS = b"""[console_scripts]
tool = package.cli:main

[torch_dynamo_backends]
mine = package.module:function
other = package.module : nested.function [extra]
inductor = thief:steal
"""
MANIFEST_ENTRY = b"[backbay.backends]\nmanifest = package:backends.toml\n"
TOKENS = [
    *(
        b"[",
        b"]",
        b"[[",
        b"]]",
        b"{",
        b"}",
        b"=",
        b".",
        b",",
        b'"',
        b"'",
        b'"""',
        b"\n",
        b"\\",
        b"#",
    ),
    *(b"a.", b"{a=", b"[{", b"0x", b"9", b"f", b"1e9", b"-inf", b"nan", b"1979-05-27", b"true"),
    *(b"\\u0000", b"\x00", b"\x1b[31m", b"\r", b"\xff\xfe", b"\xed\xa0\x80", b"\xe2\x80\xae", b" "),
    *(
        b"[[backend]]\nname='a'\n",
        b"name",
        b"schema",
        b"a=1\n",
        b"a.b.c.d=1\n",
        b'"a",',
        b"(",
        b"; ",
    ),
    *(
        b"[torch_dynamo_backends]\n",
        b"x = y:z\n",
        b"backbay.backends",
        b":",
        b"../",
        b"/",
        b".toml",
    ),
]

Edit = Callable[[random.Random, bytes], bytes]


@dataclass(slots=True)
class Tally:
    """What came of all inputs."""

    inputs: int = 0
    of_kind: Counter[str] = field(default_factory=Counter)
    understood: int = 0
    """Manifests of which at least one backend was read."""
    crashes: list[str] = field(default_factory=list)
    slow: int = 0
    slowest_s: float = 0.0
    slowest: str = ""
    growth_mb: float = 0.0


def main() -> int:
    """Try every input, print what came of them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where guilty inputs are written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as site:
        tally = run(Path(site), arguments.inputs, arguments.seed, arguments.keep)
    print(report(tally))
    return 1 if tally.crashes or tally.slow or tally.growth_mb > MOST_GROWTH_MB else 0


def run(site: Path, inputs: int, seed: int, keep: Path | None) -> Tally:
    """Try inputs number 0 to ``inputs``."""
    (site / "package").mkdir()
    (site / "fuzzed-1.0.dist-info").mkdir()
    tally, corpus, before = Tally(), manifests(), peak_mb()
    for number in range(inputs):
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 (no secret depends on it)
        kind, data = made(chance, corpus)
        began = time.perf_counter()
        try:
            tally.understood += listed(site, kind, data)
        except Exception:  # noqa: BLE001 (any exception is what is looked for)
            tally.crashes.append(f"input {number} ({kind}): {traceback.format_exc()}")
            write(keep, f"crash-{number}.{kind}", data)
        seconds = time.perf_counter() - began
        tally.inputs += 1
        tally.of_kind[kind] += 1
        if seconds > tally.slowest_s:
            tally.slowest_s, tally.slowest = seconds, f"input {number}, {kind}, {len(data)} bytes"
        if seconds > SLOWEST_S:
            tally.slow += 1
            write(keep, f"slow-{number}.{kind}", data)
        if number < WARM_UP:
            before = peak_mb()
    tally.growth_mb = peak_mb() - before
    return tally


def report(tally: Tally) -> str:
    """Return it in a few lines."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.of_kind.items()))
    growth = f"{tally.growth_mb:.0f} MB more than after the first {WARM_UP} inputs"
    lines = [
        f"inputs        {tally.inputs} ({kinds})",
        f"understood    {tally.understood} gave at least one backend",
        f"crashes       {len(tally.crashes)}",
        f"slowest       {tally.slowest_s:.3f} s ({tally.slowest}); {tally.slow} over {SLOWEST_S} s",
        f"peak memory   {peak_mb():.0f} MB, {growth}",
    ]
    return "\n".join([*lines, *tally.crashes[:5]])


def manifests() -> list[bytes]:
    """Return the texts that inputs are made from: a few entries of the catalogue each, and more."""
    catalogue = Path(manifest.__file__).with_name("catalog.toml").read_bytes()
    head, *entries = catalogue.split(b"[[backend]]")
    texts = [b"schema = 1\n", WHOLE.encode(), WHOLE.encode()]
    for number in range(0, len(entries), 3):
        part = b"".join(b"[[backend]]" + x for x in entries[number : number + 3])
        texts.append(b"schema = 1\n" + part)
    return [*texts * 3, catalogue[len(head) - 12 :]]


def made(chance: random.Random, corpus: Sequence[bytes]) -> tuple[str, bytes]:
    """Make one input; return it and its kind."""
    kind = chance.choice(["manifest", "manifest", "entry_points"])
    data = chance.choice(corpus) if kind == "manifest" else ENTRY_POINTS
    for _ in range(chance.choice([0, 1, 1, 2, 3, 8])):
        edit: Edit = chance.choice(EDITS)
        data = edit(chance, data)
    return kind, data


def listed(site: Path, kind: str, data: bytes) -> bool:
    """Install an input and list it; return whether it gave a backend of its own."""
    manifest = kind == "manifest"
    folder = site / "fuzzed-1.0.dist-info"
    (folder / "entry_points.txt").write_bytes(ENTRY_POINTS + MANIFEST_ENTRY if manifest else data)
    (site / "package" / "backends.toml").write_bytes(data if manifest else WHOLE.encode())
    environment = Environment(
        installed=scan([str(site)]),
        torch_build={"__version__": "2.13.0"},
        devices={"cpu": "", "cuda": "none"},
    )
    registry = Registry(environment, standing=Policy())
    document = [
        [as_data(x.spec), as_data(of_resolution(x, environment))]
        for x in registry.resolutions().values()
    ]
    json.dumps([document, registry.problems], default=str).encode()
    registry.list_backends(exclude_tags=(), available=True)
    described = (spec.declared_by for spec in registry.specs().values())
    return any(x is not None and x.endswith("backends.toml") for x in described)


# -- edits


def change_bytes(chance: random.Random, data: bytes) -> bytes:
    """Set a few bytes to anything."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def insert_token(chance: random.Random, data: bytes) -> bytes:
    """Put something that means something anywhere."""
    at = chance.randint(0, len(data))
    return data[:at] + chance.choice(TOKENS) + data[at:]


def repeat_token(chance: random.Random, data: bytes) -> bytes:
    """Put it there very often."""
    at = chance.randint(0, len(data))
    token = chance.choice(TOKENS)
    times = chance.choice([10, 100, 1_000, 10_000, 100_000])
    return data[:at] + token * min(times, 150_000 // len(token)) + data[at:]


def cut(chance: random.Random, data: bytes) -> bytes:
    """Take a piece out."""
    at = chance.randint(0, len(data))
    return data[:at] + data[at + chance.choice([1, 2, 10, 100, len(data)]) :]


def repeat_piece(chance: random.Random, data: bytes) -> bytes:
    """Repeat a piece, once or many times."""
    start = chance.randint(0, len(data))
    piece = data[start : start + chance.choice([1, 10, 100, 1_000])]
    times = min(chance.choice([1, 2, 50, 5_000]), 150_000 // max(1, len(piece)))
    return data[:start] + piece * times + data[start:]


def move_lines(chance: random.Random, data: bytes) -> bytes:
    """Put lines in another order."""
    lines = data.splitlines(keepends=True)
    for _ in range(chance.randint(1, 5)):
        if lines:
            lines.insert(chance.randint(0, len(lines) - 1), lines.pop(chance.randrange(len(lines))))
    return b"".join(lines)


def change_number(chance: random.Random, data: bytes) -> bytes:
    """Make a digit a number of many digits."""
    places = [at for at, byte in enumerate(data) if byte in b"0123456789"]
    if not places:
        return data
    at = chance.choice(places)
    number = chance.choice([b"9" * 4_301, b"0x" + b"f" * 9_000, b"-1", b"1e400", b"1" * 20, b"1.5"])
    return data[:at] + number + data[at + 1 :]


EDITS: list[Edit] = [
    change_bytes,
    insert_token,
    insert_token,
    repeat_token,
    cut,
    repeat_piece,
    move_lines,
    change_number,
]


def write(folder: Path | None, name: str, data: bytes) -> None:
    """Keep an input, if it is to be kept."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def peak_mb() -> float:
    """Return the most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


if __name__ == "__main__":
    sys.exit(main())
