"""Code that was compiled under autocast to one dtype is taken from the cache for another.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch
from torch._inductor.utils import fresh_inductor_cache

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "inductor"


def program(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def compiled(dtype: torch.dtype) -> torch.dtype:
    torch.compiler.reset()  # as in another process
    with torch.no_grad(), torch.autocast("cpu", dtype):
        return torch.compile(program, backend=BACKEND)(torch.ones(4, 4)).dtype


with fresh_inductor_cache():
    found = [compiled(x) for x in (torch.bfloat16, torch.float16)]
print("bfloat16, then float16:", found)
sys.exit(found != [torch.bfloat16, torch.float16])
