"""One query that attends to a cache: heads repeated, or grouped."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from speed.condition_tables.timing import Call, inductors, micros, normal
from speed.pattern_cases.attention import repeated

HEADS, SHARED = 32, 8
BATCHES, LENGTHS, WIDTHS = (1, 2, 4, 8, 16, 32), (512, 4096), (64, 128)


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
    """Yield the two ways."""
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
