"""What is registered here is visible to torch, whichever is imported first."""

import textwrap

import pytest

from backbay.registry import sharing

BACKEND = """
import functools, sys
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

slotted = Slotted()
"""


def run_program(run_python, body: str) -> list[str]:
    return run_python(BACKEND + textwrap.dedent(body)).stdout.split()


@pytest.mark.parametrize("first", ["", "import torch", "import torch, torch._dynamo"])
def test_torch_compile_finds_it_by_name(run_python, first):
    said = run_program(
        run_python,
        f"""
        {first}
        assert backbay.register_backend(mine) is mine
        assert ("torch" in sys.modules) == {bool(first)}
        import torch
        assert torch.compile(lambda x: x + 1, backend="mine")(torch.ones(2)).sum() == 4
        assert "mine" in torch.compiler.list_backends()
        from torch._dynamo.backends.registry import lookup_backend
        print(mine.calls, lookup_backend("mine") is mine is backbay.lookup_backend("mine"))
        """,
    )
    assert said == ["1", "True"]


def test_tags_hide_it_from_torchs_list_too(run_python):
    said = run_program(
        run_python,
        """
        backbay.register_backend(mine, tags=["debug"])
        import torch
        print("mine" in torch.compiler.list_backends())
        print("mine" in torch._dynamo.list_backends(exclude_tags=()))
        """,
    )
    assert said == ["False", "True"]


@pytest.mark.parametrize("backend", ["slotted", "slotted.method", "functools.partial(mine)"])
def test_a_callable_that_refuses_attributes_is_one_object_to_both(run_python, backend):
    said = run_program(
        run_python,
        f"""
        backend = {backend}
        backbay.register_backend(backend, "odd")
        backbay.register_backend(backend, "odd")
        import torch
        assert torch.compile(lambda x: x + 1, backend="odd")(torch.ones(2)).sum() == 4
        torch.compiler.list_backends()
        from torch._dynamo.backends.registry import lookup_backend
        print(lookup_backend("odd") is backbay.lookup_backend("odd"))
        print(hasattr(lookup_backend("odd"), "reset"))
        """,
    )
    assert said == ["True", str(backend == "slotted")]


def test_torchs_module_keeps_its_own_loader_and_the_finder_is_gone(run_python):
    said = run_program(
        run_python,
        """
        backbay.register_backend(mine)
        import torch, inspect
        import torch._dynamo.backends.registry as registry
        print(type(registry.__loader__).__name__, type(registry.__spec__.loader).__name__)
        print(any("Waiting" in type(finder).__name__ for finder in sys.meta_path))
        print("def lookup_backend" in inspect.getsource(registry))
        """,
    )
    assert said == ["SourceFileLoader", "SourceFileLoader", "False", "True"]


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


def test_registries_of_ones_own_stay_out_of_torch(run_python):
    said = run_program(
        run_python,
        """
        backbay.Registry().register_backend(mine)
        import torch
        print("mine" in torch.compiler.list_backends())
        """,
    )
    assert said == ["False"]


def test_torch_s_registry_may_be_looked_for_before_it_is_imported(run_python):
    said = run_program(
        run_python,
        """
        import dataclasses
        from backbay.registry.target import module_exists

        @dataclasses.dataclass(frozen=True)  # torch, up to 2.14.0, sets an attribute
        class Frozen:
            def __call__(self, gm, inputs):
                return gm.forward

        backbay.register_backend(mine)
        backbay.register_backend(Frozen(), "frozen")
        assert module_exists("torch._dynamo.backends.registry")
        assert "torch" not in sys.modules
        import torch
        for name in ("mine", "frozen"):
            print(torch.compile(lambda x: x + 1, backend=name)(torch.ones(2)).sum().item())
        print({"mine", "frozen"} <= set(torch.compiler.list_backends()))
        """,
    )
    assert said == ["4.0", "4.0", "True"]


def test_what_torch_refuses_loses_nothing_else_and_spares_whoever_imports_torch(monkeypatch):
    done = []

    def refuse(registry):
        raise AssertionError("duplicate name: a")

    monkeypatch.setattr(sharing, "_waiting", {"backend a": refuse, "backend b": done.append})
    with pytest.warns(UserWarning, match=r"told of backend a: AssertionError: duplicate name"):
        sharing._act_on("registry")
    assert done == ["registry"]
    assert sharing._waiting == {}
