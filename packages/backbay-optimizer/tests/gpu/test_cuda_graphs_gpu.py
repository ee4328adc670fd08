"""``cuda_graphs``: nothing tells a replay from the default mode, its errors included.

Each case compares with the default mode. Torch's own ``mode="reduce-overhead"`` goes through the
same cases, and what it does in them is written down: those that it passes are in `TORCH_PASSES`.
"""

import pytest

torch = pytest.importorskip("torch")

from graph_cases import CASES, assert_as_default, auto, default, ours, rows, waits  # noqa: E402
from torchs_own_mode import in_a_process_of_its_own, inference  # noqa: E402
from training_cases import LAYERS  # noqa: E402

from backbay import compile_log  # noqa: E402
from backbay_optimizer.cuda_graphs.recordings import MOST_SIZES  # noqa: E402
from backbay_optimizer.tuning import graph_timing  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RUN_AS_THEY_ARE = {
    "inputs_that_are_written",
    "numbers_on_the_host",
    "operators_that_wait",
    "operators_of_others",
    "empty_inputs",
}
"""Where nothing need have been replayed: something keeps it from that."""
TORCH_PASSES = {
    "empty_inputs",
    "inputs_that_are_written",
    "views_and_shared_storage",
}
"""Cases that ``reduce-overhead`` passes, too; in the others it fails, or gives something else."""
CRASHES = {"threads"}
"""Where it was a segmentation fault once, beside other work, with torch 2.11."""


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize("name", CASES)
def test_a_replay_is_told_from_the_default_mode(name, replays):
    CASES[name](ours)
    assert replays or name in RUN_AS_THEY_ARE, reasons()


@pytest.mark.parametrize("name", CASES)
def test_what_is_timed_is_told_from_the_default_mode(name, monkeypatch):
    monkeypatch.setattr(graph_timing, "BUDGET_S", 0.05)
    CASES[name](auto)


@pytest.mark.parametrize("name", CASES)
def test_torchs_own_mode_is_otherwise_than_written_down(name, record_property):
    CASES[name](default)  # what is wrong there is wrong with the case
    fault = in_a_process_of_its_own(inference, name) if name in CRASHES else inference(name)
    torch.compiler.reset()
    record_property("fault", fault)
    assert (fault == "nothing") == (name in TORCH_PASSES), fault


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("inputs_that_are_written", "inputs that are neither parameters nor buffers"),
        ("numbers_on_the_host", "it runs on cpu, cuda"),
        ("operators_of_others", "backbay_tests.waits is not known to be safe"),
        ("streams", "another stream"),
        ("a_graph_of_the_callers", "the caller is capturing one"),
        ("settings_of_cudnn", "settings of cuDNN"),
        ("parameters_that_never_stay", "it is recorded again and again"),
        ("sizes_that_differ", "it is recorded for 8 sizes"),
    ],
)
def test_nobody_says_why_a_graph_runs_as_it_is(name, reason, replays):
    CASES[name](ours)
    assert any(reason in x for x in reasons()), reasons()


@torch.no_grad()
def test_code_that_can_not_be_captured_fails(replays, monkeypatch):
    def waiting(way):
        call = way(lambda x: waits(x.sin()) * 2)
        return [call(rows(seed=x)) for x in range(5)] + [torch.rand(3, device="cuda")]

    monkeypatch.setattr("backbay_optimizer.cuda_graphs.codegen.refusal", lambda *_: None)
    assert_as_default(waiting, ours)
    assert not replays
    assert any("could not be recorded" in x for x in reasons())


@torch.no_grad()
def test_a_number_that_the_device_gives_is_stale():
    def scaled(way):
        call = way(lambda x: x.sin() * x.sum().item())
        return [call(rows(seed=x)) for x in range(5)]

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert_as_default(scaled, ours)


def test_only_some_layers_of_a_graph_are_replayed(replays):
    CASES["one_graph_of_many_layers"](ours)
    assert len({id(x) for x in replays}) == LAYERS


def test_recordings_are_not_few(replays):
    CASES["sizes_that_differ"](ours)
    graphs = 2  # one of them for a size that Dynamo takes for a constant
    assert len({id(x) for x in replays}) <= graphs * MOST_SIZES
