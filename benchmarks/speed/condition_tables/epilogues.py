"""Products with what follows them: Inductor's, beside the kernel of ``product_epilogues``."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels import linear_epilogue as kernel
from speed.condition_tables.timing import Call, micros, normal, row
from speed.device import limits

_TEMPLATE = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
"""Settings of Inductor's that have its own Triton template compute products, and what follows."""


class _Shape(NamedTuple):
    """A product, and what it stands in."""

    kind: str
    images: int
    side: int
    """Of an image; rows are all pixels."""
    inner: int
    columns: int


SHAPES = (
    *(_Shape("gelu", 128, s, c, 4 * c) for s, c in ((56, 96), (28, 192), (14, 384), (7, 768))),
    *(_Shape("gelu", 16, s, c, 4 * c) for s, c in ((56, 96), (28, 192), (14, 384), (7, 768))),
    *(_Shape("gelu", 128, 14, c, 4 * c) for c in (768, 1024)),
    _Shape("gelu", 1, 14, 768, 3072),
    *(_Shape("scale", 128, s, 4 * c, c) for s, c in ((56, 96), (28, 192), (14, 384), (7, 768))),
    *(_Shape("silu", 256, s, c, n) for s, c, n in ((112, 16, 96), (56, 24, 144), (28, 40, 240))),
    *(_Shape("silu", 256, s, c, n) for s, c, n in ((14, 80, 480), (14, 112, 672), (7, 192, 1152))),
    *(_Shape("silu", 128, s, c, n) for s, c, n in ((56, 256, 64), (14, 512, 256))),
    *(_Shape("gate", 256, s, c, n) for s, c, n in ((112, 32, 16), (56, 96, 24), (56, 144, 24))),
    *(_Shape("gate", 256, s, c, n) for s, c, n in ((28, 240, 40), (14, 480, 80), (14, 672, 112))),
    *(_Shape("gate", 256, s, c, n) for s, c, n in ((7, 672, 192), (7, 1152, 320))),
    *(_Shape("norm", 512, s, c, n) for s, c, n in ((56, 72, 24), (14, 184, 80), (7, 960, 160))),
)
"""ConvNeXt's of 128 and 16 images, a vision transformer's, EfficientNet's and MobileNet's."""

TRIED = (
    _Shape("gelu", 128, 56, 96, 384),
    _Shape("gelu", 128, 14, 768, 3072),
    _Shape("scale", 128, 56, 384, 96),
    _Shape("silu", 256, 112, 16, 96),
    _Shape("gate", 256, 56, 144, 24),
)
"""For which Inductor's template is timed as well: its search takes long."""


def epilogues() -> Iterator[str]:
    """Compare Inductor's code, with its own template too, with the kernel."""
    yield row(
        "what", "rows by inner to columns", "limit", "Inductor", "template", "kernel", "ratio"
    )
    yield f"|{'---|' * 7}"
    copied = limits("cuda").copy_bytes_s
    with torch.no_grad():
        for shape in SHAPES:
            yield _compared(shape, copied)
            torch.compiler.reset()
            torch.cuda.empty_cache()


def _compared(shape: _Shape, copied: float) -> str:
    given, plain, ours = _WAYS[shape.kind](shape)
    inductors = _timed(plain, given)
    template = _timed(plain, given, options=_TEMPLATE) if shape in TRIED else None
    own = micros(lambda: ours(*given))
    result = plain(*given)
    moved = sum(x.nbytes for x in (*given, result))
    size = f"{shape.images * shape.side**2} by {shape.inner} to {shape.columns}"
    times = (1e6 * moved / copied, inductors, template, own)
    cells = ["" if x is None else f"{x:.1f}" for x in times]
    return row(shape.kind, size, *cells, f"{own / inductors:.2f}")


def _timed(way: Callable[..., Tensor], given: tuple[Tensor, ...], **how: Any) -> float:
    torch.compiler.reset()
    call: Call = torch.compile(way, dynamic=False, **how)
    return micros(lambda: call(*given))


_Ways = tuple[tuple[Tensor, ...], Callable[..., Tensor], Callable[..., Tensor]]


def _linear(shape: _Shape) -> tuple[Tensor, Tensor, Tensor]:
    rows = shape.images * shape.side**2
    weight = normal(shape.columns, shape.inner) / math.sqrt(shape.inner)
    return normal(rows, shape.inner), weight, normal(shape.columns)


def _gelu(shape: _Shape) -> _Ways:
    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(F.linear(x, weight, bias))

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        made: Tensor = kernel.linear_epilogue(x, weight, bias, "gelu")
        return made

    return _linear(shape), plain, ours


def _scale(shape: _Shape) -> _Ways:
    def plain(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, other: Tensor) -> Tensor:
        return F.linear(x, weight, bias) * scale + other

    def ours(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, other: Tensor) -> Tensor:
        made: Tensor = kernel.linear_epilogue(x, weight, bias, scale=scale, residual=other)
        return made

    given = _linear(shape)
    return (*given, normal(shape.columns), normal(len(given[0]), shape.columns)), plain, ours


def _image(shape: _Shape) -> tuple[Tensor, ...]:
    x, weight, _ = _linear(shape)
    image = x.view(shape.images, shape.side, shape.side, -1).movedim(-1, 1)
    mean, scale, shift = (normal(shape.columns) for _ in range(3))
    return image, weight[:, :, None, None], mean, normal(shape.columns).abs() + 0.5, scale, shift


def _normed(y: Tensor, mean: Tensor, var: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(y, mean, var, scale, shift)


def _silu(shape: _Shape) -> _Ways:
    def plain(x: Tensor, weight: Tensor, *norm: Tensor) -> Tensor:
        return F.silu(_normed(F.conv2d(x, weight), *norm))

    return _image(shape), plain, lambda x, w, *norm: _ours(x, w, norm, "silu")


def _norm(shape: _Shape) -> _Ways:
    def plain(x: Tensor, weight: Tensor, *norm: Tensor) -> Tensor:
        return _normed(F.conv2d(x, weight), *norm)

    return _image(shape), plain, lambda x, w, *norm: _ours(x, w, norm, "none")


def _gate(shape: _Shape) -> _Ways:
    def plain(x: Tensor, weight: Tensor, *given: Tensor) -> Tensor:
        *norm, gate = given
        return _normed(F.conv2d(x * gate[:, :, None, None], weight), *norm)

    given = (*_image(shape), normal(shape.images, shape.inner).sigmoid())
    return given, plain, lambda x, w, *norm: _ours(x, w, norm[:-1], "none", gate=norm[-1])


def _ours(
    x: Tensor, weight: Tensor, norm: tuple[Tensor, ...], activation: str, **how: Any
) -> Tensor:
    rows, flat = x.movedim(1, -1), weight.flatten(1)
    made: Tensor = kernel.linear_epilogue(rows, flat, None, activation, *norm, 1e-5, **how)
    return made.movedim(-1, 1)


_WAYS: dict[str, Callable[[_Shape], _Ways]] = {
    "gelu": _gelu,
    "scale": _scale,
    "silu": _silu,
    "norm": _norm,
    "gate": _gate,
}
