"""AOTAutograd's graphs as compiled code that is replayed, or runs as it is."""

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from backbay_optimizer.cuda_graphs.recordings import Recordings
from backbay_optimizer.cuda_graphs.replayable import Inputs
from backbay_optimizer.cuda_graphs.replaying import Replayed
from backbay_optimizer.cuda_graphs.training import Backward, Forward


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

    def results(self, graph, given):
        return graph(*given)

    def code(self, kind, shared, graph):
        def run(inputs):
            given = list(inputs)
            inputs.clear()
            return self.results(graph, given)

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
