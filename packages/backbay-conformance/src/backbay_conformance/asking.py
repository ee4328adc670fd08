"""Asks what a fresh process sees of a backend.

Where only metadata is asked for, torch must not be imported.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from backbay.causes import one_line
from backbay.errors import BackbayError, InputError
from backbay.registry import default_registry
from backbay.session import Refused, Service

_PATIENCE_S = 100.0


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="question"):
    """What a process is asked of a backend, once."""

    what: str
    """``metadata``, ``loading`` or ``caches``."""
    name: str
    device: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What it sees."""

    facts: dict[str, Any]


SERVICE = Service[Question, Answer]("backbay_conformance.asking:FreshHandler", {Question: Answer})


def asked(what: str, name: str, device: str = "cpu") -> dict[str, Any]:
    """Start a process, ask it, and return its answer.

    Args:
        what: ``metadata``, ``loading`` or ``caches``.
        name: of the backend.
        device: a device type.

    Raises:
        NoReply: it raised, died, or did not answer in time.
    """
    with SERVICE.session() as session:
        question = Question(what=what, name=name, device=device)
        return session.ask(question, timeout_s=_PATIENCE_S).facts


class FreshHandler:
    """Sees what a process sees that has done nothing yet."""

    requests: ClassVar[Any] = Question

    def answer(self, request: Question) -> Answer:
        """Return the reply to a request."""
        questions = {"metadata": metadata, "loading": loading, "caches": caches}
        try:
            return Answer(facts=questions[request.what](request.name, request.device))
        except BackbayError as error:
            raise Refused(one_line(error)) from error


def metadata(name: str, device: str) -> dict[str, Any]:
    """Look a backend up without loading it."""
    spec = default_registry.spec(name)
    misspelt = ""
    try:
        default_registry.spec(f"{name}x")
    except InputError as error:
        misspelt = str(error)
    return {
        "name": spec.name,
        "origin": str(spec.origin),
        "ready": default_registry.availability(name, device).ready,
        "listed": name in default_registry.list_backends(exclude_tags=None),
        "shown": name in default_registry.list_backends(),
        "torch": "torch" in sys.modules,
        "module": spec.target is not None and spec.target.partition(":")[0] in sys.modules,
        "misspelt": misspelt,
    }


def loading(name: str, device: str) -> dict[str, Any]:
    """Load a backend, see what that left changed, and use it in a forked child."""
    import torch  # noqa: PLC0415 (metadata is read without it)
    import torch._dynamo  # noqa: PLC0415 (its own import is not the backend's doing)

    def state() -> dict[str, str]:
        return {
            "grad mode": str(torch.is_grad_enabled()),
            "default dtype": str(torch.get_default_dtype()),
            "default device": str(torch.get_default_device()),
            "number of threads": str(torch.get_num_threads()),
            "determinism": str(torch.are_deterministic_algorithms_enabled()),
            "matmul precision": torch.get_float32_matmul_precision(),
            "random state": str(torch.initial_seed() and torch.get_rng_state().sum().item()),
            "working folder": os.getcwd(),  # noqa: PTH109 (a name is enough)
            "CUDA": str(torch.cuda.is_initialized()),  # type: ignore[no-untyped-call]
        }

    before = state()
    compiler = default_registry.lookup_backend(name)
    after = state()
    found = _in_threads(lambda: default_registry.lookup_backend(name))
    return {
        "changed": [what for what in before if before[what] != after[what]],
        "one": all(x is compiler for x in found),
        "forked": _forked(compiler, device),
    }


def _in_threads(look: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(look())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found if len(found) == len(threads) else [None]


def _forked(compiler: Callable[..., Any], device: str) -> int:
    """Compile in a forked child of a process that has compiled nothing; return its exit code."""
    import torch  # noqa: PLC0415 (as above)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            x = torch.randn(5, 3, device=device)
            got = torch.compile(program, backend=compiler)(x)
            code = 0 if torch.allclose(got, program(x), atol=1e-5) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def program(x: Any) -> Any:
    """Compute something that any compiler can fuse."""
    return (x.sin() * 2).sum(-1)


def caches(name: str, device: str) -> dict[str, Any]:
    """Compile what another process has compiled, and count how often a cache had it."""
    import torch  # noqa: PLC0415 (as above)
    from torch._dynamo.utils import counters  # noqa: PLC0415 (as above)

    compiler = default_registry.lookup_backend(name)
    torch.compile(program, backend=compiler)(torch.ones(5, 3, device=device))
    found = {**counters["inductor"], **counters["aot_autograd"]}
    return {"hits": sum(n for what, n in found.items() if what.endswith("cache_hit"))}
