"""What holds for the whole process must be after a call as it was before."""

import gc
import os
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("contract", "state")


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1).log().sum(-1)


STATES: dict[str, Callable[[torch.device], Any]] = {
    "grad_mode": lambda _: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    "default_dtype": lambda _: torch.get_default_dtype(),
    "default_device": lambda _: torch.get_default_device(),
    "threads": lambda _: (torch.get_num_threads(), torch.get_num_interop_threads()),
    "deterministic": lambda _: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    ),
    "matmul_precision": lambda _: (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    ),
    "autocast": lambda device: (
        torch.is_autocast_enabled(device.type),
        torch.get_autocast_dtype(device.type),
        torch.is_autocast_cache_enabled(),
    ),
    "random_state": lambda device: (
        torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    ).tolist(),
    "random_state_of_python": lambda _: random.getstate(),
    "anomaly_detection": lambda _: torch.is_anomaly_enabled(),
    "subnormal_numbers": lambda _: float(torch.tensor([1e-40]) * 0.5),
    "working_folder": lambda _: os.getcwd(),  # noqa: PTH109 (a name is enough)
}
"""By name, what is read before and after."""


@theme.case()
def call_leaves_state_changed(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 4, 5)
    before = _read(subject.device)
    for what in ("first call, which compiles,", "second call"):
        call(x)
        _must_be(subject, before, f"the {what}")


@theme.case(needs={"training"})
def backward_leaves_state_changed(subject: Subject) -> None:
    call = subject.compile(_program)
    before = _read(subject.device)
    for _ in range(2):
        call(torch.ones(4, 5, device=subject.device, requires_grad=True)).sum().backward()
    _must_be(subject, before, "training")


def _read(device: torch.device) -> dict[str, Any]:
    return {name: read(device) for name, read in STATES.items()}


def _must_be(subject: Subject, before: dict[str, Any], what: str) -> None:
    after = _read(subject.device)
    changed = [name for name in STATES if after[name] != before[name]]
    with subject.must("fail_behaviour", f"{what} leaves changed: {', '.join(changed)}"):
        assert not changed


@theme.parametrized(("no_grad", "inference_mode", "enable_grad"))
def mode_around_the_call_ends(subject: Subject, name: str) -> None:
    modes = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "enable_grad": torch.enable_grad,
    }
    call, x = subject.compile(_program), normal(subject, 4, 5, requires_grad=True)
    with modes[name]():
        before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        for _ in range(2):
            got, wanted = call(x), _program(x)
            subject.near(got.clone(), wanted.clone())
            with subject.must("fail_grad", f"a result under {name} has other marks than eager's"):
                assert got.requires_grad == wanted.requires_grad
                assert got.is_inference() == wanted.is_inference()
        with subject.must("fail_behaviour", f"{name} does not hold any more after a call"):
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
    subject.near(call(x), _program(x), what=f"result after {name}")


@theme.case()
def mode_that_the_program_sets_is_not_set(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    call, x = subject.compile(program), normal(subject, 4, requires_grad=True)
    for _ in range(2):
        torch.set_grad_enabled(True)
        got = call(x)
        with subject.must("fail_behaviour", "what the program sets does not hold after it"):
            assert not torch.is_grad_enabled()
            assert not got.requires_grad


@theme.case()
def default_dtype_is_that_of_the_first_call(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3, device=x.device) * 0.1

    call, x = subject.compile(program), normal(subject, 3)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        subject.near(call(x), program(x))


@theme.case()
def two_runs_differ(subject: Subject) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ w).softmax(-1), x.sum(), x.cumsum(0), x.var(0)

    inputs = normal(subject, 65, 130), normal(subject, 130, 40)
    call = subject.compile(program)
    first, second = call(*inputs), call(*inputs)
    said = "two runs on the same inputs differ in some bit"
    subject.same_as_each_other(first, second, status="fail_behaviour", what=said)


@theme.case()
def memory_of_results_is_never_freed(subject: Subject) -> None:
    call = subject.compile(_program)
    call(normal(subject, 4, 5))
    call(normal(subject, 4, 5))
    alive = _left_alive(call, lambda: normal(subject, 4, 5))
    with subject.must("fail_behaviour", f"{alive} outlives the call that nobody keeps"):
        assert not alive


@theme.case(needs={"training"})
def memory_of_training_is_never_freed(subject: Subject) -> None:
    call = subject.compile(_program)

    def step(x: torch.Tensor) -> torch.Tensor:
        result = call(x)
        result.sum().backward()
        return result

    for _ in range(2):
        step(normal(subject, 4, 5, requires_grad=True))
    alive = _left_alive(step, lambda: normal(subject, 4, 5, requires_grad=True))
    with subject.must("fail_behaviour", f"{alive} outlives a step that nobody keeps"):
        assert not alive


def _left_alive(
    call: Callable[[torch.Tensor], torch.Tensor], make: Callable[[], torch.Tensor]
) -> str:
    """Return what is not freed by counting references alone; the collector may come late.

    The input is made here: where Dynamo evaluates frames, a caller holds on to its arguments.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        given = make()
        result = call(given)
        found = {"a result": weakref.ref(result), "an input": weakref.ref(given)}
        del result, given
        return ", ".join(name for name, reference in found.items() if reference() is not None)
    finally:
        if collects:
            gc.enable()


@theme.case()
def two_threads_disturb_each_other(subject: Subject) -> None:
    call = subject.compile(_program)
    inputs = [normal(subject, 64, 65) for _ in range(2)]
    wanted = [_program(x) for x in inputs]
    call(inputs[0])
    _agree_in_threads(subject, [call, call], inputs, wanted)


@theme.case()
def two_threads_compile_at_once(subject: Subject) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 3

    programs, x = (_program, other), normal(subject, 6, 5)
    calls = [subject.compile(program) for program in programs]
    _agree_in_threads(subject, calls, [x, x], [program(x) for program in programs])


@theme.case()
def mode_of_another_thread_counts(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 4, requires_grad=True)
    needs: dict[int, bool] = {}

    def run(number: int) -> None:
        with torch.set_grad_enabled(number == 0):
            for _ in range(10):
                needs[number] = call(x).requires_grad

    call(x)
    wrong = _in_threads(run)
    if wrong:
        raise wrong[0]
    with subject.must("fail_grad", "whether gradients are recorded is another thread's"):
        assert needs == {0: True, 1: False}


def _agree_in_threads(
    subject: Subject,
    calls: Sequence[Callable[..., Any]],
    inputs: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
) -> None:
    """Call in two threads at once, each again and again; hold all that comes back against eager."""
    results: list[list[torch.Tensor]] = [[], []]

    def run(number: int) -> None:
        for _ in range(20):
            results[number].append(calls[number](inputs[number]))

    wrong = _in_threads(run)
    if wrong:
        raise wrong[0]
    for found, one in zip(results, wanted, strict=True):
        for result in found:
            subject.near(result, one, what="result in a thread")


def _in_threads(run: Callable[[int], None]) -> list[Exception]:
    raised: list[Exception] = []

    def guarded(number: int) -> None:
        try:
            run(number)
        except Exception as error:  # noqa: BLE001 (a thread's error belongs to who waits)
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised
