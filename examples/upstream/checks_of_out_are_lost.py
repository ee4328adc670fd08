"""AOTAutograd drops checks of out=: of its dtype, and of memory that it shares with an input.

Ends with 1 while that is so. Another backend's name may be given.
"""

import sys

import torch

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"

x = torch.rand(4, 4)


def other_dtype(x: torch.Tensor) -> object:
    out = torch.empty(4, dtype=torch.float32), torch.empty(4, dtype=torch.float64)
    return torch.aminmax(x, dim=0, out=out)


def complex_of_halves(x: torch.Tensor) -> object:
    return torch.complex(x, x, out=torch.empty(4, 4, dtype=torch.complex128))


def shared(x: torch.Tensor) -> object:
    return torch.cat([x, x], out=x.new_zeros(8, 8)[:, :4]), torch.cat([x[:2], x[2:]], out=x)


def index_that_is_written(x: torch.Tensor) -> object:
    index = torch.zeros(4, 4, dtype=torch.int64)
    return torch.take(x, index, out=x)


lost = []
for program in (other_dtype, complex_of_halves, shared, index_that_is_written):
    for call in (program, torch.compile(program, backend=BACKEND)):
        try:
            call(x.clone())
        except Exception as error:  # noqa: BLE001 (a refusal)
            print(program.__name__, "eager:" if call is program else "compiled:", error)
        else:
            lost += [program.__name__]
print("computed, and not refused:", lost)
sys.exit(bool(lost))
