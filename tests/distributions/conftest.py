"""Environments in which some of the distributions are installed, from wheels."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("backbay", "backbay-adapters", "backbay-conformance", "backbay-optimizer")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> Path:
    """Build a wheel of each distribution; hatchling is here, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [str(ROOT / "packages" / x) for x in DISTRIBUTIONS]
    options = ["--no-build-isolation", "--no-deps", "-q", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(folder), *sources]
    subprocess.run(pip, check=True)
    return folder


@pytest.fixture(scope="session")
def others(tmp_path_factory) -> Path:
    """Return a folder of everything that is installed here, apart from the project itself."""
    folder = tmp_path_factory.mktemp("others")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        ours = entry.name.startswith(("backbay", "_editable_impl_backbay", "_backbay"))
        if not ours and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session")
def installed(wheels, others, tmp_path_factory) -> Callable[..., Run]:
    """Return what installs some of the wheels, and returns what runs Python there."""
    made: dict[tuple[str, ...], Path] = {}

    def install(*distributions: str) -> Run:
        if distributions not in made:
            folder = made[distributions] = tmp_path_factory.mktemp("installed")
            files = [str(next(wheels.glob(f"{x.replace('-', '_')}-*.whl"))) for x in distributions]
            options = ["--no-deps", "--no-index", "-q", "--disable-pip-version-check"]
            pip = [sys.executable, "-m", "pip", "install", *options]
            subprocess.run([*pip, "--target", str(folder), *files], check=True)
        path = os.pathsep.join([str(made[distributions]), str(others)])

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            # -S: no .pth file is read, so that no editable install is seen.
            return subprocess.run(
                [sys.executable, "-S", "-P", *arguments],
                env={**os.environ, "PYTHONPATH": path, "BACKBAY_CONFIG": "0", "COLUMNS": "200"},
                cwd=made[distributions],
                capture_output=True,
                text=True,
                check=False,
            )

        return run

    return install
