"""Write the table of what was run on which torch, docs/reference/tested.md.

    python tools/tested_page.py [--check]

It is made of the results that are committed under benchmarks/results: documents of Backbay's own
commands, which have versions and machine in them, and logs of tests, whose lines name torch. Exit
code 1 with ``--check``: the page says something else.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reference" / "tested.md"
HEAD = """\
# Tested versions

What was run on which PyTorch, as the results say that are committed under
[benchmarks/results](../../benchmarks/README.md). A newer PyTorch than the first row's is not
refused: `backbay doctor` says that nobody tried it. `python tools/tested_page.py` writes this page.

CI runs the whole suite on Linux, with Python 3.11 and the PyTorch that `constraints.txt` pins. What
a workflow is configured for and no result tells of has no row: nobody has run it.

| torch | Python | device | what was run | last on |
|---|---|---|---|---|
"""
LOGS = {"tests.txt": "tests that need a GPU", "torch_registry_tests.txt": "torch's registry tests"}
Key = tuple[str, str, str]


def main() -> int:
    """Write the page, or compare it with what is there."""
    after = HEAD + "".join(f"| {' | '.join(x)} |\n" for x in rows())
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the table's rows, the newest torch first."""
    found: dict[Key, dict[str, str]] = defaultdict(dict)
    for key, what, day in sorted({*documents(), *logs()}):
        found[key][what] = max(day, found[key].get(what, ""))
    for key in sorted(found, key=lambda x: (_numbers(x[0]), *x[1:]), reverse=True):
        yield *key, ", ".join(sorted(found[key])), max(found[key].values())


def documents() -> Iterator[tuple[Key, str, str]]:
    """Yield what documents of commands tell: where they ran, what was run, and when."""
    for path in RESULTS.rglob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        said = document if isinstance(document, dict) else {}
        schema, versions = str(said.get("schema", "")), said.get("versions") or {}
        if not schema.startswith("backbay.") or "torch" not in versions:
            continue
        command = schema.removeprefix("backbay.").partition("/")[0]
        key = (str(versions["torch"]), str(versions["python"]), device(said))
        yield key, f"`backbay {command}`", str(said["created"])[:10]


def device(document: dict[str, Any]) -> str:
    """Return the name of the device that a document tells of."""
    machine = document.get("machine") or {}
    return str(machine.get("device") or "cpu")


def logs() -> Iterator[tuple[Key, str, str]]:
    """Yield what logs of tests tell; they name no Python."""
    for name, what in LOGS.items():
        for path in RESULTS.rglob(name):
            text = path.read_text(encoding="utf-8")
            day = path.parent.name[:10]
            gpu = re.search(r"NVIDIA [A-Z]\w+(?: \w+ HBM\d)?", text)
            for torch in set(re.findall(r"^(?:.*, )?torch (\d[\w.+]*),", text, re.MULTILINE)):
                yield (torch, "", gpu[0] if gpu else "cpu"), what, day


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.partition("+")[0].split(".")))


if __name__ == "__main__":
    sys.exit(main())
