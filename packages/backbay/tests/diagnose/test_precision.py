"""TF32: where it is worth a word, and what a result in it is held against."""

import pytest
import torch

from backbay.decisions import Arm
from backbay.diagnose.looking import could_be_tf32
from backbay.diagnose.remedy import Remedy
from backbay.diagnose.subject import AS_IT_IS, Subject
from backbay.diagnose.trying import Truth, tried
from backbay.proof import Workload
from backbay.race.requests import ArmSetup

TF32 = Remedy(name="less precise", matmul_precision="high")


class Precise(torch.nn.Module):
    """Its result changes where products are less precise: on a CPU they never are."""

    def forward(self, x):
        return x if torch.get_float32_matmul_precision() == "highest" else x * 1.001


@pytest.fixture(autouse=True)
def _highest():
    assert torch.get_float32_matmul_precision() == "highest"
    torch.compiler.reset()
    yield
    assert torch.get_float32_matmul_precision() == "highest"


def subject(tmp_path, remedy):
    return Subject(
        workload=Workload(Precise(), (torch.randn(4, 8),)),
        compiler_fn=lambda graph, _: graph,
        arm=ArmSetup(arm=Arm(backend="eager")),
        remedy=remedy,
        train=False,
        seed=0,
        folder=tmp_path,
    )


def test_a_less_precise_result_is_held_against_uncompiled_torch_that_is_as_precise(tmp_path):
    before = subject(tmp_path, AS_IT_IS)
    trial = tried(before, subject(tmp_path, TF32), Truth(before), calls_again=False, timing_s=0.1)
    assert trial.status in {"no_gain", "confirmed", "worse"}, trial.sentence
    assert "rounded to 10 bits" in trial.sentence


def test_it_is_computed_as_precisely_as_the_remedy_says(tmp_path):
    after = subject(tmp_path, TF32)
    with after.computing():
        assert torch.get_float32_matmul_precision() == "high"
    after.compile(calls_again=False)
    x = after.workload.args[0]
    (given,) = after.outcome(after.workload).tensors.values()
    torch.testing.assert_close(given, x * 1.001)


@pytest.mark.parametrize(
    ("device", "dtype", "has", "could"),
    [
        ("cuda", torch.float32, ((8, 0), "highest"), True),
        ("cuda", torch.float32, ((9, 0), "highest"), True),
        ("cuda", torch.float32, ((7, 5), "highest"), False),
        ("cuda", torch.bfloat16, ((9, 0), "highest"), False),
        ("cuda", torch.float32, ((9, 0), "high"), False),
        ("cpu", torch.float32, ((9, 0), "highest"), False),
    ],
)
def test_it_could_be_tf32_on_a_gpu_that_has_it_and_does_not_use_it(
    device, dtype, has, could, monkeypatch
):
    capability, precision = has
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert could_be_tf32(torch.device(device), dtype) is could
    monkeypatch.undo()
