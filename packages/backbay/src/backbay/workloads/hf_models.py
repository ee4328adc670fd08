"""Build transformers models from configurations, with random weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from backbay.workloads.batches import reduced_batch
from backbay.workloads.libraries import offline, require
from backbay.workloads.randomise import randomise
from backbay.workloads.reference import Reference, table
from backbay.workloads.workload import Workload

_AUTO_CLASS = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "speech": "AutoModelForSpeechSeq2Seq",
    "image": "AutoModelForImageClassification",
}

_FIRST_WORD = 4
"""Tokens below are padding and the like, which some models treat as such."""


def build_hf(
    reference: Reference, *, dtype: torch.dtype, device: torch.device, train: bool
) -> Workload:
    """Build a model of ``hf_models.toml`` as ``from_config`` gives it, and random inputs for it.

    The library makes the model in ``dtype`` itself, so that what it keeps in float32 stays so.
    Parameters that initialisation leaves constant are then randomised (see ``randomise``). In
    training the inputs have labels, and the loss is the one that the model returns.

    Raises:
        InputError: transformers is not installed, or does not import.
    """
    entry = table("hf")[reference.name]
    sizes = entry[reference.size_on(device.type)]
    name = reference.canonical(device.type)
    transformers = require("transformers", name)
    with offline(), device:
        config = transformers.AutoConfig.for_model(
            entry.get("type", reference.name), **entry.get("always", {}), **sizes.get("config", {})
        )
        auto_class = getattr(transformers, _AUTO_CLASS[entry["task"]])
        model = auto_class.from_config(config, dtype=dtype).train(train)
        randomise(model)
        kwargs = _INPUTS[entry["task"]](config, sizes, dtype=dtype, train=train)
    workload = Workload(model=model, kwargs=kwargs, loss=own_loss if train else None, name=name)
    return reduced_batch(workload, sizes["batch"])


def own_loss(output: Any) -> torch.Tensor:
    """Pick the loss that a transformers model computes when it is given labels."""
    loss: torch.Tensor = output.loss
    return loss


def _language(
    config: Any, sizes: Mapping[str, int], *, dtype: torch.dtype, train: bool
) -> dict[str, torch.Tensor]:
    del dtype
    shape = (sizes["batch"], sizes["length"])
    inputs = {"input_ids": _words(config, *shape)}
    return inputs | {"labels": _words(config, *shape)} if train else inputs


def _translation(
    config: Any, sizes: Mapping[str, int], *, dtype: torch.dtype, train: bool
) -> dict[str, torch.Tensor]:
    del dtype
    source = {"input_ids": _words(config, sizes["batch"], sizes["length"])}
    return source | _decoder_side(config, sizes, train=train)


def _speech(
    config: Any, sizes: Mapping[str, int], *, dtype: torch.dtype, train: bool
) -> dict[str, torch.Tensor]:
    # The encoder halves the number of frames before its positions are added.
    shape = (sizes["batch"], config.num_mel_bins, 2 * config.max_source_positions)
    source = {"input_features": torch.randn(shape, dtype=dtype)}
    return source | _decoder_side(config, sizes, train=train)


def _images(
    config: Any, sizes: Mapping[str, int], *, dtype: torch.dtype, train: bool
) -> dict[str, torch.Tensor]:
    shape = (sizes["batch"], config.num_channels, config.image_size, config.image_size)
    inputs = {"pixel_values": torch.randn(shape, dtype=dtype)}
    if not train:
        return inputs
    return inputs | {"labels": torch.randint(config.num_labels, (sizes["batch"],))}


def _decoder_side(config: Any, sizes: Mapping[str, int], *, train: bool) -> dict[str, torch.Tensor]:
    """Return labels in training: the model derives the decoder's inputs from them."""
    words = _words(config, sizes["batch"], sizes["target_length"])
    return {"labels" if train else "decoder_input_ids": words}


def _words(config: Any, batch: int, length: int) -> torch.Tensor:
    return torch.randint(_FIRST_WORD, config.vocab_size, (batch, length))


_INPUTS: Mapping[str, Callable[..., dict[str, torch.Tensor]]] = {
    "causal": _language,
    "masked": _language,
    "seq2seq": _translation,
    "speech": _speech,
    "image": _images,
}
