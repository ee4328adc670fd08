"""Shell completion of what commands are given: workloads, backends, tags, codes, own files."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Known = Callable[[], Mapping[str, str]]
"""Returns names, each with what it is; it is called when a shell asks, never to run a command."""
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completing(known: Known, *, several: bool = False, own: bool = False) -> Complete:
    """Return what completes names.

    Args:
        known: the names.
        several: whether commas separate names; the last is completed.
        own: whether it may be the user's own, ``FILE.py:FUNCTION``, in place of a name.
    """

    def complete(
        _context: click.Context, _parameter: click.Parameter, typed: str
    ) -> list[CompletionItem]:
        """Return what may stand in place of what was typed, with what each is."""
        before, comma, last = typed.rpartition(",") if several else ("", "", typed)
        found = [
            CompletionItem(f"{before}{comma}{name}", help=summary)
            for name, summary in known().items()
            if name.lower().startswith(last.lower())
        ]
        if not own:
            return found
        # A file first: bash forgets what came before it.
        file = [] if comma else [CompletionItem(typed, type="file")]
        functions = [CompletionItem(f"{before}{comma}{x}") for x in _functions(last)]
        return [*file, *found, *functions]

    return complete


def _functions(typed: str) -> Iterator[str]:
    """Yield ``FILE.py:FUNCTION`` for each function of a file that begins as typed."""
    path, colon, begun = typed.rpartition(":")
    if not colon or not path.endswith(".py") or not Path(path).is_file():
        return
    from backbay.registry.target import functions_in  # noqa: PLC0415 (only a completion asks)

    yield from (f"{path}:{x}" for x in functions_in(path) if x.startswith(begun))


def _backends() -> dict[str, str]:
    from backbay.registry import default_registry  # noqa: PLC0415 (as above)

    return {name: x.spec.summary for name, x in default_registry.resolutions().items()}


def _tags() -> dict[str, str]:
    from backbay.registry import default_registry  # noqa: PLC0415 (as above)

    return dict.fromkeys(sorted(default_registry.tags()), "")


def _codes() -> dict[str, str]:
    from backbay.explain.codes import CODES  # noqa: PLC0415 (as above)

    return {code: known.title for code, known in CODES.items()}


def _workloads() -> dict[str, str]:
    from backbay.workloads.reference import known  # noqa: PLC0415 (as above)

    return dict.fromkeys([*known(), "timm:"], "")


complete_backend = completing(_backends, own=True)
complete_backends = completing(_backends, several=True, own=True)
"""Also of arms: what follows a backend's name in one is not completed."""
complete_codes = completing(_codes, several=True)
complete_tags = completing(_tags)
complete_workload = completing(_workloads, own=True)
complete_workload_or_code = completing(lambda: {**_workloads(), **_codes()}, own=True)
