"""Torch's decomposition of put lays its result out in rows, where eager's is laid out as the input.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager_decomp_partition"


def program(x: torch.Tensor, i: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return x.put(i, source, accumulate=True)


args = torch.zeros(2, 3).t(), torch.tensor([0, 4]), torch.ones(2)
eager, compiled = program(*args), torch.compile(program, backend=BACKEND)(*args)
print("eager:", eager.stride(), "compiled:", compiled.stride())
sys.exit(eager.stride() != compiled.stride())
