"""Write the tables of README.md from the JSON under results/: ``python benchmarks/tables.py``."""

from pathlib import Path

import msgspec

from backbay.race import Report, Result

HERE = Path(__file__).parent
SOURCES = {
    "h200": ["2026-11-21-h200/infer.json", "2026-11-21-h200/train.json"],
    "cpu": ["2026-11-21-cpu/infer.json"],
}
HEAD = """\
| workload | mode | backend | median ms | times eager | compile s | error, times eager's |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """Replace what stands between each pair of markers."""
    readme = HERE / "README.md"
    text = readme.read_text()
    for key, files in SOURCES.items():
        results = [result for file in files for result in read(HERE / "results" / file).results]
        table = "\n".join([HEAD, *map(row, results)])
        block = f"<!-- {key} -->\n{table}\n<!-- /{key} -->"
        before, _, rest = text.partition(f"<!-- {key} -->")
        after = rest.partition(f"<!-- /{key} -->")[2]
        text = before + block + after
    readme.write_text(text)


def read(path: Path) -> Report:
    """Read a race's JSON."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def row(result: Result) -> str:
    """Return one row; a backend without a time shows its status."""
    cells = [result.workload, result.mode, result.backend]
    if result.median_ms is None or result.ci_ms is None:
        return f"| {' | '.join(cells)} | {result.status} | | | |"
    time = f"{result.median_ms:.4g} [{result.ci_ms[0]:.4g}, {result.ci_ms[1]:.4g}]"
    ratio, interval = result.ratio_to_eager, result.ratio_to_eager_ci
    known = ratio is not None and interval is not None and result.backend != "eager"
    times = f"{ratio:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]" if known and interval else "1"
    compile_s = "" if result.compile_s is None else f"{result.compile_s:.1f}"
    error = "" if not result.verdict or not result.verdict.ratio else f"{result.verdict.ratio:.2f}"
    return f"| {' | '.join([*cells, time, times, compile_s, error])} |"


if __name__ == "__main__":
    main()
