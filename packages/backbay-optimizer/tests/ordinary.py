"""What the tests of ordinary use share: a small decoder, and `backend="backbay"` without Inductor.

As a program it is one of several processes that train the decoder: STORE SIZE RANK.
"""

import copy
import json
import sys
from collections import Counter

import torch
import torch.distributed as dist
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils.checkpoint import checkpoint

from backbay_optimizer.backend import Optimizing

LENGTH, VOCABULARY = 8, 32


class Kept(Optimizing):
    """Keeps AOTAutograd's graphs, and runs them as they are: all that is ours, in a tenth of the
    time."""

    level = "aten"

    def __init__(self):
        super().__init__()
        self.graphs, self.reports = [], []

    def compile_graph(self, *given, **how):
        made = super().compile_graph(*given, **how)
        self.reports += made.reports
        return made

    def compile(self, graph_module, example_inputs):
        self.graphs.append(graph_module)
        return graph_module.forward


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x, mask=None):
        mask = causal(x.shape[1]) if mask is None else mask
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(), attn_mask=mask)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Decoder(torch.nn.Module):
    """Gives the last token's scores, as serving does; the mask is made in every call."""

    def __init__(self, *, width=16, checkpoints=False, hands_masks=True):
        super().__init__()
        self.checkpoints, self.hands_masks = checkpoints, hands_masks
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(2))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        mask = causal(tokens.shape[1])[None, None] if self.hands_masks else None
        for layer in self.layers:
            if self.checkpoints:
                x = checkpoint(layer, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
        return self.head(self.norm(x))[:, -1].log_softmax(-1)


def causal(length):
    return torch.arange(length)[:, None] >= torch.arange(length)


def tokens(batch=2, length=LENGTH):
    return torch.randint(VOCABULARY, (batch, length))


def changes(backend):
    """Return how often each rewrite changed a graph."""
    found = Counter()
    for report in backend.reports:
        found[report.name] += report.changes
    return +found


def trained(call, model, *args):
    """Return the result of a call, and the gradients of a loss of it."""
    model.zero_grad()
    result = call(*args)
    result.float().square().mean().backward()
    return [result.detach(), *(x.grad for x in model.parameters())]


def assert_trains_as_eager(compiled, model, *args, eager=None, share=1e-5):
    """Fail where a result or gradient is off by more than a share of its largest element."""
    expected = trained(eager or model, model, *args)
    for got, want in zip(trained(compiled, model, *args), expected, strict=True):
        assert got.dtype == want.dtype
        assert (got - want).abs().max() <= share * want.abs().max()


def parallel(kind, rank, size, store):
    """Train as one of several processes; fail unless gradients are the mean of all processes'."""
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    torch.manual_seed(0)
    # A layer has more than a MiB, which is DDP's smallest bucket.
    width = 320 if kind == "ddp" else 16
    model, backend = Decoder(width=width, hands_masks=kind == "ddp"), Kept()
    alone = copy.deepcopy(model)
    torch.manual_seed(rank)
    given = tokens()
    result, *grads = trained(alone, alone, given)
    for grad in grads:
        dist.all_reduce(grad)
        grad.div_(size)
    wrapped = torch.compile(_wrapped(kind, model, size), backend=backend)
    got, *parts = trained(wrapped, model, given)
    torch.testing.assert_close(got, result)
    torch.testing.assert_close([_whole(x) for x in parts], grads)
    dist.destroy_process_group()
    graphs = sum(x.name == "constant_masks" for x in backend.reports)
    return {"changes": changes(backend), "graphs": graphs}


def _wrapped(kind, model, size):
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _whole(grad):
    return grad.full_tensor() if hasattr(grad, "full_tensor") else grad


if __name__ == "__main__":
    _store, _size, _rank = sys.argv[1:]
    _found = {x: parallel(x, int(_rank), int(_size), f"{_store}_{x}") for x in ("ddp", "fsdp")}
    sys.stdout.write(json.dumps(_found))
