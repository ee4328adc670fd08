"""Losses, softmaxes, and the backward of an embedding."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from speed.pattern_cases.program import Pattern, Program, leaf, normal, weight

_IGNORED = -100


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the loss as transformers does, in float32."""
    return F.cross_entropy(logits.float(), targets, ignore_index=_IGNORED)


def targets_of(rows: int, words: int) -> Tensor:
    """Draw targets, an eighth of which is ignored."""
    return torch.randint(words, (rows,)).masked_fill(torch.rand(rows) < 1 / 8, _IGNORED)


def cross_entropy_train(rows: int, words: int) -> Program:
    """Make the loss of logits."""
    return Program(function=loss_of, inputs=(leaf(rows, words), targets_of(rows, words)))


def cross_entropy(rows: int, words: int) -> Program:
    """Make the loss of logits, forward only."""
    return Program(function=loss_of, inputs=(normal(rows, words), targets_of(rows, words)))


def linear_loss(rows: int, width: int, words: int) -> Program:
    """Make the last projection and its loss."""

    def function(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        return loss_of(F.linear(x, head), targets)

    inputs = (leaf(rows, width), weight(words, width).requires_grad_(), targets_of(rows, words))
    return Program(function=function, inputs=inputs)


def softmax(rows: int, words: int) -> Program:
    """Make softmax, in bfloat16."""
    return Program(function=lambda x: torch.softmax(x, -1), inputs=(normal(rows, words),))


def log_probabilities(rows: int, words: int) -> Program:
    """Make the log-probability of given tokens, as reinforcement learning needs it."""

    def function(logits: Tensor, tokens: Tensor) -> Tensor:
        chosen = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, None])
        return chosen.squeeze(-1)

    def without_all(logits: Tensor, tokens: Tensor) -> Tensor:
        chosen = logits.gather(-1, tokens[:, None]).float().squeeze(-1)
        return chosen - torch.logsumexp(logits.float(), -1)

    return Program(
        function=function,
        inputs=(normal(rows, words), torch.randint(words, (rows,))),
        alternative=without_all,
    )


def sampling(rows: int, words: int) -> Program:
    """Make probabilities at a temperature, of a few rows."""

    def function(logits: Tensor) -> Tensor:
        return torch.softmax(logits.float() / 0.7, -1)

    return Program(function=function, inputs=(normal(rows, words),))


def embedding_train(tokens: int, words: int, width: int, zipf: int) -> Program:
    """Make an embedding; its tokens are uniform, or follow Zipf's law, as words do."""
    ranks = torch.arange(1, words + 1).float()
    drawn = torch.multinomial(ranks.pow(-1.0 if zipf else 0.0), tokens, replacement=True)

    def function(table: Tensor, index: Tensor) -> Tensor:
        return F.embedding(index, table)

    table = leaf(words, width)
    row = 2 * width
    return Program(
        function=function,
        inputs=(table, drawn),
        bytes_moved=row * (words + 3 * tokens),  # the gradient is written; rows read, written, read
    )


_VOCABULARIES = {"8192x32000": (8192, 32000), "4096x128256": (4096, 128256)}

LOSSES = (
    Pattern(
        name="cross_entropy_train",
        make=cross_entropy_train,
        shapes=_VOCABULARIES,
        tiny=(4, 16),
        train=True,
    ),
    Pattern(name="cross_entropy", make=cross_entropy, shapes=_VOCABULARIES, tiny=(4, 16)),
    Pattern(
        name="linear_ce_train",
        make=linear_loss,
        shapes={"4096x4096x128256": (4096, 4096, 128256), "8192x2048x32000": (8192, 2048, 32000)},
        tiny=(4, 8, 16),
        train=True,
    ),
    Pattern(
        name="softmax",
        make=softmax,
        shapes={
            "8192x32768": (8192, 32768),
            "4096x128256": (4096, 128256),
            "65536x1024": (65536, 1024),
        },
        tiny=(4, 16),
    ),
    Pattern(
        name="token_logprobs",
        alternative=True,
        make=log_probabilities,
        shapes=_VOCABULARIES,
        tiny=(4, 16),
    ),
    Pattern(
        name="sampling_softmax",
        make=sampling,
        shapes={"8x151936": (8, 151936), "32x128256": (32, 128256)},
        tiny=(2, 16),
    ),
    Pattern(
        name="embedding_train",
        make=embedding_train,
        shapes={
            "uniform_16384x50257x768": (16384, 50257, 768, 0),
            "zipf_16384x50257x768": (16384, 50257, 768, 1),
        },
        tiny=(8, 16, 8, 1),
        train=True,
    ),
)
