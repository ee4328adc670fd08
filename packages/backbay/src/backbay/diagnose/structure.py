"""What of a model a diagnosis has findings about: repeated blocks, and convolutions."""

import torch

from backbay.decisions.arm import BLOCKS
from backbay.errors import InputError
from backbay.race.scopes import parts_of

_CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)


def repeated_blocks(model: torch.nn.Module) -> int:
    """Return how many repeated blocks a model has."""
    try:
        return len(parts_of(model, BLOCKS))
    except InputError:
        return 0


def channels_first(model: torch.nn.Module) -> int:
    """Return how many convolutions have weights that are laid out with channels first."""
    return sum(
        isinstance(x, _CONVOLUTIONS) and not _is_channels_last(x.weight) for x in model.modules()
    )


def _is_channels_last(weight: torch.Tensor) -> bool:
    # Of a kernel of one pixel, both layouts are the same.
    return weight.is_contiguous(memory_format=torch.channels_last)
