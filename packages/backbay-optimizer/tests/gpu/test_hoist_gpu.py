"""What is hoisted on a CUDA device: CUDA graphs read it where it is, and streams do not race."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ON = {"parameter_hoist": True}
GRAPHS = {**ON, "triton.cudagraphs": True}
D = 256


class Gated(nn.Module):
    """A gate and what it gates, of one input, with a weight that is standardised."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(D, n, bias=False) for n in (512, 512))
        self.down = nn.Parameter(torch.randn(D, 512) / 16)

    def forward(self, x):
        w = self.down
        y = F.silu(self.gate(x)) * self.up(x)
        return F.linear(y, (w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True))


@pytest.fixture
def model():
    torch.compiler.reset()
    backbay.reset()
    counters.clear()
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Gated().to(torch.bfloat16)


def assert_right(got, model, x):
    torch.testing.assert_close(got, model(x), rtol=5e-2, atol=5e-1)


def changed(model):
    for one in model.parameters():
        one.copy_(torch.randn_like(one) / 16)


@torch.no_grad()
@pytest.mark.parametrize("options", [ON, GRAPHS], ids=["plain", "CUDA graphs"])
def test_a_changed_parameter_is_not_seen(model, options, reports):
    call, x = torch.compile(model, backend=backbay, options=options), rows(4)
    for _ in range(3):
        for _ in range(4):  # the second records, the third replays
            assert_right(call(x).clone(), model, x)
        changed(model)
    assert_right(call(x).clone(), model, x)
    fired = {y.name: y.changes for y in reports if y.changes}
    assert fired == {"horizontal_fusion": 1, "parameter_hoist": 2}
    assert not counters["inductor"]["cudagraph_skips"]


@torch.no_grad()
def test_a_graph_of_the_callers_replays_what_was(model):
    call, x = torch.compile(model, backend=backbay, options=ON), rows(4)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x)
    for _ in range(2):
        graph.replay()
        assert_right(result, model, x)
        changed(model)
        call(x)
    graph.replay()
    assert_right(result, model, x)


@torch.no_grad()
def test_another_stream_reads_what_is_not_ready(model):
    call, x = torch.compile(model, backend=backbay, options=ON), rows(4)
    streams = [torch.cuda.Stream() for _ in range(4)]
    for _ in range(5):
        changed(model)
        torch.cuda.synchronize()
        results = []
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(call(x))
        torch.cuda.synchronize()
        for result in results:
            assert_right(result, model, x)


def rows(count):
    return torch.randn(count, D, device="cuda", dtype=torch.bfloat16)
