"""Run PyTorch's own tests of backends with torch's registry, then with Backbay's in its place.

    python tools/torch_registry_tests.py [--tests FILE | --tag v2.13.0] [--json OUT]

Run it with the interpreter whose torch is in question; it needs pytest, pytest-timeout, expecttest
and Backbay there. Without arguments it downloads ``test/dynamo/test_backends.py`` of the installed
torch's tag. Each of the two runs is a child process; only the second replaces torch's functions.

What it refuses to do: judge. A test that fails with torch's own registry as well is shown so, and
one that looks at torch's private dictionaries, or mocks what Backbay never calls, is named, not
left out. The exit code is 0 whatever the tests say, and 2 if they could not be run.

This module is also the pytest plugin of both children (``pytest_addoption`` and what follows it).
"""

import argparse
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SOURCE = "https://raw.githubusercontent.com/pytorch/pytorch/{tag}/test/dynamo/test_backends.py"
REGISTRY = "torch._dynamo.backends.registry"
PATCHED_MODULES = (REGISTRY, "torch._dynamo", "torch.compiler")
TAG_OF = {"register_debug_backend": "debug", "register_experimental_backend": "experimental"}
FUNCTIONS = ("list_backends", "lookup_backend", "register_backend", *TAG_OF)
NEEDED = {
    "torch": "torch",
    "backbay": "backbay",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "expecttest": "expecttest",
}
"""What the children import, and the distribution that brings it."""

REMARKS = {
    "importlib.metadata.entry_points": "mocks entry_points(): unseen by a reader of the files",
    "registry._BACKENDS": "uses torch's private _BACKENDS",
    "registry._COMPILER_FNS": "uses torch's private _COMPILER_FNS",
    "registry._BACKEND_TAGS": "uses torch's private _BACKEND_TAGS",
    "_is_registered_backend": "calls torch's private _is_registered_backend",
}
"""What a test's source says, and what it means for a stand-in."""


class CannotRun(Exception):  # noqa: N818 (reads as what it says)
    """The tests could not be run at all; the text says why and what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What one test did in one of the two runs."""

    outcome: str
    """passed, failed, skipped, or not run (the child ended before it, or in it)."""

    seconds: float = 0.0
    reason: str = ""
    """The first line of the failure or of the reason to skip."""

    calls: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How often the test used each of Backbay's functions; empty in torch's own run.

    A look-up counts when it is by name: one of a function gives it back, whoever is asked.
    """

    remarks: tuple[str, ...] = ()
    """Why the test may say little about another registry."""


NOT_RUN = Result(outcome="not run")


def main() -> int:
    """Run both, print the table, and return the exit code."""
    arguments = parse_arguments()
    try:
        require_packages()
        with tempfile.TemporaryDirectory(prefix="torch-registry-tests-") as name:
            folder = Path(name)
            origin = put_tests(folder, arguments.tests, arguments.tag)
            torchs = run_tests(folder, backbay=False, limit=arguments.limit)
            backbays = run_tests(folder, backbay=True, limit=arguments.limit)
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 2
    print_report(origin, torchs, backbays)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_record(origin, torchs, backbays), indent=2) + "\n")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tests", type=Path, help="a test_backends.py that is here already")
    which.add_argument("--tag", help="PyTorch's tag or commit to take it from")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here too")
    parser.add_argument("--limit", type=int, default=60, help="seconds for each test (default 60)")
    return parser.parse_args()


def require_packages() -> None:
    """Make sure that the children can import what they need.

    Raises:
        CannotRun: a package is missing.
    """
    missing = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise CannotRun(f"not installed for {sys.executable}: {', '.join(missing)}")


def put_tests(folder: Path, tests: Path | None, tag: str | None) -> str:
    """Put the test file into the children's folder, and return where it came from.

    Raises:
        CannotRun: the file cannot be read or downloaded.
    """
    (folder / "pytest.ini").write_text("[pytest]\n")
    place = folder / "test_backends.py"
    origin = str(tests or SOURCE.format(tag=tag or installed_tag()))
    try:
        if tests is not None:
            shutil.copyfile(tests, place)
            return origin
        with urllib.request.urlopen(origin, timeout=60) as answer:  # noqa: S310 (it is https)
            place.write_bytes(answer.read())
    except (OSError, urllib.error.URLError) as error:
        raise CannotRun(f"no tests from {origin} ({error}): give a file with --tests") from error
    return origin


def installed_tag() -> str:
    """Return the tag of the installed torch's release: ``v2.13.0`` for 2.13.0+cpu."""
    return "v" + importlib.metadata.version("torch").split("+")[0]


def run_tests(folder: Path, *, backbay: bool, limit: int) -> dict[str, Result]:
    """Run the test file in a child process and give each test's result.

    Raises:
        CannotRun: pytest collected no test.
    """
    record = folder / ("backbay.jsonl" if backbay else "torch.jsonl")
    plugins = ["-p", "pytest_timeout", "-p", Path(__file__).stem, "-p", "no:cacheprovider"]
    options = [f"--timeout={limit}", f"--record={record}", *(["--stand-in"] if backbay else [])]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *options, "test_backends.py"],
        cwd=folder,
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    lines = record.read_text().splitlines() if record.exists() else []
    results = gather(json.loads(line) for line in lines)
    if not results:
        raise CannotRun(f"pytest collected no test:\n{child.stdout[-4000:]}")
    return results


def child_environment() -> dict[str, str]:
    """Return an environment in which pytest finds this plugin, and no others of its own accord."""
    here = str(Path(__file__).resolve().parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    kept = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    return {**kept, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def gather(lines: Iterable[dict[str, Any]]) -> dict[str, Result]:
    """Make results of what a child recorded: a line for each test, then one for each phase."""
    results: dict[str, Result] = {}
    for line in lines:
        known = results.get(line["test"], NOT_RUN)
        if "remarks" in line:
            results[line["test"]] = dataclasses.replace(known, remarks=tuple(line["remarks"]))
            continue
        results[line["test"]] = after_phase(known, line)
    return results


def after_phase(known: Result, line: Mapping[str, Any]) -> Result:
    """Add one phase (setup, call or teardown) to what is known of a test."""
    added = dataclasses.replace(
        known, seconds=known.seconds + line["seconds"], calls=line["calls"] or known.calls
    )
    if line["outcome"] != "passed":
        return dataclasses.replace(added, outcome=line["outcome"], reason=line["reason"])
    if line["phase"] == "call" and known.outcome == NOT_RUN.outcome:
        return dataclasses.replace(added, outcome="passed")
    return added


def print_report(origin: str, torchs: Mapping[str, Result], backbays: Mapping[str, Result]) -> None:
    """Print the table, what differs and why, remarks, and the counts."""
    names = sorted({*torchs, *backbays})
    width = max(map(len, names))
    print(f"{'test':{width}} | torch's | Backbay's | what was asked of Backbay's")
    for name in names:
        used = backbays.get(name, NOT_RUN).calls
        calls = ", ".join(f"{function} {count}" for function, count in used.items())
        print(f"{name:{width}} | {outcome(torchs, name):7} | {outcome(backbays, name):9} | {calls}")
    print_reasons("with torch's registry", torchs)
    print_reasons("with Backbay's", backbays)
    for name in names:
        if remarks := backbays.get(name, NOT_RUN).remarks:
            print(f"remark: {name}: {'; '.join(remarks)}")
    asked = sum(bool(result.calls) for result in backbays.values())
    differing = [n for n in names if outcome(torchs, n) != outcome(backbays, n)]
    print(f"\ntorch {importlib.metadata.version('torch')}, tests of {origin}")
    print(f"{len(names)} tests, of which {asked} asked the registry for something")
    print(f"with torch's registry: {counted(torchs)}")
    print(f"with Backbay's: {counted(backbays)}")
    print(f"differing: {len(differing)}")


def outcome(results: Mapping[str, Result], name: str) -> str:
    """Return what a test did in one run."""
    return results.get(name, NOT_RUN).outcome


def print_reasons(heading: str, results: Mapping[str, Result]) -> None:
    """Print why tests did not pass; a skipped one is no news."""
    for name, result in sorted(results.items()):
        if result.outcome not in {"passed", "skipped"}:
            print(f"{result.outcome} {heading}: {name}: {result.reason}")


def counted(results: Mapping[str, Result]) -> str:
    """Return how many tests had each outcome, as a phrase."""
    counts = Counter(result.outcome for result in results.values())
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def as_record(
    origin: str, torchs: Mapping[str, Result], backbays: Mapping[str, Result]
) -> dict[str, Any]:
    """Return everything that was found, to be written as JSON."""
    return {
        "tests": origin,
        "torch": importlib.metadata.version("torch"),
        "backbay": importlib.import_module("backbay").__version__,
        "results": {
            name: {
                "torch": dataclasses.asdict(torchs.get(name, NOT_RUN)),
                "backbay": dataclasses.asdict(backbays.get(name, NOT_RUN)),
            }
            for name in sorted({*torchs, *backbays})
        },
    }


# What follows runs in the children only.


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add where to record, and whether Backbay stands in."""
    parser.addoption("--record", type=Path, required=True)
    parser.addoption("--stand-in", action="store_true")


def pytest_configure(config: "pytest.Config") -> None:
    """Start recording, and replace torch's functions before the test module is imported."""
    calls: Counter[str] = Counter()
    if config.getoption("--stand-in"):
        stand_in(calls)
    config.pluginmanager.register(Recorder(config.getoption("--record"), calls))


class Recorder:
    """Writes a JSON line for each test that is collected, and for each phase of it that ends."""

    def __init__(self, path: Path, calls: Counter[str]) -> None:
        """Make a recorder.

        Args:
            path: where the lines go; each is written at once, as a test may end the process.
            calls: what the stand-ins count in.
        """
        self._path = path
        self._calls = calls

    def pytest_collection_modifyitems(self, items: "list[pytest.Item]") -> None:
        """Record every test, so that one that never ran is missed."""
        for item in items:
            self._write(test=short(item.nodeid), remarks=remarks_on(item))

    def pytest_runtest_logstart(self, nodeid: str) -> None:  # noqa: ARG002 (pytest's signature)
        """Count anew for each test."""
        self._calls.clear()

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Record how a phase ended."""
        self._write(
            test=short(report.nodeid),
            phase=report.when,
            outcome=report.outcome,
            seconds=round(report.duration, 3),
            reason=reason_of(report.longrepr),
            calls=dict(sorted(self._calls.items())),
        )

    def _write(self, **line: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def short(nodeid: str) -> str:
    """Return ``Class::test`` of pytest's ``file::Class::test``."""
    return nodeid.partition("::")[2]


def remarks_on(item: "pytest.Item") -> list[str]:
    """Return why a test may say little about another registry, from its source."""
    try:
        source = inspect.getsource(getattr(item, "obj"))  # noqa: B009 (not every item has it)
    except (AttributeError, OSError, TypeError):
        return []
    return [remark for text, remark in REMARKS.items() if text in source]


def reason_of(longrepr: object) -> str:
    """Return the first line of pytest's account of a failure or a skip, and more after a colon."""
    if longrepr is None:
        return ""
    if isinstance(longrepr, tuple):
        return str(longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    lines = str(longrepr if crash is None else crash.message).strip().splitlines()
    ended = next((at for at, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    return " ".join(lines[:ended])


def stand_in(calls: Counter[str]) -> None:
    """Put Backbay's functions where torch's are, for the life of this process.

    Args:
        calls: counts what is asked of Backbay's functions.
    """
    registry: Any = importlib.import_module(REGISTRY)
    registry._lazy_import()  # noqa: SLF001 (torch's own backends register with torch)
    modules = [importlib.import_module(name) for name in PATCHED_MODULES]
    for name in FUNCTIONS:
        replacement = routed(backbays_own(name), getattr(registry, name), name, calls)
        for module in modules:
            if hasattr(module, name):
                setattr(module, name, replacement)
    refresh_when_cleared(registry._discover_entrypoint_backends)  # noqa: SLF001 (tests clear it)


def backbays_own(name: str) -> Callable[..., Any]:
    """Backbay's function; before it has the short forms of ``register_backend``, those too."""
    backbay: Any = importlib.import_module("backbay")
    if name in TAG_OF and not hasattr(backbay, name):
        return functools.partial(backbay.register_backend, tags=(TAG_OF[name],))
    found: Callable[..., Any] = getattr(backbay, name)
    return found


def routed(
    backbays: Callable[..., Any], torchs: Callable[..., Any], name: str, calls: Counter[str]
) -> Callable[..., Any]:
    """Return a function that is Backbay's to everyone but Backbay itself and torch's registry.

    Backbay loads torch's backends through torch's functions: those calls must not come back.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 (who calls matters)
        if caller == REGISTRY or caller.partition(".")[0] == "backbay":
            return torchs(*args, **kwargs)
        if name != "lookup_backend" or any(
            isinstance(given, str) for given in (*args, *kwargs.values())
        ):
            calls[name] += 1
        return backbays(*args, **kwargs)

    return function


def refresh_when_cleared(cached: Any) -> None:
    """Make Backbay look again where a test makes torch look again."""
    clear = cached.cache_clear
    default: Any = importlib.import_module("backbay.registry").default_registry

    def clear_both() -> None:
        clear()
        refresh = getattr(default, "refresh", None)
        if refresh is not None:
            refresh()

    cached.cache_clear = clear_both


if __name__ == "__main__":
    sys.exit(main())
