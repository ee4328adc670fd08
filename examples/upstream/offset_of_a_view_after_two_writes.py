"""A view of an input that shares memory with another comes back with an offset too small.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "inductor"


def program(_: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b[1:].sin_()
    top = b[: b.shape[0] // 2]
    top.narrow(0, 0, top.shape[0] // 2).mul_(top.clone())
    return top[:, 1:]


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.arange(20.0).reshape(4, 5)
    return whole, whole[1:]


eager = program(*rows())
compiled = torch.compile(program, backend=BACKEND, dynamic=True)(*rows())
print(f"eager: {eager}, at {eager.storage_offset()} of its memory")
if not torch.equal(eager, compiled):
    sys.exit(f"compiled: {compiled}, at {compiled.storage_offset()}")
