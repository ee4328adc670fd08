"""The child process that runs cases: ``python -m backbay.conformance.worker``."""

from collections.abc import Callable

from backbay.child import answer_requests
from backbay.conformance.job import Reply, Request


def main() -> None:
    """Answer requests until standard input ends."""
    answer_requests(Request, _desk)


def _desk() -> Callable[[Request], Reply]:
    from backbay.conformance.answering import Desk  # noqa: PLC0415 (torch may print)

    return Desk().answer


if __name__ == "__main__":
    main()
