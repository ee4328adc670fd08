"""Torch's decompositions of interpolation round uint8 otherwise than the CPU's kernels.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager_decomp_partition"

torch.manual_seed(0)
x = torch.randint(0, 255, (1, 3, 9, 11), dtype=torch.uint8)
worst = 0
for mode in ("bilinear", "bicubic"):

    def program(x: torch.Tensor, mode: str = mode) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, (20, 23), mode=mode)

    got = torch.compile(program, backend=BACKEND)(x)
    differ = (got.int() - program(x).int()).abs()
    print(mode, "differs in", int((differ > 0).sum()), "elements, by at most", int(differ.max()))
    worst = max(worst, int(differ.max()))
sys.exit(worst > 0)
