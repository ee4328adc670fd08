"""What a backend leaves to torch's kernels is counted under a mode that Dynamo ignores."""

from collections import Counter

import pytest
import torch
from torch._dynamo.utils import counters

from backbay.race import ownership


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x @ x).cos() + 1


class InPart:
    """Computes the sine itself, where no dispatcher sees it, and leaves the rest to eager."""

    def __call__(self, graph_module, example_inputs):
        def sine(x):
            return torch.from_numpy(__import__("numpy").sin(x.detach().numpy()))

        for node in graph_module.graph.nodes:
            if node.target is torch.sin:
                node.target = sine
        graph_module.recompile()
        return graph_module.forward


def counted(backend):
    model, x = Model(), torch.randn(4, 4)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(x)
        before = dict(counters["stats"])
        with ownership.counting() as eager:
            model(x)
        with ownership.counting() as own:
            compiled(x)
    assert dict(counters["stats"]) == before, "the mode had something compiled"
    return ownership.left_to_torch(eager, own)


@pytest.mark.skipif(not ownership.can_be_told(), reason="this torch falls back to eager")
@pytest.mark.parametrize(("backend", "left"), [("eager", 4), ("aot_eager", 4), (InPart(), 3)])
def test_what_is_handed_to_eager_is_counted(backend, left):
    found = counted(backend)
    assert (found.operators, found.left) == (4, left)
    words = "mm, cos, add" if left == 3 else "mm, sin, cos, add"
    assert found.worded() == f"leaves {left} of 4 operators to torch's kernels: {words}"


def test_a_decomposition_leaves_no_more_than_there_was():
    found = ownership.left_to_torch(Counter(gelu=1, mm=1), Counter(mul=5, mm=1))
    assert (found.operators, found.left) == (2, 2)
    nothing = ownership.left_to_torch(Counter(gelu=1), Counter())
    assert (nothing.left, nothing.most) == (0, ())
