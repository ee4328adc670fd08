"""Modes around a program and in it: autocast, gradients, inference, determinism, devices."""

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal
from backbay_conformance.subject import Subject

theme = Collection("context", "modes")

Tensors = tuple[torch.Tensor, ...]
_BF16 = {"bfloat16"}


@theme.case(needs=_BF16)
def region_without_autocast_is_cast(subject: Subject) -> None:
    kind = subject.device.type

    def program(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        with torch.autocast(kind, torch.bfloat16):
            low = x @ w
            with torch.autocast(kind, enabled=False):
                full = x @ w
                back = low.float() @ w
            again = full @ w
        return low, full, back, again, x @ w

    subject.agrees(program, normal(subject, 5, 6), normal(subject, 6, 6))


@theme.case(needs=_BF16)
def autocast_of_the_first_call_is_kept(subject: Subject) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        return x @ w, (x @ w).sum(), F.layer_norm(x, (6,))

    call, inputs = subject.compile(program), (normal(subject, 5, 6), normal(subject, 6, 6))
    for enabled in (False, True, False, True):
        with torch.autocast(subject.device.type, torch.bfloat16, enabled=enabled):
            got, wanted = call(*inputs), program(*inputs)
        with subject.must("fail_metadata", f"dtypes with autocast {enabled}"):
            assert [x.dtype for x in got] == [x.dtype for x in wanted]
    subject.near(call(*inputs), program(*inputs))


@theme.case(needs=_BF16)
def dtype_of_autocast_is_that_of_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    call, x = subject.compile(program), normal(subject, 4, 4)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast(subject.device.type, dtype), subject.must("fail_metadata", "dtype"):
            assert call(x).dtype == program(x).dtype == dtype


@theme.case(needs=_BF16)
def break_inside_autocast_ends_it(subject: Subject) -> None:
    kind = subject.device.type

    def program(x: torch.Tensor) -> Tensors:
        with torch.autocast(kind, torch.bfloat16):
            y = x @ x
            torch._dynamo.graph_break()  # noqa: SLF001
            z = y @ x
        return y, z, z.float() @ x

    subject.agrees(program, normal(subject, 4, 4))


@theme.case(needs=_BF16 | {"training"})
def gradient_leaves_autocast_in_another_dtype(subject: Subject) -> None:
    kind = subject.device.type

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, torch.bfloat16):
            y = (x @ w).relu() @ w
        return y.float().square().mean()

    subject.agrees(program, normal(subject, 5, 6), normal(subject, 6, 6), train=True)


@theme.case(needs=_BF16)
def models_own_casts_under_autocast(subject: Subject) -> None:
    kind = subject.device.type
    model = torch.nn.Sequential(
        torch.nn.Conv1d(3, 6, 3), torch.nn.BatchNorm1d(6), torch.nn.GELU(), torch.nn.Flatten(),
        torch.nn.Linear(36, 5), torch.nn.Softmax(-1),
    ).to(subject.device)  # fmt: skip

    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.eval()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(kind, torch.bfloat16):
                return self.inner(x)

    subject.agrees(Cast(), normal(subject, 4, 3, 8))


@theme.case()
def inference_mode_inside(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        with torch.inference_mode():
            hidden = x * 2
            total = hidden.sum()
        return x.sin(), total.clone() + 1

    call, x = subject.compile(program), normal(subject, 5)
    for _ in range(2):
        subject.near(call(x), program(x))


@theme.case()
def tensor_of_inference_mode_as_input(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 3

    call, plain = subject.compile(program), normal(subject, 5)
    with torch.inference_mode():
        inside = normal(subject, 5)
    for x in (plain, inside, plain):
        with torch.no_grad():
            subject.near(call(x), program(x))
    with torch.inference_mode():
        got, wanted = call(inside), program(inside)
        subject.near(got, wanted)
        with subject.must("fail_metadata", "a result of inference mode is marked otherwise"):
            assert got.is_inference() == wanted.is_inference()


@theme.case()
def decorator_no_grad_is_ignored(subject: Subject) -> None:
    @torch.no_grad()
    def program(x: torch.Tensor) -> Tensors:
        with torch.enable_grad():
            y = x * 2
        return x.sin(), y

    call, x = subject.compile(program), normal(subject, 5, requires_grad=True)
    got, wanted = call(x), program(x)
    subject.near(got, wanted)
    with subject.must("fail_grad", "which results require grad"):
        assert [y.requires_grad for y in got] == [y.requires_grad for y in wanted]


@theme.case(needs={"training"})
def mode_that_is_an_argument(subject: Subject) -> None:
    def program(x: torch.Tensor, enabled: bool) -> torch.Tensor:
        with torch.set_grad_enabled(enabled):
            y = x.exp()
        return y * x

    call = subject.compile(program)
    for enabled in (True, False, True):
        got, wanted = (normal(subject, 5).fill_(0.7).requires_grad_() for _ in range(2))
        call(got, enabled).sum().backward()
        program(wanted, enabled).sum().backward()
        subject.near(got.grad, wanted.grad, what=f"gradient with {enabled}")


@theme.case()
def deterministic_algorithms_are_not_taken(subject: Subject) -> None:
    def program(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Tensors:
        total = x.index_add(0, i, v)
        # A program may ask, and act on it.
        return total, total * 2 if torch.are_deterministic_algorithms_enabled() else total * 3

    inputs = normal(subject, 5, 4), given(subject, [0, 1, 1, 4, 4, 4]), normal(subject, 6, 4)
    call = subject.compile(program)
    for enabled in (False, True, False):
        torch.use_deterministic_algorithms(enabled)
        got = call(*inputs)
        subject.near(got, program(*inputs))
        if enabled:
            said = "two runs differ with deterministic algorithms"
            again = call(*inputs)[0]
            subject.same_as_each_other(got[0], again, status="fail_behaviour", what=said)


@theme.case()
def default_device_is_ignored(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3) + torch.arange(3)

    call, x = subject.compile(program), normal(subject, 3)
    for _ in range(2):
        with torch.device(subject.device):
            subject.near(call(x), program(x))


@theme.agrees(lambda s: normal(s, 1, 2, 5, 8))
def choice_of_attention_kernel(q: torch.Tensor) -> torch.Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@theme.case()
def recording_of_a_profile(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("inside"):
            return x.sin() + 1

    call, x = subject.compile(program), normal(subject, 3)
    for _ in range(2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            subject.near(call(x), program(x))


@theme.case(needs={"training"})
def detection_of_anomalies(subject: Subject) -> None:
    call = subject.compile(lambda x: (x.sin() * x).sum())
    got = normal(subject, 4, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        call(got).backward()
    wanted = got.detach().cos() * got.detach() + got.detach().sin()
    subject.near(got.grad, wanted, what="gradient")
