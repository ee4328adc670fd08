"""What the tests of diagnoses share."""

import importlib.util
from pathlib import Path

import pytest
from made_up_diagnoses import FINDINGS, LAYER, compiled, diagnosis, inside

import backbay
from backbay import diagnose
from backbay.diagnose.page import page

MODELS = Path(__file__).with_name("models.py")


@pytest.fixture(scope="session")
def models():
    """The module that has the workloads, as a file of a user's."""
    spec = importlib.util.spec_from_file_location("diagnosed_models", MODELS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def diagnosed(models, tmp_path, monkeypatch):
    """Diagnose a workload of models.py in this process, quickly."""
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))

    def run(name, *, further=(), **options):
        made = getattr(models, name)()
        calls = tuple(((x,), {}) for x in further)
        workload = backbay.Workload(*made, further=calls)
        limits = diagnose.Limits(budget_s=options.pop("budget_s", 600.0), timing_s=0.2)
        options = {"backend": "eager", **options}
        return diagnose.run(workload, limits=limits, device="cpu", **options)

    return run


@pytest.fixture
def line():
    """Return the place of a line of models.py, found by its code, as reports begin it."""

    def found(code):
        lines = MODELS.read_text().splitlines()
        (number,) = [n for n, text in enumerate(lines, 1) if text.strip() == code]
        return f"{MODELS}:{number}: {code}"

    return found


@pytest.fixture(scope="session")
def told():
    """A diagnosis that has something of everything."""
    return diagnosis(inside(compiled(*LAYER)), findings=FINDINGS, notes=("the machine was busy",))


@pytest.fixture(scope="session")
def text(told):
    """Its page."""
    return page(told)
