"""Where rewrites pay on a GPU, and where not: what their conditions rest on.

    python benchmarks/conditions.py [--out FILE]

Two tables, bfloat16, median microseconds of calls on cold caches, of CUDA graphs.

1. Convolutions of one pixel, channels last: cuDNN's fused convolution, which ``fused_convolutions``
   calls, beside the same as a matrix product of cuBLASLt with bias and ReLU in its epilogue.
2. One query that attends to a cache with a mask: keys and values repeated for each head, as models
   write it, beside ``one_token_attention``'s form, where heads of a group are queries of one head.
"""

import argparse
import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from speed.device import Flushed, device_name, replayed
from speed.pattern_cases.attention import repeated
from speed.surroundings import versions
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

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
    for table in (pointwise, one_token):
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

    for way in (apart, together):
        torch.compiler.reset()
        yield torch.compile(way, dynamic=False)


if __name__ == "__main__":
    main()
