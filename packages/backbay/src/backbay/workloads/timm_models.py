"""Build timm models, with random weights."""

import dataclasses
import difflib
from typing import Any

import torch
from torch.nn import functional

from backbay.errors import WorkloadNotFound
from backbay.workloads.libraries import offline, require
from backbay.workloads.randomise import randomise
from backbay.workloads.reference import Reference
from backbay.workloads.workload import Workload

_BATCH = {"tiny": 2, "small": 8, "base": 64}
_TINY_SIDE = 64


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
    """Score logits (B, classes) against labels, in float32.

    Of a smaller batch the first labels are taken; for a larger one they repeat, as its images do.
    """

    labels: torch.Tensor

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy, a scalar."""
        labels = self.labels
        if len(labels) != len(logits):
            labels = labels[torch.arange(len(logits), device=labels.device) % len(labels)]
        return functional.cross_entropy(logits.float(), labels)


def build_timm(
    reference: Reference, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    """Build any model of timm and a batch of random images, scored in training on random labels.

    ``tiny`` has images of 64 by 64 where the model takes them; all else has the model's own size.
    Parameters that initialisation leaves constant, and the statistics of batch norms, are
    randomised (see ``randomise``).

    Raises:
        InputError: timm is not installed, or does not import.
        WorkloadNotFound: timm has no such model.
    """
    name, size = reference.canonical(device.type), reference.size_on(device.type)
    timm = require("timm", name)
    _check_known(timm, reference.name)
    with offline(), device:
        model = timm.create_model(reference.name, pretrained=False).to(dtype=dtype).train(train)
        randomise(model)
        images = torch.randn(_BATCH[size], *_image_shape(model, size, dtype), dtype=dtype)
        labels = torch.randint(model.num_classes or model.num_features, (_BATCH[size],))
    loss = CrossEntropy(labels) if train else None
    workload = Workload(model=model, args=(images,), loss=loss, name=name)
    fewer = images[: max(2, len(images) // 4)]  # batch norm cannot train on one image

    def reduced() -> Workload:
        return dataclasses.replace(workload, args=(fewer.clone(),))

    return dataclasses.replace(workload, reduced=reduced)


def _check_known(timm: Any, model: str) -> None:
    if timm.is_model(model):
        return
    near = difflib.get_close_matches(model, timm.list_models(), n=1)
    hint = f" Did you mean 'timm:{near[0]}'?" if near else ""
    raise WorkloadNotFound(f"timm {timm.__version__} has no model {model!r}.{hint}")


def _image_shape(model: Any, size: str, dtype: torch.dtype) -> tuple[int, int, int]:
    config = model.pretrained_cfg
    channels, height, width = config["input_size"]
    if size != "tiny" or config.get("fixed_input_size"):
        return channels, height, width
    least = config.get("min_input_size") or (channels, 0, 0)
    small = (channels, max(_TINY_SIDE, least[1]), max(_TINY_SIDE, least[2]))
    return small if _takes(model, small, dtype) else (channels, height, width)


@torch.no_grad()
def _takes(model: torch.nn.Module, shape: tuple[int, int, int], dtype: torch.dtype) -> bool:
    """Try an image: a few models need larger ones, or only one size, and do not say so."""
    training = model.training
    try:
        model.eval()(torch.zeros(1, *shape, dtype=dtype))
    except Exception:  # noqa: BLE001 (the model's own complaint about the size, of any type)
        return False
    finally:
        model.train(training)
    return True
