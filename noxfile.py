"""What a contributor does, one session each: `nox -l` lists them, `nox -s lint` runs one.

Each makes an environment of its own. In the one that `.ci/run` made, `nox --no-venv` uses that.
"""

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.default_venv_backend = "uv|virtualenv"

DEVELOPMENT = (
    *("-c", "constraints.txt", "-e", "packages/backbay[dev]", "-e", "packages/backbay-optimizer"),
    *("-e", "packages/backbay-conformance", "-e", "packages/backbay-adapters"),
)


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff, mypy, import-linter and typos."""
    session.install(*DEVELOPMENT)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports")
    session.run("typos")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, or those that are named: nox -s tests -- tests/meta -k imports."""
    session.install(*DEVELOPMENT)
    session.run("python", "-m", "pytest", *(session.posargs or ("-m", "not slow and not sweep")))


@nox.session
def generated(session: nox.Session) -> None:
    """Write anew what is generated: the catalogue, the options of passes, and pages of both."""
    session.install(*DEVELOPMENT)
    session.run("python", "tools/compile_catalog.py")
    session.run("python", "tools/write_options.py")
    session.run("python", "tools/backends_page.py")
    session.run("python", "tools/tested_page.py")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build each distribution, check what is in it, and run it in an environment of its own."""
    session.install("-c", "constraints.txt", "hatchling")
    session.run("python", "tools/built_distributions.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, and run its notebooks."""
    session.install(*DEVELOPMENT)
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "docs", "site")
