"""Whether torch is newer than any that Backbay was tested with: a warning, never a refusal."""

from packaging.version import InvalidVersion, Version

from backbay.registry.environment import Environment

NEWEST = "2.15"
"""The newest release of torch that docs/reference/tested.md has a row of; a test holds it."""


def problem(environment: Environment) -> str | None:
    """Return that this torch was not tested and what to do, in one line; None if it was."""
    torch = environment.torch_build.get("__version__")
    try:
        newer = bool(torch) and Version(str(torch)).release[:2] > Version(NEWEST).release
    except InvalidVersion:
        return None
    if not newer:
        return None
    return (
        f"torch {torch} is newer than any that Backbay was tested with ({NEWEST}): what is ready "
        f"may still fail; try it with backbay doctor --probe, or install torch {NEWEST}"
    )
