"""The suite under pytest, from any repository: each case is a test.

::

    pytest --pyargs backbay_conformance --backend NAME [-n 2]

or in a repository of one's own, where the backend stands in the configuration of pytest::

    [tool.pytest.ini_options]
    conformance_backend = "NAME"
    conformance_expectations = "conformance.toml"

and a test file has one line: ``from backbay_conformance.test_conformance import *``.

This module is loaded wherever pytest runs beside an installed Backbay, so it imports nothing until
the suite is asked for, and adds no option that another plugin might have.
"""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from backbay_conformance.pytest_run import PytestRun

_SUITE = "backbay_conformance"
_FIXTURE = "conformance_case"
_RUN: "pytest.StashKey[PytestRun]" = pytest.StashKey()
_INI = {
    "backend": "registered name, module:attribute or file.py:attribute of the backend under test",
    "profile": "quick (default) or full",
    "levels": "names or numbers of levels, 0-3 for several; default: all",
    "expectations": "file of the failures that are known, from the root directory",
    "device": "as torch spells it; default: the accelerator if there is one",
    "seed": "of the choice of cases, and of everything random",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what may stand in pytest's configuration."""
    for name, words in _INI.items():
        parser.addini(f"conformance_{name}", words, default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config,  # noqa: ARG001 (pytest passes by name)
    parser: pytest.Parser,
    args: list[str],
) -> None:
    """Add the options where the suite is named; ``--backend`` is too common a word otherwise."""
    if not any(x.partition("::")[0] in {_SUITE, f"{_SUITE}.test_conformance"} for x in args):
        return
    group = parser.getgroup("backbay", "conformance suite")
    for name, words in _INI.items():
        group.addoption(f"--{name}", dest=f"conformance_{name}", metavar=name.upper(), help=words)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each case that is to be run."""
    if _FIXTURE not in metafunc.fixturenames:
        return
    metafunc.parametrize(_FIXTURE, _run_of(metafunc.config).cases(), ids=lambda x: x.id)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
    exitstatus: int,  # noqa: ARG001 (pytest passes by name)
    config: pytest.Config,
) -> None:
    """Print the counts of each level."""
    reports = [x for group in terminalreporter.stats.values() for x in group]
    found: list[Any] = [
        value
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == _FIXTURE
    ]
    if not found:
        return
    from backbay_conformance.pytest_run import asked_for, summary  # noqa: PLC0415 (see above)

    terminalreporter.section(f"conformance of {asked_for(config).backend}")
    for line in summary(found):
        terminalreporter.line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process that runs the cases."""
    if _RUN in config.stash:
        config.stash[_RUN].end()


def _run_of(config: pytest.Config) -> "PytestRun":
    from backbay_conformance.pytest_run import PytestRun, asked_for  # noqa: PLC0415 (see above)

    if _RUN not in config.stash:
        config.stash[_RUN] = PytestRun(asked_for(config))
    return config.stash[_RUN]
