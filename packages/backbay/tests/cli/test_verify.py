"""``backbay verify`` as it is called: exit codes, streams, files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main

FAULTY = Path(__file__).parents[1] / "verify" / "faulty.py"


def verify(*arguments: str):
    return CliRunner().invoke(main, ["verify", *arguments, "--device", "cpu"])


@pytest.mark.slow
def test_what_is_right_ends_with_0_and_json_on_standard_output_is_json_alone():
    options = ("--backend", f"{FAULTY}:honest", "--infer", "--batches", "3", "--json", "-")
    done = verify(f"{FAULTY}:model", *options)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema"] == "backbay.verify/1"
    assert [x["check"] for x in document["results"][0]["checks"]] == ["forward", "calls", "batch 3"]
    assert "is right on" in done.stderr


@pytest.mark.slow
def test_what_is_wrong_ends_with_1_and_names_the_module(here):
    backends = f"{FAULTY}:honest,{FAULTY}:wrong_tanh"
    done = verify(f"{FAULTY}:model", "--backends", backends, "--infer", "--batches", "3")
    assert done.exit_code == 1
    said = " ".join(done.stdout.split())
    assert "1 of 2 backends right" in said
    assert "layers.0.middle (Gate, " in said
    assert "Traceback" not in done.output


def test_what_does_not_exist_ends_with_2():
    assert verify("hf:no_such_model").exit_code == 2
    done = verify("--backend", "no_such_backend")
    assert done.exit_code == 2
    assert "no_such_backend" in done.stderr
    done = verify("--batches", "3,many")
    assert done.exit_code == 2
    assert "'many' is none" in done.stderr


def test_of_backends_that_are_given_one_by_one_only_the_last_counts():
    done = verify("--backend", "no_such_backend", "--backend", "eager")
    assert done.exit_code == 2
    assert "no_such_backend" in done.stderr
    for option in ("--backends", "--arms"):
        done = CliRunner().invoke(main, ["race", option, "no_such_backend", option, "eager"])
        assert done.exit_code == 2
        assert "no_such_backend" in done.stderr


def test_help_has_an_example():
    assert "Examples:" in CliRunner().invoke(main, ["verify", "--help"]).stdout
