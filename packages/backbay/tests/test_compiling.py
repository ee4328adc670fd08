"""``backbay.compile`` says at once what torch.compile says late, or never."""

import functools
import inspect
import sys

import pytest
import torch

import backbay
from backbay import compile_log
from backbay.errors import BackbayError, BackendNotFound, InvalidPreflight
from backbay.kit import Backend
from backbay.registry import Option, Registry, Traits


def compiler(graph_module, example_inputs):
    return graph_module.forward


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    compile_log.clear()


def problems(**asked) -> list[str]:
    model = asked.pop("model", torch.nn.Linear(2, 2))
    with pytest.raises(InvalidPreflight) as caught:
        backbay.compile(model, **asked)
    assert all(line in str(caught.value) for line in caught.value.problems)
    return caught.value.problems


def test_what_is_fine_compiles_and_runs():
    model = torch.nn.Linear(2, 2)
    compiled = backbay.compile(model, backend="aot_eager", training=True)
    x = torch.randn(3, 2)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.weight.grad is not None


def test_it_is_a_decorator_as_torch_compile_is():
    @backbay.compile(backend="eager", fullgraph=True)
    def f(x):
        return x + 1

    assert f(torch.ones(1)) == 2


def test_every_reason_is_in_one_error_and_nothing_was_compiled():
    said = problems(backend="tvm", options={"nonsense": 1}, training=True)
    assert len(said) == 3
    assert "apache-tvm is not installed" in said[0]
    assert "no option 'nonsense'" in said[1]
    assert "does not train" in said[2]


def test_a_wrong_inductor_option_is_one_short_line():
    (said,) = problems(backend="inductor", options={"max_autotun": True})
    assert len(said) < 100
    with pytest.raises(RuntimeError) as torchs:
        torch.compile(torch.nn.Linear(2, 2), options={"max_autotun": True})
    assert len(str(torchs.value)) > 10_000


def test_a_typo_names_the_nearest_backend():
    with pytest.raises(BackendNotFound, match="did you mean: 'inductor'"):
        backbay.compile(torch.nn.Linear(2, 2), backend="indcutor")


def test_a_function_that_takes_no_options_is_seen_before_its_first_call(registry):
    registry.register_backend(compiler, "mine")
    (said,) = problems(backend="mine", options={"a": 1}, registry=registry)
    assert said == "mine takes no options: its function has no parameter of this name"
    (said,) = problems(backend=compiler, mode="fast")
    assert said.startswith("compiler takes no mode")


def test_declared_traits_are_held_to(registry):
    registry.register_backend(
        compiler,
        "narrow",
        traits=Traits(
            devices=("cuda",), dtypes=("float16",), training=False, dynamic_shapes=False, name=False
        ),
        options=(Option(name="level", type="int"),),
    )
    said = problems(
        backend="narrow",
        training=True,
        dynamic=True,
        name="x",
        options={"levl": 1},
        registry=registry,
    )
    assert len(said) == 6 + 1  # and the device is said as its availability too
    assert any("model is on cpu" in x for x in said)
    assert any("model holds float32" in x for x in said)


def test_without_a_backend_the_policy_decides_by_the_models_device():
    model = torch.nn.Linear(2, 2)
    with backbay.policy(default={"cpu": "aot_eager"}):
        backbay.compile(model)(torch.ones(1, 2))
    (record,) = compile_log.records()
    assert (record.asked, record.ran, record.device) == ("backbay.default", "aot_eager", "cpu")
    assert not record.fell_back


def test_mode_beside_options_is_looked_up_in_the_registry_that_is_given():
    own, elsewhere, called = Registry(), Registry(), []

    def mine(graph_module, example_inputs, *, mode, options):
        called.append((mode, options))
        return graph_module.forward

    own.register_backend(mine)
    model = torch.nn.Linear(2, 2)
    asked = {"backend": "mine", "mode": "loud", "options": {"a": 1}}
    backbay.compile(model, registry=own, **asked)(torch.ones(1, 2))
    assert called == [("loud", {"a": 1})]
    with pytest.raises(BackendNotFound):
        backbay.compile(model, registry=elsewhere, **asked)


def test_a_default_that_does_not_run_here_falls_back_and_is_recorded():
    with backbay.policy(default="tvm"):
        compiled = torch.compile(lambda x: x + 1, backend="backbay.default")
        assert compiled(torch.ones(1)) == 2
    (record,) = compile_log.records()
    assert record.ran == "inductor"
    assert record.fell_back
    assert "apache-tvm is not installed" in record.why


def test_set_default_backend_refuses_what_nobody_knows_and_tells_torch(run_python):
    program = """
        import backbay
        from backbay.errors import InputError
        for wrong in ("nope", 3, "tvm"):
            try:
                backbay.set_default_backend(wrong)
            except InputError as error:
                print(type(error).__name__)
        backbay.set_default_backend("aot_eager")
        import torch, sys
        assert "torch._dynamo" not in sys.modules
        torch.compile(lambda x: x + 1)(torch.ones(1))
        registry = sys.modules["torch._dynamo.backends.registry"]
        print(getattr(registry, "get_default_backend", lambda: "aot_eager")())
        backbay.set_default_backend(None)
        print(getattr(registry, "get_default_backend", lambda: "inductor")())
    """
    said = run_python(program).stdout.split()
    assert said == ["BackendNotFound", "InputError", "BackendUnavailable", "aot_eager", "inductor"]


def bare(graph_module, example_inputs):
    """Return the first result alone, as the tutorial's ``optimized_forward`` does."""
    return lambda *inputs: graph_module.forward(*inputs)[0]


def returns_a_module(graph_module, example_inputs):
    class First(torch.nn.Module):
        def forward(self, *inputs):
            return graph_module.forward(*inputs)[0]

    return First()


def plus_one(x):
    return x + 1


REFUSED = pytest.raises(BackbayError, match="returns Tensor: return a tuple, with one value")


@pytest.mark.parametrize("given", [bare, returns_a_module])
def test_a_bare_tensor_is_refused_instead_of_being_indexed(given, registry):
    with REFUSED:
        backbay.compile(plus_one, backend=given)(torch.ones(3))
    registry.register_backend(given, "bare", options=(Option(name="level", type="int"),))
    torch.compiler.reset()
    with REFUSED:
        backbay.compile(plus_one, backend="bare", registry=registry)(torch.ones(3))
    torch.compiler.reset()
    with REFUSED:
        torch.compile(plus_one, backend=registry.get_backend("bare"))(torch.ones(3))


@pytest.mark.parametrize("given", [bare, returns_a_module, functools.partial(bare)])
def test_a_bare_tensor_is_refused_under_torchs_own_compile(given):
    with backbay.registered(given, "bare_of_torch"):
        for backend in ("bare_of_torch", backbay.get_backend("bare_of_torch")):
            with pytest.raises(BackbayError, match="bare_of_torch made returns Tensor"):
                torch.compile(plus_one, backend=backend)(torch.ones(3))


def test_a_bare_tensor_of_a_code_generator_is_refused(registry):
    registry.register_backend(bare)
    backend = type("One", (Backend,), {"codegen": "bare", "registry": registry})()
    with REFUSED:
        torch.compile(plus_one, backend=backend)(torch.ones(3))


def test_later_calls_go_straight_to_what_the_backend_made():
    depths = []

    def made(graph_module, example_inputs):
        def run(*inputs):
            depths.append(sys._getframe(1).f_code.co_name)
            return graph_module.forward(*inputs)

        return run

    compiled = backbay.compile(plus_one, backend=made)
    assert [compiled(torch.ones(3)).tolist() for _ in range(3)] == [[2, 2, 2]] * 3
    assert depths[0] == "first"
    assert "first" not in depths[1:]


def test_a_function_stays_one_backend_and_is_seen_through(registry):
    calls = []

    def counted(graph_module, example_inputs, *, options=None):
        calls.append(options)
        return graph_module.forward

    counted.flavour = "own"
    counted.reset = lambda: calls.append("reset")
    for _ in range(2):
        compiled = backbay.compile(plus_one, backend=counted, options={"level": 1})
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
    assert calls == [{"level": 1}]
    registry.register_backend(counted)
    assert registry.lookup_backend("counted") is counted
    configured = registry.get_backend("counted")
    assert inspect.signature(configured) == inspect.signature(counted)
    assert (configured.flavour, configured.__name__) == ("own", "counted")
    torch.compiler.reset()
    assert calls[-1] == "reset"


def test_what_to_do_about_another_device_is_said_for_python(registry):
    with pytest.raises(InvalidPreflight) as caught:
        backbay.compile(torch.nn.Linear(2, 2), backend="cudagraphs", registry=registry)
    assert "it compiles for cuda, not for cpu" in str(caught.value)
    assert "move the model and its inputs to cuda" in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"options": {5: 1}}, "an option's name is text, not 5"),
        ({"options": {b"a": 1}}, "an option's name is text, not b'a'"),
        ({"options": [1]}, "options are a dict, not list"),
        ({"options": ["guard_filter_fn"]}, "options are a dict, not list"),
        ({"options": "x"}, "options are a dict, not str"),
        ({"options": [1], "backend": "eager"}, "options are a dict, not list"),
        ({"options": {5: 1}, "backend": lambda gm, inputs: gm}, "text, not 5"),
        ({"mode": 5}, "a mode is a name, not int"),
        ({"mode": ["max-autotune"]}, "a mode is a name, not list"),
        ({"check_guards": []}, "check_guards is True, False"),
        ({"backend": 5}, "a backend must be callable, not int"),
    ],
)
def test_what_is_of_another_type_is_a_problem_of_the_preflight(asked, said):
    with pytest.raises(InvalidPreflight) as raised:
        backbay.compile(lambda x: x, **asked)
    assert any(said in problem for problem in raised.value.problems)
