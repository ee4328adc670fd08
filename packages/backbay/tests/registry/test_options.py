"""mode, options and keywords are checked against what a backend takes."""

import functools

import pytest

from backbay.registry import BackendSpec, Option, Origin, Traits
from backbay.registry.options import mode_problems, option_problems, signature_problems

ORIGIN = Origin(kind="process")


def spec(**details) -> BackendSpec:
    return BackendSpec(name="some", origin=ORIGIN, **details)


SCHEMA = spec(
    options=(
        Option(name="level", type="int", choices=(1, 2, 3)),
        Option(name="fast", type="bool"),
        Option(name="rate", type="float"),
        Option(name="extra"),
    )
)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"levle": 1}, "some has no option 'levle'; did you mean 'level'?"),
        ({"zzz": 1}, "some has no option 'zzz'"),
        ({"level": "1"}, "option 'level' of some is int, not str"),
        ({"level": True}, "option 'level' of some is int, not bool"),
        ({"level": 4}, "option 'level' of some is one of 1, 2, 3, not 4"),
        ({"fast": 1}, "option 'fast' of some is bool, not int"),
    ],
)
def test_each_mistake_is_one_short_line(options, said):
    assert list(option_problems(SCHEMA, options)) == [said]


def test_what_the_schema_takes_passes_and_all_mistakes_are_said_at_once():
    good = {"level": 2, "fast": True, "rate": 1, "extra": object()}
    assert not list(option_problems(SCHEMA, good))
    assert len(list(option_problems(SCHEMA, {"level": 9, "fast": 1, "x": 1}))) == 3


def test_unknown_is_not_guessed():
    assert not list(option_problems(spec(), {"anything": 1}))
    assert not list(mode_problems(spec(), "max-autotune"))
    assert list(option_problems(spec(options=()), {"anything": 1}))
    assert list(option_problems(spec(traits=Traits(options=False)), {"anything": 1}))
    assert list(mode_problems(spec(traits=Traits(mode=False)), "max-autotune"))
    assert not list(mode_problems(spec(traits=Traits(mode=False)), "default"))


def test_inductors_wrong_key_is_one_line_of_its_622():
    inductor = spec(options="inductor")
    (said,) = option_problems(inductor, {"max_autotun": True})
    assert said == "inductor has no option 'max_autotun'; did you mean 'max_autotune'?"
    (said,) = option_problems(inductor, {"max_autotune": 3})
    assert said == "option 'max_autotune' of inductor is bool, not int"
    assert not list(option_problems(inductor, {"max-autotune": True, "triton.cudagraphs": False}))
    (said,) = mode_problems(inductor, "max-autotun")
    assert "did you mean 'max-autotune'" in said


def test_what_hands_its_options_on_is_asked_for_them_alone():
    hands_on = spec(options=(Option(name="level", type="int"),), further_options="inductor")
    assert not list(option_problems(hands_on, {"level": 1, "max_autotune": True}))
    assert list(option_problems(hands_on, {"levl": 1, "max_autotun": True, "level": "1"})) == [
        "option 'level' of some is int, not str",
        "some has no option 'levl'; did you mean 'level'?",
        "some has no option 'max_autotun'; did you mean 'max_autotune'?",
    ]
    assert not list(option_problems(spec(options=(), further_options="inductor"), {"dce": True}))
    assert list(mode_problems(hands_on, "max-autotun"))
    # Its own are not known: any name may be one of them.
    assert not list(option_problems(spec(further_options="inductor"), {"anything": 1}))


def two(graph_module, example_inputs):
    return graph_module.forward


def takes_options(graph_module, example_inputs, *, options=None):
    return graph_module.forward


def takes_all(graph_module, example_inputs, **given):
    return graph_module.forward


def test_a_function_of_two_parameters_is_seen_before_the_first_call():
    given = {"mode": None, "options": {"a": 1}, "name": "x"}
    assert len(list(signature_problems(spec(), two, given))) == 2
    assert len(list(signature_problems(spec(), takes_options, given))) == 1
    assert not list(signature_problems(spec(), takes_all, given))
    assert not list(signature_problems(spec(), functools.partial(takes_all), given))
    assert not list(signature_problems(spec(), max, given))  # no signature to read
