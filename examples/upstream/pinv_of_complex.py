"""AOTAutograd's graphs give another pseudo-inverse of a complex matrix than eager.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"

torch.manual_seed(0)
x = torch.randn(5, 5, dtype=torch.complex64)
got = torch.compile(torch.linalg.pinv, backend=BACKEND)(x)
print("error of the compiled inverse:", (got @ x - torch.eye(5)).abs().max())
print("error of eager's:", (torch.linalg.pinv(x) @ x - torch.eye(5)).abs().max())
sys.exit(not torch.allclose(got, torch.linalg.pinv(x), atol=1e-3))
