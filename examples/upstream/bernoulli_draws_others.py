"""The decomposition of bernoulli draws other numbers than eager, also with fallback_random.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager_decomp_partition"

drawn = []
with torch._inductor.config.patch(fallback_random=True):  # noqa: SLF001 (torch's public switch)
    for call in (torch.bernoulli, torch.compile(torch.bernoulli, backend=BACKEND)):
        torch.manual_seed(0)
        drawn.append(call(torch.full((40,), 0.5, dtype=torch.float64)))
print("drawn alike:", torch.equal(*drawn))
sys.exit(not torch.equal(*drawn))
