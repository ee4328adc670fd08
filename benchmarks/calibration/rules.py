"""Rules by which others decide that a result is right, beside ours: true where they accept it."""

import logging
from collections.abc import Callable

import torch

Rule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]
"""From result, eager and float64 truth."""


def _sum(result: torch.Tensor, eager: torch.Tensor, _: torch.Tensor) -> bool:
    got, wanted = result.double().sum(), eager.double().sum()
    return torch.allclose(got, wanted, rtol=0.05, atol=1.0, equal_nan=True)


def _cosine(result: torch.Tensor, eager: torch.Tensor, _: torch.Tensor) -> bool:
    got, wanted = (x.double().flatten().nan_to_num() for x in (result, eager))
    return bool(torch.nn.functional.cosine_similarity(got, wanted, dim=0) >= 0.99)  # noqa: PLR2004


def _tolerance(result: torch.Tensor, eager: torch.Tensor, _: torch.Tensor) -> bool:
    return torch.allclose(result, eager, rtol=1e-2, atol=1e-2, equal_nan=True)


def _assert_close(result: torch.Tensor, eager: torch.Tensor, _: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(result, eager, equal_nan=True)
    except AssertionError:
        return False
    return True


def _same(full: float, reduced: float) -> Rule:
    from torch._dynamo.utils import same  # noqa: PLC0415 (imports Dynamo)

    logging.getLogger("torch._dynamo.utils").setLevel(logging.CRITICAL)

    def accepts(result: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> bool:
        tolerance = full if eager.element_size() >= 4 else reduced  # noqa: PLR2004
        return bool(same(eager, result, truth, tol=tolerance, equal_nan=True))

    return accepts


def _element(result: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> bool:
    eps = torch.finfo(eager.dtype).eps
    if not torch.equal(result.isfinite(), eager.isfinite()):
        return False
    if not torch.equal(result.isnan(), eager.isnan()):
        return False
    kept = result.isfinite() & truth.isfinite()
    result, eager, truth = (x[kept].double() for x in (result, eager, truth))
    own = (eager - truth).abs()
    floor = eps * truth.abs().clamp_min(truth.abs().mean())
    allowed = 8 * torch.maximum(own.clamp_min(own.square().mean().sqrt()), floor)
    return bool(((result - truth).abs() <= allowed).all())


def _three_parts(result: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> bool:
    """Hold element, root mean square and mean to eager's own error: what our rule grew from."""
    if not _element(result, eager, truth):
        return False
    eps = torch.finfo(eager.dtype).eps
    kept = result.isfinite() & truth.isfinite()
    result, eager, truth = (x[kept].double() for x in (result, eager, truth))
    if not result.numel():
        return True
    error, own = result - truth, eager - truth
    noise = max(_rms(own), eps * truth.abs().mean().item() / 4)
    allowed = 4 * noise / result.numel() ** 0.5 + 2 * abs(own.mean().item())
    biased = result.numel() >= 64 and abs(error.mean().item()) > allowed  # noqa: PLR2004
    return _rms(error) <= 2 * noise and not biased


def _rms(value: torch.Tensor) -> float:
    return float(value.square().mean().sqrt())


def others() -> dict[str, Rule]:
    """Return the rules in use elsewhere, by name."""
    return {
        "sum, 5 % and 1.0 (torchfuzz)": _sum,
        "cosine >= 0.99": _cosine,
        "same with float64, 1e-2": _same(1e-2, 1e-2),
        "tolerance 1e-2": _tolerance,
        "same with float64, 1e-4 (bfloat16 1e-3)": _same(1e-4, 1e-3),
        "assert_close against eager": _assert_close,
        "each element, float64": _element,
        "three parts, eager's own error alone": _three_parts,
    }
