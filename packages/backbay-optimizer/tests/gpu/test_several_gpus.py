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

from graph_cases import default, net, ours, rows, same  # noqa: E402
from torch import nn  # noqa: E402

from backbay_optimizer.cuda_graphs.capture import pool_bytes  # noqa: E402
from backbay_optimizer.cuda_graphs.recordings import MOST_RECORDINGS  # noqa: E402

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


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Return what each of two processes says, which compare with the default mode by themselves."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    given = {**os.environ, "BACKBAY_CACHE": str(store.parent / "cache")}
    command = [sys.executable, str(SCRIPT), str(store), "2"]
    ranks = [
        subprocess.Popen([*command, x], stdout=subprocess.PIPE, text=True, env=given) for x in "01"
    ]
    try:
        said = [rank.communicate(timeout=280)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [x.returncode for x in ranks] == [0, 0]
    return [json.loads(x) for x in said]


@pytest.mark.parametrize("case", REPLAYED)
def test_two_processes_train_as_in_the_default_mode(two_processes, case):
    for one in two_processes:
        assert one[case]["recorded"] >= 2, one[case]


@pytest.mark.parametrize("case", SHARDED)
def test_sharded_parameters_are_recorded_a_bounded_number_of_times(two_processes, case):
    for one in two_processes:
        assert one[case]["recorded"] <= 3 * 2 * MOST_RECORDINGS, one[case]


def test_models_on_two_devices_train_in_turns(replays):
    def run(way):
        torch.compiler.reset()
        models = [net().to(f"cuda:{x}") for x in range(2)]
        calls, seen = [way(x) for x in models], []
        for step in range(5):
            losses = [
                call(rows(seed=step).to(f"cuda:{x}")).square().mean()
                for x, call in enumerate(calls)
            ]
            for x in losses:
                x.backward()
            seen += losses
        return [x.detach() for x in seen], [p.grad for x in models for p in x.parameters()]

    wanted = run(default)
    assert not replays
    got = run(ours)
    same(got, wanted)
    assert len({id(x) for x in replays}) == 2 * len(("forward", "backward"))
    assert pool_bytes(1) > 0


def test_a_model_on_two_devices_runs_without(replays):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = net().to("cuda:0"), net().to("cuda:1")

        def forward(self, x):
            return self.second(self.first(x).to("cuda:1"))

    model = Both()
    call = ours(model)
    for step in range(4):
        x = rows(seed=step)
        same(call(x), model(x))
    assert not replays
