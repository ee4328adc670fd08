"""With dynamic=True one number for a kernel size is a symbol, which int[2] does not take.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "eager"


def program(x: torch.Tensor, kernel_size: int) -> torch.Tensor:
    y, index = torch.nn.functional.max_pool2d_with_indices(x, kernel_size, 2)
    return torch.ops.aten.max_pool2d_with_indices_backward.default(
        y, x, kernel_size, 2, 0, 1, ceil_mode=False, indices=index
    )


x = torch.rand(1, 2, 7, 6)
call = torch.compile(program, backend=BACKEND, dynamic=True)
print("eager:", program(x, 3).shape)
try:
    print("compiled:", call(x, 3).shape)
except Exception as error:  # noqa: BLE001 (whatever it raises)
    sys.exit(f"compiled: {error}")
