"""Build the workload that a reference names."""

from dataclasses import replace

import torch

from backbay.errors import WorkloadInvalid
from backbay.workloads.batches import batch_of, with_batches
from backbay.workloads.decoder import build_decoder
from backbay.workloads.diffusers_models import build_diffusers
from backbay.workloads.hf_models import build_hf
from backbay.workloads.own import build_own
from backbay.workloads.reference import check, parse
from backbay.workloads.setup import WorkloadSetup, batch_words
from backbay.workloads.timm_models import build_timm
from backbay.workloads.workload import Workload

_BUILDERS = {
    "decoder": build_decoder,
    "hf": build_hf,
    "diffusers": build_diffusers,
    "timm": build_timm,
    "own": build_own,
}


def load(
    reference: str,
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    train: bool,
    size: str | None = None,
    batch: int | tuple[int, ...] | None = None,
) -> Workload:
    """Build a workload: the same reference, seed, dtype and device give the same bits every time.

    The global generators are seeded first, and what is built draws from them.

    Args:
        reference: ``decoder``, ``hf:NAME``, ``diffusers:NAME``, ``timm:NAME``, each also with
            ``@SIZE``; or the user's own function, as ``file.py:function`` or ``module:function``.
        seed: of all weights and inputs.
        dtype: a floating-point dtype, of the parameters and the floating-point inputs.
        device: where the model and its inputs are.
        train: whether the model is in training mode, and is given targets and a loss.
        size: ``tiny``, ``small`` or ``base``, for a reference without one. Default: tiny on a CPU.
        batch: rows of its inputs, in place of as many as it has; of several, each but the first is
            of a further call.

    Raises:
        InputError: a package that the workload needs is not installed, or does not import.
        WorkloadNotFound: nobody knows the reference, or there is no such file or function.
        WorkloadInvalid: the user's function raised, or did not return a model and its inputs; or
            these have no batch.
    """
    check(reference, size)
    parsed = parse(reference, size)
    torch.manual_seed(seed)
    workload = _BUILDERS[parsed.kind](parsed, dtype=dtype, device=device, train=train)
    if batch is None:
        return workload
    own = batch_of(workload)
    if isinstance(own, str):
        raise WorkloadInvalid(f"{reference} can't be given another batch: {own}")
    batches = (batch,) if isinstance(batch, int) else batch
    name = f"{workload.name}, {batch_words(batch)}"
    return replace(with_batches(workload, batches), name=name)


def build(setup: WorkloadSetup) -> Workload:
    """Build a workload; see `load`."""
    return load(
        setup.workload,
        seed=setup.seed,
        dtype=getattr(torch, setup.dtype),
        device=torch.device(setup.device),
        train=setup.train,
        size=setup.size,
        batch=setup.batch,
    )
