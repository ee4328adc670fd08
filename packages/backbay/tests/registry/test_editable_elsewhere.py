"""Editable installations of another environment: followed as far as files tell."""

import shutil
from pathlib import Path

import pytest
from other_environment import TORCH, Other

from backbay.registry import BackendSpec, Origin, Requirements
from backbay.registry.availability import check

EDITABLE = '{"url": "file:///src", "dir_info": {"editable": true}}'
PLUGGED = (
    "[torch_dynamo_backends]\nplugged = plugged.fn:fn\n"
    "[backbay.backends]\nplugged = plugged:backends.toml\n"
)
TABLE = """
from __future__ import annotations
MAPPING: dict[str, str] = {'plugged': %r}
NAMESPACES: dict[str, list[str]] = {}
def install(): ...
"""
MAPPED = "from editables.redirector import RedirectingFinder as F\nF.map_module('plugged', %r)\n"
RECORDED = "plugged-1.0.dist-info/METADATA,,\n_finder.py,sha256=x,1\n_finder.pth,,\n"


@pytest.fixture
def other(tmp_path) -> Other:
    return Other(tmp_path / "other")


@pytest.fixture
def source(tmp_path) -> Path:
    package = tmp_path / "source" / "plugged"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "fn.py").touch()
    (package / "backends.toml").write_text(
        'schema = 1\n[[backend]]\nname = "plugged"\nsummary = "Plugged in"\n'
    )
    return package


@pytest.mark.parametrize("way", ["path", "table", "file", "module"])
def test_an_editable_installation_is_followed(other, source, way):
    other.write({"torch/__init__.py": "", "torch/version.py": TORCH})
    files = {
        "path": {"_finder.pth": f"{source.parent}\n"},
        "table": {"_finder.py": TABLE % str(source), "_finder.pth": "import _finder\n"},
        "file": {"_finder.py": MAPPED % str(source / "__init__.py")},
        "module": {"_finder.py": TABLE.replace("plugged'", "plugged.fn'") % str(source / "fn")},
    }
    other.write(files[way])
    other.publish("plugged", entry_points_txt=PLUGGED, direct_url_json=EDITABLE, RECORD=RECORDED)
    known = other.known()
    assert known.availability("plugged").state == "ready"
    assert known.environment.has_module("plugged.fn")
    assert known.environment.has_module("nobody") is False
    if way != "module":
        assert known.spec("plugged").summary == "Plugged in"
        assert not known.environment.has_module("plugged.absent")
        shutil.rmtree(source)
        assert other.known().availability("plugged").state == "broken"


def test_what_only_code_finds_is_unknown_and_what_else_is_absent_stays_so(other):
    other.write({"torch/__init__.py": "", "torch/version.py": TORCH, "_finder.py": "import x\n"})
    other.publish("plugged", entry_points_txt=PLUGGED, direct_url_json=EDITABLE, RECORD=RECORDED)
    found = other.known().availability("plugged")
    assert (found.state, found.ready) == ("unknown", False)
    assert "whether the package 'plugged' is there only code" in found.reason
    assert f"{other.python} -m backbay doctor" in found.remedy
    needs = BackendSpec(
        name="needs",
        origin=Origin(kind="torch", distribution="torch", version="2.13.0"),
        requires=Requirements(modules=("plugged.fn",)),
    )
    assert check(needs, other.read()).state == "unknown"
    (problem,) = other.known().problems
    assert "is not found" in problem


def test_a_folder_of_built_files_does_not_hide_the_source_of_a_package(other, source):
    other.write({"torch/__init__.py": "", "torch/version.py": TORCH, "plugged/built.so": ""})
    other.write({"_finder.py": TABLE % str(source)})
    other.publish("plugged", entry_points_txt=PLUGGED, direct_url_json=EDITABLE, RECORD=RECORDED)
    assert other.known().spec("plugged").summary == "Plugged in"
    other.write({"_finder.py": "import x\n"})
    assert other.known().availability("plugged").state == "unknown"


def test_a_table_that_leads_nowhere_finds_nothing(other):
    other.write({"_finder.py": TABLE % "/"})
    other.publish("plugged", direct_url_json=EDITABLE, RECORD=RECORDED)
    assert other.read().has_module("plugged") is False


def test_a_finder_of_what_is_not_editable_makes_nothing_unknown(other):
    other.write({"torch/__init__.py": "", "torch/version.py": TORCH, "_finder.py": "import x\n"})
    said = EDITABLE.replace("true", "false")
    other.publish("plugged", entry_points_txt=PLUGGED, direct_url_json=said, RECORD=RECORDED)
    assert other.known().availability("plugged").state == "broken"


def test_a_torch_that_only_code_finds_has_a_version_and_unknown_devices(other):
    other.write({"_finder.py": "import x\n"})
    other.publish("torch", "2.14.0a0", direct_url_json=EDITABLE, RECORD=RECORDED)
    known = other.known()
    assert known.environment.torch_build == {"__version__": "2.14.0a0"}
    assert known.availability("cudagraphs").state == "unknown"
    assert known.availability("eager").state == "ready"
    assert known.environment.default_device == "cpu"
