"""A workload that looks alike has the same key, in every process; one that differs has another."""

import dataclasses
import functools
import importlib
import subprocess
import sys
import textwrap

import pytest
import torch

from backbay.proof import Workload
from backbay.proof.likeness import likeness

MODEL = """
    import torch

    class Settings:
        def __init__(self):
            self.eps, self.names = 1e-5, ["a", {"b": 1}]

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = torch.nn.Linear(8, 8)
            self.settings = Settings()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            return self.lift(x) * 2
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    """Return what makes a model of a file, which can be changed."""
    file = tmp_path / "a_net.py"
    monkeypatch.syspath_prepend(tmp_path)

    def made(text=MODEL):
        file.write_text(textwrap.dedent(text))
        sys.modules.pop("a_net", None)
        importlib.invalidate_caches()
        return importlib.import_module("a_net").Net()

    yield made
    sys.modules.pop("a_net", None)


def key(model, *args, train=False, dynamic=None, **given):
    args = args or (torch.ones(2, 8),)
    return likeness(Workload(model, args, **given), train=train, dynamic=dynamic)


def test_models_that_are_made_alike_have_one_key_whatever_their_values(net, tmp_path):
    first = key(net())
    assert first == key(net(), torch.randn(2, 8))
    code = (
        "import torch, a_net; from backbay.proof import Workload; "
        "from backbay.proof.likeness import likeness; "
        "workload = Workload(a_net.Net(), (torch.ones(2, 8),)); "
        "print(likeness(workload, train=False, dynamic=None))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == first


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: setattr(model.settings, "eps", 1e-6),
        lambda model: model.settings.names[1].update(b=2),
        lambda model: setattr(model, "extra", "a"),
        lambda model: model.lift.requires_grad_(requires_grad=False),
        lambda model: model.double(),
        lambda model: model.to("meta"),
        lambda model: setattr(model, "lift", torch.nn.Linear(8, 9)),
        lambda model: setattr(model, "lift", torch.nn.Bilinear(8, 8, 8)),
        lambda model: model.register_buffer("seen", torch.zeros(4)),
        lambda model: model.register_forward_hook(lambda *_: None),
        lambda model: setattr(model, "f", functools.partial(torch.sum, dim=1)),
        lambda model: setattr(model, "f", model.lift.forward),
        lambda model: setattr(model, "f", {torch.float32}),
    ],
)
def test_a_model_that_differs_in_anything_that_shows_has_another_key(net, change):
    model = net()
    before = key(model)
    change(model)
    assert key(model) != before


def test_inputs_steps_and_modes_count_and_tensors_by_their_shape_alone(net):
    model, x = net(), torch.ones(2, 8)
    further = ((((torch.ones(4, 8),), {}),), (((torch.ones(5, 8),), {}),))
    keys = [
        key(model),
        key(model, torch.ones(3, 8)),
        key(model, torch.ones(8, 2).t()),
        key(model, x.double()),
        key(model, torch.ones(2, 8, requires_grad=True)),
        key(model, x, 1),
        key(model, x, 2),
        key(model, [x, 2]),
        key(model, (x, 2)),
        key(model, x, kwargs={"n": 1}),
        *(key(model, further=x) for x in further),
        key(model, train=True),
        key(model, dynamic=True),
        key(model, loss=lambda y: y.sum()),
        key(model, loss=lambda y: y.mean()),
    ]
    with torch.no_grad():
        keys.append(key(model))
    with torch.autocast("cpu"):
        keys.append(key(model))
    assert len(set(keys)) == len(keys)


def test_a_file_that_changed_makes_another_key(net):
    before = key(net())
    assert key(net(MODEL.replace("* 2", "* 3"))) != before
    assert key(net()) == before


def test_a_functions_file_counts_whatever_its_own_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    keys = set()
    for factor in (2, 3):
        text = f"def scaled(x):\n    return helped(x)\n\ndef helped(x):\n    return x * {factor}\n"
        (tmp_path / "a_function.py").write_text(text)
        sys.modules.pop("a_function", None)
        importlib.invalidate_caches()
        keys.add(key(importlib.import_module("a_function").scaled))
    sys.modules.pop("a_function", None)
    assert len(keys) == 2


def test_methods_are_told_by_what_they_are_and_by_whose(net):
    model = net()
    keys = []
    for method in (model.lift.forward, model.lift.extra_repr, model.forward):
        model.f = method
        keys.append(key(model))
    assert len(set(keys)) == len(keys)


def test_functions_are_told_by_their_code_and_by_what_they_hold():
    def scaled(by):
        return lambda x: x * by

    def shifted(by):
        return lambda x: x + by

    keys = [key(scaled(2)), key(scaled(3)), key(shifted(2))]
    assert len(set(keys)) == len(keys)
    assert key(scaled(2)) == keys[0]


def test_a_class_without_a_file_is_told_by_its_code(monkeypatch):
    def made(text):
        names = {"torch": torch, "__name__": "__main__"}
        exec(textwrap.dedent(text), names)
        return names["Net"]()

    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    text = MODEL.replace("torch.zeros(3)", "torch.zeros(5)")
    assert key(made(text)) == key(made(text))
    assert key(made(text)) != key(made(text.replace("* 2", "* 3")))


def test_what_holds_itself_ends():
    model = torch.nn.Linear(2, 2)
    model.held = held = []
    held.append(held)
    workload = Workload(model, (torch.ones(1, 2),))
    assert likeness(workload, train=False, dynamic=None)
    assert likeness(dataclasses.replace(workload, name="x"), train=False, dynamic=None)
