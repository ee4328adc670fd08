"""The decomposition of logaddexp has a complex NaN, which torch.fx writes as a name.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager_decomp_partition"

x = torch.tensor([1 + 1j])
print("eager:", torch.logaddexp(x, x))
try:
    print("compiled:", torch.compile(torch.logaddexp, backend=BACKEND)(x, x))
except Exception as error:  # noqa: BLE001 (whatever it raises)
    sys.exit(f"compiled: {error}")
