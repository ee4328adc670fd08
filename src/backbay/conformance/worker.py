"""The child process that runs cases: ``python -m backbay.conformance.worker``."""

from collections.abc import Callable

from backbay.child import answer_requests
from backbay.conformance.job import Reply, Request


def main() -> None:
    """Answer requests until standard input ends."""
    answer_requests(Request, _desk)


def _desk() -> Callable[[Request], Reply]:
    from backbay.conformance.answering import Desk  # noqa: PLC0415 (torch may print)

    _measure_no_guards()
    return Desk().answer


def _measure_no_guards() -> None:
    """Keep Dynamo from timing the guards of each compilation, for its log alone.

    It empties the processor's caches for that: a quarter of the suite's time, and everybody's else.
    """
    from torch._dynamo import guards  # noqa: PLC0415 (as above)

    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0


if __name__ == "__main__":
    main()
