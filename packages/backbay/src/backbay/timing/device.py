"""The device that is timed."""

import torch


def device_name(device: torch.device) -> str:
    """Return the GPU's own name, or the device's type."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
