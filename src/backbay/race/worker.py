"""The child process of a race: ``python -m backbay.race.worker``."""

from collections.abc import Callable

from backbay.child import answer_requests
from backbay.race.job import Reply, Request


def main() -> None:
    """Answer requests until standard input ends."""
    answer_requests(Request, _bench)


def _bench() -> Callable[[Request], Reply]:
    from backbay.race.bench import Bench  # noqa: PLC0415 (torch may print when it is imported)

    return Bench().answer


if __name__ == "__main__":
    main()
