"""Where rewrites pay on a GPU, and where not: what their conditions rest on.

    python benchmarks/conditions.py [--out FILE]

Four tables, bfloat16, median microseconds of calls on cold caches, of CUDA graphs.

1. Convolutions of one pixel, channels last: cuDNN's fused convolution, which ``fused_convolutions``
   calls, beside the same as a matrix product of cuBLASLt with bias and ReLU in its epilogue.
2. One query that attends to a cache with a mask: keys and values repeated for each head, as models
   write it, beside ``one_token_attention``'s form, where heads of a group are queries of one head.
3. A linear layer of one row: cuBLAS's, which Inductor calls, beside the sum that
   ``one_row_linears`` makes of it.
4. Attention with a mask that is a window, keys and values repeated, as Inductor runs it, beside
   ``windowed_attention``'s kernel, and the share of all blocks of scores that it computes.
"""

import argparse
import datetime as dt
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from speed.device import Flushed, device_name, replayed
from speed.pattern_cases.attention import repeated
from speed.surroundings import versions
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from backbay.kernels.windowed_attention import OPERATOR as WINDOWED
from backbay.passes.mask_kinds import Window
from backbay.passes.windowed_attention import blocks

CALLS = 40
POINTWISE = (  # images, channels, height and width, channels of the result
    *((128, c, n, k) for c, n, k in ((64, 56, 64), (64, 56, 256), (256, 56, 64), (256, 56, 128))),
    *((128, c, n, k) for c, n, k in ((128, 28, 512), (512, 28, 128), (512, 28, 256))),
    *((128, c, n, k) for c, n, k in ((256, 14, 1024), (1024, 14, 256), (512, 7, 2048))),
    *((128, c, n, k) for c, n, k in ((16, 112, 96), (24, 56, 144), (112, 14, 672), (192, 7, 1152))),
    *((512, c, n, k) for c, n, k in ((24, 56, 72), (80, 14, 480), (160, 7, 960))),
    *((8, 1024, 14, 256), (8, 256, 56, 64), (1, 2048, 7, 512), (1, 256, 56, 64)),
)
HEADS, SHARED = 32, 8
BATCHES, LENGTHS, WIDTHS = (1, 2, 4, 8, 16, 32), (512, 4096), (64, 128)
ROWS = (  # rows and columns of the weight
    *((n, 2048) for n in (512, 1000, 2048, 8192, 50257, 128256)),
    *((n, 1024) for n in (64, 1024, 3072, 32768, 65536, 151936)),
    *((768, 768), (3072, 768), (50257, 768), (1024, 3072), (2048, 8192)),
    *((4096, 4096), (14336, 4096), (4096, 14336), (65536, 4096), (16384, 16384)),
)
WINDOWS = (  # sequences, heads, heads of keys, queries, width, keys back, keys ahead
    *((2, 4, 1, s, 256, w - 1, 0) for s in (1024, 2048, 4096) for w in (128, 512) if w < s),
    *((1, 32, 8, s, 128, s // n - 1, 0) for s in (2048, 8192) for n in (8, 4, 2)),
    *((n, 12, 12, s, 64, 64, 64) for n, s in ((32, 256), (16, 512), (16, 1024), (2, 8192))),
    *((8, 12, 12, s, 64, 128, 128) for s in (512, 1024, 2048)),
)

Call = Callable[[], Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = ", ".join(f"{k} {v}" for k, v in versions().items())
    today = dt.datetime.now(dt.UTC).date()
    lines = [f"{today}; {device_name(torch.device('cuda'))}, {names}; bfloat16."]
    for table in (pointwise, one_token, one_row, windows):
        lines += ["", *table()]
    print("\n".join(lines))
    if given.out:
        given.out.write_text("\n".join((*lines, "")), encoding="utf-8")


def micros(call: Call) -> float:
    """Time a call on cold caches."""
    call()
    return 1e6 * Flushed(torch.device("cuda")).seconds(replayed(call), CALLS, replayed=True) / CALLS


def normal(*shape: int) -> Tensor:
    """Draw a tensor."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def pointwise() -> Iterator[str]:
    """Compare convolutions of one pixel with products."""
    yield "| images, channels, pixels, channels | cuDNN, fused | product, fused | ratio |"
    yield "|---|---|---|---|"
    for images, channels, side, results in POINTWISE:
        x = normal(images, channels, side, side).to(memory_format=torch.channels_last)
        w, bias = normal(results, channels) * channels**-0.5, normal(results)
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        with torch.no_grad():
            both = [micros(x) for x in fused(x, w, bias, rows)]
        shape = f"{images}x{channels}x{side}x{side} to {results}"
        yield f"| {shape} | {both[0]:.1f} | {both[1]:.1f} | {both[1] / both[0]:.2f} |"


def fused(x: Tensor, w: Tensor, bias: Tensor, rows: Tensor) -> tuple[Call, Call]:
    """Give the two ways."""
    kernel = w[:, :, None, None].contiguous(memory_format=torch.channels_last)
    how = ([1, 1], [0, 0], [1, 1], 1)
    return (
        lambda: torch.cudnn_convolution_relu(x, kernel, bias, *how),
        lambda: torch.ops.aten._addmm_activation(bias, rows, w.t()),  # noqa: SLF001
    )


def one_token() -> Iterator[str]:
    """Compare a step of generation with repeated and with grouped heads, both by Inductor."""
    yield "| sequences, cache, width | heads of keys | repeated | grouped | ratio |"
    yield "|---|---|---|---|---|"
    for batch in BATCHES:
        for length in LENGTHS:
            for width in WIDTHS:
                with torch.no_grad():
                    times = [micros(x) for x in steps(batch, length, width)]
                numbers = f"{times[0]:.1f} | {times[1]:.1f} | {times[1] / times[0]:.2f}"
                yield f"| {batch}, {length}, {width} | {batch * SHARED} | {numbers} |"


def steps(batch: int, length: int, width: int) -> Iterator[Call]:
    """Give the two ways."""
    query, position = normal(batch, HEADS, 1, width), torch.tensor(length - 2, device="cuda")
    key, value = (normal(batch, SHARED, length, width) for _ in range(2))
    times = HEADS // SHARED

    def mask() -> Tensor:
        return (torch.arange(length, device="cuda") <= position)[None, None, None]

    def apart() -> Tensor:
        wide = repeated(key, times), repeated(value, times)
        return F.scaled_dot_product_attention(query, *wide, attn_mask=mask())

    def together() -> Tensor:
        grouped = query.view(batch, SHARED, times, width)
        found = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask())
        return found.reshape(query.shape)

    yield from inductors((apart, together))


def one_row() -> Iterator[str]:
    """Compare a linear layer of one row with a sum, both by Inductor."""
    yield "| rows and columns of the weight | cuBLAS | sum | ratio |"
    yield "|---|---|---|---|"
    for rows, columns in ROWS:
        x, w = normal(1, columns), normal(rows, columns) * columns**-0.5
        ways = (
            functools.partial(F.linear, x, w),
            lambda x=x, w=w: (x.float() * w).sum(-1).to(x.dtype)[None],
        )
        with torch.no_grad():
            times = [micros(y) for y in inductors(ways)]
        yield f"| {rows}x{columns} | {times[0]:.1f} | {times[1]:.1f} | {times[1] / times[0]:.2f} |"


def windows() -> Iterator[str]:
    """Compare a mask that is a window with the kernel that takes windows."""
    names = ("sequences, heads, heads of keys, queries, width", "window", "of all blocks")
    times = ("mask", "kernel", "ratio")
    yield f"| {' | '.join((*names, *times, *(f'training: {x}' for x in times)))} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for *shape, back, ahead in WINDOWS:
        window, length = Window(back, ahead), shape[3]
        share = f"{blocks(window, length, length):.2f}"
        cells = [", ".join(map(str, shape)), f"{back} back, {ahead} ahead", share]
        for train in (False, True):
            mask, kernel = (micros(y) for y in attending(shape, window, train=train))
            cells += [f"{mask:.1f}", f"{kernel:.1f}", f"{kernel / mask:.2f}"]
        yield f"| {' | '.join(cells)} |"


def attending(shape: Sequence[int], window: Window, *, train: bool) -> tuple[Call, Call]:
    """Give the two ways; in training with their gradients."""
    batch, heads, shared, length, width = shape
    query, key, value = (
        normal(batch, length, n, width).transpose(1, 2).requires_grad_(train)
        for n in (heads, shared, shared)
    )
    cotangent = torch.randn_like(query)

    def with_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(length, device="cuda")
        back = places[:, None] - places
        seen = (back <= window.left) & (back >= -window.right)
        wide = repeated(key, heads // shared), repeated(value, heads // shared)
        return F.scaled_dot_product_attention(query, *wide, attn_mask=seen)

    def without(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return WINDOWED(query, key, value, window.left, window.right)

    def called(way: Call) -> Call:
        torch.compiler.reset()
        compiled = torch.compile(way, dynamic=False)

        def call() -> Any:
            result = compiled(query, key, value)
            return torch.autograd.grad(result, (query, key, value), cotangent) if train else result

        return call

    return called(with_mask), called(without)


def inductors(ways: Sequence[Call]) -> Iterator[Call]:
    """Give each way as Inductor compiles it."""
    for way in ways:
        torch.compiler.reset()
        yield torch.compile(way, dynamic=False)


if __name__ == "__main__":
    main()
