"""A dropout that drops nothing is a copy, where eager returns its input.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.0)


x = torch.ones(3)
got = torch.compile(program, backend=BACKEND)(x)
print("eager returns its input:", program(x) is x)
print("compiled code shares its memory:", got.data_ptr() == x.data_ptr())
sys.exit(got.data_ptr() != x.data_ptr())
