"""Programs that Inductor compiles, and a pass had wrong, or raised at."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils.checkpoint import checkpoint

from backbay_optimizer.backend import backbay


def drawn(*sizes):
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator)


def repeated(x):
    return x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(x.shape[0], 4, *x.shape[2:])


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v))


def attend(q, k, v):
    mask = torch.ones(8, 8, dtype=torch.bool)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)


def repeat_by_name(q, k, v):
    k, v = (torch.repeat_interleave(input=x, repeats=2, dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def reshape_by_name(q, k, v):
    k, v = (torch.unsqueeze(input=x, dim=2).expand(-1, -1, 2, -1, -1) for x in (k, v))
    k, v = (torch.reshape(input=x, shape=(2, 4, 6, 8)) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


X, W = drawn(2, 8, 8), drawn(16, 8)
HEADS = (drawn(2, 4, 6, 8), drawn(2, 2, 6, 8), drawn(2, 2, 6, 8))
FILTERS, IMAGES = drawn(512, 512, 3, 3) / 50, drawn(3, 2, 512, 2, 2)
PROGRAMS = {
    "a bias that differs from row to row": (
        lambda x, w, b: F.linear(x, w, b)[:, -1],
        (X, W, drawn(8, 16)),
    ),
    "a bias for each row of each one": (
        lambda x, w, b: F.linear(x, w, b)[:, -1],
        (X, W, drawn(2, 8, 16)),
    ),
    "nothing left of one row": (
        lambda x, w: F.linear(F.gelu(x), w)[:, :-1].sum(),
        (drawn(2, 1, 8), W),
    ),
    "nothing left of one row, and its softmax": (
        lambda x, w: F.log_softmax(F.linear(F.gelu(x), w)[:, :-1], -1),
        (drawn(2, 1, 8), W),
    ),
    "nothing left of a sum": (
        lambda x, w: F.linear(x, w).sum(1, keepdim=True)[:, 1:],
        (X, W),
    ),
    "a mask of all true that is causal": (
        attend,
        tuple(drawn(1, 2, 8, n)[..., :4] for n in (4, 5, 6)),
    ),
    "dims by name": (lambda x, w: F.linear(x, w).permute(dims=(0, 2, 1)), (X, W)),
    "dims of a function by name": (
        lambda x, w: torch.permute(F.linear(x, w), dims=(0, 2, 1)),
        (X, W),
    ),
    "a reshape that is a function": (
        lambda x, w: torch.reshape(F.linear(x, w), (2, 8, 4, 4))[:, -1],
        (X, W),
    ),
    "a reshape's sizes by name": (
        lambda x, w: torch.reshape(F.linear(x, w), shape=(2, 8, 4, 4))[:, -1],
        (X, W),
    ),
    "repeated heads by name": (repeat_by_name, HEADS),
    "reshaped heads by name": (reshape_by_name, HEADS),
    "a convolution of many at once": (
        lambda xs, w: torch.vmap(lambda x: torch.conv2d(x, w, padding=1))(xs),
        (IMAGES, FILTERS),
    ),
    "repeated heads of many at once": (
        lambda *many: torch.vmap(grouped)(*many),
        tuple(torch.stack([x, x + 1]) for x in HEADS),
    ),
    "a convolution and its tangent": (
        lambda x, w: torch.func.jvp(lambda y: torch.conv2d(y, w, padding=1), (x,), (x,)),
        (IMAGES[0], FILTERS),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_wrong_or_is_not_compiled(name):
    program, given = PROGRAMS[name]
    with torch.no_grad():
        wanted = program(*given)
        got = torch.compile(program, backend=backbay, fullgraph=True)(*given)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


CHECKPOINTED = {
    "rows that are cut away": lambda x, w: F.linear(F.gelu(x), w)[:, -1],
    "a constant mask": lambda x, w: F.scaled_dot_product_attention(
        *(F.linear(x, w)[None],) * 3, attn_mask=torch.ones(8, 8, dtype=torch.bool).tril()
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
@pytest.mark.parametrize("tune", ["cache", "full"])
def test_a_checkpoint_sees_what_a_pass_looks_at(name, tune):
    program = CHECKPOINTED[name]
    compiled = torch.compile(program, backend=backbay, options={"tune": tune})
    gradients = []
    for function in (program, compiled):
        x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
        checkpoint(function, x, w, use_reentrant=False).sum().backward()
        gradients.append((x.grad, w.grad))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_hooks_are_given_what_a_pass_looks_at():
    layer, seen = nn.Linear(8, 16), []

    def pack(tensor):
        seen.append(tensor.detach().numpy())
        return tensor

    compiled = torch.compile(lambda x: layer(F.gelu(x))[:, -1], backend=backbay)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        compiled(X).sum().backward()
    assert 0 < len(seen) < 10  # of one call
