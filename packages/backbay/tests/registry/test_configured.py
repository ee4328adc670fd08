"""The same request gives the same object: Dynamo recompiles for another."""

import functools
import pickle

import pytest
import torch

import backbay
from backbay.errors import BackendUnavailable
from backbay.registry import BackendSpec, Registry, default_registry
from backbay.registry.requested import Requested
from backbay.registry.spec import Origin


def compiler(graph_module, example_inputs, *, options=None, mode=None):
    compiler.calls.append((options, mode))
    return graph_module.forward


compiler.calls = []


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    compiler.calls.clear()


def test_the_same_request_is_one_object_and_another_is_another():
    registry = Registry()
    registry.register_backend(compiler, "mine")
    one = registry.get_backend("mine", options={"a": 1, "b": 2})
    assert registry.get_backend("mine", options={"b": 2, "a": 1}) is one
    others = [
        registry.get_backend("mine"),
        registry.get_backend("mine", options={"a": 2, "b": 2}),
        registry.get_backend("mine", mode="fast", options={"a": 1, "b": 2}),
    ]
    assert len({id(x) for x in (one, *others)}) == 4
    assert one not in others
    assert len({x.digest for x in (one, *others)}) == 4


def test_a_function_is_asked_under_another_name_or_without_its_mode():
    def bare(graph_module, _):
        return graph_module.forward

    asked = {"name": "x", "mode": "fast", "options": {"a": 1}, "registry": Registry()}
    both = Requested(backend=compiler, **asked).keywords()["backend"]
    assert (both.spec.name, both.mode, both.options) == ("x", "fast", {"a": 1})
    refused = Requested(backend=bare, **asked).problems()
    assert [x.partition(":")[0] for x in refused] == ["x takes no mode", "x takes no options"]


def test_twelve_calls_to_torch_compile_compile_once():
    registry = Registry()
    registry.register_backend(compiler, "mine")

    def f(x):
        return x + 1

    for _ in range(12):
        backend = registry.get_backend("mine", options={"a": 1})
        torch.compile(f, backend=backend)(torch.ones(2))
    assert compiler.calls == [({"a": 1}, None)]


def test_a_fresh_object_each_time_is_what_it_mends():
    def f(x):
        return x + 1

    for _ in range(4):
        torch.compile(f, backend=functools.partial(compiler))(torch.ones(2))
    assert len(compiler.calls) == 4


def test_it_is_equal_after_pickling_and_hands_on_what_dynamo_reads():
    backend = backbay.get_backend("inductor", options={"max_autotune": False})
    assert pickle.loads(pickle.dumps(backend)) == backend
    assert (backend.__name__, backend.compiler_name) == ("inductor", "inductor")
    assert hasattr(backend, "reset")
    assert hasattr(backend, "get_compiler_config")
    assert not hasattr(backend, "backend_ctx_ctor")
    with pytest.raises(AttributeError):
        _ = backend.nothing_of_the_kind


def test_a_replaced_backend_is_another_object_to_dynamo():
    registry = Registry()
    registry.register_backend(compiler, "mine")
    before = registry.get_backend("mine")
    registry.register_backend(lambda gm, inputs: gm.forward, "mine", replace=True)
    after = registry.get_backend("mine")
    assert before != after
    assert registry.get_backend("mine") is after


def test_the_default_mode_is_not_handed_on_as_torch_compile_does_not():
    def takes_nothing(graph_module, example_inputs):
        return graph_module.forward

    registry = Registry()
    registry.register_backend(compiler, "mine")
    registry.register_backend(takes_nothing, "strict")
    for backend in (registry.get_backend("mine", mode="default"), compiler):
        torch.compiler.reset()
        torch.compile(torch.sin, backend=backend, mode="default" if backend is compiler else None)(
            torch.ones(2)
        )
    assert compiler.calls == [(None, None), (None, None)]
    torch.compile(torch.cos, backend=registry.get_backend("strict", mode="default"))(torch.ones(2))


def test_inductor_is_configured_as_torch_compile_does():
    backend = backbay.get_backend("inductor", options={"epilogue_fusion": False})
    compiled = torch.compile(lambda x: (x @ x).relu(), backend=backend)
    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(x), (x @ x).relu())
    assert backend.get_compiler_config()["epilogue_fusion"] is False


def test_its_digest_is_the_same_in_every_process(run_python):
    program = """
        import backbay
        print(backbay.get_backend("inductor", options={"b": 1, "a": [2]}).digest)
    """
    here = backbay.get_backend("inductor", options={"a": [2], "b": 1}).digest
    assert run_python(program).stdout == here + "\n"  # strings hash otherwise there


def test_an_absent_backend_is_refused_when_it_is_asked_for():
    with pytest.raises(BackendUnavailable):
        default_registry.get_backend("tvm", options={"scheduler": None})


def test_references_are_backends_too(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def fn(gm, inputs, options=None):\n    return gm.forward\n")
    backend = backbay.get_backend(f"{path}:fn", options={"a": 1})
    assert backbay.get_backend(f"{path}:fn", options={"a": 1}) is backend
    assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1)) == 2


def test_a_backend_whose_manifest_says_inductors_options_is_not_replaced_by_inductor():
    origin = Origin(kind="distribution", distribution="other")
    spec = BackendSpec(name="other", origin=origin, options="inductor")
    backend = Registry().configured(spec, compiler, None, {"epilogue_fusion": False})
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert compiler.calls == [({"epilogue_fusion": False}, None)]
