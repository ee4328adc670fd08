"""What a backend leaves to torch's kernels is counted under a mode that Dynamo ignores."""

from collections import Counter

import pytest
import torch
from torch._dynamo.utils import counters

from backbay.proof.dispatched import counting
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
        with counting() as eager:
            model(x)
        with counting() as own:
            compiled(x)
    assert dict(counters["stats"]) == before, "the mode had something compiled"
    return ownership.left_to_torch(eager, own)


@pytest.mark.skipif(not ownership.can_be_told(), reason="this torch falls back to eager")
def test_what_is_handed_to_eager_is_counted(run_python):
    """In a process of its own: what else ran in this one may have Dynamo compile anew."""
    program = f"""
    import runpy
    tests = runpy.run_path({__file__!r})
    for backend in ("eager", "aot_eager", tests["InPart"]()):
        found = tests["counted"](backend)
        print(found.operators, found.left, found.worded())
    """
    whole = "4 4 leaves 4 of 4 operators to torch's kernels: mm, sin, cos, add"
    in_part = "4 3 leaves 3 of 4 operators to torch's kernels: mm, cos, add"
    assert run_python(program).stdout.splitlines() == [whole, whole, in_part]


def test_a_decomposition_leaves_no_more_than_there_was():
    found = ownership.left_to_torch(Counter(gelu=1, mm=1), Counter(mul=5, mm=1))
    assert (found.operators, found.left) == (2, 2)
    nothing = ownership.left_to_torch(Counter(gelu=1), Counter())
    assert (nothing.left, nothing.most) == (0, ())


def test_what_dlpack_asks_is_no_work():
    tensor = torch.ones(3)
    with counting() as seen:
        torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
        assert not tensor.is_pinned()
    assert not seen
