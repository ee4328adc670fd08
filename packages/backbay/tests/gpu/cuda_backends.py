"""Backends for races on a GPU: with CUDA graphs, whose outputs live until the next call, and one
that replaces the clock of the device."""

import torch
from torch._inductor.compile_fx import compile_fx


def reduce_overhead(graph_module, example_inputs):
    """Inductor with CUDA graphs."""
    return compile_fx(graph_module, example_inputs, config_patches={"triton.cudagraphs": True})


def replaces_the_events(graph_module, example_inputs):
    """Has events say a tenth of what passed; it computes what it should, as Inductor does."""
    elapsed = torch.cuda.Event.elapsed_time
    torch.cuda.Event.elapsed_time = lambda self, end: 0.1 * elapsed(self, end)
    return compile_fx(graph_module, example_inputs)


def replaces_the_bound_synchronize(graph_module, example_inputs):
    """Has the clock wait for nothing, and its events be ready: it measures launches."""
    from backbay.timing import clock

    clock.synchronize = lambda *_: None
    return compile_fx(graph_module, example_inputs)
