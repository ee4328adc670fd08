"""Level contract: torch's own backends pass it, and each theme says "broken" of a broken one."""

import collections
import re

import pytest
import torch

from backbay_conformance import conform
from backbay_conformance.levels import contract

CASES = list(contract.cases("cpu", all_samples=False))
THEMES = {
    "values": 24, "dtypes": 14, "reductions": 9, "layout": 18, "aliasing": 13, "mutation": 17,
    "calls": 17, "state": 12, "randomness": 7, "gradients": 25, "training": 5, "containers": 14,
    "capture": 16, "control": 13,
}  # fmt: skip
"""Fewest cases of each: a theme that loses some loses what they would catch."""


def status(backend, case):
    only = [f"contract/{case}"]
    (result,) = conform(backend, device="cpu", levels=["contract"], only=only).results
    return result.status


def test_themes_have_lost_no_case():
    found = collections.Counter(x.id.split("/")[1] for x in CASES)
    assert found.keys() == THEMES.keys()
    assert not {theme for theme, least in THEMES.items() if found[theme] < least}


def test_ids_are_of_a_form_that_an_expectations_file_can_name():
    ids = [x.id for x in CASES]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"contract/[A-Za-z0-9_/]+", x) for x in ids)


TORCHS_OWN = {"contract/gradients/detached_self_of_a_view_is_another_one"}
"""What every backend on AOTAutograd has wrong: docs/upstream.md."""


@pytest.mark.slow
def test_a_right_backend_is_called_wrong():
    statement = conform("aot_eager", device="cpu", levels=["contract"], profile="full", workers=1)
    wrong = [x for x in statement.results if x.status != "pass" and x.id not in TORCHS_OWN]
    assert not [f"{x.id}: {x.status}: {x.reason}" for x in wrong]


def around(before=lambda args: args, after=lambda results, args: results):
    """Make a backend that runs the graph, and something before or after it."""

    def faulty(graph_module, example_inputs):
        def run(*args):
            return after(graph_module(*before(args)), args)

        return run

    return faulty


def tensors(function):
    def each(values, *_):
        return tuple(function(x) if isinstance(x, torch.Tensor) else x for x in values)

    return each


def reused():
    kept = {}

    def after(results, args):
        return tuple(
            kept.setdefault((i, x.shape), x.clone()).copy_(x) for i, x in enumerate(results)
        )

    return around(after=after)


def in_float32(x):
    return x.float() if x.dtype == torch.float64 else x


def read_as_contiguous(x):
    strides = torch.empty(x.shape, device="meta").stride()
    return x.as_strided(x.shape, strides)


def with_more_gradient(x):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 1.001)
    return x


def keeping_threads(results, args):
    torch.set_num_threads(torch.get_num_threads() % 2 + 1)
    return results


def seeded(args):
    torch.manual_seed(0)
    return args


def without_signs(x):
    return x + 0.0 if x.is_floating_point() else x


def reversed_results(results, args):
    return tuple(results)[::-1]


def static(graph_module, example_inputs):
    [int(x) for x in example_inputs if isinstance(x, torch.SymInt)]
    return lambda *args: graph_module(*args)


def spoiling(graph_module, example_inputs):
    for x in example_inputs:
        with torch.no_grad():
            x.add_(1)
    return lambda *args: graph_module(*args)


FAULTS = {
    "values/nan_is_lost": (around(after=tensors(torch.nan_to_num)), "fail_value"),
    "values/negative_zero_is_lost": (around(after=tensors(without_signs)), "fail_value"),
    "dtypes/float64_is_computed_in_float32": (
        around(tensors(in_float32), tensors(lambda x: x.double())), "fail_value"
    ),
    "reductions/largest_forgets_nan": (around(tensors(torch.nan_to_num)), "fail_value"),
    "layout/transposed_input_is_read_as_contiguous": (
        around(tensors(read_as_contiguous)), "fail_metadata"
    ),
    "layout/zero_dimensions_become_one": (
        around(after=tensors(torch.atleast_1d)), "fail_metadata"
    ),
    "aliasing/view_of_an_input_is_a_copy": (around(after=tensors(torch.clone)), "fail_metadata"),
    "mutation/change_of_an_input_is_dropped": (around(tensors(torch.clone)), "fail_mutation"),
    "calls/result_is_overwritten_by_the_next_call": (reused(), "fail_value"),
    "state/call_leaves_state_changed": (around(after=keeping_threads), "fail_behaviour"),
    "randomness/every_call_draws_the_same": (around(seeded), "fail_behaviour"),
    "gradients/gradient_is_lost": (around(after=tensors(torch.detach)), "fail_grad"),
    "training/steps_lead_elsewhere/SGD": (around(after=tensors(with_more_gradient)), "fail_grad"),
    "containers/container_comes_back_as_another": (around(after=reversed_results), "fail_metadata"),
    "capture/dynamic_sizes_are_compiled_one_by_one": (static, "fail_behaviour"),
    "control/example_inputs_are_changed_by_the_backend": (spoiling, "fail_behaviour"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_not_seen(case):
    threads = torch.get_num_threads()
    backend, wanted = FAULTS[case]
    try:
        assert status(backend, case) == wanted
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("theme", THEMES)
def test_a_theme_has_no_fault(theme):
    assert any(case.startswith(f"{theme}/") for case in FAULTS)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_shipped_expectation_names_no_case(backend):
    from backbay_conformance import expecting, suite

    known = suite.collected("cpu", [1, 6])
    lines = [x for x in expecting.shipped(backend) if x.startswith(("contract/", "context/"))]
    assert lines
    assert not [x for x in lines if x not in known]
