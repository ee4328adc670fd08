"""What a repro checks, as the text that its file has; minimising asks the same text.

So what is minimised is what the file shows, and no other failure.
"""

import contextlib
import copy
import faulthandler
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from backbay_conformance.record import Status
from backbay_conformance.repro.capturing import copied
from backbay_conformance.subject import message_of

_RUN = """\
def run(call, args):
    args = [copy.deepcopy(x) for x in args]
"""
_GRADIENTS = """\
    out = [x for x in call(*args) if torch.is_tensor(x) and x.requires_grad]
    weights = [torch.arange(x.numel()).sin().view(x.shape).to(x) for x in out]
    torch.autograd.backward(out, weights)
    return {f"gradient of input {i}": x.grad for i, x in enumerate(args) if torch.is_tensor(x)}
"""
_OUTPUTS = """\
    out = [x for x in call(*args) if torch.is_tensor(x)]
    return {f"output {i}": x.detach() for i, x in enumerate(out)}
"""
_AFTERWARDS = """\
    call(*args)
    return {f"input {i} afterwards": x for i, x in enumerate(args) if torch.is_tensor(x)}
"""
_WRONG = """\
def wrong(got, eager, true):
    if got is None or (got.shape, got.dtype) != (eager.shape, eager.dtype):
        return True
    if not got.dtype.is_floating_point or not got.numel():
        return not torch.isclose(got, eager, equal_nan=True).all()
    errors = [(x.double() - true.double()).abs().nan_to_num(0, 0, 0).max() for x in (got, eager)]
    size = torch.finfo(got.dtype).eps * true.double().abs().nan_to_num(0, 0, 0).max()
    return not got.isfinite().equal(eager.isfinite()) or errors[0] > 16 * (errors[1] + size)
"""
_STRIDES = ("(got.shape, got.dtype)", "(got.shape, got.dtype, got.stride())")


def run_text(status: Status, *, train: bool) -> str:
    """Return what runs a graph, and returns what a failure of a status is of."""
    if status == "fail_mutation":
        return _RUN + _AFTERWARDS
    # What raises or crashes may do so in backward.
    backward = status == "fail_grad" or (train and status not in COMPARED)
    return _RUN + (_GRADIENTS if backward else _OUTPUTS)


def wrong_text(status: Status) -> str:
    """Return what holds a tensor against float64, by eager's own error.

    Coarser than the suite's rule: no bound is an element's own, and none the mean's. Strides count
    where a failure is of that kind.
    """
    if status != "fail_metadata":
        return _WRONG
    plain, strided = _STRIDES
    theirs = plain.replace("got", "eager")
    return _WRONG.replace(plain, strided).replace(theirs, strided.replace("got", "eager"))


COMPARED: frozenset[Status] = frozenset(
    {"fail_value", "fail_grad", "fail_mutation", "fail_metadata"}
)
"""Statuses that the results of a graph can show."""

_AROUND = (" Set TORCHDYNAMO_VERBOSE", " While executing", " from user code")
"""What Dynamo adds behind an error's own message."""
_COMPARED_WORDS = 160  # characters: results have long messages cut


class Check:
    """Whether a graph fails with a backend as a case did."""

    def __init__(self, compiler: Any, status: Status, words: str, hang_s: float) -> None:
        self._compiler = compiler
        self._status = status
        self._words = words
        self._hang_s = hang_s
        self._wrong_is = _space(wrong_text(status))["wrong"]

    def __call__(self, function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
        """Whether it fails alike."""
        inputs = self.leaves(inputs)
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            if self._status in {"crash", "hang"}:
                return _lost(lambda: self._compiled(function, inputs), self._hang_s) == self._status
            if self._status == "fail_error":
                return self._raises(function, inputs)
            return self._wrong(function, inputs)

    def leaves(self, inputs: Sequence[Any]) -> list[Any]:
        """Return inputs as a program has them: leaves, and of a gradient that is wrong, with one.

        The minifier makes inputs of what was computed, which has no gradient.
        """
        made = [copied(x) for x in inputs]
        if self._status == "fail_grad":
            floating = (x for x in made if torch.is_tensor(x) and x.is_floating_point())
            for value in floating:
                value.requires_grad_()
        return made

    def trains(self, function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
        """Whether eager's outputs have gradients."""
        with torch.random.fork_rng():
            results = function(*(copy.deepcopy(x) for x in inputs))
        return any(torch.is_tensor(x) and x.requires_grad for x in results)

    def has_truth(self, function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
        """Whether it can be run in float64: a dtype that is named inside may not take it."""
        try:
            self._run(function, [doubled(x) for x in inputs], like=(function, inputs))
        except Exception:  # noqa: BLE001 (then eager is what there is)
            return False
        return True

    def _run(
        self,
        call: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        like: tuple[Callable[..., Any], Sequence[Any]],
    ) -> dict[str, torch.Tensor]:
        text = run_text(self._status, train=self.trains(*like))
        found: dict[str, torch.Tensor] = _space(text)["run"](call, inputs)
        return found

    def _wrong(self, function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
        try:
            eager = true = self._run(function, inputs, like=(function, inputs))
            if self.has_truth(function, inputs):
                doubles = [doubled(x) for x in inputs]
                true = self._run(function, doubles, like=(function, inputs))
            got = self._compiled(function, inputs)
        except Exception:  # noqa: BLE001 (another failure than the one that is looked for)
            return False
        tensors = [name for name, x in eager.items() if x is not None]
        return any(self._wrong_is(got.get(n), eager[n], true[n]) for n in tensors)

    def _raises(self, function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
        try:
            self._run(function, inputs, like=(function, inputs))
        except Exception:  # noqa: BLE001 (eager fails as well: a graph cut in the wrong place)
            return False
        try:
            self._compiled(function, inputs)
        except Exception as error:  # noqa: BLE001 (whatever the backend raises)
            return words(said(error)) == self._words
        return False

    def _compiled(
        self, function: Callable[..., Any], inputs: Sequence[Any]
    ) -> dict[str, torch.Tensor]:
        torch.compiler.reset()
        compiled = torch.compile(function, backend=self._compiler)
        return self._run(compiled, inputs, like=(function, inputs))


def doubled(value: Any) -> Any:
    """Return a floating-point tensor in float64; `rendering.program` spells it out."""
    if not torch.is_tensor(value) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def said(error: BaseException) -> str:
    """Return an error as results have it."""
    return f"{type(error).__name__}: {message_of(error)}"


def words(reason: str) -> str:
    """Return what was raised without its numbers, and without what Dynamo says around it."""
    inner = reason.rpartition(" raised: ")[2]
    for more in _AROUND:
        inner = inner.partition(more)[0]
    return re.sub(r"\d+", "", inner)[:_COMPARED_WORDS].strip()


def _space(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"torch": torch, "copy": copy}
    exec(text, space)  # noqa: S102 (our own text)
    return space


def _lost(work: Callable[[], Any], limit_s: float) -> str:
    """Do work in a copy of this process; return ``crash`` or ``hang``, or nothing if it ended."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            faulthandler.disable()  # a crash is what is asked for here
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work()
        os._exit(0)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "crash" if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) else ""
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang"
