"""The sizes of the default workload, and its inputs."""

from dataclasses import dataclass

import torch

from backbay.workloads.decoder import Decoder, DecoderConfig
from backbay.workloads.inputs import reduced_batch
from backbay.workloads.randomise import randomise
from backbay.workloads.reference import Reference
from backbay.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class _DecoderSize:
    config: DecoderConfig
    batch: int
    length: int


_SIZES = {
    "tiny": _DecoderSize(
        config=DecoderConfig(vocabulary=2048, width=256, layers=2, heads=8, kv_heads=2, hidden=704),
        batch=2,
        length=128,
    ),
    "small": _DecoderSize(
        config=DecoderConfig(
            vocabulary=8192, width=512, layers=4, heads=8, kv_heads=4, hidden=1408
        ),
        batch=2,
        length=256,
    ),
    "base": _DecoderSize(
        config=DecoderConfig(
            vocabulary=32000, width=2048, layers=4, heads=32, kv_heads=8, hidden=8192
        ),
        batch=4,
        length=2048,
    ),
}


def build_decoder(
    reference: Reference, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    """Build the decoder and random tokens; in training targets too, so that it gives its loss.

    At ``base`` it is a 1-billion-parameter model's width and four of its layers.
    """
    sizes = _SIZES[reference.size_on(device.type)]
    shape = (sizes.batch, sizes.length)
    with device:
        model = Decoder(sizes.config).to(dtype=dtype).train(train)
        randomise(model)
        tokens = torch.randint(sizes.config.vocabulary, shape)
        targets = torch.randint(sizes.config.vocabulary, shape)
    workload = Workload(
        model=model,
        args=(tokens, targets) if train else (tokens,),
        loss=returned_loss if train else None,
        name=reference.canonical(device.type),
    )
    return reduced_batch(workload)


def returned_loss(output: torch.Tensor) -> torch.Tensor:
    """Return a model's output that is its loss already."""
    return output
