"""Whether a backend runs here, and what to do if not."""

import pytest

from backbay.registry import BackendSpec, Environment, Origin, Requirements
from backbay.registry import environment as environment_module
from backbay.registry.availability import check
from backbay.registry.distributions import scan

TORCH = Origin(kind="torch", distribution="torch", version="2.13.0")


def spec(**requires) -> BackendSpec:
    return BackendSpec(name="some", origin=TORCH, requires=Requirements(**requires))


@pytest.fixture
def cpu_only(tmp_path) -> Environment:
    return Environment(
        installed=scan([str(tmp_path)]),
        torch_build={"__version__": "2.13.0+cpu"},
        devices={"cpu": "", "cuda": "this PyTorch is built without CUDA"},
    )


def test_absent_is_told_apart_from_pointless(cpu_only):
    absent = check(spec(distributions=("apache-tvm",)), cpu_only)
    pointless = check(spec(devices=("cuda",)), cpu_only)
    assert (absent.state, pointless.state) == ("not_installed", "no_device")
    assert absent.remedy == "pip install 'apache-tvm'"
    assert "built without CUDA" in pointless.reason


def test_an_old_version_is_not_called_missing(install, cpu_only, tmp_path):
    install("torch-xla", "2.1")
    environment = Environment(installed=scan([str(tmp_path)]), devices=cpu_only.devices)
    found = check(spec(distributions=("torch_xla>=2.9",)), environment)
    assert found.state == "wrong_version"
    assert "2.1" in found.reason
    assert ">=2.9" in found.reason


def test_asked_for_a_device_it_answers_for_that_device(cpu_only):
    both = spec(devices=("cpu", "cuda"))
    assert check(both, cpu_only).ready
    assert check(both, cpu_only, "cpu").ready
    assert check(both, cpu_only, "cuda").state == "no_device"
    assert check(both, cpu_only, "mps").state == "no_device"


def test_a_missing_compiler_is_seen_before_the_first_compile(cpu_only, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = check(spec(devices=("cpu",), tools=(("cpu", "c++"),)), cpu_only)
    assert found.state == "not_installed"
    assert "no-such-compiler" in found.reason
    assert "CXX" in found.remedy


def test_a_tool_for_another_device_is_not_asked_for(cpu_only, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert check(spec(tools=(("cuda", "c++"),)), cpu_only, "cpu").ready


@pytest.mark.parametrize("requirement", ["torch-xla >=> 2", "!!", "torch-xla; os_name =="])
def test_a_requirement_that_cannot_be_read_is_broken_not_fatal(install, tmp_path, requirement):
    install("torch-xla", "2.9")
    environment = Environment(installed=scan([str(tmp_path)]), devices={"cpu": ""})
    found = check(spec(distributions=(requirement,)), environment)
    assert found.state == "broken"
    assert requirement in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_the_reason_given(monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    reason = environment_module.devices({"__version__": "2.13.0", "cuda": "13.0"})["cuda"]
    assert "CUDA_VISIBLE_DEVICES" in reason


def test_no_gpu_without_a_driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(environment_module, "nvidia_gpus", lambda: 0)
    assert environment_module.devices({"__version__": "2.13.0", "cuda": "13.0"})["cuda"]
    monkeypatch.setattr(environment_module, "nvidia_gpus", lambda: 1)
    assert not environment_module.devices({"__version__": "2.13.0", "cuda": "13.0"})["cuda"]


def test_torchs_build_is_read_as_torch_itself_says_it():
    import torch

    build = Environment.current().torch_build
    assert build["__version__"] == torch.__version__
    assert build["cuda"] == torch.version.cuda
