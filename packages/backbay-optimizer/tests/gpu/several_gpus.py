"""Training on several devices, one process each: ``python several_gpus.py STORE SIZE RANK [CASE]``.

Prints, as JSON, what was replayed in each case; fails where a replayed step is told from the
default mode. With a case, prints what tells torch's own ``reduce-overhead`` from the default mode
there. Without a CUDA device it runs on the CPU, and replays nothing.
"""

import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
from small_models import Images, Net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training_cases import raised

from backbay import compile_log
from backbay_optimizer.backend import backbay

WIDTH = 320
"""A layer of it has more than a MiB, which is DDP's smallest bucket."""
STEPS = 6
KIND = "cuda" if torch.cuda.is_available() else "cpu"


class Deep(nn.Module):
    """Layers, each of which may be compiled or sharded alone."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Net(WIDTH) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def rows(step):
    return torch.randn(16, WIDTH, device=KIND, generator=drawn(step))


def images(step):
    return torch.randn(4, 3, 16, 16, device=KIND, generator=drawn(step))


def drawn(step):
    return torch.Generator(KIND).manual_seed(100 * step + dist.get_rank())


def wrapped_then_compiled(model, way):
    return way(_in_ddp(model))


def compiled_then_wrapped(model, way):
    return _in_ddp(way(model))


def sharded(model, way):
    return way(_sharded(model))


def sharded_by_layer(model, way):
    for layer in model.layers:
        layer.forward = way(layer.forward)
    return _sharded(model)


CASES = {
    "wrapped_then_compiled": (wrapped_then_compiled, Deep, rows),
    "compiled_then_wrapped": (compiled_then_wrapped, Deep, rows),
    "accumulating": (compiled_then_wrapped, Deep, rows),
    "images_compiled_then_wrapped": (compiled_then_wrapped, Images, images),
    "sharded": (sharded, Deep, rows),
    "sharded_by_layer": (sharded_by_layer, Deep, rows),
}


WAYS = {
    "default": {"backend": backbay, "options": {"cuda_graphs": False}},
    "ours": {"backend": backbay, "options": {"cuda_graphs": True}},
    "torch's": {"mode": "reduce-overhead"},
}


def trained(case, way):
    """Return losses and, at the end, parameters of a few steps."""
    torch.compiler.reset()
    torch.manual_seed(0)
    wrap, make, inputs = CASES[case]
    model = make().to(KIND)
    call = wrap(model, lambda x: torch.compile(x, **WAYS[way]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for step in range(STEPS):
        first = case == "accumulating" and not step % 2
        with call.no_sync() if first else contextlib.nullcontext():
            loss = call(inputs(step)).square().mean()
            loss.backward()
        seen.append(loss.detach().clone())
        if not first:
            optimizer.step()
            optimizer.zero_grad()
    return seen + [_whole(x.detach()) for x in model.parameters()]


def compare(case, way):
    wanted = trained(case, "default")
    compile_log.clear()
    got = trained(case, way)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, msg=lambda x: f"{case}: {x}")


def compared(case):
    """Return how many graphs were recorded, and what else the compile log says of them."""
    compare(case, "ours")
    said = [x.why for x in compile_log.records()]
    return {
        "recorded": sum(" recorded " in x for x in said),
        "said": sorted({x for x in said if "CUDA graph" in x}),
    }


def _in_ddp(model):
    return DistributedDataParallel(model, bucket_cap_mb=1)


def _sharded(model):
    mesh = init_device_mesh(KIND, (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _whole(value):
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()


if __name__ == "__main__":
    _store, _size, _rank, _cases = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    if KIND == "cuda":
        torch.cuda.set_device(_rank)
    _kind = "nccl" if KIND == "cuda" else "gloo"
    dist.init_process_group(
        _kind, store=dist.FileStore(_store, _size), rank=_rank, world_size=_size
    )
    for _case in _cases:
        compare(_case, "default")  # what is wrong there is wrong with the case
        sys.stdout.write(json.dumps(raised(compare, _case, "torch's")))
        sys.stdout.flush()
        os._exit(0)  # where only this one failed, the other waits for it
    sys.stdout.write(json.dumps({x: compared(x) for x in CASES}))
    dist.destroy_process_group()
