"""The golden outcome: what a workload should give, made once, kept on disk, judged against."""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from backbay.proof.evidence import picked
from backbay.proof.judging import Proof, Reference
from backbay.proof.noise import Noise
from backbay.proof.outcome import Outcome
from backbay.proof.shrink import shrunk
from backbay.workloads.workload import Workload

FORMAT = 2
"""Version of the saved form."""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Eager's outcome and the float64 truth of one workload, and how honest results scatter."""

    eager: Outcome
    truth: Outcome
    noise: dict[str, Noise]
    """By tensor name: how far honest results are from the truth."""
    working: torch.dtype
    """The lowest precision that the model computes in."""
    train: bool
    draws_random: bool
    """Whether the model draws random numbers; candidates must then draw eager's own."""
    math_attention: bool = False
    """Whether attention runs as plain operators, because its kernels hide what they draw."""
    reduced: bool = False
    """Whether the proof was made on smaller inputs; see ``at``."""
    notes: tuple[str, ...] = ()
    """What a reader of the verdict must know."""

    def judge(self, outcome: Outcome) -> Proof:
        """Compare what a backend gave, observed at this shape and under this context."""
        reference = Reference(
            eager=self.eager, truth=self.truth, noise=self.noise, working=self.working
        )
        return reference.judge(outcome)

    def at(self, workload: Workload) -> Workload:
        """Return the workload on the inputs that the proof was made on; the model is the same."""
        return shrunk(workload, train=self.train) if self.reduced else workload

    def picked(self, seed: int) -> "Golden":
        """Return the golden of some elements of each large tensor; see `evidence.picked`."""
        return dataclasses.replace(
            self, eager=picked(self.eager, seed), truth=picked(self.truth, seed)
        )

    def context(self) -> contextlib.AbstractContextManager[None]:
        """Be in the state that a candidate must be compiled and observed in."""
        return proof_context(draws_random=self.draws_random, math_attention=self.math_attention)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a file that ``load`` reads, in this process or another."""
        torch.save(self.content(), path)

    def content(self) -> dict[str, Any]:
        """Return containers that torch.load reads without running code."""
        content = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        content["format"] = FORMAT
        content["working"] = str(self.working).removeprefix("torch.")
        content["noise"] = {name: dataclasses.asdict(x) for name, x in self.noise.items()}
        for name in ("eager", "truth"):
            content[name] = _plain(getattr(self, name))
        return content

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Golden":
        """Read what ``save`` wrote. Tensors stay on disk until they are compared."""
        content: dict[str, Any] = torch.load(
            str(path), mmap=True, map_location="cpu", weights_only=True
        )
        if content.get("format") != FORMAT:
            raise ValueError(f"{path} was written by another version of Backbay: make it again")
        return cls.of_content(content)

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> "Golden":
        """Return what `content` is of."""
        del content["format"]
        content["working"] = getattr(torch, content["working"])
        content["noise"] = {name: Noise(**x) for name, x in content["noise"].items()}
        for name in ("eager", "truth"):
            pairs = content[name]["aliases"]
            content[name] = Outcome(**content[name] | {"aliases": frozenset(map(tuple, pairs))})
        return cls(**content)


@contextlib.contextmanager
def proof_context(*, draws_random: bool, math_attention: bool) -> Iterator[None]:
    """Be in the state that a candidate is compiled and observed in; see `Golden`."""
    with contextlib.ExitStack() as stack:
        if math_attention:
            stack.enter_context(draws_in_the_open())
        if draws_random:
            import torch._inductor.config as inductor  # noqa: PLC0415 (a second; rarely needed)

            stack.enter_context(inductor.patch(fallback_random=True))
        yield


@contextlib.contextmanager
def draws_in_the_open() -> Iterator[None]:
    """Compute attention and recurrent layers from operators whose random draws can be seen."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 (imports Dynamo's parts)

    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield


def _plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as containers that torch.load reads without running code."""
    content = {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}
    return content | {"aliases": [list(pair) for pair in sorted(outcome.aliases)]}
