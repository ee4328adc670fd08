"""What code asks of the compiler, and the ways to compile it, with every backend that ships."""

import inspect
import sys
import zlib
from pathlib import Path

import pytest
import torch

import backbay
from backbay import compile_log
from backbay.errors import InvalidPreflight
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from backbay.registry import Option

sys.path.insert(0, str(Path(__file__).parent))
from subjects import FAST, NN, Inner, Scaled, doubled, graphs

# -- what code can ask of the compiler


def test_compiled_code_knows_that_it_is_compiled_and_not_exported(backend):
    def f(x):
        asked = (
            torch.compiler.is_compiling(),
            torch.compiler.is_dynamo_compiling(),
            torch.compiler.is_exporting(),
        )
        return x * 2, asked

    assert f(torch.ones(1))[1] == (False, False, False)
    said = backbay.compile(f, backend=backend)(torch.ones(1))[1]
    assert said[:2] == (True, True)
    assert said == torch.compile(f, backend="eager")(torch.ones(1))[1]  # 2.11 says all three
    assert not torch.compiler.is_compiling()


def test_a_pass_is_told_what_torch_tells_any_backend():
    asked = {}

    def ask():
        api = torch.compiler
        return api.is_compiling(), api.is_dynamo_compiling(), api.is_exporting()

    def plain(graph_module, example_inputs):
        asked["plain"] = ask()
        return graph_module.forward

    @graph_pass(level="torch")
    def asks(graph_module):
        asked["pass"] = ask()
        return 0

    @graph_pass(level="aten")
    def asks_later(graph_module):
        asked["later"] = torch.compiler.is_exporting()
        return 0

    kind = type("Asks", (Backend,), {"passes": (asks, asks_later), "codegen": "eager"})
    torch.compile(doubled, backend=plain)(torch.ones(1))
    torch.compile(doubled, backend=kind())(torch.ones(1))
    assert asked["pass"] == asked["plain"]
    assert asked["later"] is False


def test_export_of_a_compiled_module_is_export(backend):
    class Asks(torch.nn.Module):
        def forward(self, x):
            return x * 2 if not torch.compiler.is_exporting() else x * 3

    plain, model, x = Asks(), Asks(), torch.ones(1)
    assert plain(x) == 2
    model.compile(backend=backend)
    torch.testing.assert_close(model(x), torch.compile(plain, backend="eager")(x))
    exported = torch.export.export(model, (x,))
    assert exported.module()(x) == 3


def test_allow_in_graph_puts_the_call_into_the_graph_that_the_backend_gets(backend):
    targets = []

    def noted(graph_module, example_inputs, **given):
        targets.extend(n.target for n in graph_module.graph.nodes)
        return backend(graph_module, example_inputs, **given)

    @torch.compiler.allow_in_graph
    def allowed(x):
        return torch.sin(x)

    compiled = backbay.compile(lambda x: allowed(x) + 1, backend=noted, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert torch.sin not in targets
    assert len(targets) == 4  # x, allowed, add, output


def test_disable_leaves_a_function_to_python_and_breaks_the_graph(backend):
    asked = []

    @torch.compiler.disable
    def apart(x):
        asked.append(torch.compiler.is_compiling())
        return x + 1

    compiled = backbay.compile(lambda x: apart(x * 2) * 3, backend=backend)
    assert compiled(torch.ones(1)) == 9
    assert asked == [False]
    assert graphs() == 2


@torch.compiler.substitute_in_graph(zlib.adler32, skip_signature_check=True)
def adler32(data, value=1, /):
    return 10


def test_substitute_in_graph_traces_the_substitute(backend):
    compiled = backbay.compile(lambda x: x * zlib.adler32(b"a"), backend=backend, fullgraph=True)
    assert compiled(torch.ones(1)) == 10
    assert zlib.adler32(b"a") != 10


# -- other ways to compile


def test_module_compile_and_the_decorator_use_the_backend(backend):
    seen = []

    def noted(graph_module, example_inputs, **given):
        seen.append(1)
        return backend(graph_module, example_inputs, **given)

    model, x = Scaled(), torch.randn(3, 4)
    expected = model(x)
    model.compile(backend=noted)
    torch.testing.assert_close(model(x), expected)
    assert len(seen) == 1

    @backbay.compile(backend=noted, guard_filter=NN)
    def f(x):
        return x + 1

    assert f(torch.ones(1)) == 2
    assert len(seen) == 2


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_default_backend"), reason="torch 2.13 and newer"
)
def test_the_default_backend_can_be_ours(backend):
    seen = []

    def noted(graph_module, example_inputs, **given):
        seen.append(1)
        return backend(graph_module, example_inputs, **given)

    torch.compiler.set_default_backend(noted)
    try:
        assert torch.compile(doubled)(torch.ones(1)) == 2
    finally:
        torch.compiler.set_default_backend(None)
    assert seen


def test_the_kit_takes_mode_options_and_name_always():
    class Takes(Inner):
        options = (Option(name="level", type="int"),)

    backend = Takes()
    graph_module = torch.fx.symbolic_trace(doubled)
    compiled = backend(
        graph_module, [torch.ones(1)], mode="default", options={"level": 1}, name="mine"
    )
    assert compiled(torch.ones(1)) == 2
    assert compile_log.records()[-1].asked == "mine"


@pytest.mark.skipif(
    "name" not in inspect.signature(torch.compile).parameters, reason="torch takes no name"
)
@pytest.mark.parametrize("backend", [*FAST, pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("more", [{}, {"mode": "reduce-overhead"}], ids=["", "mode"])
def test_a_name_goes_with_filters(backend, more, monkeypatch):
    found = backbay.lookup_backend(backend)
    if backend.startswith("backbay_") and found.compile is None:
        monkeypatch.setattr(type(found), "codegen", "eager")
    asked = "inductor" if backend == "inductor" else found
    with backbay.policy(default="eager"):
        compiled = backbay.compile(doubled, backend=asked, guard_filter=NN, name="mine", **more)
        assert compiled(torch.ones(1)) == 2


@pytest.mark.skipif(
    "name" in inspect.signature(torch.compile).parameters, reason="torch takes a name"
)
def test_where_torch_takes_no_name_that_is_said_before_anything_compiles():
    with pytest.raises(InvalidPreflight, match=r"takes no name: leave it out, or use torch 2\.13"):
        backbay.compile(doubled, backend="eager", name="mine")


def test_a_function_of_two_arguments_given_options_is_one_short_error():
    def two(graph_module, example_inputs):
        return graph_module.forward

    with pytest.raises(InvalidPreflight) as caught:
        backbay.compile(doubled, backend=two, options={"a": 1})
    said = str(caught.value)
    assert said == (
        "this backend cannot work:\n"
        "  - two takes no options: its function has no parameter of this name"
    )
