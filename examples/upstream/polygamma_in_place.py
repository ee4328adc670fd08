"""polygamma_ has no kernel that functionalization knows, so AOTAutograd raises.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(x: torch.Tensor) -> torch.Tensor:
    return x.polygamma_(1)


print("eager:", program(torch.ones(2)))
try:
    print("compiled:", torch.compile(program, backend=BACKEND)(torch.ones(2)))
except Exception as error:  # noqa: BLE001 (whatever it raises)
    sys.exit(f"compiled: {error}")
