"""How long a GPU works in a step: a profile tells a step that waits for the host from one that
does not.
"""

import pytest

torch = pytest.importorskip("torch")

from backbay.timing import clock, kernels  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")


def watched(step):
    """Return the share of a step that the GPU works, and what it does."""
    for _ in range(3):
        step()
    step_s = min(clock.seconds(step, 5, GPU) / 5 for _ in range(5))
    work = kernels.gpu_work(step, GPU)
    return work.busy_ms / (1e3 * step_s), work


def test_many_small_kernels_keep_the_gpu_busy():
    x = torch.ones(8, device=GPU)

    def step():
        for _ in range(100):
            x.add(1)

    busy, work = watched(step)
    assert busy < 0.7
    assert work.launches == 100
    assert work.copies == 0


def test_a_large_product_leaves_the_gpu_waiting():
    x = torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16)
    busy, _ = watched(lambda: x @ x)
    assert busy > 0.8


def test_a_copy_to_the_host_is_not_seen():
    x = torch.ones(1 << 20, device=GPU)
    _, work = watched(x.cpu)
    assert work.copies == 1
    assert 0 < work.copied_ms <= work.busy_ms
