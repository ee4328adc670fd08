"""A size is that of before unsqueeze_, where Dynamo captures it after.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "eager"


def program(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.unsqueeze_(0)
    return y * y.shape[0]


x = torch.ones(3)
got = torch.compile(program, backend=BACKEND)(x)
print("eager:", program(x), "compiled:", got)
sys.exit(not torch.equal(got, program(x)))
