"""``cuda_graphs``: nothing tells a replayed training step from the default mode, errors included.

Each case compares with the default mode. Torch's own ``mode="reduce-overhead"`` goes through the
same cases, and what it does in them is written down: those that it passes are in `TORCH_PASSES`.
"""

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import device_training_cases  # noqa: E402, F401 (which adds cases)
from graph_cases import assert_trains_as_default, auto, default, ours  # noqa: E402
from torchs_own_mode import in_a_process_of_its_own, training  # noqa: E402
from training_cases import AS_THEY_ARE, CASES  # noqa: E402

from backbay import compile_log  # noqa: E402
from backbay_optimizer.cuda_graphs.recordings import MOST_SIZES  # noqa: E402
from backbay_optimizer.tuning import graph_timing  # noqa: E402

pytestmark = pytest.mark.gpu
TORCH_PASSES = {
    "a_backward_from_another_stream",
    "a_backward_in_the_callers_thread",
    "a_device_that_is_empty",
    "a_graph_that_is_retained",
    "a_graph_that_is_retained_too_late",
    "an_optimizer_of_many_at_once",
    "an_optimizer_one_by_one",
    "an_optimizer_that_is_fused",
    "another_thread",
    "buffers_that_are_written",
    "embeddings",
    "exceptions_in_between",
    "forwards_before_backwards",
    "gradients_of_one_layer",
    "graph_breaks",
    "inputs_that_are_written",
    "losses_of_the_whole",
    "many_layers",
    "numbers_of_less_precision",
    "one_backward_of_many_forwards",
    "one_graph_of_many_layers",
    "parameters_elsewhere",
    "parameters_that_are_frozen",
    "parameters_whose_memory_is_freed",
    "plain_steps",
    "results_of_the_last_one",
    "results_that_are_saved_and_written",
    "results_that_are_views",
    "results_that_die_at_once",
    "several_models",
    "sizes_that_are_compiled_anew",
    "sizes_that_differ",
    "some_results_alone",
    "streams",
}
"""Cases that ``reduce-overhead`` passes, too; in the others it fails, or gives something else."""
CRASHES = {"numbers_on_the_host"}
"""Where it is a segmentation fault, with torch 2.11."""


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize("name", CASES)
def test_a_replay_is_told_from_the_default_mode(name, replays):
    assert_trains_as_default(CASES[name], ours)
    assert not any("could not be recorded" in x for x in reasons()), reasons()
    if name not in AS_THEY_ARE:
        assert any(x.startswith("backward graph recorded") for x in reasons()), reasons()
        assert replays


@pytest.mark.parametrize("name", CASES)
def test_what_is_timed_is_told_from_the_default_mode(name, monkeypatch):
    monkeypatch.setattr(graph_timing, "BUDGET_S", 0.05)
    assert_trains_as_default(CASES[name], auto)


@pytest.mark.parametrize("name", CASES)
def test_torchs_own_mode_is_otherwise_than_written_down(name, record_property):
    assert_trains_as_default(CASES[name], default)  # what is wrong there is wrong with the case
    fault = in_a_process_of_its_own(training, name) if name in CRASHES else training(name)
    torch.compiler.reset()
    record_property("fault", fault)
    assert (fault == "nothing") == (name in TORCH_PASSES), fault


def test_a_step_that_writes_its_input_is_replayed(replays):
    CASES["inputs_that_are_written"](ours)
    assert not replays
    why = "it writes 1 inputs that are neither parameters nor buffers"
    assert f"forward graph has no CUDA graph: {why}" in reasons()


def test_sizes_of_a_step_are_recorded_without_end(replays):
    CASES["sizes_that_differ"](ours)
    graphs = 2  # one of them for a size that Dynamo takes for a constant
    made = len({id(x) for x in replays})
    assert MOST_SIZES < made <= graphs * 2 * MOST_SIZES  # a forward, and a backward
    why = "forward graph ran without its CUDA graph: it is recorded for 8 sizes"
    assert why in reasons()
