"""What a GPU does in a step, as far as a machine without one can tell."""

import torch

from backbay.timing import kernels


def test_a_cpu_is_watched_or_the_step_runs():
    calls = []
    assert kernels.gpu_work(lambda: calls.append(1), torch.device("cpu")) is None
    assert not calls


def test_what_runs_beside_each_other_counts_twice():
    spans = [(4.0, 6.0, "c"), (0.0, 2.0, "a"), (1.0, 3.0, "b"), (1.5, 2.5, "within")]
    assert sum(end - start for start, end in kernels._joined(spans)) == 5.0
