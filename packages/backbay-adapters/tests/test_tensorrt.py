"""What TensorRT is told, and what becomes of its errors: of what works with a stand-in for it."""

import sys
from types import SimpleNamespace

import pytest

from backbay_adapters import tensorrt


class Settings:
    def __init__(self):
        self.flags = {"TF32"}  # as in TensorRT: allowed unless it is taken away

    def set_flag(self, flag):
        self.flags.add(flag)

    def clear_flag(self, flag):
        self.flags.discard(flag)


class StandIn:
    """As much of TensorRT as makes a plan: the model, and the flags that were set."""

    Logger = type("Logger", (), {"ERROR": 1, "__init__": lambda *_: None})
    BuilderFlag = SimpleNamespace(TF32="TF32")
    errors = ()
    makes_plans = True

    def __init__(self):
        self.model = b""

    def Builder(self, logger):  # noqa: N802 (TensorRT's name)
        return self

    def create_network(self, flags):
        return "network"

    def create_builder_config(self):
        return Settings()

    def OnnxParser(self, network, logger):  # noqa: N802 (TensorRT's name)
        assert network == "network"
        return self

    def parse(self, model):
        self.model = model
        return not self.errors

    @property
    def num_errors(self):
        return len(self.errors)

    def get_error(self, number):
        return SimpleNamespace(desc=lambda: self.errors[number])

    def build_serialized_network(self, network, settings):
        return bytearray(self.model + repr(settings.flags).encode()) if self.makes_plans else None


@pytest.fixture
def stand_in(monkeypatch):
    made = StandIn()
    monkeypatch.setitem(sys.modules, "tensorrt", made)
    tensorrt._logger.cache_clear()
    yield made
    tensorrt._logger.cache_clear()


@pytest.mark.parametrize(("tf32", "flags"), [(False, b"set()"), (True, b"{'TF32'}")])
def test_a_plan_rounds_to_tf32_only_where_torch_would(stand_in, tf32, flags):
    assert tensorrt.plan(b"model ", tf32=tf32) == b"model " + flags


def test_what_the_reader_says_is_the_reason(stand_in):
    stand_in.errors = ("no importer for Einsum", "node 3")
    with pytest.raises(RuntimeError, match="no importer for Einsum; node 3"):
        tensorrt.plan(b"model", tf32=False)


def test_no_plan_is_an_error(stand_in):
    stand_in.makes_plans = False
    with pytest.raises(RuntimeError, match="no plan for this graph"):
        tensorrt.plan(b"model", tf32=False)
