"""What only a CUDA device can show."""

from pathlib import Path

import pytest

from backbay.race import Limits, run
from backbay.registry import Registry

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FAULTY = Path(__file__).parents[1] / "race" / "faulty.py"


def test_the_registry_sees_the_gpu_without_touching_cuda(run_python):
    program = """
        import sys
        from backbay.registry import Registry
        registry = Registry()
        print(registry.environment.default_device, "torch" in sys.modules)
    """
    assert run_python(program).stdout.split() == ["cuda", "False"]
    assert Registry().availability("cudagraphs").ready
    assert Registry().availability("cudagraphs", "cpu").state == "no_device"


@pytest.mark.parametrize("train", [False, True])
def test_a_planted_fault_is_called_wrong_and_an_honest_backend_is_timed(train):
    report = run(
        f"{FAULTY}:small",
        backends=["inductor", f"{FAULTY}:scaled", f"{FAULTY}:wrong_gradient"],
        device="cuda",
        train=train,
        limits=Limits(backend_s=200.0, timing_s=1.0),
    )
    rows = {result.backend.rpartition(":")[2]: result for result in report.results}
    assert rows["scaled"].status == "wrong"
    assert rows["wrong_gradient"].status == ("wrong" if train else "ok")
    assert rows["inductor"].status == "ok"
    assert rows["inductor"].median_ms > 0
    assert 0 < rows["inductor"].peak_bytes < 2**30  # of the device allocator, not of the process
    assert "NVIDIA" in report.machine.device


def test_a_model_with_dropout_in_fused_attention_is_proven():
    report = run("hf:bert", size="tiny", backends=["inductor"], device="cuda", train=True)
    assert report.results[1].status == "ok", report.results[1].reason
    assert any("random" in note for note in report.notes)
