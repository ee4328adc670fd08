"""``cuda_graphs`` on several devices: a process each, and one process for two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
    pytest.skip("needs two CUDA devices", allow_module_level=True)

from graph_cases import default, net, ours, rows, same, torchs  # noqa: E402
from torch import nn  # noqa: E402
from training_cases import raised  # noqa: E402

from backbay_optimizer.cuda_graphs.capture import pool_bytes  # noqa: E402

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).parent / "several_gpus.py"
REPLAYED = (
    "wrapped_then_compiled",
    "compiled_then_wrapped",
    "images_compiled_then_wrapped",
    "accumulating",
)
SHARDED = ("sharded", "sharded_by_layer")
"""Their parameters' memory is freed between calls, and may be elsewhere in each."""


TORCH_PASSES = {
    "wrapped_then_compiled",
    "compiled_then_wrapped",
    "images_compiled_then_wrapped",
    "sharded",
    "sharded_by_layer",
    "a_model_on_both",
}
"""Cases that ``reduce-overhead`` passes, too; in the others gradients accumulate, and it fails."""


def assert_as_written_down(name, faults):
    """Assert that torch's own mode passes a case, or fails it, as is written down."""
    passed = set(faults) == {"nothing"}
    assert passed == (name in TORCH_PASSES), faults


def said_by_two(folder, *given):
    """Return what each of two processes says, or, where it did not end well, how it ended."""
    environment = {**os.environ, "BACKBAY_CACHE": str(folder / "cache")}
    command = [sys.executable, str(SCRIPT), str(folder / "store"), "2"]
    ranks = [
        subprocess.Popen([*command, x, *given], stdout=subprocess.PIPE, text=True, env=environment)
        for x in "01"
    ]
    said = []
    try:
        for rank in ranks:
            try:
                out = rank.communicate(timeout=140 if given else 280)[0]
                said.append(json.loads(out) if not rank.returncode else f"exit {rank.returncode}")
            except subprocess.TimeoutExpired:
                said.append("it does not end")
    finally:
        for rank in ranks:
            rank.kill()
    return said


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Return what each of two processes says, which compare with the default mode by themselves."""
    said = said_by_two(tmp_path_factory.mktemp("ranks"))
    assert all(isinstance(x, dict) for x in said), said
    return said


@pytest.mark.parametrize("case", [*REPLAYED, *SHARDED])
def test_two_processes_train_as_in_the_default_mode(two_processes, case):
    for one in two_processes:
        assert one[case]["recorded"] >= 2, one[case]


@pytest.mark.parametrize("case", [*REPLAYED, *SHARDED])
def test_torchs_own_mode_is_otherwise_than_written_down(case, tmp_path):
    faults = said_by_two(tmp_path, case)
    assert "exit 1" not in faults  # it fails in the default mode, too
    assert_as_written_down(case, faults)


def models_in_turns(way):
    torch.compiler.reset()
    models = [net().to(f"cuda:{x}") for x in range(2)]
    calls, seen = [way(x) for x in models], []
    for step in range(5):
        losses = [
            call(rows(seed=step).to(f"cuda:{x}")).square().mean() for x, call in enumerate(calls)
        ]
        for x in losses:
            x.backward()
        seen += losses
    return [x.detach() for x in seen], [p.grad for x in models for p in x.parameters()]


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = net().to("cuda:0"), net().to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x).to("cuda:1"))


def a_model_on_both(way):
    torch.compiler.reset()
    call = way(Both())
    return [call(rows(seed=x)).detach() for x in range(4)]


def test_models_on_two_devices_train_in_turns(replays):
    wanted = models_in_turns(default)
    assert not replays
    same(models_in_turns(ours), wanted)
    assert len({id(x) for x in replays}) == 2 * len(("forward", "backward"))
    assert pool_bytes(1) > 0


def test_a_model_on_two_devices_is_replayed(replays):
    same(a_model_on_both(ours), a_model_on_both(lambda x: x))
    assert not replays


@pytest.mark.parametrize("case", [models_in_turns, a_model_on_both])
def test_torchs_own_mode_is_otherwise_than_written_down_for_two_devices(case):
    wanted = case(default)
    fault = raised(lambda: same(case(torchs), wanted))
    torch.compiler.reset()
    assert_as_written_down(case.__name__, [fault])
