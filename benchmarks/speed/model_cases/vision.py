"""Vision models of timm."""

import torch

from backbay.proof import Workload
from backbay.workloads import load
from backbay.workloads.libraries import offline, require
from backbay.workloads.randomise import randomise
from backbay.workloads.timm_models import CrossEntropy
from speed.model_cases.case import DTYPE, Case

_PROVEN = 4
_TINY = 2


def vision(model: str, batch: int, *, channels_last: bool, train: bool, size: str) -> Workload:
    """Build a model of timm at its own image size; tiny is a race's, with images of 64 by 64."""
    if size == "tiny":
        device = torch.get_default_device()
        return load(f"timm:{model}@tiny", seed=0, dtype=DTYPE, device=device, train=train)
    with offline():
        made = require("timm", model).create_model(model, pretrained=False).to(dtype=DTYPE)
    randomise(made)
    count = _PROVEN if size == "proof" else batch
    images = torch.randn(count, *made.pretrained_cfg["input_size"], dtype=DTYPE)
    if channels_last:
        made = made.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(made.num_classes, (count,))
    loss = CrossEntropy(labels) if train else None
    # As given: nobody who trains wants the gradient of images.
    return Workload(model=made, args=(images,), loss=loss, grad_as_given=True)


def _case(
    name: str,
    model: str,
    batch: int,
    *,
    train: bool = False,
    channels_last: bool = True,
) -> Case:
    return Case(
        name=name,
        train=train,
        build=lambda size: vision(
            model, batch, channels_last=channels_last, train=train, size=size
        ),
        shapes={"full": f"B{batch}", "proof": f"B{_PROVEN}", "tiny": f"B{_TINY}"},
    )


VISION = (
    _case("resnet50.infer", "resnet50", 128),
    _case("resnet50.train", "resnet50", 128, train=True),
    _case("vit_b.infer", "vit_base_patch16_224", 128, channels_last=False),
    _case("vit_b.train", "vit_base_patch16_224", 64, train=True, channels_last=False),
    _case("convnext_t.infer", "convnext_tiny", 128),
    _case("convnext_t.train", "convnext_tiny", 64, train=True),
    _case("efficientnet_b0.infer", "efficientnet_b0", 128),
    _case("efficientnet_b0.train", "efficientnet_b0", 128, train=True),
    _case("mobilenetv3_l.infer", "mobilenetv3_large_100", 512),
    _case("nfnet_l0.infer", "nfnet_l0", 128),
    _case("mixer_b16.infer", "mixer_b16_224", 128, channels_last=False),
)
