"""AOTAutograd takes no write to one of two inputs that view one memory in different dtypes.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(x: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
    parts.add_(1)
    return x * 2


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.zeros(3, dtype=torch.complex64)
    return x, torch.view_as_real(x)


print("eager:", program(*inputs()))
try:
    print("compiled:", torch.compile(program, backend=BACKEND)(*inputs()))
except Exception as error:  # noqa: BLE001 (whatever it raises)
    sys.exit(f"compiled: {error}")
