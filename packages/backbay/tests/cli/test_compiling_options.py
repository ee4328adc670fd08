"""What a command is asked for of torch.compile reaches it: mode, options, dynamic, fullgraph."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from backbay.cli import main

MODEL = """
from pathlib import Path

import torch

def model():
    return torch.nn.Linear(4, 4), (torch.ones(3, 4),)

def broken():
    class Broken(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2
    return Broken(), (torch.ones(3, 4),)

def takes(graph_module, _, *, mode=None, options=None):
    Path("told").write_text(f"{mode} {options}")
    return graph_module.forward

def bare(graph_module, _):
    return graph_module.forward
"""
QUICK = {
    "explain": ["--once"],
    "verify": ["--infer", "--blame", "0", "--batches", "3"],
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """The keywords of each call of torch.compile."""
    found, whole = [], torch.compile

    def compiling(*arguments, **keywords):
        found.append(keywords)
        return whole(*arguments, **keywords)

    monkeypatch.setattr(torch, "compile", compiling)
    return found


def run(command, *arguments, model="model"):
    given = [command, f"own.py:{model}", "--device", "cpu", *QUICK[command], *arguments]
    return CliRunner().invoke(main, [*given, "--json", "-"])


@pytest.mark.parametrize("command", QUICK)
def test_dynamic_and_fullgraph_reach_torch_compile(command, asked, here):
    for written, value in ((["--dynamic"], True), (["--no-dynamic"], False), ([], None)):
        asked.clear()
        done = run(command, "--backend", "eager", *written)
        assert {x["dynamic"] for x in asked} == {value}, done.stderr
        assert json.loads(done.stdout)["settings"]["dynamic"] is value
    asked.clear()
    done = run(command, "--backend", "eager", "--fullgraph")
    assert any(x.get("fullgraph") for x in asked)
    assert json.loads(done.stdout)["settings"]["fullgraph"] is True
    assert done.exit_code == 0


@pytest.mark.parametrize("command", QUICK)
def test_a_graph_break_fails_where_a_full_graph_is_asked_for(command, here):
    assert run(command, "--backend", "eager", model="broken").exit_code == 0
    done = run(command, "--backend", "eager", "--fullgraph", model="broken")
    assert done.exit_code == 1
    assert "graph_break" in done.stdout


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.parametrize(
    ("written", "told"),
    [
        (["--mode", "fast"], "fast None"),
        (["--options", "{level: 3, name: 'x y'}"], "None {'level': 3, 'name': 'x y'}"),
        (["--options", "level: 3"], "None {'level': 3}"),
        (["--mode", "fast", "--options", "a: true"], "fast {'a': True}"),
        ([], "None None"),
    ],
)
def test_mode_and_options_reach_the_backend(command, written, told, here):
    done = run(command, "--backend", "own.py:takes", *written)
    assert done.exit_code == 0, done.stderr
    assert Path("told").read_text() == told


def test_options_that_are_not_written_as_an_arms_end_with_2():
    for written, why in (("{level: x y}", "character 8: x y is no value"), ("{a: 1", "not closed")):
        done = run("explain", "--backend", "own.py:takes", "--options", written)
        assert done.exit_code == 2
        assert f"options {written!r}, character" in done.stderr
        assert why in done.stderr


@pytest.mark.parametrize("command", QUICK)
def test_settings_say_what_was_asked_for(command, here):
    done = run(
        command, "--backend", "own.py:takes", "--mode", "fast", "--options", "a: 1", "--dynamic"
    )
    document = json.loads(done.stdout)
    settings = document["settings"]
    assert settings["compile_mode"] == "fast"
    assert settings["options"] == {"a": 1}
    assert "own.py:takes@fast{a: 1}" in done.stderr
    if command == "verify":
        assert document["sentence"].startswith("own.py:takes@fast{a: 1} is right on ")


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["inductor", "--mode", "fast"], "there is no mode 'fast'"),
        (["inductor", "--options", "no_such: 1"], "inductor has no option 'no_such'"),
        (["eager", "--mode", "fast"], "eager takes no mode"),
        (["own.py:bare", "--options", "a: 1"], "takes no options"),
        (["own.py:bare", "--mode", "x", "--options", "a: 1"], "takes no options"),
    ],
)
def test_what_a_backend_does_not_take_ends_with_2_before_anything_compiles(
    command, given, why, asked, here
):
    done = run(command, "--backend", *given)
    assert done.exit_code == 2
    assert why in done.stderr
    assert command == "explain" or given[0] in done.stderr
    assert not asked


def test_a_backend_that_cannot_be_loaded_ends_with_2_where_a_mode_is_given(here):
    Path("broken.py").write_text("raise ValueError('no such device')\n")
    for given in ([], ["--mode", "fast"]):
        done = run("verify", "--backend", "broken.py:compiler", *given)
        assert done.exit_code == 1, done.stderr
        assert "no such device" in done.stdout


def test_inductor_gets_its_mode_and_options_as_torch_compile_gives_them(asked, here):
    done = run("verify", "--mode", "default", "--options", "max_fusion_size: 8")
    assert done.exit_code == 0, done.stderr
    wrapped = [x["backend"] for x in asked if not isinstance(x["backend"], str)]
    assert wrapped[0].spec.name == "inductor"
    assert wrapped[0].options == {"max_fusion_size": 8}
    asked.clear()
    assert run("verify", "--options", "max_fusion_size: 8").exit_code == 0
    given = [x for x in asked if x["backend"] == "inductor"]
    assert {x["options"]["max_fusion_size"] for x in given} == {8}
    asked.clear()
    assert run("verify", "--mode", "default").exit_code == 0
    assert "default" in {x["mode"] for x in asked if x["backend"] == "inductor"}


def test_mode_without_a_backend_ends_with_2():
    done = run("explain", "--mode", "default")
    assert done.exit_code == 2
    assert "name one" in done.stderr
