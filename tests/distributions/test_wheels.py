"""What the wheels hold, and what is found where some of them are missing."""

import json
import zipfile
from email.parser import Parser
from importlib import metadata

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

CORE, CONFORMANCE, OPTIMIZER = "backbay", "backbay-conformance", "backbay-optimizer"
ADAPTERS = "backbay-adapters"
ALL = (CORE, CONFORMANCE, OPTIMIZER, ADAPTERS)
MOST_DEPENDENCIES = 7
MOST_FILES = {CORE: 396, CONFORMANCE: 140, OPTIMIZER: 106, ADAPTERS: 17}
"""Files of a wheel, its metadata included: more come from a folder that does not belong in it."""
TORCH_KNOWS = """
import torch._dynamo.backends.registry as registry
print(registry.lookup_backend("backbay").__module__, "backbay" in registry.list_backends())
"""


def opened(wheels, distribution):
    (found,) = wheels.glob(f"{distribution.replace('-', '_')}-*.whl")
    return zipfile.ZipFile(found)


def row(done, name):
    assert done.returncode == 0, done.stderr
    (found,) = (x for x in json.loads(done.stdout)["backends"] if x["name"] == name)
    return found


@pytest.mark.parametrize("distribution", ALL)
def test_a_wheel_holds_its_own_package_and_no_test(wheels, distribution):
    names = opened(wheels, distribution).namelist()
    package = distribution.replace("-", "_")
    tops = {x.partition("/")[0] for x in names}
    assert {x for x in tops if not x.endswith(".dist-info")} == {package}
    assert f"{package}/py.typed" in names
    assert any(x.endswith("/licenses/LICENSE") for x in names)
    strays = ("conftest", "__pycache__", "/tests/", "mutants", "kill_table")
    found = [x for x in names if any(stray in x for stray in strays)]
    assert not [x for x in found if "/new/template/" not in x]  # tests of what `new` writes


@pytest.mark.parametrize("distribution", ALL)
def test_a_wheel_grows_by_what_nobody_noticed(wheels, distribution):
    names = opened(wheels, distribution).namelist()
    assert MOST_FILES[distribution] * 0.8 < len(names) <= MOST_FILES[distribution], len(names)


@pytest.mark.parametrize("distribution", ALL)
def test_a_wheel_does_not_say_whose_it_is(wheels, distribution):
    archive = opened(wheels, distribution)
    (path,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
    described = Parser().parsestr(archive.read(path).decode())
    assert described["Author"] == "Backbay contributors"
    assert described["License-Expression"] == "Apache-2.0"
    urls = dict(x.split(", ") for x in described.get_all("Project-URL") or [])
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}


def test_all_names_every_distribution_in_exactly_this_version(wheels):
    archive = opened(wheels, CORE)
    (path,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
    described = Parser().parsestr(archive.read(path).decode())
    rows = [Requirement(x) for x in described.get_all("Requires-Dist") or []]
    wanted = {x.name: str(x.specifier) for x in rows if x.marker and "all" in str(x.marker)}
    own = f"=={described['Version']}"
    assert wanted[CONFORMANCE] == wanted[OPTIMIZER] == wanted[ADAPTERS] == own
    needed = {x.name for x in rows if x.marker is None}
    assert not needed & {"torch", "numpy", "matplotlib"}
    assert len(needed) <= MOST_DEPENDENCIES, needed


def test_from_wheels_everything_is_found(installed):
    run = installed(*ALL)
    backend = row(run("-m", "backbay", "list", "--json"), "backbay")
    assert backend["origin"].startswith("backbay-optimizer ")
    assert backend["state"] == "ready"
    assert run("-c", TORCH_KNOWS).stdout.split() == ["backbay_optimizer.backend", "True"]
    assert "graded levels" in run("-m", "backbay", "conform", "--help").stdout


def test_without_the_optimizer_its_backend_is_absent_and_says_what_to_install(installed):
    run = installed(CORE, CONFORMANCE)
    listed = row(run("-m", "backbay", "list", "--all", "--json"), "backbay")
    assert listed["state"] == "not_installed"
    assert "pip install" in listed["remedy"]
    assert "backbay-optimizer" in listed["remedy"]
    tried = run("-c", "import backbay; backbay.lookup_backend('backbay')")
    assert "backbay-optimizer" in tried.stderr.splitlines()[-1]
    small = row(run("-m", "backbay", "list", "--all", "--json"), "backbay_silu")
    assert small["state"] == "ready"


def test_without_the_suite_conform_is_one_line_that_says_what_to_install(installed):
    run = installed(CORE, OPTIMIZER)
    done = run("-m", "backbay", "conform", "inductor")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "pip install" in done.stderr
    assert "backbay-conformance" in done.stderr
    assert run("-m", "backbay", "list").returncode == 0


def test_an_editable_install_publishes_what_a_wheel_does(wheels):
    for distribution in ALL:
        archive = opened(wheels, distribution)
        (path,) = (x for x in archive.namelist() if x.endswith("/entry_points.txt"))
        here = metadata.distribution(distribution)
        assert sorted(map(str, here.entry_points)) == sorted(
            map(str, metadata.EntryPoints._from_text_for(archive.read(path).decode(), here))
        )
