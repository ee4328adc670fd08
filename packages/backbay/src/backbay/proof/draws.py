"""Random numbers that a model draws: noted during one run, given again in another.

A run in float64 from the same seed would draw other numbers, so truth has to be given eager's.
Seen at the dispatcher: forward, backward and recomputed activations alike.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from backbay.errors import ProofImpossible

aten = torch.ops.aten

_FUSED = (
    "_scaled_dot_product",
    "_flash_attention",
    "_efficient_attention",
    "_cudnn_rnn",
    "miopen_rnn",
    "_fused_dropout",
)
"""Kernels that draw inside, and give back no mask that could be used again."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What one random operator gave."""

    operator: str
    results: tuple[torch.Tensor, ...]
    """Its results; of an operator that fills its first argument, that argument. On its device."""


def is_random(operator: Any) -> bool:
    """Return whether an operator may draw from a generator."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def is_fused(name: str) -> bool:
    """Return whether an operator of this name draws inside a kernel and hides what it drew."""
    return name.removeprefix("aten::").startswith(_FUSED)


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no stub
    """Notes every random draw, and the precisions computed in, while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws: list[Draw] = []
        self.dtypes: set[torch.dtype] = set()
        self.bytes_made = 0
        """Sum of the sizes of all results: no run needs more for its activations."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """Operators that drew numbers that cannot be given again."""
        return tuple(draw.operator for draw in self.draws if is_fused(draw.operator))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = _generators() if is_random(func) else None
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.dtypes.update(x.dtype for x in tensors if x.is_floating_point())
        if not func.is_view:
            self.bytes_made += sum(x.numel() * x.element_size() for x in tensors)
        if before is None:
            return result
        moved = not all(map(torch.equal, before, _generators()))
        if moved or (kwargs or {}).get("generator") is not None:
            drawn = [args[1]] if _is_rrelu(func) else tensors
            copies = tuple(x.detach().clone() for x in drawn)
            self.draws.append(Draw(operator=func.name(), results=copies))
        return result


class Replay(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no stub
    """Replays recorded draws, in the same order, in whatever precision is active outside it."""

    def __init__(self, draws: list[Draw]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = deque(draws)

    def check_finished(self) -> None:
        """Raise ProofImpossible unless every draw was given."""
        if self._left:
            raise ProofImpossible(
                f"the float64 run drew {len(self._left)} fewer random tensors than eager, next "
                f"would be {self._left[0].operator}: its random draws depend on the precision"
            )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_random(func):
            return func(*args, **kwargs)
        name = func.name()
        if self._left and self._left[0].operator == name:
            return _given_again(func, self._left.popleft().results, args, kwargs)
        if is_fused(name) or not _would_draw(func, args):
            return func(*args, **kwargs)
        expected = self._left[0].operator if self._left else "none"
        raise ProofImpossible(
            f"the float64 run draws random numbers with {name} where eager's next draw is "
            f"{expected}: its random draws depend on the precision"
        )


def _given_again(
    func: Any, drawn: tuple[torch.Tensor, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Operators are called, never tensors' own methods on what was recorded: modes further out
    # must see the results in order to raise their precision.
    if func.overloadpacket is aten.native_dropout:
        kept = aten.clone(drawn[1])
        scale = 0.0 if args[1] >= 1 else 1.0 / (1.0 - args[1])
        return aten.mul(aten.mul(args[0], kept), scale), kept
    if _is_rrelu(func):
        noise = args[1].copy_(drawn[0])
        leaky = aten.where(aten.le(args[0], 0), aten.mul(args[0], noise), args[0])
        return args[0].copy_(leaky) if func.overloadpacket is aten.rrelu_with_noise_ else leaky
    if func._schema.is_mutable:  # noqa: SLF001 (an operator's schema has no other name)
        target = kwargs["out"] if "out" in kwargs else args[0]
        return target.copy_(drawn[0])
    copies = [aten._to_copy(x, dtype=x.dtype) for x in drawn]  # noqa: SLF001 (its ATen name)
    return copies[0] if len(copies) == 1 else tuple(copies)


def _is_rrelu(func: Any) -> bool:
    return str(func.name()).startswith("aten::rrelu_with_noise")


def _would_draw(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket is aten.native_dropout:
        return bool(args[2]) and args[0].numel() > 0
    return not (args and isinstance(args[0], torch.Tensor) and args[0].numel() == 0)


def _generators() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return states
