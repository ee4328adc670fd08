"""What the shipped backends declare: shown without torch, checked, and part of what is cached."""

import json

import pytest
import torch

import backbay
from backbay.backends.folding import Fold
from backbay.errors import InvalidPreflight
from backbay.kit.aot import HookedPasses
from backbay.kit.rewrites import fold_scalar_chain
from backbay.registry import Traits, default_registry
from backbay.registry._catalog import SPECS

CATALOGUED = {
    x.name: default_registry.spec(x.name)  # with the options of the manifest
    for x in SPECS
    if x.origin.distribution in {"backbay", "backbay-optimizer"} and "alias" not in x.tags
}
REASSOCIATE = {"allow_reassociation": True}


class FoldThenEager(Fold):
    codegen = "eager"


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def problems(backend, **asked):
    with pytest.raises(InvalidPreflight) as caught:
        backbay.compile(torch.nn.Linear(2, 2), backend=backend, **asked)
    return caught.value.problems


@pytest.mark.parametrize("name", CATALOGUED)
def test_the_catalogue_says_other_than_the_class(name):
    spec, backend = CATALOGUED[name], backbay.lookup_backend(name)
    declared = backend.__backbay_details__()
    assert backend.__name__ == name
    assert spec.options == declared["options"] == backend.option_table()
    assert spec.further_options == declared.get("further_options")
    traits = {x: getattr(declared["traits"], x) for x in Traits.__slots__}
    stated = {x: value for x, value in traits.items() if value is not None}
    assert stated == {x: getattr(spec.traits, x) for x in stated}
    hidden = {"debug", "experimental"} & set(spec.tags)
    assert bool(hidden) == (name != "backbay")  # the one to use; the others show how it is done
    assert spec.traits.training
    assert spec.traits.dynamic_shapes


def test_what_ends_in_inductor_needs_and_serves_other_than_inductor():
    inductor = default_registry.spec("inductor")
    ending = [x for x in CATALOGUED.values() if x.further_options == "inductor"]
    assert len(ending) == 5
    for spec in ending:
        assert spec.requires.tools == inductor.requires.tools
        assert spec.traits.devices == inductor.traits.devices


def test_a_listing_reads_no_manifest_of_ours_and_whoever_asks_for_the_backend_does(run_python):
    program = """
    import sys
    import backbay
    from backbay.registry import default_registry
    from backbay.cli import main
    main(["list", "--json"], standalone_mode=False)
    assert "tomllib" not in sys.modules
    from backbay.registry.lock import manifest_digest
    listed = default_registry.resolutions()["backbay"].spec
    whole = default_registry.spec("backbay")
    assert listed.options is None and "tune" in {x.name for x in whole.options}
    assert default_registry.specs()["backbay"] == whole
    assert default_registry.resolution("backbay").spec == whole
    assert "tune" in backbay.collect("options")
    assert manifest_digest(listed) != manifest_digest(whole)
    """
    run_python(program)


def test_info_hides_the_options_or_imports_torch_for_them(run_python):
    program = """
    import sys
    from backbay.cli import main
    main(["info", "backbay_fold", "--json"], standalone_mode=False)
    main(["info", "backbay_fold"], standalone_mode=False)
    assert "torch" not in sys.modules
    """
    said = run_python(program).stdout
    document, end = json.JSONDecoder().raw_decode(said)
    option, *switches = document["spec"]["options"]
    assert [x["name"] for x in switches] == sorted(x.name for x in Fold.passes)
    assert (option["name"], option["type"], option["default"]) == ("allow_reassociation", "bool", 0)
    assert document["spec"]["further_options"] == "inductor"
    text = " ".join(said[end:].split())
    assert "allow_reassociation: bool = False, fold chains of numbers" in text
    assert "and those of torch._inductor.config" in text
    assert "cpu, cuda, xpu, mps" in text
    assert "c++ (for cpu)" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allow_reasociation": True}, "has no option 'allow_reasociation'; did you mean"),
        ({"allow_reassociation": 1}, "option 'allow_reassociation' of backbay_fold is bool"),
        ({"max_autotun": True}, "backbay_fold has no option 'max_autotun'; did you mean"),
        ({"max_autotune": 3}, "option 'max_autotune' of inductor is bool, not int"),
    ],
)
def test_a_wrong_option_is_found_only_when_a_graph_is_compiled(options, said):
    (problem,) = problems("backbay_fold", options=options)
    assert said in problem


def test_a_wrong_mode_or_an_option_where_none_is_taken_is_found_late():
    assert "did you mean 'max-autotune'" in problems("backbay_gelu", mode="max-autotun")[0]
    assert "takes no mode" in problems("backbay_print", mode="max-autotune")[0]
    assert "has no option 'x'" in problems("backbay_print", options={"x": 1})[0]


def test_right_options_are_refused():
    model = torch.nn.Linear(2, 2)
    for options in (REASSOCIATE, {"max_autotune": False}, REASSOCIATE | {"max-autotune": False}):
        assert backbay.compile(model, backend="backbay_fold", options=options) is not model


def test_a_backend_that_is_registered_here_is_not_asked_what_it_takes():
    with backbay.registered(FoldThenEager(), "fold_then_eager"):
        spec = default_registry.spec("fold_then_eager")
        assert spec.options == FoldThenEager.option_table()
        said = problems("fold_then_eager", options={"allow_reassociatoin": True})
    assert said == [
        "fold_then_eager has no option 'allow_reassociatoin'; did you mean 'allow_reassociation'?"
    ]
    assert "did you mean" in problems(FoldThenEager(), options={"allow_reassociatoin": True})[0]


def test_what_a_registration_says_counts_for_less_than_the_class():
    with backbay.registered(FoldThenEager(), "fold_then_eager", options=(), summary="mine"):
        spec = default_registry.spec("fold_then_eager")
        assert (spec.options, spec.summary) == ((), "mine")


def test_two_options_have_one_digest():
    one, same, other, none = (
        backbay.get_backend("backbay_fold", options=x)
        for x in (REASSOCIATE, dict(REASSOCIATE), {"allow_reassociation": False}, None)
    )
    assert one is same
    assert len({one.digest, other.digest, none.digest}) == 3


@pytest.mark.parametrize("configured", [False, True], ids=["torch.compile", "get_backend"])
def test_two_options_share_compiled_code(configured, reports):
    def chain(x):
        return x * 0.1 * 0.3

    with backbay.registered(FoldThenEager(), "fold_then_eager") as backend:
        both = (
            [
                torch.compile(chain, backend=backbay.get_backend("fold_then_eager", options=x))
                for x in (REASSOCIATE, None)
            ]
            if configured
            else [torch.compile(chain, backend=backend, options=x) for x in (REASSOCIATE, {})]
        )
        x = torch.linspace(1, 2, 1000)
        for _ in range(2):
            folded, kept = (call(x) for call in both)
            assert torch.equal(kept, chain(x))
            assert torch.equal(folded, x * (0.1 * 0.3))
            assert not torch.equal(folded, kept)
        assert [x.changes for x in reports if x.name == "fold_scalar_chain"] == [1, 0]


def test_two_options_share_inductors_cache():
    def key(**options):
        return HookedPasses((fold_scalar_chain.at("aten"),), options).uuid()

    assert key(allow_reassociation=True) == key(allow_reassociation=True)
    assert key(allow_reassociation=True) != key(allow_reassociation=False)
