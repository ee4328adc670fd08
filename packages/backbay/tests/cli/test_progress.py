"""What a race prints while it runs, where nobody watches."""

from backbay.cli.progress import progress


def test_a_log_has_a_line_for_every_round(capsys):
    with progress() as tell:
        tell("decoder", "eager", "reference")
        for number in range(3):
            tell("decoder", "eager, inductor", "timing", f"round {number} of 3")
    said = capsys.readouterr().err.splitlines()
    assert said == ["decoder · eager · reference", "decoder · eager, inductor · timing"]
