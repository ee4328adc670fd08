"""What is installed: Backbay understands and lists it, and torch finds it by name."""

import json
import subprocess
import sys
from importlib import resources

import backbay
import torch
from backbay.registry.names import PluginName
from torch._dynamo.backends.registry import lookup_backend

NAME = PluginName("backbay-example-backend")


def command(*arguments: str) -> str:
    """Run Backbay's command line in a process of its own."""
    program = [sys.executable, "-m", "backbay", *arguments]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_manifest_is_in_the_package_and_understood() -> None:
    manifest = resources.files("backbay_example_backend").joinpath("backends.toml")
    assert f"{NAME}: understood" in command("check-manifest", str(manifest))


def test_backbay_lists_it_as_ready() -> None:
    rows = json.loads(command("list", "--json"))["backends"]
    (row,) = (row for row in rows if row["name"] == NAME)
    assert row["state"] == "ready", row["reason"]
    assert row["origin"].endswith("(backbay_example_backend.backend:backend)")
    assert row["summary"]


def test_torch_and_backbay_find_the_same_object() -> None:
    assert backbay.lookup_backend(NAME) is lookup_backend(NAME)


def test_torch_compiles_with_it_by_name() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) ** 2 + 1

    x = torch.linspace(-3, 3, 50)
    torch.testing.assert_close(torch.compile(function, backend=NAME)(x), function(x))
