"""An input that nothing of the result depends on gets zeros for a gradient, in eager none.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.lerp(y, x, 0.25)
    torch._dynamo.graph_break()  # noqa: SLF001 (its documented name)
    z.view(-1).zero_()
    return y * 2


gradients = []
for call in (program, torch.compile(program, backend=BACKEND)):
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    call(x, y).sum().backward()
    gradients.append(x.grad)
print("eager:", gradients[0], "compiled:", gradients[1])
sys.exit((gradients[0] is None) != (gradients[1] is None))
