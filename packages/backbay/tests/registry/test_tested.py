"""A torch that is newer than what was tested is a warning of doctor's, and refuses nothing."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.registry import Environment, default_registry, tested
from backbay.registry.distributions import scan


def told(torch):
    return tested.problem(Environment(installed=scan([]), torch_build={"__version__": torch}))


@pytest.mark.parametrize("torch", ["2.16.0", "2.16.0.dev20261125+cpu", "3.0.0"])
def test_a_newer_torch_is_not_warned_of(torch):
    said = told(torch)
    assert said is not None
    assert said.startswith(f"torch {torch} is newer than any that Backbay was tested with (2.15)")


@pytest.mark.parametrize("torch", ["2.11.0", "2.15.0+cu130", "2.15.1", "2.9.0", None, "built here"])
def test_one_that_was_tested_or_is_not_known_is_warned_of(torch):
    assert told(torch) is None


def test_doctor_is_silent_on_a_newer_torch_or_refuses_it(monkeypatch):
    build = {**default_registry.environment.torch_build, "__version__": "2.16.0"}
    here = replace(default_registry.environment, torch_build=build)
    monkeypatch.setitem(vars(default_registry), "environment", here)
    done = CliRunner().invoke(main, ["doctor", "inductor", "--json"])
    assert done.exit_code == 0
    (note,) = [x for x in json.loads(done.stdout)["notes"] if "newer" in x]
    assert "torch 2.16.0" in note
