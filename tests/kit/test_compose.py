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


def test_shipped_backends_chain(capsys):
    def gelu(x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return (0.5 * x * (1 + torch.tanh(inner))) * 2 * 3

    chained = backbay.compose("backbay_print", "backbay_fold", "backbay_gelu", "aot_eager")
    x = torch.randn(9)
    torch.testing.assert_close(torch.compile(gelu, backend=chained)(x), gelu(x))
    fired = {r.name for r in chained.reports if r.changes}
    assert fired == {"fold_scalar_chain", "rewrite_gelu"} | (fired & {"remove_dead_code"})
    assert "tanh" in capsys.readouterr().out
