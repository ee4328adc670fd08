"""The child process that makes repros: ``python -m backbay.conformance.repro.worker``."""

from collections.abc import Callable

from backbay.child import answer_requests
from backbay.conformance.repro.record import Made, Make


def main() -> None:
    """Answer requests until standard input ends."""
    answer_requests(Make, _maker)


def _maker() -> Callable[[Make], Made]:
    from backbay.conformance.repro.making import made  # noqa: PLC0415 (torch may print)

    return made


if __name__ == "__main__":
    main()
