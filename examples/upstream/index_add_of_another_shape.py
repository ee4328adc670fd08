"""Torch's decomposition of index_add does not check the shape of what is added.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager_decomp_partition"


def program(x: torch.Tensor, i: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return torch.index_add(x, 0, i, source)


args = torch.zeros(3, 2), torch.tensor([0, 2]), torch.tensor([2.0, 4.0])
for call in (program, torch.compile(program, backend=BACKEND)):
    try:
        print(call(*args))
    except Exception as error:  # noqa: BLE001 (a refusal)
        print("eager:" if call is program else "compiled:", error)
    else:
        sys.exit(1)
