"""A write to a copy of a conjugate changes what it was copied from.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(x: torch.Tensor) -> None:
    x.conj().mul_(0.5)
    copy = x.conj().resolve_conj()
    copy.conj().real.add_(1)


results = []
for call in (program, torch.compile(program, backend=BACKEND)):
    x = torch.tensor([1 + 2j])
    with torch.no_grad():
        call(x)
    results.append(x)
print("eager:", results[0], "compiled:", results[1])
sys.exit(not torch.equal(*results))
