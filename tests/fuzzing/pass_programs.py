"""Random programs of what each pass of ``backend="backbay"`` looks for, a table of them by pass."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import attention_layers as attention
import image_layers as images
import token_layers as tokens
from pass_drafts import Draft, RefusedError

from backbay_conformance.fuzz.program import Program

ATTEMPTS = 200

Layer = Callable[[Draft, str], str]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What programs of a pass are made of."""

    begin: Callable[[Draft], str]
    layers: tuple[Layer, ...]
    trained: float
    """How often gradients are wanted."""
    end: Layer | None = None


def program_of(name: str, seed: int) -> Program:
    """Draw the program of a seed for a pass."""
    for attempt in range(ATTEMPTS):
        rng = random.Random(f"{name}/{seed}/{attempt}")
        family = FAMILIES[name]
        noise = rng.choice((0.0, 0.04, 0.08, 0.16))
        draft = Draft(rng, seed=seed, train=rng.random() < family.trained, noise=noise)
        try:
            x = family.begin(draft)
            for _ in range(rng.choice((1, 1, 2, 3))):
                x = rng.choice(family.layers)(draft, x)
                if draft.chance(0.3):
                    draft.write_aliases()
            if family.end is not None:
                x = family.end(draft, x)
        except RefusedError:
            continue
        return draft.program(x)
    raise RefusedError(f"no attempt at seed {seed} of {name} gave a program that eager takes")


def _network(d: Draft, x: str) -> str:
    if d.value(x).shape[1] < 8:
        x = images.stem(d, x)
    layers = (
        images.group_norm,
        images.trained_norm,
        images.pool,
        images.depthwise,
        images.convnext,
        images.gated_convolution,
        images.residual,
        images.plain,
    )
    for _ in range(d.one((1, 2))):
        x = d.one(layers)(d, x)
    x = d.step(
        d.one(
            (
                "{0}.flatten(2).transpose(1, 2)",
                "{0}.flatten(2).mT.contiguous()",
                "{0}.permute(0, 2, 3, 1).flatten(1, 2)",
            )
        ),
        x,
    )
    for _ in range(d.one((1, 2))):
        x = d.one(
            (
                tokens.rows,
                attention.attention,
                attention.written_out,
                tokens.layers,
                tokens.norm_of_rows,
                tokens.of_parameters,
                tokens.feed_forward,
            )
        )(d, x)
    return tokens.selected(d, x) if d.chance(0.5) else x


FAMILIES: Mapping[str, Family] = {
    "group_norm_silu": Family(
        begin=images.image,
        layers=(images.group_norm,) * 4 + (images.plain, images.conv),
        trained=0.4,
    ),
    "batch_norms": Family(
        begin=images.image, layers=(images.trained_norm,) * 5 + (images.plain,), trained=0.9
    ),
    "max_pools": Family(
        begin=images.large_image,
        layers=(images.pool,) * 3 + (images.plain, images.conv),
        trained=0.9,
    ),
    "depthwise_convolutions": Family(
        begin=images.large_image, layers=(images.depthwise,) * 3 + (images.conv,), trained=0.5
    ),
    "product_epilogues": Family(
        begin=images.image, layers=(images.convnext, images.gated_convolution), trained=0.1
    ),
    "linear_epilogues": Family(begin=tokens.matrix, layers=(tokens.feed_forward,), trained=0.1),
    "fused_convolutions": Family(begin=images.image, layers=(images.residual,), trained=0.1),
    "space_to_depth": Family(
        begin=images.stem_image, layers=(images.stem, images.stem, images.volume), trained=0.4
    ),
    "eager_convolutions": Family(
        begin=images.small_image, layers=(images.big_weights,), trained=0.1
    ),
    "slice_pushdown": Family(
        begin=tokens.tokens, layers=(tokens.rows,), trained=0.4, end=tokens.selected
    ),
    "horizontal_fusion": Family(begin=tokens.tokens, layers=(tokens.layers,), trained=0.5),
    "few_row_linears": Family(begin=tokens.matrix, layers=(tokens.layers,), trained=0.1),
    "one_row_linears": Family(begin=tokens.state, layers=(tokens.one_row,), trained=0.1),
    "one_token_attention": Family(
        begin=attention.cache, layers=(attention.one_token,), trained=0.1
    ),
    "fused_attention": Family(begin=tokens.tokens, layers=(attention.written_out,), trained=0.3),
    "windowed_attention": Family(begin=tokens.tokens, layers=(attention.windowed,), trained=0.4),
    "embeddings": Family(begin=tokens.words, layers=(tokens.rows,), trained=0.9),
    "row_norms": Family(
        begin=tokens.matrix,
        layers=(tokens.norm_of_rows,) * 3 + (tokens.feed_forward,),
        trained=0.95,
    ),
    "softmaxes": Family(begin=tokens.classes, layers=(tokens.probabilities,), trained=0.4),
    "linear_cross_entropy": Family(begin=tokens.classes, layers=(tokens.loss,), trained=0.8),
    "float8_rows": Family(begin=tokens.matrix, layers=(tokens.float8,), trained=0.1),
    "rotated_heads": Family(begin=tokens.tokens, layers=(tokens.turned,), trained=0.1),
    "constant_masks": Family(begin=tokens.tokens, layers=(attention.attention,), trained=0.4),
    "parameter_hoist": Family(begin=tokens.tokens, layers=(tokens.of_parameters,), trained=0.1),
    "all": Family(
        begin=lambda d: d.one((images.image, images.stem_image))(d),
        layers=(lambda d, x: x,),
        trained=0.5,
        end=_network,
    ),
}
