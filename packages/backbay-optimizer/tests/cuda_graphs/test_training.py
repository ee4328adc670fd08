"""When a forward and its backward are replayed: with a device that is made up.

The code is that of AOTAutograd's graphs, as they are; what autograd does with it is real.
"""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from training_cases import CASES, DEVICE

from backbay import compile_log
from backbay_optimizer.cuda_graphs.recordings import Recordings
from backbay_optimizer.cuda_graphs.replayable import Inputs
from backbay_optimizer.cuda_graphs.replaying import Replayed
from backbay_optimizer.cuda_graphs.training import Backward, Forward

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the CPU stands for a device")


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Way:
    """Compiles as AOTAutograd does, with code that is replayed or runs as it is."""

    def __init__(self, *, replays, share=0.5):
        self.replays, self.share, self.shared = replays, share, []

    def __call__(self, function, **options):
        return torch.compile(function, backend=self.backend, **options)

    def backend(self, graph_module, example_inputs):
        shared = Recordings(name="ours", share=self.share)
        self.shared.append(shared)

        def compiler(kind):
            def made(graph, inputs):
                return self.code(kind, shared, graph)

            return made

        compiled = aot_autograd(
            fw_compiler=compiler(Forward),
            bw_compiler=compiler(Backward),
            inference_compiler=compiler(Replayed),
            partition_fn=min_cut_rematerialization_partition,
        )
        return compiled(graph_module, example_inputs)

    def code(self, kind, shared, graph):
        def run(inputs):
            given = list(inputs)
            inputs.clear()
            return graph(*given)

        run._boxed_call = True
        if not self.replays:
            return run
        fixed = torch._guards.TracingContext.get().fw_metadata.static_input_indices
        if kind is Backward:
            names = [x.name for x in graph.graph.find_nodes(op="placeholder")]
            fixed = [i for i, x in enumerate(names) if "tangents" not in x]
            shared.saved = len(fixed)
        shared.trains |= kind is Forward
        call = kind(run, Inputs(device=0, fixed=fixed), shared)
        call._boxed_call = True
        return call


def alike(got, wanted):
    assert len(got) == len(wanted)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(other, torch.Tensor):
            said = lambda x, n=number: f"number {n} of what is seen: {x}"  # noqa: E731
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=said)
        else:
            assert one == other, number


def seen(case, way):
    torch.compiler.reset()
    torch.manual_seed(3)
    return case(way)


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize("name", CASES)
def test_a_replay_is_told_from_code_that_runs_as_it_is(name, device):
    wanted = seen(CASES[name], Way(replays=False))
    alike(seen(CASES[name], Way(replays=True)), wanted)
    assert any(x.replays for x in device["graphs"]), reasons()
    assert any(x.startswith("backward graph recorded") for x in reasons()), reasons()
    assert not any("could not be recorded" in x for x in reasons()), reasons()
