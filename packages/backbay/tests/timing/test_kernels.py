"""What a GPU does in a step, as far as a machine without one can tell."""

from types import SimpleNamespace

import torch
from torch.autograd import DeviceType

from backbay.timing import kernels


def test_a_cpu_is_watched_or_the_step_runs():
    calls = []
    assert kernels.gpu_work(lambda: calls.append(1), torch.device("cpu")) is None
    assert not calls


def test_what_runs_beside_each_other_counts_twice():
    spans = [(4.0, 6.0, "c"), (0.0, 2.0, "a"), (1.0, 3.0, "b"), (1.5, 2.5, "within")]
    assert sum(end - start for start, end in kernels._joined(spans)) == 5.0


class Profiled:
    """Sees three steps: in each two kernels beside each other, and copies of three kinds."""

    def __init__(self, **_):
        kernels = [("a", 0, 3000), ("b", 1000, 4000), ("Memcpy DtoD", 4000, 5000)]
        copies = [(f"Memcpy {x}", 6000, 6500) for x in ("HtoD", "DtoH", "PtoP")]
        seen = [(*x, n, False) for n in range(3) for x in kernels + copies]
        self._events = [event(*x) for x in [*seen, ("a whole step", 0, 9000, 0, True)]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def events(self):
        return [*self._events, event("aten::mm", 0, 9000, 0, False, DeviceType.CPU)]


def event(name, start, end, step, is_user_annotation, device_type=DeviceType.CUDA):
    start, end = start + 10_000 * step, end + 10_000 * step
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=device_type,
        is_user_annotation=is_user_annotation,
    )


def test_what_is_told_is_of_several_steps_or_of_what_is_no_work(monkeypatch):
    calls = []
    monkeypatch.setattr(kernels, "profile", Profiled)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    work = kernels.gpu_work(lambda: calls.append(1), torch.device("cuda"))
    assert (work.busy_ms, work.launches, work.copied_ms, work.copies) == (5.5, 6, 1.5, 3)
    assert len(calls) == 4
    monkeypatch.setattr(Profiled, "events", lambda _: None)
    assert kernels.gpu_work(lambda: None, torch.device("cuda")) is None
