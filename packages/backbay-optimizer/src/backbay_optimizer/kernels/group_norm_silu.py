"""Group norm and SiLU, with what stands before them added, and their gradients, in Triton.

From Wu and He, Group Normalization, 2018 (arXiv 1803.08494): channels are cut into groups, and each
group of each sample is normalised by its own mean and variance, then scaled and shifted by channel.
Diffusion models put SiLU behind every one, and a convolution before it, whose bias, with a time
step's embedding, is ``shift`` here, and whose residual sum is ``residual``.

What must move, in images of the size of ``x``: forward reads ``x`` and writes ``y``, 2, and with a
residual 4; backward reads ``dy`` and ``x`` and writes ``dx``, 3. A group that is larger than what a
program holds has to be read twice; where it is small enough the second time is from the L2 cache
(``group_norm_silu_device`` says how). Machine code for compute capability 9.0 has about 18
instructions for each element forward, and 40 backward.

Channels may be last in memory, or not, in every tensor: the kernels read and write either, so that
no copy is needed where one layout meets the other. Statistics are in float32, and returned in it.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay_optimizer.kernels.conditions import has_triton, registers, unfit, widened
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, unmeasured
from backbay_optimizer.kernels.images import flattened, laid_out, new_images

PAYS_FROM = 2**24
"""Elements from which the kernel was faster than Inductor's with channels last: 1.09 times with as
many, 1.5 to 4.2 times with more; with 10 million it took 1.19 times as long
(``benchmarks/patterns.py``, ``groupnorm_silu_nhwc``)."""

FOLLOWS_FROM = 2**21
"""Elements from which it was used, and the whole was faster, in a graph that has images of at least
`PAYS_FROM`, and else would copy them to another layout (``benchmarks/models.py``,
``vae_decoder_nchw``, and ``benchmarks/cuda_graphs.py``, ``diffusers:unet@base,8``, where smaller
ones change nothing). In that UNet with 2 images, of which none is so large, nothing was gained."""

TRAINED_FROM = 2**23
"""Elements from which it was faster than Inductor's forward and backward together where nothing is
around it, with channels first or with channels first in its result: 1.2 to 2.4 times from 8 million
on, and about as fast with 4 million (``benchmarks/conditions.py group_norms_alone``)."""

_ALIGNED = 8
"""Pixels in sixteen bytes. Rows of 196 were slower in training, 0.95 times as fast."""

_FEW_PIXELS = {"inference": 2**12, "training": 2**8}
"""Pixels below which it alone was slower (0.7 times as fast with 256), or was not timed."""

LARGEST_WIDTH = 4096
"""Channels of a panel that one program can finish."""

SMALL_PANEL = 2**15
"""Bytes of a group up to which one program does it, where channels are last: its rows are short."""

LARGE_PANEL = 2**17
"""Likewise where channels are first: a group is one piece of memory."""

CACHED = 2**25
"""Bytes of an image up to which the L2 cache has it when it is read again, in whatever order."""

LARGE_IMAGE = 2**16
"""Pixels from which a tile has more of them."""

_IMAGE = 3
"""Dimensions from which channels can be last."""
_INT32 = 2**31
_BLOCK_CHANNELS = 64
"""Of a block, at most, where channels are first in memory: from one to the next it is an image's
pixels."""
MOST_CHANNELS = _INT32 // (SMALL_PANEL // 2)
"""Of an image. Where they are last, a program counts to pixels times channels in 32 bits, in a
panel of `SMALL_PANEL` bytes, and so of half as many pixels at most."""


# 1. The reference


def reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    silu: bool,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``silu(group_norm(total))``, ``total = x + shift + residual``, mean and rstd.

    Args:
        x: (N, C, ...), of any floating-point dtype; those of 16 bits are computed in float32.
        weight: (C,), or None for ones.
        bias: (C,), or None for zeros.
        groups: a divisor of C.
        eps: added to the variance.
        silu: whether SiLU follows.
        shift: (C,) or (N, C), added to every pixel.
        residual: of the shape of ``x``.

    Returns:
        ``y`` and ``total`` in the dtype of ``x``, the sum rounded once; mean and 1 / standard
        deviation, (N, groups).
    """
    total = widened(x)
    if shift is not None:
        total = total + _spread(shift, x)
    if residual is not None:
        total = (total + widened(residual)).to(x.dtype)
    wide = widened(total)
    table = _grouped(wide, groups)
    mean = table.mean(-1)
    rstd = (table.var(-1, correction=0) + eps).rsqrt()
    z = ((table - mean[:, :, None]) * rstd[:, :, None]).reshape(x.shape)
    if weight is not None:
        z = z * _spread(weight, x)
    if bias is not None:
        z = z + _spread(bias, x)
    return (F.silu(z) if silu else z).to(x.dtype), total.to(x.dtype), mean, rstd


def reference_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    groups: int,
    silu: bool,
    shift: Tensor | None = None,
    extra: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by ``x``, weight and bias.

    With ``n = (x + shift - mean) * rstd``, ``z = n * weight + bias`` and ``g = dy * silu'(z)``:
    ``dx = rstd * (weight * g - <weight * g> - n * <weight * g * n>) + extra``, where ``<>`` is the
    mean of a group; ``dweight`` sums ``g * n`` and ``dbias`` sums ``g``, both in float32 at least.
    """
    wide = widened(x)
    if shift is not None:
        wide = wide + _spread(shift, x)
    n = ((_grouped(wide, groups) - mean[:, :, None]) * rstd[:, :, None]).reshape(x.shape)
    scale = torch.ones((), device=x.device) if weight is None else _spread(weight, x)
    g = widened(dy)
    if silu:
        z = n * scale if bias is None else n * scale + _spread(bias, x)
        s = torch.sigmoid(z)
        g = g * (s + z * s * (1 - s))
    scaled = _grouped(g * scale, groups)
    normal = _grouped(n, groups)
    centred = scaled - scaled.mean(-1, keepdim=True)
    dx = (centred - normal * (scaled * normal).mean(-1, keepdim=True)) * rstd[:, :, None]
    dx = dx.reshape(x.shape)
    if extra is not None:
        dx = dx + widened(extra)
    pixels = [0, *range(2, x.dim())]
    return dx.to(x.dtype), (g * n).sum(pixels), g.sum(pixels)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Return (N, groups, values)."""
    table: Tensor = x.unflatten(1, (groups, -1))  # type: ignore[no-untyped-call] # torch has no stub
    return table.flatten(2)


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """Return values of channels so that they broadcast over ``x``."""
    wide = widened(values)
    return wide.reshape(*wide.shape, *(1 for _ in x.shape[2:]))


# 2. How an image is cut


class Plan(NamedTuple):
    """Which form of the kernels runs, and how large its pieces are."""

    form: Literal["panel", "window"]
    width: int
    """Channels of a panel: whole groups."""
    block_p: int
    block_c: int
    span: int = 0
    """Pixels of a tile, in the window form."""
    ahead: int = 264
    """Tiles that are measured beyond a panel before the first is applied to: two programs for each
    of 132 multiprocessors."""
    warps: int = 8
    stages: int = 1
    """Blocks that are loaded ahead, through shared memory; 1 loads into registers."""


LIMITS = {"block_p": (16, 4096), "warps": (1, 16), "stages": (1, 4)}
"""Of plans, where another GPU's is searched."""


class Image(NamedTuple):
    """What a plan depends on."""

    samples: int
    channels: int
    pixels: int
    group_size: int
    itemsize: int
    last: bool | None
    """Whether channels are last in memory; None if in some tensors."""
    tensors: int
    """Of the size of ``x`` that are read twice."""


def plan(image: Image) -> Plan:
    """Return how to cut an image: by searches on an H100 and, later, an H200, in bfloat16."""
    if image.last is None:
        return _mixed_plan(image)
    return _last_plan(image) if image.last else _first_plan(image)


def _last_plan(image: Image) -> Plan:
    """Channels are last: blocks of whole cache lines of channels."""
    samples, channels, pixels, group, size, _, tensors = image
    if pixels * group * size * tensors <= SMALL_PANEL:
        block_c = min(64, max(4, _power_from(group)))
        warps = 8 if tensors > 1 and block_c < 64 else 4  # noqa: PLR2004 (by search, as all of these)
        return Plan("panel", group, 64, block_c, warps=warps)
    wide = 256 // size
    if tensors == 1 or samples * channels * pixels * size * tensors <= CACHED:
        block_c = _power_from(min(channels, wide // 2))
        width = math.lcm(group, block_c)
        width = width if channels % width == 0 else channels
        span = 512 if tensors == 1 and pixels >= LARGE_IMAGE else 256
        return Plan("window", width, 64, block_c, span, warps=4, stages=3 if tensors == 1 else 1)
    block_c = wide if channels % wide == 0 else wide // 4
    block_c = _power_from(min(channels, block_c))
    block_p = 4096 // block_c
    stages = 3 if channels > wide else 2
    return Plan("window", channels, block_p, block_c, block_p * 16, 528, warps=4, stages=stages)


def _first_plan(image: Image) -> Plan:
    """Channels are first: blocks of many pixels of few channels."""
    _, channels, pixels, group, size, _, tensors = image
    few = min(4, _power_from(group)) if group % 8 else 8
    if pixels * group * size <= LARGE_PANEL // tensors:
        block_p = 16 if pixels < 32 else _power_below(pixels, 512 if tensors == 1 else 256)  # noqa: PLR2004
        ahead = {"warps": 4, "stages": 4} if tensors == 1 else {"warps": 8, "stages": 3}
        return Plan("panel", group, block_p, min(few, 4096 // block_p), **ahead)
    width = group
    while width < 16 and channels % (2 * width) == 0:  # noqa: PLR2004
        width *= 2
    if tensors == 1 and pixels > 2**16:
        return Plan("window", width, 2048, 2, 16384, ahead=33, warps=4, stages=4)
    block_p = _power_below(pixels, 512) if pixels >= 32 else 16  # noqa: PLR2004
    block_c = min(8 if tensors == 1 else 4, _power_from(width))
    span = 4 * block_p
    return Plan("window", width, block_p, block_c, span, ahead=132, warps=4 * tensors)


def _mixed_plan(image: Image) -> Plan:
    """One layout meets the other: square blocks, of which either side is a cache line."""
    if image.pixels * image.group_size * image.itemsize * image.tensors <= SMALL_PANEL:
        return Plan("panel", image.group_size, 64, min(64, max(4, _power_from(image.group_size))))
    width = math.lcm(image.group_size, 64)
    width = width if image.channels % width == 0 else image.channels
    return Plan("window", width, 64, 64, 512, warps=4, stages=1 if image.tensors == 1 else 3)


def _power_below(n: int, most: int) -> int:
    """Return the largest power of two that is neither above ``n`` nor above ``most``, of at least
    16; by comparisons, which a symbol bears."""  # noqa: D205, D209
    return next(p for p in (4096, 2048, 1024, 512, 256, 128, 64, 32, 16) if p <= most and p <= n)


def _power_from(n: int) -> int:
    return 1 << (n - 1).bit_length()


# 3. Launching


class _Form(NamedTuple):
    """One dense image, flat, in the order of memory."""

    flat: Tensor
    last: bool


def _flattened(x: Tensor) -> _Form:
    """Return an image as one row, copied only if it is dense in neither layout."""
    last = is_channels_last(x)
    return _Form(flattened(x) if last else x.contiguous().view(-1), last)


def is_channels_last(x: Tensor) -> bool:
    """Return whether channels are last in memory, of a tensor that is not also contiguous."""
    return x.dim() >= _IMAGE and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def _new_image(x: Tensor, *, last: bool) -> Tensor:
    return new_images(x.new_empty(0), x.shape) if last else x.new_empty(x.shape)


class Geometry(NamedTuple):
    """Numbers that every launch needs."""

    samples: int
    channels: int
    pixels: int
    group_size: int

    @classmethod
    def of(cls, x: Tensor, groups: int) -> "Geometry":
        """Return those of an image."""
        pixels = 1
        for size in x.shape[2:]:
            pixels *= size
        return cls(x.shape[0], x.shape[1], pixels, x.shape[1] // groups)


def launch(
    kernels: tuple[Any, Any],
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    silu: bool,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    channels_last: bool | None = None,
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a forward kernel, without a dispatcher, a gradient or a check; the same as `reference`.

    Under ``TRITON_INTERPRET=1`` it runs on the CPU. Without a residual ``total`` is empty.
    ``kernels`` are the window's and the panel's; ``channels_last`` is the layout of what is
    written, by default that of ``x``; ``chosen`` is how to cut the image, by default :func:`plan`.
    """
    shape = Geometry.of(x, groups)
    source = _flattened(x)
    other = None if residual is None else _flattened(residual)
    last = source.last if channels_last is None else channels_last and x.dim() >= _IMAGE
    y = _new_image(x, last=last)
    total = y.new_empty(0) if residual is None else _new_image(x, last=last)
    mean = y.new_empty((shape.samples, groups), dtype=torch.float32)
    rstd = torch.empty_like(mean)
    if not x.numel():
        mean, rstd = mean.fill_(torch.nan), rstd.fill_(torch.nan)
        return y, total, mean, rstd
    layouts = {source.last, last, *([] if other is None else [other.last])}
    given = (x, weight, bias, groups, eps, silu, shift, residual, channels_last)
    this = Launch(run=launch, kernels=[kernels], given=given, reference=_same, limits=LIMITS)
    how = chosen or plan_here(_planned(shape, x, layouts, tensors=1), this)
    tiles = _tiles(how, shape)
    partial = _pair(mean, shape.samples, tiles, shape.channels)
    images = (
        source.flat, _vector(shift), None if other is None else other.flat,
        None if other is None else total, _vector(weight), _vector(bias), y, *partial, mean, rstd,
    )  # fmt: skip
    kinds: dict[str, Any] = {
        "silu": silu,
        "x_last": source.last,
        "residual_last": other.last if other is not None else last,
        "y_last": last,
    }
    _run(kernels, how, shape, y, images, (_stride(shift, shape), eps), kinds)
    return y, total, mean, rstd


def _same(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `launch` does, by the reference."""
    *rest, _ = given  # the layout of what is written
    y, total, mean, rstd = reference(*rest)
    return y, total if rest[-1] is not None else y.new_empty(0), mean, rstd


def launch_backward(
    kernels: tuple[Any, Any],
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    groups: int,
    silu: bool,
    shift: Tensor | None = None,
    extra: Tensor | None = None,
    chosen: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a backward kernel, likewise; ``dx`` has the layout of ``x``."""
    shape = Geometry.of(x, groups)
    source, slope = _flattened(x), _flattened(dy)
    other = None if extra is None else _flattened(extra)
    dx = new_images(dy, x.shape, x.dtype) if source.last else x.new_empty(x.shape)
    sums = _pair(mean, shape.samples, shape.channels)
    if not x.numel():
        dweight, dbias = (t.fill_(0).sum(0) for t in sums)
        return dx, dweight, dbias
    layouts = {source.last, slope.last, *([] if other is None else [other.last])}
    this = Launch(
        run=launch_backward,
        kernels=[kernels],
        given=(dy, x, weight, bias, mean, rstd, groups, silu, shift, extra),
        reference=reference_backward,
        limits=LIMITS,
        positive=(rstd,),
    )
    how = chosen or plan_here(_planned(shape, x, layouts, tensors=2), this)
    tiles = _tiles(how, shape)
    partial = _pair(mean, shape.samples, tiles, shape.channels)
    means = _pair(mean, shape.samples, groups)
    images = (
        slope.flat, source.flat, _vector(shift), _vector(weight), _vector(bias),
        None if other is None else other.flat, dx, mean, rstd, *partial, *sums, *means,
    )  # fmt: skip
    kinds: dict[str, Any] = {
        "silu": silu,
        "dy_last": slope.last,
        "x_last": source.last,
        "extra_last": other.last if other is not None else source.last,
    }
    _run(kernels, how, shape, dx, images, (_stride(shift, shape),), kinds)
    dweight, dbias = (t.sum(0) for t in sums)
    return dx, dweight, dbias


def _pair(like: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Return memory for two tensors that a kernel writes.

    As parts of one, Inductor would copy each before the kernel, whatever is in it. By torch.empty,
    since AOTAutograd takes two calls of others that are alike for one.
    """
    first, second = (torch.empty(shape, dtype=like.dtype, device=like.device) for _ in range(2))
    return first, second


def _vector(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous().view(-1)


def _stride(shift: Tensor | None, shape: Geometry) -> Any:
    """Return how far it is from one sample's shift to the next one's: 0 where all have the same."""
    return shape.channels if shift is not None and shift.dim() > 1 else 0


def _planned(shape: Geometry, x: Tensor, layouts: set[bool], *, tensors: int) -> Plan:
    last = layouts.pop() if len(layouts) == 1 else None
    return plan(Image(*shape, itemsize=x.element_size(), last=last, tensors=tensors))


def _tiles(how: Plan, shape: Geometry) -> Any:
    return 1 if how.form == "panel" else -(-shape.pixels // how.span)


def _run(
    kernels: tuple[Any, Any],
    how: Plan,
    shape: Geometry,
    result: Tensor,
    tensors: Sequence[Tensor | None],
    numbers: tuple[Any, ...],
    kinds: Mapping[str, Any],
) -> None:
    """Launch the kernel of a plan's form; ``kinds`` are constants beside those of the plan."""
    window, panel = kernels
    constants = {
        **kinds,
        "group_size": shape.group_size,
        "groups_p2": _power_from(how.width // shape.group_size),
        "size_p2": _power_from(shape.group_size),
        "finish_c": min(128, _power_from(how.width)),
        "block_p": how.block_p,
        "block_c": how.block_c,
        "stages": how.stages,
        "num_warps": how.warps,
    }
    image, panels = (shape.channels, shape.pixels), shape.samples * -(-shape.channels // how.width)
    with torch.cuda.device(result.get_device()):  # Triton launches on the current one; -1 is none
        if how.form == "panel":
            panel[panels,](*tensors, *image, how.width, *numbers, **constants)
            return
        tiles, column_tiles = _tiles(how, shape), -(-how.width // how.block_c)
        each = tiles * column_tiles
        total = panels * each
        lag = min(total, each + how.ahead)
        tickets = result.new_zeros(1 + 2 * panels, dtype=torch.int32)
        cut = (how.span, tiles, how.width, column_tiles, shape.samples, lag)
        window[total + lag,](*tensors, tickets, *image, *cut, *numbers, **constants)


# 4. When


def refusal(x: Tensor, groups: int) -> str | None:
    """Return why the kernels can't take ``x``, or None. Then the reference runs."""
    if reason := unfit(x):
        return reason
    if x.shape[1] // groups > LARGEST_WIDTH:
        return f"groups of {x.shape[1] // groups} channels: the kernels take {LARGEST_WIDTH}"
    if x.shape[1] > MOST_CHANNELS:
        return f"images of {x.shape[1]} channels: the kernels take {MOST_CHANNELS}"
    sums = x.shape[0] * x.shape[1]
    if isinstance(sums, int) and sums >= _INT32:  # of a symbol it would guard
        return f"{sums} channels of all samples: the kernels count them in 32 bits"
    pixels = Geometry.of(x, groups).pixels
    if isinstance(pixels, int) and pixels >= _INT32 // _BLOCK_CHANNELS:  # likewise
        return f"images of {pixels} pixels: the kernels count a block's elements in 32 bits"
    return None


def pays(x: Tensor, groups: int) -> str | None:
    """Return why the operator should not take the place of group norm and SiLU, or None.

    That is for a graph that Inductor compiles, with channels last, and of which another image has
    `PAYS_FROM` elements.
    """
    if reason := refusal(x, groups):
        return reason
    if x.numel() < FOLLOWS_FROM:
        return f"{x.numel()} elements: below {FOLLOWS_FROM} it was not measured"
    return unmeasured(x)


def pays_alone(x: Tensor, groups: int, *, trains: bool) -> str | None:
    """Return why it should not be used with nothing around it, for channels first, or None.

    That is for a result with channels first, in memory, of an image in either layout.
    """
    if reason := refusal(x, groups):
        return reason
    pixels, group_size = Geometry.of(x, groups)[2:]
    if pixels % _ALIGNED:
        return f"{pixels} pixels: rows that begin anywhere were slower"
    least = TRAINED_FROM if trains else PAYS_FROM
    few = _FEW_PIXELS["training" if trains else "inference"]
    if x.numel() < least or pixels < few:
        return f"{x.numel()} elements of {pixels} pixels: below {least} or {few} it was not faster"
    small = x.is_contiguous() and pixels * group_size * x.element_size() <= LARGE_PANEL
    if small and not trains:
        return f"groups of {LARGE_PANEL} bytes or less: it was not faster"
    return unmeasured(x)


# 5. Registration

Forward = Callable[..., tuple[Tensor, Tensor, Tensor]]
ForwardSum = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]

group_norm_silu: Forward
"""The operator ``backbay::group_norm_silu``: y, mean and rstd of :func:`reference`."""

add_group_norm_silu: ForwardSum
"""The operator ``backbay::add_group_norm_silu``: likewise with a residual; the sum is second."""

group_norm_silu_backward: Forward
"""The operator ``backbay::group_norm_silu_backward``: :func:`reference_backward`."""

_NAMES = ("group_norm_silu", "add_group_norm_silu", "group_norm_silu_backward")


def _laid_out(y: Tensor, x: Tensor, channels_last: bool | None) -> Tensor:
    last = is_channels_last(x) if channels_last is None else channels_last and x.dim() >= _IMAGE
    return laid_out(y) if last else y.contiguous()


@functools.cache
def _operators() -> tuple[Any, Any, Any]:
    # torch reads the names of kernels in wrap_triton(...) from the source: their text is part of
    # the key of compiled graphs that are kept on disk.
    if has_triton():
        from backbay_optimizer.kernels import group_norm_silu_device as device  # noqa: PLC0415

        window: Any = device.group_norm_window_kernel
        panel: Any = device.group_norm_panel_kernel
        window_backward: Any = device.group_norm_backward_window_kernel
        panel_backward: Any = device.group_norm_backward_panel_kernel
    # Compilers see through a triton_op, to the kernel and to the reference; a custom_op is opaque
    # to them, and asks for no Triton.
    define: Any = triton_op if has_triton() else custom_op

    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        groups: int,
        eps: float,
        silu: bool = True,
        shift: Tensor | None = None,
        channels_last: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if refusal(x, groups):
            y, _, mean, rstd = reference(x, weight, bias, groups, eps, silu, shift)
            return _laid_out(y, x, channels_last), mean, rstd
        kernels = wrap_triton(window), wrap_triton(panel)
        y, _, mean, rstd = launch(
            kernels, x, weight, bias, groups, eps, silu, shift, None, channels_last
        )
        return y, mean, rstd

    def forward_sum(
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        groups: int,
        eps: float,
        silu: bool = True,
        shift: Tensor | None = None,
        channels_last: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if refusal(x, groups):
            y, total, mean, rstd = reference(x, weight, bias, groups, eps, silu, shift, residual)
            y, total = (_laid_out(t, x, channels_last) for t in (y, total))
            return y, total, mean, rstd
        kernels = wrap_triton(window), wrap_triton(panel)
        return launch(kernels, x, weight, bias, groups, eps, silu, shift, residual, channels_last)

    def backward(
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        groups: int,
        silu: bool = True,
        shift: Tensor | None = None,
        extra: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if refusal(x, groups):
            dx, dweight, dbias = reference_backward(
                dy, x, weight, bias, mean, rstd, groups, silu, shift, extra
            )
            return _laid_out(dx, x, None), dweight, dbias
        kernels = wrap_triton(window_backward), wrap_triton(panel_backward)
        return launch_backward(kernels, dy, x, weight, bias, mean, rstd, groups, silu, shift, extra)

    made = (
        define("backbay::group_norm_silu", forward, mutates_args=()),
        define("backbay::add_group_norm_silu", forward_sum, mutates_args=()),
        define("backbay::group_norm_silu_backward", backward, mutates_args=()),
    )
    made[0].register_autograd(_vjp, setup_context=_save)
    made[1].register_autograd(_vjp_sum, setup_context=_save_sum)
    return made


__getattr__ = registers(globals(), _NAMES, _operators)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, ctx.groups, _, ctx.silu, shift, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, weight, bias, shift, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd)


def _vjp(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    dx, dweight, dbias, dshift = _gradients(ctx, dy, None)
    return dx, dweight, dbias, None, None, None, dshift, None


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, weight, bias, ctx.groups, _, ctx.silu, shift, _ = inputs
    _, total, mean, rstd = output
    ctx.save_for_backward(total, weight, bias, shift, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)  # zeros would be as large as an image


def _vjp_sum(ctx: Any, dy: Tensor | None, dtotal: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if dy is None:
        shift = ctx.saved_tensors[3]
        dshift = None if dtotal is None else _summed(dtotal, shift)
        return dtotal, dtotal, None, None, None, None, None, dshift, None
    dx, dweight, dbias, dshift = _gradients(ctx, dy, dtotal, is_added=True)
    return dx, dx, dweight, dbias, None, None, None, dshift, None


def _gradients(
    ctx: Any, dy: Tensor, extra: Tensor | None, *, is_added: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    x, weight, bias, shift, mean, rstd = ctx.saved_tensors
    dx, dweight, dbias = _operators()[2](
        dy, x, weight, bias, mean, rstd, ctx.groups, ctx.silu, None if is_added else shift, extra
    )
    return (
        dx,
        None if weight is None else dweight.to(weight.dtype),
        None if bias is None else dbias.to(bias.dtype),
        _summed(dx, shift),
    )


def _summed(dx: Tensor, shift: Tensor | None) -> Tensor | None:
    """Return the gradient by what is added to every pixel."""
    if shift is None:
        return None
    pixels = list(range(2, dx.dim()))
    total = dx.sum(pixels if shift.dim() > 1 else [0, *pixels], dtype=torch.float32)
    return total.to(shift.dtype)
