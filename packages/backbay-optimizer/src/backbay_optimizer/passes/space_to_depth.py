"""Fold the strides of convolutions of few channels into channels (space to depth).

::

    before:  torch.conv2d(x, weight, stride=2, padding=3)   # (n, 3, 224, 224), (64, 3, 7, 7)
    after:   torch.conv2d(blocks(x), blocks(weight))        # (n, 16, 115, 115), (64, 16, 4, 4)

Networks for images begin with such a convolution: the stem of a ResNet, the patches of a vision
transformer. cuDNN computes it far below what the GPU can do, as its fast engines take channels in
eights. The same sums are made if each block of 2 by 2 pixels becomes the channels of one pixel, of
the image and of the weights, with zeros where there are no pixels and for further channels: the
stride is gone, and 3 channels are 12 and then 16. Where kernel and stride are the same, blocks are
the patches, and a convolution of one pixel is left; of volumes, such as video, that is a linear
layer.

The idea is the ``conv0_space_to_depth`` of TensorFlow's ResNet for TPUs, and for volumes what
serving engines do to the patches of Qwen's vision models.

Only in 16 bits on CUDA, and where it was measured to pay.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from backbay.graph.layouts import kind
from backbay.graph.rewrite import call_before, cast_before
from backbay.graph.values import are_numbers, value_of
from backbay.kit.passes import EIGHTS, Call, NotApplicable, PassContext, Requires, Rewrite
from backbay_optimizer.passes import convolutions
from backbay_optimizer.passes.convolutions import Convolution

OVERLAPPING = 3
"""Channels from which kernels that overlap were measured to gain: of one channel they took 0.51 to
1.43 times as long on an H200 (``benchmarks/conditions.py stems``), of three mostly less."""
RESULTS = 2**20
"""Results of kernels that overlap, from which folding was faster: with 0.4 and 0.8 million it took
0.67 to 1.38 times as long, with 1.6 million and more, where nothing below says no, 0.16 to 0.97."""
RESULTS_OF_PATCHES = 2**17
"""Likewise of patches (``benchmarks/conditions.py patches``): with 0.15 million they took 0.20 to
0.29 of the time. Fewer: not tried."""
TAPS = 4 * 4
"""Pixels of a kernel, from which folding paid where nothing is trained and channels are last: with
3 by 3 it took 0.85 to 1.38 times as long, with 7 by 7 and 11 by 11 from 0.43 to 0.84."""
COPIED = 2.0
"""Results for each number that is read, up to which folding paid where weights alone are trained
and results have their channels first: cuDNN's are copied, and so are their gradients. With more it
took 0.84 to 0.97 of the time for three channels and `TAPS`, else 1.02 to 1.09 times as long."""

_ATEN = torch.ops.aten
_VOLUME = 3


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """How one dimension is folded."""

    stride: int
    before: int
    """Zeros put before its first pixel."""
    after: int
    """Zeros put behind its last one, or, if negative, pixels that no kernel reaches."""
    beyond: int
    """Zeros put behind the kernel's last pixel."""


@dataclass(frozen=True, kw_only=True)
class SpaceToDepth(Rewrite[Convolution]):
    """Fold the strides of convolutions of few channels into channels; for CUDA, in 16 bits."""

    summary = "on CUDA, strided convolutions of few channels read blocks of pixels as channels"
    requires = Requires(
        devices=("cuda",),
        because="it was measured on CUDA",
        dtypes=(torch.bfloat16, torch.float16),  # of these bfloat16 was measured
        dtypes_because="it was measured in 16 bits",
    )
    targets = (*convolutions.IMAGES, *convolutions.VOLUMES)
    sources = (convolutions,)

    def site(self, call: Call, context: PassContext) -> Convolution | None:  # noqa: ARG002 (of those that ask)
        """Return a convolution with strides."""
        found = Convolution.of(call.node)
        return found if any(n != 1 for n in found.stride) else None

    def replacement(self, site: Convolution, context: PassContext) -> Node:  # noqa: ARG002 (of those that ask)
        """Return the convolution, or product, of blocks."""
        _check(site)
        made = _put(site)
        is_alike = self.is_alike(site.node, made)
        return made if is_alike else call_before(site.node, _ATEN.contiguous.default, made)

    def is_alike(self, old: Node, new: Node) -> bool:
        """Whether nobody can tell a new node's layout from the old one's, nor its gradient."""
        return kind(value_of(new)) == kind(value_of(old))


space_to_depth = SpaceToDepth()


# 1. Whether it is taken


def _check(found: Convolution) -> None:
    x, weight, result = map(value_of, (found.x, found.weight, found.node))
    if not are_numbers((*x.shape[1:], *weight.shape, *result.shape[1:])):
        raise NotApplicable("a size of its images or weight is a symbol")
    channels = x.shape[1]
    if channels >= EIGHTS or found.groups != 1:
        raise NotApplicable(
            f"{channels} channels in {found.groups} groups: cuDNN takes them as they are"
        )
    if any(n != 1 for n in found.dilation):
        raise NotApplicable("it is dilated")
    _check_size(found)


def _check_size(found: Convolution) -> None:
    x, weight, result = map(value_of, (found.x, found.weight, found.node))
    kernel = weight.shape[2:]
    patches = list(kernel) == found.stride and not any(found.padding)
    few = RESULTS_OF_PATCHES if patches else RESULTS
    if isinstance(result.shape[0], int) and result.numel() < few:
        raise NotApplicable(f"{result.numel()} results: it pays from {few} on")
    if len(kernel) == _VOLUME:
        _check_volumes(found, patches=patches)
        return
    if patches:
        return
    if x.shape[1] < OVERLAPPING or any(map(operator.lt, kernel, found.stride)):
        raise NotApplicable(f"{x.shape[1]} channels, a kernel of {tuple(kernel)}: it does not pay")
    small = math.prod(kernel) < TAPS
    if small and not result.requires_grad and _has_channels_last(x):
        raise NotApplicable(f"a kernel of {tuple(kernel)}, and nothing is trained: it does not pay")
    only_weights = result.requires_grad and not x.requires_grad
    ratio = math.prod(result.shape[1:]) / math.prod(x.shape[1:])
    if not only_weights or _has_channels_last(result) or ratio <= COPIED:
        return
    if small or x.shape[1] > OVERLAPPING:
        raise NotApplicable("its results are copied, and the gradients of them: it does not pay")


def _check_volumes(found: Convolution, *, patches: bool) -> None:
    numbers = math.prod(value_of(found.weight).shape[1:])
    if not patches:
        raise NotApplicable("its kernels overlap, in three dimensions: that was not measured")
    if numbers % EIGHTS:
        raise NotApplicable(f"patches of {numbers} numbers: they are not in eights")


def _has_channels_last(x: torch.Tensor) -> bool:
    return x.stride()[1] == 1


# 2. What takes its place


def _put(found: Convolution) -> Node:
    place, dtype = found.node, value_of(found.node).dtype
    x, weight = (cast_before(place, n, dtype) for n in (found.x, found.weight))
    bias = None if found.bias is None else cast_before(place, found.bias, dtype)
    sizes, kernel = value_of(x).shape[2:], value_of(weight).shape[2:]
    axes = [_axis(*of) for of in zip(sizes, kernel, found.stride, found.padding, strict=True)]
    if len(axes) == _VOLUME:
        return _put_product(place, x, weight, bias, axes)
    x = _blocks(place, _padded(place, x, [(a.before, a.after) for a in axes]), found.stride)
    weight = _blocks(place, _padded(place, weight, [(0, a.beyond) for a in axes]), found.stride)
    plain = [1, 1], [0, 0], [1, 1], 1
    return call_before(place, _ATEN.conv2d.default, x, weight, bias, *plain)


def _axis(size: int, kernel: int, stride: int, padding: int) -> _Axis:
    taps = math.ceil(kernel / stride)
    pixels = (size + 2 * padding - kernel) // stride + taps
    return _Axis(
        stride=stride,
        before=padding,
        after=stride * pixels - size - padding,
        beyond=stride * taps - kernel,
    )


def _padded(place: Node, node: Node, margins: Sequence[tuple[int, int]]) -> Node:
    """Put zeros around the last dimensions."""
    last_first = [n for margin in reversed(margins) for n in margin]
    if not any(last_first):
        return node
    return call_before(place, _ATEN.constant_pad_nd.default, node, last_first)


def _split(place: Node, node: Node, steps: Sequence[int]) -> Node:
    """Split each dimension behind the channels in so many blocks, and the pixels of one."""
    _, channels, *sizes = value_of(node).shape
    blocks = [n for size, step in zip(sizes, steps, strict=True) for n in (size // step, step)]
    return call_before(place, _ATEN.view.default, node, [-1, channels, *blocks])


def _blocks(place: Node, node: Node, steps: Sequence[int]) -> Node:
    """Turn blocks of pixels into channels, in eights and last."""
    split = _split(place, node, steps)
    _, channels, height, first, width, second = value_of(split).shape
    moved = call_before(place, _ATEN.permute.default, split, [0, 3, 5, 1, 2, 4])
    many = channels * first * second
    folded = call_before(place, _ATEN.reshape.default, moved, [-1, many, height, width])
    folded = _padded(place, folded, [(0, -many % EIGHTS), (0, 0), (0, 0)])
    # `contiguous` leaves a dimension of one pixel whatever stride it has, with which torch's own
    # convolution for CPUs refuses to compute the gradient of weights whose channels are last.
    plain = value_of(folded).is_contiguous()
    laid_out = _ATEN.contiguous.default if plain else _ATEN.clone.default
    return call_before(place, laid_out, folded, memory_format=torch.channels_last)


def _put_product(
    place: Node, x: Node, weight: Node, bias: Node | None, axes: Sequence[_Axis]
) -> Node:
    """Multiply each patch of a volume with the weights."""
    x = _padded(place, x, [(a.before, a.after) for a in axes])
    split = _split(place, x, [a.stride for a in axes])
    moved = call_before(place, _ATEN.permute.default, split, [0, 2, 4, 6, 1, 3, 5, 7])
    results, *patch = value_of(weight).shape
    counts = value_of(moved).shape[1:4]
    rows = call_before(place, _ATEN.reshape.default, moved, [-1, *counts, math.prod(patch)])
    weights = call_before(place, _ATEN.reshape.default, weight, [results, math.prod(patch)])
    made = call_before(place, _ATEN.linear.default, rows, weights, bias)
    if math.prod(counts) == 1:  # a permutation would leave strides of its own
        return call_before(place, _ATEN.view.default, made, [-1, results, *counts])
    return call_before(place, _ATEN.permute.default, made, [0, 4, 1, 2, 3])
