"""A result that is a view of what was computed, and its detached self: the second one is wrong.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x * 2).t()
    return y, y.detach()


x = torch.tensor([[1.0, 2], [3, 4]], requires_grad=True)
eager, compiled = program(x)[1], torch.compile(program, backend=BACKEND)(x)[1]
print("eager:", eager, "compiled:", compiled)
sys.exit(not torch.equal(eager, compiled))
