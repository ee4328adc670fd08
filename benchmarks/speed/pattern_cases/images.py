"""Convolutions, batch norms and pools of vision models, channels last."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from speed.pattern_cases.program import (
    Pattern,
    Program,
    around_one,
    kept,
    leaf,
    normal,
    on_cuda,
    weight,
)

EPS = 1e-5
_LAST = torch.channels_last


def image(batch: int, channels: int, side: int) -> Tensor:
    """Draw images, channels last."""
    return normal(batch, channels, side, side).contiguous(memory_format=_LAST)


def statistics(channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a batch norm's weight, bias, mean and variance."""
    variance = (0.5 + torch.rand(channels)).to(torch.bfloat16)
    shift, mean = normal(channels), normal(channels, scale=0.1)
    return around_one(channels), kept(shift), kept(mean), kept(variance)


def conv_norm_relu(  # noqa: PLR0917 (the numbers of a shape)
    batch: int, inside: int, outside: int, side: int, kernel: int, stride: int, added: int
) -> Program:
    """Make convolution, batch norm of inference, ReLU; with a residual where ``added``."""
    padding = kernel // 2

    def function(x: Tensor, filters: Tensor, *rest: Tensor) -> Tensor:
        scale, shift, mean, variance = rest[:4]
        y = F.conv2d(x, filters, None, stride, padding)
        y = F.batch_norm(y, mean, variance, scale, shift, training=False, eps=EPS)
        return F.relu(y + rest[4] if added else y)

    def fused(x: Tensor, filters: Tensor, bias: Tensor, *residual: Tensor) -> Tensor:
        ops, sizes = torch.ops.aten, ([stride] * 2, [padding] * 2, [1, 1], 1)
        if residual:
            return ops.cudnn_convolution_add_relu(x, filters, residual[0], 1.0, bias, *sizes)  # type: ignore[no-any-return]
        return ops.cudnn_convolution_relu(x, filters, bias, *sizes)  # type: ignore[no-any-return]

    x = image(batch, inside, side)
    filters = kept(weight(outside, inside, kernel, kernel).contiguous(memory_format=_LAST))
    norm = statistics(outside)
    residual = [image(batch, outside, side // stride)] if added else []
    return Program(
        function=function,
        inputs=(x, filters, *norm, *residual),
        alternative=fused if on_cuda() else None,
        alternative_inputs=(x, *folded(filters, *norm), *residual),
    )


def folded(
    filters: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Fold a batch norm into the filters and a bias."""
    factor = scale.float() * torch.rsqrt(variance.float() + EPS)
    bias = shift.float() - mean.float() * factor
    dtype = filters.dtype
    wide = (filters.float() * factor[:, None, None, None]).to(dtype)
    return wide.contiguous(memory_format=_LAST), bias.to(dtype)


def depthwise(batch: int, channels: int, side: int, kernel: int, train: int) -> Program:
    """Make a depthwise convolution."""

    def function(x: Tensor, filters: Tensor) -> Tensor:
        return F.conv2d(x, filters, None, 1, kernel // 2, 1, channels)

    inputs = (image(batch, channels, side), weight(channels, 1, kernel, kernel))
    for each in inputs if train else ():
        each.requires_grad_()
    # torch counts the backward of a dense convolution.
    flops = 2 * batch * channels * side**2 * kernel**2 * (3 if train else 1)
    return Program(function=function, inputs=inputs, flops=flops)


def norm_relu_train(batch: int, channels: int, side: int, added: int) -> Program:
    """Make batch norm of training, ReLU; with a residual where ``added``."""

    def function(x: Tensor, scale: Tensor, shift: Tensor, *residual: Tensor) -> Tensor:
        y = F.batch_norm(x, None, None, scale, shift, training=True, eps=EPS)
        return F.relu(y + residual[0] if residual else y)

    x = image(batch, channels, side).requires_grad_()
    residual = [image(batch, channels, side).requires_grad_()] if added else []
    norm = (around_one(channels).requires_grad_(), leaf(channels))
    return Program(function=function, inputs=(x, *norm, *residual))


def max_pool(batch: int, channels: int, side: int) -> Program:
    """Make ResNet's max pool."""

    def function(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, 1)

    x = image(batch, channels, side).requires_grad_()
    results = batch * channels * (-(-side // 2)) ** 2
    # Backward reads no image: forward may write which pixel it took, in a byte.
    moved = 2 * (2 * (x.numel() + results) + results)
    return Program(function=function, inputs=(x,), bytes_moved=moved)


def squeeze_excite(batch: int, channels: int, side: int) -> Program:
    """Make squeeze and excitation, as in EfficientNet."""
    inner = max(1, channels // 24)

    def function(x: Tensor, down: Tensor, one: Tensor, up: Tensor, other: Tensor) -> Tensor:
        gate = x.mean((2, 3), keepdim=True)
        gate = F.conv2d(F.silu(F.conv2d(gate, down, one)), up, other)
        return x * gate.sigmoid()

    return Program(
        function=function,
        inputs=(
            image(batch, channels, side),
            weight(inner, channels, 1, 1),
            normal(inner),
            weight(channels, inner, 1, 1),
            normal(channels),
        ),
    )


def standardised(batch: int, channels: int, side: int) -> Program:
    """Make a convolution whose weights are standardised at every call, as in NFNet."""

    def function(x: Tensor, filters: Tensor, gain: Tensor) -> Tensor:
        flat = filters.reshape(1, channels, -1)
        made = F.batch_norm(flat, None, None, gain, None, training=True, momentum=0.0, eps=EPS)
        return F.conv2d(x, made.reshape_as(filters), None, 1, 1)

    def ready(x: Tensor, filters: Tensor) -> Tensor:
        return F.conv2d(x, filters, None, 1, 1)

    gain = kept(around_one(channels) * (9 * channels) ** -0.5)
    x, filters = image(batch, channels, side), weight(channels, channels, 3, 3)
    flat = filters.float().reshape(1, channels, -1)
    made = F.batch_norm(flat, None, None, gain.float(), None, training=True, momentum=0.0, eps=EPS)
    folded_once = made.reshape_as(filters).to(x.dtype)
    return Program(
        function=function,
        inputs=(x, filters, gain),
        alternative=ready,
        alternative_inputs=(x, folded_once),
    )


def patches(  # noqa: PLR0917 (the numbers of a shape)
    batch: int, frames: int, side: int, patch: int, width: int, train: int
) -> Program:
    """Make the tokens of a vision transformer's images, channels first, or of clips of frames."""
    size = (patch, patch) if frames == 1 else (2, patch, patch)
    sides = (side, side) if frames == 1 else (frames, side, side)
    convolve = F.conv2d if frames == 1 else F.conv3d

    def function(x: Tensor, filters: Tensor) -> Tensor:
        return convolve(x, filters, None, size).flatten(2).transpose(1, 2)

    def product(x: Tensor, filters: Tensor) -> Tensor:
        for dimension in reversed(range(len(size))):
            x = torch.unflatten(x, 2 + dimension, (-1, size[dimension]))
        places = range(2, x.dim(), 2)
        rows = x.permute(0, *places, 1, *(n + 1 for n in places))
        return F.linear(rows.flatten(1 + len(size)).flatten(1, len(size)), filters.flatten(1))

    filters = weight(width, 3, *size)
    return Program(
        function=function,
        inputs=(normal(batch, 3, *sides), filters.requires_grad_(bool(train))),
        alternative=product,
    )


_PATCHES = {
    "vit_128x224_16": (128, 1, 224, 16, 768),
    "vit_32x518_14": (32, 1, 518, 14, 1024),
    "clips_4096x2x14": (4096, 2, 14, 14, 1280),
}

_DEPTHWISE = {
    "k3_96x112": (128, 96, 112, 3),
    "k7_384x28": (128, 384, 28, 7),
    "k5_672x14": (128, 672, 14, 5),
}

IMAGES = (
    Pattern(
        name="conv_bn_relu",
        alternative=True,
        make=conv_norm_relu,
        shapes={
            "stem7x7": (128, 3, 64, 224, 7, 2, 0),
            "3x3_64": (128, 64, 64, 56, 3, 1, 0),
            "3x3_256": (128, 256, 256, 14, 3, 1, 0),
            "1x1_1024_256": (128, 1024, 256, 14, 1, 1, 0),
        },
        tiny=(1, 3, 4, 8, 3, 1, 0),
    ),
    Pattern(
        name="conv_bn_add_relu",
        alternative=True,
        make=conv_norm_relu,
        shapes={
            "1x1_64_256": (128, 64, 256, 56, 1, 1, 1),
            "1x1_512_2048": (128, 512, 2048, 7, 1, 1, 1),
        },
        tiny=(1, 3, 4, 8, 1, 1, 1),
    ),
    Pattern(
        name="patches",
        alternative=True,
        make=patches,
        shapes={name: (*shape, 0) for name, shape in _PATCHES.items()},
        tiny=(1, 1, 8, 4, 5, 0),
    ),
    Pattern(
        name="patches_train",
        alternative=True,
        make=patches,
        shapes={name: (*shape, 1) for name, shape in _PATCHES.items()},
        tiny=(2, 2, 8, 4, 5, 1),
        train=True,
    ),
    Pattern(
        name="depthwise",
        make=depthwise,
        shapes={name: (*shape, 0) for name, shape in _DEPTHWISE.items()},
        tiny=(1, 4, 8, 3, 0),
    ),
    Pattern(
        name="depthwise_train",
        make=depthwise,
        shapes={name: (*shape, 1) for name, shape in _DEPTHWISE.items()},
        tiny=(1, 4, 8, 3, 1),
        train=True,
    ),
    Pattern(
        name="bn_relu_train",
        make=norm_relu_train,
        shapes={"128x64x112": (128, 64, 112, 0), "128x512x14": (128, 512, 14, 0)},
        tiny=(2, 4, 8, 0),
        train=True,
    ),
    Pattern(
        name="bn_add_relu_train",
        make=norm_relu_train,
        shapes={"128x256x56": (128, 256, 56, 1), "128x2048x7": (128, 2048, 7, 1)},
        tiny=(2, 4, 8, 1),
        train=True,
    ),
    Pattern(
        name="maxpool_train",
        make=max_pool,
        shapes={"128x64x112": (128, 64, 112), "32x192x56": (32, 192, 56)},
        tiny=(1, 4, 8),
        train=True,
    ),
    Pattern(
        name="squeeze_excite",
        make=squeeze_excite,
        shapes={"128x96x56": (128, 96, 56), "128x672x14": (128, 672, 14)},
        tiny=(1, 24, 8),
    ),
    Pattern(
        name="weight_standardisation",
        alternative=True,
        make=standardised,
        shapes={"8x128x28": (8, 128, 28), "128x256x14": (128, 256, 14)},
        tiny=(1, 4, 8),
    ),
)
