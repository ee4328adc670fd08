"""Functionalization draws into a dense tensor, and normal_ on a CPU draws other numbers there.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(x: torch.Tensor) -> torch.Tensor:
    return x.normal_(0.0, 1.0)


drawn = []
for call in (program, torch.compile(program, backend=BACKEND)):
    torch.manual_seed(0)
    drawn.append(call(torch.zeros(20, 20)[:, ::2]).clone())
print("eager:", drawn[0][0, :3], "compiled:", drawn[1][0, :3])
sys.exit(not torch.equal(*drawn))
