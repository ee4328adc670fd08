"""How much of a step a backend leaves to torch's own kernels, as far as the dispatcher shows it."""

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode

from backbay.race.record import LeftToTorch


def can_be_told() -> bool:
    """Whether this torch runs compiled code under such a mode, and not eager in its place."""
    return hasattr(TorchDispatchMode, "ignore_compile_internals")


def left_to_torch(eager: Counter[str], own: Counter[str]) -> LeftToTorch:
    """Return what is left to torch of a step.

    Args:
        eager: what torch dispatches for the model as it is.
        own: what it dispatches for what was compiled. A decomposition may make more of one
            operator; it counts once.
    """
    total = eager.total()
    left = min(total, own.total())
    return LeftToTorch(operators=total, left=left, most=tuple(own.most_common(4)) if left else ())
