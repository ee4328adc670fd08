"""The gradient of a result that is an overlapping view of what was computed is wrong.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(p: torch.Tensor) -> torch.Tensor:
    return (p * 1).unfold(0, 2, 1)


gradients = []
for call in (program, torch.compile(program, backend=BACKEND)):
    p = torch.ones(4, requires_grad=True)
    call(p).backward(torch.tensor([[1.0, 10], [100, 1000], [1e4, 1e5]]))
    gradients.append(p.grad)
print("eager:", gradients[0], "compiled:", gradients[1])
sys.exit(not torch.equal(*gradients))
