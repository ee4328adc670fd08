"""Build the parts of diffusion pipelines from configurations, with random weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from backbay.workloads.batches import reduced_batch
from backbay.workloads.libraries import offline, require
from backbay.workloads.randomise import randomise
from backbay.workloads.reference import Reference, table
from backbay.workloads.workload import Workload

_STEPS = 1000
"""Of the noise schedule: timesteps are below it."""


class Decoder(torch.nn.Module):
    """What an autoencoder runs to decode latents: the rest of it would have no gradients."""

    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.post_quant_conv = autoencoder.post_quant_conv
        self.decoder = autoencoder.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Return images (B, 3, H, W) of latents (B, C, h, w)."""
        images: torch.Tensor = self.decoder(self.post_quant_conv(latents))
        return images


def build_diffusers(
    reference: Reference, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    """Build a model of ``diffusers_models.toml`` with random weights, and random inputs for it.

    Parameters that initialisation leaves constant are randomised (see ``randomise``). In training
    there is no loss of its own: the output is given a random cotangent, which is what the gradient
    of a mean square error against noise looks like.

    Raises:
        InputError: diffusers is not installed, or does not import.
    """
    entry = table("diffusers")[reference.name]
    sizes = entry[reference.size_on(device.type)]
    name = reference.canonical(device.type)
    diffusers = require("diffusers", name)
    with offline(), device:
        model = getattr(diffusers, entry["class"])(**sizes.get("config", {}))
        config = model.config
        model = Decoder(model) if entry["inputs"] == "latents" else model
        randomise(model)
        model = model.to(dtype=dtype).train(train)
        args, kwargs = _INPUTS[entry["inputs"]](config, sizes, dtype)
    workload = Workload(model=model, args=args, kwargs=kwargs, name=name)
    return reduced_batch(workload, sizes["batch"])


Inputs = tuple[tuple[torch.Tensor, ...], dict[str, Any]]


def _text(config: Any, sizes: Mapping[str, int], dtype: torch.dtype) -> Inputs:
    batch = sizes["batch"]
    side = config.sample_size
    args = (
        torch.randn(batch, config.in_channels, side, side, dtype=dtype),
        torch.randint(_STEPS, (batch,)),
        torch.randn(batch, sizes["length"], config.cross_attention_dim, dtype=dtype),
    )
    return args, {"return_dict": False}


def _classes(config: Any, sizes: Mapping[str, int], dtype: torch.dtype) -> Inputs:
    batch = sizes["batch"]
    side = config.sample_size
    image = torch.randn(batch, config.in_channels, side, side, dtype=dtype)
    labels = torch.randint(config.num_embeds_ada_norm, (batch,))
    return (image, torch.randint(_STEPS, (batch,)), labels), {"return_dict": False}


def _joint(config: Any, sizes: Mapping[str, int], dtype: torch.dtype) -> Inputs:
    batch, side, length = sizes["batch"], sizes["side"], sizes["length"]
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).flatten(0, 1)
    kwargs = {
        "hidden_states": torch.randn(batch, side * side, config.in_channels, dtype=dtype),
        "encoder_hidden_states": torch.randn(
            batch, length, config.joint_attention_dim, dtype=dtype
        ),
        "pooled_projections": torch.randn(batch, config.pooled_projection_dim, dtype=dtype),
        "timestep": torch.rand(batch, dtype=dtype),
        "img_ids": places.to(dtype),
        "txt_ids": torch.zeros(length, 3, dtype=dtype),
        "return_dict": False,
    }
    if config.guidance_embeds:
        kwargs["guidance"] = torch.full((batch,), 3.5, dtype=dtype)
    return (), kwargs


def _latents(config: Any, sizes: Mapping[str, int], dtype: torch.dtype) -> Inputs:
    shape = (sizes["batch"], config.latent_channels, sizes["side"], sizes["side"])
    return (torch.randn(shape, dtype=dtype),), {}


_INPUTS: Mapping[str, Callable[[Any, Mapping[str, int], torch.dtype], Inputs]] = {
    "text": _text,
    "classes": _classes,
    "joint": _joint,
    "latents": _latents,
}
