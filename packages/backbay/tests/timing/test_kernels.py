"""What a GPU does in a step, as far as a machine without one can tell."""

from types import SimpleNamespace

import pytest
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


def event(name, start, end, *, device=DeviceType.CUDA, annotates=False):
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(
        name=name, time_range=span, device_type=device, is_user_annotation=annotates
    )


class Profiled:
    """Sees three steps: in each, two kernels beside each other, and copies of four kinds."""

    seen = (
        event("aten::mm", 0, 30_000, device=DeviceType.CPU),
        event("all steps", 0, 30_000, annotates=True),
        *(
            event(name, at + start, at + end)
            for at in (0, 10_000, 20_000)
            for name, start, end in (
                ("a", 0, 3000),
                ("b", 1000, 4000),
                ("Memcpy DtoD", 4000, 5000),
                ("Memcpy HtoD", 6000, 6500),
                ("Memcpy DtoH", 6500, 7000),
                ("Memcpy PtoP", 7000, 7500),
            )
        ),
    )

    def __init__(self, **_):
        """Take what a profile takes."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def events(self):
        return self.seen


def test_what_is_told_is_of_several_steps_or_of_what_is_no_work(monkeypatch):
    calls = []
    monkeypatch.setattr(kernels, "profile", Profiled)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    work = kernels.gpu_work(lambda: calls.append(1), torch.device("cuda"))
    assert (work.busy_ms, work.launches, work.copied_ms, work.copies) == (6.5, 6, 1.5, 3)
    assert (work.moved_ms, work.moves) == (1.0, 1)
    assert len(calls) == 4
    monkeypatch.setattr(Profiled, "seen", None)
    assert kernels.gpu_work(lambda: None, torch.device("cuda")) is None


MOVES = (
    "Memcpy DtoD (Device -> Device)",
    "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(float)>(int)",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(cudnn::nhwcParams)",
    "void cudnn::engines_precompiled::nhwcToNchwKernel<float>(cudnn::nhwcParams)",
    "triton_poi_fused_clone_4",
    "triton_poi_fused__to_copy_12",
    "triton_poi_fused__unsafe_view_clone_permute_t_view_0",
    "triton_poi_fused_convert_element_type_3",
)
WORK = (
    "Memcpy HtoD (Pageable -> Device)",
    "triton_poi_fused_add_clone_4",
    "triton_poi_fused_clone_gelu_1",
    "triton_poi_fused_clone",
    "triton_poi_fused_clone_1_gelu_2",
    "triton_red_fused_clone_sum_1",
    "triton_poi_fused_transposed_add_1",
    "sm90_xmma_gemm_bf16bf16_bf16f32",
)


@pytest.mark.parametrize(("name", "moves"), [*((x, 1) for x in MOVES), *((x, 0) for x in WORK)])
def test_what_only_moves_data_is_told_by_its_name(monkeypatch, name, moves):
    events = tuple(event(name, at, at + 2000) for at in (0, 5000, 10_000))
    monkeypatch.setattr(kernels, "profile", Profiled)
    monkeypatch.setattr(Profiled, "seen", events)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    work = kernels.gpu_work(lambda: None, torch.device("cuda"))
    assert (work.moves, work.moved_ms) == (moves, 2.0 * moves)
