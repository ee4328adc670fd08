"""What is registered here is visible to torch, whichever is imported first."""

import json
import subprocess
import sys
import textwrap

import pytest

from backbay.registry import bridge

BACKEND = """
import dataclasses, functools, inspect, json, sys
import backbay

def mine(gm, inputs):
    mine.calls = getattr(mine, "calls", 0) + 1
    return gm.forward

class Slotted:
    __slots__ = ()
    def __call__(self, gm, inputs):
        return gm.forward
    def method(self, gm, inputs):
        return gm.forward
    def reset(self):
        pass

@dataclasses.dataclass(frozen=True)  # torch, up to 2.14.0, sets an attribute
class Frozen:
    def __call__(self, gm, inputs):
        return gm.forward

slotted = Slotted()
odd = {"slotted": slotted, "slotted.method": slotted.method, "partial": functools.partial(mine)}
"""

TORCH_LAST = """
from backbay.registry.target import is_importable

assert backbay.register_backend(mine) is mine
backbay.register_backend(mine, "hidden", tags=["debug"])
backbay.register_backend(Frozen(), "frozen")
for name, backend in odd.items():
    backbay.register_backend(backend, name)
    backbay.register_backend(backend, name)
backbay.Registry().register_backend(mine, "elsewhere")
exists = is_importable("torch._dynamo.backends.registry")
imported = "torch" in sys.modules

import torch

def compiled(name):
    torch.compiler.reset()
    return torch.compile(lambda x: x + 1, backend=name)(torch.ones(2)).sum().item()

sums, calls = {"mine": compiled("mine")}, mine.calls
sums |= {name: compiled(name) for name in ("frozen", *odd)}
listed = torch.compiler.list_backends()

import torch._dynamo.backends.registry as registry

look_up = registry.lookup_backend
given = lambda found: getattr(found, "__wrapped__", found)  # torch has what checks results
print(json.dumps({
    "exists": exists,
    "imported": imported,
    "sums": sums,
    "calls": calls,
    "listed": listed,
    "all listed": torch._dynamo.list_backends(exclude_tags=()),
    "same": [x for x in sums if given(look_up(x)) is given(backbay.lookup_backend(x))],
    "can be reset": [name for name in sums if hasattr(look_up(name), "reset")],
    "loaders": [type(registry.__loader__).__name__, type(registry.__spec__.loader).__name__],
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "source": inspect.getsource(registry),
}))
"""
"""Every way to register, before torch is imported; then what torch makes of it."""


def run_program(run_python, body: str) -> list[str]:
    return run_python(BACKEND + textwrap.dedent(body)).stdout.split()


@pytest.fixture(scope="module")
def torch_last():
    command = [sys.executable, "-c", BACKEND + TORCH_LAST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_torch_compile_finds_it_by_name_when_imported_last(torch_last):
    assert not torch_last["imported"]
    assert torch_last["sums"]["mine"] == 4
    assert torch_last["calls"] == 1
    assert "mine" in torch_last["listed"]
    assert "mine" in torch_last["same"]


@pytest.mark.parametrize("first", ["import torch", "import torch, torch._dynamo"])
def test_torch_compile_finds_it_by_name(run_python, first):
    said = run_program(
        run_python,
        f"""
        {first}
        assert backbay.register_backend(mine) is mine
        assert torch.compile(lambda x: x + 1, backend="mine")(torch.ones(2)).sum() == 4
        assert "mine" in torch.compiler.list_backends()
        from torch._dynamo.backends.registry import lookup_backend
        found = lookup_backend("mine").__wrapped__, backbay.lookup_backend("mine")
        print(mine.calls, found == (mine, mine))
        """,
    )
    assert said == ["1", "True"]


def test_tags_hide_it_from_torchs_list_too(torch_last):
    assert "hidden" not in torch_last["listed"]
    assert "hidden" in torch_last["all listed"]


@pytest.mark.parametrize("backend", ["slotted", "slotted.method", "partial"])
def test_a_callable_that_refuses_attributes_is_one_object_to_both(torch_last, backend):
    assert torch_last["sums"][backend] == 4
    assert backend in torch_last["same"]
    assert (backend in torch_last["can be reset"]) == (backend == "slotted")


def test_torchs_module_keeps_its_own_loader_and_the_finder_is_gone(torch_last):
    assert torch_last["loaders"] == ["SourceFileLoader", "SourceFileLoader"]
    assert not any("Waiting" in finder for finder in torch_last["finders"])
    assert "def lookup_backend" in torch_last["source"]


def test_a_name_that_torch_got_from_someone_else_is_a_conflict(run_python):
    said = run_program(
        run_python,
        """
        from torch._dynamo.backends.registry import register_backend
        from backbay.errors import BackendConflict
        register_backend(mine, name="theirs")
        try:
            backbay.register_backend(lambda gm, inputs: gm.forward, "theirs")
        except BackendConflict as error:
            print("in torch" in str(error))
        print(backbay.register_backend(mine, "theirs") is mine)
        """,
    )
    assert said == ["True", "True"]


def test_registries_of_ones_own_stay_out_of_torch(torch_last):
    assert "elsewhere" not in torch_last["all listed"]


def test_torch_s_registry_may_be_looked_for_before_it_is_imported(torch_last):
    assert torch_last["exists"]
    assert not torch_last["imported"]
    assert torch_last["sums"]["frozen"] == 4
    assert {"mine", "frozen"} <= set(torch_last["listed"])


def test_what_torch_refuses_loses_nothing_else_and_spares_whoever_imports_torch(monkeypatch):
    done = []

    def refuse(registry):
        raise AssertionError("duplicate name: a")

    monkeypatch.setattr(bridge, "_waiting", {"backend a": refuse, "backend b": done.append})
    with pytest.warns(UserWarning, match=r"told of backend a: AssertionError: duplicate name"):
        bridge._act_on("registry")
    assert done == ["registry"]
    assert bridge._waiting == {}
