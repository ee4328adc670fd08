"""Undo the parts of initialisation that would hide a wrong result.

A fresh model is degenerate: its norm weights are one, its biases zero, the last norm weight of
each residual block often zero, layer scales 1e-6. A backend that drops such a weight, or a whole
residual branch, is then exactly right. ``randomise`` moves these parameters to where training does.
"""

import torch

_CLOSED_GATE = 0.01
"""A constant up to this size keeps its branch from contributing."""

_OPENED_GATE = 0.25
"""Enough to be seen, and little enough that fifty residual blocks do not overflow float16."""

_GATING_NORMS = (
    torch.nn.modules.batchnorm._BatchNorm,  # noqa: SLF001 (the only base of all batch norms)
    torch.nn.GroupNorm,
    torch.nn.LayerNorm,
)


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Replace constant parameters and batch-norm statistics, in place, from the global generator.

    Parameters that are one (norm weights) become 1 with noise of 0.1; those that are zero (biases)
    noise of 0.05; zero norm weights and layer scales of at most 0.01 become 0.25 with a tenth of
    noise; other constants get a tenth of noise. Running means become noise of 0.1, running
    variances uniform in [0.5, 1.5]. What initialisation has drawn at random is left alone.
    """
    for module in model.modules():
        gate = module.weight if isinstance(module, _GATING_NORMS) else None
        if gate is not None and not gate.any():
            gate.fill_(_OPENED_GATE)
        _randomise_statistics(module)
    for parameter in model.parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        if (parameter == parameter.flatten()[0]).all():
            _spread(parameter)


def _randomise_statistics(module: torch.nn.Module) -> None:
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if isinstance(mean, torch.Tensor):
        mean.copy_(0.1 * _normal(mean))
    if isinstance(variance, torch.Tensor):
        variance.copy_(0.5 + torch.rand(variance.shape, device=variance.device))


def _spread(parameter: torch.Tensor) -> None:
    constant = parameter.flatten()[0].item()
    if constant == 0:
        parameter.copy_(0.05 * _normal(parameter))
        return
    centre = _OPENED_GATE if abs(constant) <= _CLOSED_GATE else constant
    parameter.copy_(centre * (1 + 0.1 * _normal(parameter)))


def _normal(like: torch.Tensor) -> torch.Tensor:
    return torch.randn(like.shape, device=like.device, dtype=torch.float32)
