"""Engines that do not run beside torch 2.13: what the catalogue says of them, and their own errors.

Each is a stub that fails in the way of the real one, on the torch that is here. The real ones are
tried by ``backbay doctor NAME... --fresh-venvs``, which compares their errors with the same quotes.
"""

import importlib
import sys

import pytest

from backbay.causes import one_line
from backbay.engines.loading import loaded
from backbay.errors import BackendUnavailable
from backbay.registry.availability import shown

ZENTORCH = (
    "Incompatible PyTorch version 2.13.0+cpu detected. The installed zentorch binary is only "
    "compatible with PyTorch versions 2.14.x"
)
ENGINES = {
    "ipex": (
        "intel-extension-for-pytorch 2.8.0",
        "intel_extension_for_pytorch",
        "import os; os.exit(127)",
        "use inductor",
    ),
    "thunder": (
        "lightning-thunder 0.2.6",
        "thunder.dynamo",
        "import torch; torch.Tensor.align_as",
        "use inductor",
    ),
    "torchax": (
        "torchax 0.0.13",
        "torchax",
        "import torch; torch.ops.aten.prod.dim_Dimname",
        "use inductor",
    ),
    "ttnn": ("torch-ttnn 0.5.6", "torch_ttnn", "import ttnn", "use inductor"),
    "zentorch": (
        "zentorch 2.14.0.1",
        "zentorch",
        f"raise ImportError({ZENTORCH!r})",
        "zentorch==2.13.*",
    ),
}


@pytest.fixture(params=ENGINES)
def engine(request, install, tmp_path, monkeypatch):
    """Write one of them where it is imported from; its name, and what is to be used instead."""
    distribution, module, source, remedy = ENGINES[request.param]
    name, version = distribution.split()
    place = tmp_path.joinpath(*module.split("."))
    place.mkdir(parents=True)
    for folder in (place, *place.parents):
        if folder == tmp_path:
            break
        (folder / "__init__.py").write_text("")
    (place / "__init__.py").write_text(source)
    install(name, version)
    if request.param == "torchax":
        install("jax")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield request.param, remedy
    for loaded_name in [x for x in sys.modules if x.partition(".")[0] == module.partition(".")[0]]:
        del sys.modules[loaded_name]


def test_a_broken_engine_is_called_ready_or_nobody_says_what_to_use(engine, registry):
    name, remedy = engine
    found = registry.availability(name)
    assert found.state == "broken"
    assert remedy in found.remedy


def test_the_error_of_today_is_not_the_one_that_the_catalogue_quotes(engine, registry):
    name, remedy = engine
    with pytest.raises((AttributeError, ImportError)) as caught:
        importlib.import_module(ENGINES[name][1])
    fault = shown(one_line(caught.value), registry.spec(name), registry.environment)
    assert fault is not None
    assert remedy in fault.remedy


def test_the_zentorch_of_another_torch_is_installed(registry):
    found = registry.availability("zentorch")
    assert found.reason == "zentorch is not installed"
    assert found.remedy == "pip install 'zentorch==2.13.*'"
    spec = registry.spec("zentorch")
    assert spec.install_beside("2.14.0+cu130") == "pip install 'zentorch==2.14.*'"
    assert spec.install_beside(None) == "pip install 'zentorch'"
    assert registry.spec("openvino").install_beside("2.13.0") == "pip install openvino"


@pytest.mark.parametrize("name", [*sorted(ENGINES.keys() - {"zentorch"}), "openxla", "tvm"])
def test_somebody_is_sent_to_install_what_would_not_run(name, registry):
    found = registry.availability(name)
    assert found.state == "not_installed"
    assert "and what pip installs does not run beside torch 2.13.0+cpu: " in found.reason
    assert found.remedy.startswith("use ")
    with pytest.raises(BackendUnavailable, match="does not run beside torch"):
        registry.require(name)


@pytest.mark.parametrize("name", ["onnxrt", "onnxrt_cpu", "onnxrt_cuda", "onnxrt_cpu_numpy"])
def test_onnxruntime_is_said_to_be_missing_where_torch_dropped_its_backend(name, registry, install):
    install("onnxruntime", "1.32.0")
    found = registry.availability(name)
    assert "torch dropped it, with or without onnxruntime installed" in found.reason
    here, extra = ("_cuda", "-cuda") if name == "onnxrt_cuda" else ("", "")
    wanted = f"pip install 'backbay-adapters[onnxruntime{extra}]'"
    assert f"use backbay_onnxruntime{here}: {wanted}" in found.remedy


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_an_adapter_is_unknown_before_it_is_installed(name, registry):
    found = registry.availability(f"backbay_{name}")
    remedy = f"pip install 'backbay-adapters[{name}]'"
    assert (found.state, found.remedy) == ("not_installed", remedy)


def test_a_zentorch_of_torchs_version_is_called_broken(registry, install, tmp_path, monkeypatch):
    install("zentorch", "2.13.0.2")
    (tmp_path / "zentorch.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "zentorch" not in registry.availability("zentorch").remedy


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchax", "zentorch"], indirect=True)
def test_what_is_tried_is_not_held_against_the_catalogue(engine, registry, monkeypatch, tmp_path):
    name, _ = engine
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    found = loaded(registry, name, 120.0)
    assert (found.state, found.works, found.as_catalogued) == ("broken", False, True)
    place = next(tmp_path.rglob(f"{ENGINES[name][1]}/__init__.py"))
    place.write_text("raise ImportError('something else today')")
    other = loaded(registry, name, 120.0)
    assert (other.works, other.as_catalogued) == (False, False)
    assert "something else today" in other.error
