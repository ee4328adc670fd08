"""The child process of a verification: ``python -m backbay.verify.worker``."""

from collections.abc import Callable

from backbay.child import answer_requests
from backbay.verify.job import Reply, Request


def main() -> None:
    """Answer requests until standard input ends."""
    answer_requests(Request, _desk)


def _desk() -> Callable[[Request], Reply]:
    from backbay.verify.answering import Desk  # noqa: PLC0415 (torch may print)

    return Desk().answer


if __name__ == "__main__":
    main()
