"""What the commands of several benchmarks have in common."""

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path


def parser_of(description: str | None, arms: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the arguments that those of models and of patterns have.

    Args:
        description: the command's own.
        arms: those that are run where none are asked for.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, required=True, help="folder of what was measured")
    parser.add_argument("--out", type=Path, help="file for the table; its JSON goes beside it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--only", nargs="+", default=["*"], help="names of the table, with * and ?")
    parser.add_argument("--arms", help=f"default: {','.join(arms)}")
    parser.add_argument(
        "--until", type=float, default=float("inf"), help="seconds after which none is begun"
    )
    parser.add_argument(
        "--ahead",
        type=int,
        default=1,
        help="workloads that compile at once; all but one are stopped while that is timed. "
        "With more than one no compile times are kept, and arms share their caches, so that what "
        "they have in common runs as configured for the first. Default: 1",
    )
    return parser


def write(out: Path | None, text: str, document: bytes) -> None:
    """Print a table, and write it and its JSON where they are asked for."""
    print(text)
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    out.with_suffix(".json").write_bytes(document)


def print_tables(
    description: str | None,
    tables: Mapping[str, Callable[[], Iterator[str]]],
    header: Callable[[], str],
) -> None:
    """Print tables that the command line names, and write them where it says; by default all.

    Args:
        description: the command's own.
        tables: each yields its lines.
        header: gives the line above them.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", default=[*tables])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    unknown = set(given.tables) - set(tables)
    if unknown:
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(tables)}")
    lines = (itertools.chain(("", f"{x}:", ""), tables[x]()) for x in given.tables)
    said: list[str] = []
    for line in itertools.chain([header()], itertools.chain.from_iterable(lines)):
        print(line, flush=True)  # each as it comes: a run may be cut short
        said.append(line)
    if given.out:
        given.out.write_text("\n".join((*said, "")), encoding="utf-8")
