"""The distributions are one release: one version, each requiring exactly that one of the core."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "backbay": "backbay",
    "backbay-adapters": "backbay_adapters",
    "backbay-conformance": "backbay_conformance",
    "backbay-optimizer": "backbay_optimizer",
}

PYTHON = re.compile(r'"python": ?"(3\.\d+)')
"""Of a result: which Python it was made with."""


def test_the_core_asks_for_a_package_that_nobody_decided_on():
    path = ROOT / "packages" / "backbay" / "pyproject.toml"
    asked = tomllib.loads(path.read_text())["project"]["dependencies"]
    names = {"click", "jinja2", "msgspec", "packaging", "platformdirs", "rich", "tomlkit"}
    assert {x.partition(">")[0] for x in asked} == names


def project(distribution: str) -> dict:
    text = (ROOT / "packages" / distribution / "pyproject.toml").read_text()
    return tomllib.loads(text)["project"]


def version(distribution: str) -> str:
    package = PACKAGES[distribution]
    source = ROOT / "packages" / distribution / "src" / package / "__init__.py"
    found = re.search(r'^__version__ = (".*")$', source.read_text(), re.MULTILINE)
    assert found is not None
    return ast.literal_eval(found[1])


def requirements(distribution: str) -> list[Requirement]:
    described = project(distribution)
    optional = described.get("optional-dependencies", {})
    rows = [*described["dependencies"], *(x for rows in optional.values() for x in rows)]
    return [Requirement(x) for x in rows]


def test_every_distribution_is_known_to_these_tests():
    assert {x.parent.name for x in ROOT.glob("packages/*/pyproject.toml")} == set(PACKAGES)


def test_all_have_one_version():
    assert len({version(x) for x in PACKAGES}) == 1


@pytest.mark.parametrize("distribution", PACKAGES)
def test_what_one_requires_of_another_is_exactly_its_own_version(distribution):
    own = f"=={version(distribution)}"
    others = [x for x in requirements(distribution) if x.name in PACKAGES]
    assert others
    for other in others:
        assert other.name == distribution or str(other.specifier) == own, other


@pytest.mark.parametrize(
    "package", ["backbay_adapters", "backbay_conformance", "backbay_optimizer"]
)
def test_another_version_of_the_core_is_refused_in_one_line(package):
    program = f"import backbay; backbay.__version__ = '0.0.1'; import {package}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"ImportError: backbay-\w+ \S+ needs backbay of the same version, and this is backbay "
        r"0\.0\.1: pip install 'backbay==\S+'",
        last,
    )


def test_uv_is_held_to_the_versions_that_pip_is():
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    assert settings["constraint-dependencies"] == [x for x in pinned if x and not x.startswith("#")]
    assert settings["workspace"]["members"] == ["packages/*"]
    assert set(PACKAGES) <= set(settings["sources"])


def test_a_python_is_claimed_that_no_result_was_made_with():
    results = (ROOT / "benchmarks" / "results").rglob("*.json")
    found = {x[1] for path in results for x in PYTHON.finditer(path.read_text())}
    for distribution in PACKAGES:
        stated = project(distribution)["classifiers"]
        claimed = {x.rpartition(" ")[2] for x in stated if re.search(r"Python :: 3\.", x)}
        assert claimed, distribution
        assert claimed <= found, distribution


def test_a_distribution_points_somewhere_else_than_the_others():
    homes = {project(x)["urls"]["Homepage"] for x in PACKAGES}
    assert len(homes) == 1
    (home,) = homes
    for distribution in PACKAGES:
        for url in project(distribution)["urls"].values():
            assert url.startswith(home)
            path = url.removeprefix(home).partition("/main/")[2]
            assert (ROOT / path).exists(), url
