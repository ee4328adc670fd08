"""Have 16-bit code for a CPU use vectors of 256 bits where GCC gets wider ones wrong.

GCC 12.2, which is Debian 12's, miscompiles the transpose of 32 by 32 numbers in torch's header for
AVX-512 where a kernel has two of them: at ``-O3``, by its vectorizer of straight-line code, when it
tunes for a generic processor, as it does for those that it doesn't know. It was right with all that
it knows and were tried, which says nothing of other kernels: vectors are narrow there, too.
Inductor writes such kernels where several results change their layout, as do two convolutions that
are concatenated, and gives garbage. Half as wide, that transpose is other code. docs/upstream.md
has a program.
"""

import functools
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from backbay.graph.values import is_ordinary, value_of
from backbay.kit.passes import Pass, PassContext

COMPILER = "gcc version 12.2."
"""What it says of itself; other versions were not seen to be wrong."""
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class NarrowVectors(Pass):
    """Use vectors of 256 bits for 16-bit numbers where GCC gets wider ones wrong; for CPUs."""

    summary = "on a CPU with AVX-512, 16-bit code has vectors of 256 bits if GCC 12.2 compiles it"

    def run(self, graph_module: GraphModule, context: PassContext) -> int:
        """Ask Inductor for them; the graph stays as it is."""
        values = map(value_of, graph_module.graph.nodes)
        if any(map(_is_concerned, values)) and is_wrong():
            context.inductor["cpp.simdlen"] = 256
        return 0


narrow_vectors = NarrowVectors()


@functools.cache
def is_wrong() -> bool:
    """Return whether this machine's compiler gets 16-bit transposes with AVX-512 wrong."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    from torch._inductor import cpp_builder, exc  # noqa: PLC0415 (as late as Inductor)

    try:
        compiler = cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:  # a graph for a GPU needs none; else Inductor says so
        return False
    return COMPILER in cpp_builder.get_compiler_version_info(compiler)


def _is_concerned(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and is_ordinary(value)
        and value.device.type == "cpu"
        and value.dtype in _SIXTEEN_BITS
    )
