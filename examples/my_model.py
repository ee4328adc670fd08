"""A model of one's own, raced: ``backbay race examples/my_model.py:mlp``."""

import torch

import backbay


def mlp() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model and its inputs; device and dtype are the race's to choose."""
    layers = (torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    return torch.nn.Sequential(*layers), (torch.randn(32, 64),)


def classifier() -> backbay.Workload:
    """Return a workload that says what its training minimises."""
    model, args = mlp()
    labels = torch.arange(32) % 8

    def loss(output: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output.float(), labels.to(output.device))

    return backbay.Workload(model, args, loss=loss, name="classifier")
