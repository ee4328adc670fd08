"""Commands that distributions publish, through the entry-point group ``backbay.commands``."""

from collections.abc import Iterator

import click

from backbay.dependencies import check_installed
from backbay.errors import InputError, MissingDependency, missing_for, plain
from backbay.registry import default_registry
from backbay.registry.distributions import EntryPoint
from backbay.registry.spec import name_problem
from backbay.registry.target import parse

GROUP = "backbay.commands"
KNOWN = {"conform": "backbay-conformance"}
"""Commands of Backbay's that come with another distribution."""


def published() -> dict[str, list[EntryPoint]]:
    """Return the commands that are published here, by name, without importing any."""
    found: dict[str, list[EntryPoint]] = {}
    for entry_point in default_registry.environment.installed.entry_points(GROUP):
        if name_problem(entry_point.name) is None:
            found.setdefault(entry_point.name, []).append(entry_point)
    return found


def refused() -> Iterator[tuple[str, str]]:
    """Yield the names under which nothing can be called, each with why and who published it."""
    for entry_point in default_registry.environment.installed.entry_points(GROUP):
        problem = name_problem(entry_point.name)
        if problem is not None:
            who = entry_point.distribution
            yield (
                plain(entry_point.name),
                f"published by {who.name} {who.version}: the name {problem}",
            )


def load(name: str) -> click.Command | None:
    """Import a published command; nothing where nobody publishes it.

    Raises:
        InputError: it comes with a distribution that is not installed, two publish it, its
            distribution is blocked, or its own code raised; one line says which, and what to do.
    """
    entry_points = published().get(name, [])
    if not entry_points:
        if name not in KNOWN:
            return None
        raise InputError(
            f"the command {name} is in {KNOWN[name]}, which is not installed: "
            f"pip install {KNOWN[name]}"
        )
    distributions = [x.distribution for x in entry_points]
    who = " and ".join(f"{x.name} {x.version}" for x in distributions)
    if len(entry_points) > 1:
        raise InputError(f"the command {name} is published by {who}: uninstall all but one")
    blocked = default_registry.policy.why_blocked(distributions[0].name)
    if blocked is not None:
        raise InputError(f"the command {name}: {blocked}: allow it there to use the command")
    return _imported(name, entry_points[0].value, who)


def _imported(name: str, reference: str, who: str) -> click.Command:
    broken = f"the command {name} of {who} is broken"
    target = parse(reference.strip())
    if target is None:
        raise InputError(f"{broken}: {reference!r} is not of the form module:attribute")
    try:
        command = target.load_installed()
    except MissingDependency:
        check_installed(f"backbay {name}")  # names all that is missing, not the first alone
        raise
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        what = f"backbay {name}"
        if isinstance(error, ModuleNotFoundError) and missing_for(what, error) is not None:
            check_installed(what)  # names all that is missing, not the first alone
        said = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"{broken}: {type(error).__name__}: {said}: report it to its authors"
        ) from error
    if not isinstance(command, click.Command):
        raise InputError(f"{broken}: {reference} is no click command, but {type(command).__name__}")
    return command
