"""What the tests of attention that is written out share: spellings, tensors, and a pass let go."""

import sys

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

import backbay_optimizer.passes  # noqa: F401 (the pass's module is known by then)
from backbay_optimizer.passes.fused_attention import fused_attention

MODULE = sys.modules["backbay_optimizer.passes.fused_attention"]
B, H, S, K, D = 2, 4, 8, 12, 16
INFINITY = float("inf")


@pytest.fixture
def anywhere(lift):
    """Let the pass rewrite on the CPU, in wider dtypes too, and what is short."""
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    fewest = {"inference": 1, "training": 1}
    lift(fused_attention, DEVICES=("cpu",), DTYPES=dtypes, FEWEST_BLOCKS=fewest, BLOCK=4)


def tensors(*, keys=S, dtype=torch.float32, train=False):
    """Query (2, 4, 8, 16), key and value, as models lay them out, and a bias for each pair."""
    torch.manual_seed(0)
    made = [torch.randn(B, n, H, D, dtype=dtype).transpose(1, 2) for n in (S, keys, keys)]
    made.append(torch.randn(1, H, S, keys, dtype=dtype))
    return [x.requires_grad_(train) for x in made[:3]] + made[3:]


def product(q, k):
    return torch.matmul(q, k.transpose(-2, -1))


def plain(q, k, v, bias):
    return torch.matmul(torch.softmax(product(q, k) + bias, dim=-1), v)


def t5(q, k, v, bias):
    scores = product(q, k)
    scores += bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v)
