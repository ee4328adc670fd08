"""What a long run shows where there is no terminal."""

from backbay_conformance.command import _EVERY, _progress
from backbay_conformance.record import Result


def test_a_log_hears_of_failures_and_of_how_far_it_is(capsys):
    with _progress() as tell:
        for number in range(_EVERY):
            status = "crash" if number == 3 else "pass"
            tell(Result(id=f"load/{number}", level=0, status=status))
    assert capsys.readouterr().err.splitlines() == [
        "crash  load/3",
        f"{_EVERY} cases, 1 failed",
    ]
