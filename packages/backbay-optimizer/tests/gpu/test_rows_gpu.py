"""Linear layers of one row on a CUDA device: right as sums, one by one and side by side."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Block(nn.Module):
    """A layer of a decoder, where attention sees one token: queries, keys, values, a gate."""

    def __init__(self, width, shared, wide):
        super().__init__()
        self.width, self.shared = width, shared
        sizes = [(width, width), (width, shared), (width, shared), (width, width)]
        sizes += [(width, wide), (width, wide), (wide, width)]
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=b == shared) for a, b in sizes)

    def forward(self, x):
        q, k, v, o, gate, up, down = self.layers
        y = F.rms_norm(x, (self.width,))
        scores = (q(y)[..., : self.shared] * k(y)).softmax(-1)
        x = x + o((scores * v(y)).repeat(1, 1, self.width // self.shared))
        y = F.layer_norm(x, (self.width,))
        return x + down(F.silu(gate(y)) * up(y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize(
    "options", [{}, {"parameter_hoist": True}, {"combo_kernels": False}], ids=str
)
@pytest.mark.parametrize("sizes", [(2048, 512, 8192), (96, 24, 333), (1000, 8, 17)], ids=str)
@torch.no_grad()
def test_a_row_is_wrong(sizes, options, mode, dtype, reports):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(*sizes) for _ in range(2))).to("cuda", dtype)
    x = torch.randn(1, 1, sizes[0], device="cuda", dtype=dtype)
    graphs = {"triton.cudagraphs": mode is not None}
    compiled = torch.compile(model, backend=backbay, options={**options, **graphs})
    for _ in range(3):
        result = compiled(x).clone()
    changes = {x.name: x.changes for x in reports}
    assert changes["one_row_linears"] == 14
    eager = model(x)
    truth = model.double()(x.double())
    assert result.stride() == eager.stride()
    errors = [(x.double() - truth).square().mean().sqrt() for x in (result, eager)]
    assert errors[0] <= 1.5 * errors[1]
