"""Chained backends: every pass, in order, and one code generator."""

import math

import pytest
import torch

import backbay
from backbay.errors import BackendNotFound, InputError
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from backbay.registry import Option

order = []


@graph_pass(level="torch")
def first(graph_module):
    order.append("first")
    return 0


@graph_pass(level="torch")
def second(graph_module, context):
    order.append(("second", context.options["depth"]))
    return 0


@graph_pass(level="aten")
def later(graph_module):
    order.append("later")
    return 0


class One(Backend):
    passes = (later, first)
    codegen = "inductor"


class Two(Backend):
    passes = (second,)
    codegen = "eager"
    options = (Option(name="depth", type="int", default=1),)


class Ends(Backend):
    def compile(self, graph_module, example_inputs, options):
        order.append(("compiled", options))
        return graph_module.forward


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    order.clear()
    with torch.compiler.config.patch(force_disable_caches=True):  # what is cached runs no pass
        yield


def run(backend, **options):
    return torch.compile(lambda x: x + 1, backend=backend, **options)(torch.ones(2))


def test_passes_run_in_order_and_the_last_generates_code():
    chained = backbay.compose(One(), Two())
    assert run(chained).tolist() == [2, 2]
    assert order == ["first", ("second", 1), "later"]
    assert chained.codegen == "eager"
    assert chained.__name__ == "one+two"


def test_options_of_every_link_are_taken():
    run(backbay.compose(Two(), "eager"), options={"depth": 3})
    assert order == [("second", 3)]


def test_options_that_clash_are_an_error():
    class Other(Backend):
        options = (Option(name="depth", type="str", default=""),)

    with pytest.raises(InputError, match="two and other have different options 'depth'"):
        backbay.compose(Two(), Other())


def test_the_same_option_twice_is_one():
    assert len(backbay.compose(Two(), Two(), "eager").options) == 1


def test_a_compile_method_gets_the_options_it_asks_for():
    run(backbay.compose(Two(), Ends()), options={"depth": 5})
    assert order == [("second", 5), ("compiled", {"depth": 5})]


@pytest.mark.parametrize("not_last", ["eager", Ends()], ids=["foreign", "own compile"])
def test_what_generates_code_can_only_be_last(not_last):
    with pytest.raises(InputError, match="name it last"):
        backbay.compose(not_last, Two())


def test_an_unknown_name_is_an_error_at_once():
    with pytest.raises(BackendNotFound):
        backbay.compose("backbay_fodl", "eager")


def test_one_is_no_chain():
    with pytest.raises(InputError, match="two backends or more, and got 1"):
        backbay.compose("eager")


def test_a_bare_function_is_refused_with_what_to_do():
    with pytest.raises(InputError, match="register it first"):
        backbay.compose(Two(), lambda graph_module, inputs: graph_module.forward)


def test_shipped_backends_chain(capsys, reports):
    def gelu(x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return (0.5 * x * (1 + torch.tanh(inner))) * 2 * 3

    chained = backbay.compose("backbay_print", "backbay_fold", "backbay_gelu", "aot_eager")
    x = torch.randn(9)
    torch.testing.assert_close(torch.compile(gelu, backend=chained)(x), gelu(x))
    fired = {r.name for r in reports if r.changes}
    assert fired == {"fold_scalar_chain", "rewrite_gelu"} | (fired & {"remove_dead_code"})
    assert "tanh" in capsys.readouterr().out


@graph_pass(level="torch")
def frozen(graph_module):
    found = [n for n in graph_module.graph.nodes if n.op == "get_attr"]
    order.append(("frozen", len(found)))
    return 0


class Freezes(Backend):
    passes = (frozen,)
    freeze = True


def test_a_backend_that_freezes_is_chained_and_freezes_nothing():
    model = torch.nn.Linear(2, 2)
    for chain in (("eager",), (Two(),), (Ends(),)):
        order.clear()
        torch.compiler.reset()
        with torch.no_grad():
            torch.compile(model, backend=backbay.compose(Freezes(), *chain))(torch.ones(1, 2))
        assert order[0] == ("frozen", 2)
    assert not backbay.compose(One(), Two()).freeze


class Calls(Two):
    """Has a state, and does something at each call."""

    def __init__(self, word):
        super().__init__()
        self.word = word

    def __call__(self, graph_module, example_inputs, **given):
        order.append(self.word)
        return super().__call__(graph_module, example_inputs, **given)


@pytest.mark.parametrize("chain", [(Calls("said"), One()), (One(), Calls("said"))])
def test_a_call_of_ones_own_is_dropped(chain):
    run(backbay.compose(*chain, name="of_two"))
    assert order[0] == "said"
    assert sorted(map(str, order[1:])) == ["('second', 1)", "first", "later"]


def test_two_calls_of_their_own_are_chained():
    class Others(Two):
        def __call__(self, graph_module, example_inputs, **given):
            return super().__call__(graph_module, example_inputs, **given)

    with pytest.raises(InputError, match="calls and others each have a __call__ of their own"):
        backbay.compose(Calls("said"), Others())


@pytest.mark.parametrize("names", [("backbay", "eager"), (One(), "backbay")])
def test_tune_is_taken_and_ignored(names, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    chained = backbay.compose(*names)
    assert [x.default for x in chained.option_table() if x.name == "tune"] == ["cache"]
    asked = []
    monkeypatch.setattr(
        "backbay_optimizer.tuning.variants.key_of", lambda *_: asked.append(1) or "key"
    )
    for tune in ("full", "off"):
        torch.compiler.reset()
        run(chained, options={"tune": tune})
    assert asked == [1]


def test_names_are_looked_up_elsewhere_than_in_the_registry_that_was_given(registry):
    compiled = []

    def generator(graph_module, example_inputs):
        compiled.append(1)
        return graph_module.forward

    registry.register_backend(generator, "only_here")
    with pytest.raises(BackendNotFound):
        backbay.compose(Two(), "only_here")
    run(backbay.compose(Two(), "only_here", registry=registry))
    assert compiled == [1]


def test_a_code_generator_is_looked_up_elsewhere_than_the_backend_itself(registry):
    compiled = []

    def generator(graph_module, example_inputs):
        compiled.append(1)
        return graph_module.forward

    class Nested(Backend):
        codegen = "only_here"

    class NestedAten(Nested):
        level = "aten"

    registry.register_backend(generator, "only_here")
    for number, kind in enumerate((Nested, NestedAten)):
        registry.register_backend(kind(), f"nested_{number}")
        torch.compiler.reset()
        run(registry.get_backend(f"nested_{number}"))
        assert len(compiled) == number + 1
    with pytest.raises(Exception, match="only_here"):
        run(Nested())
