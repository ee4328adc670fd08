"""A result that views one of two inputs that share memory is made from the other.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b.add_(1)
    return a.t()


whole = torch.zeros(6, 4)
print("eager:", program(whole[:5], whole).shape)
try:
    print("compiled:", torch.compile(program, backend=BACKEND)(whole[:5], whole).shape)
except Exception as error:  # noqa: BLE001 (whatever it raises)
    sys.exit(f"compiled: {error}")
