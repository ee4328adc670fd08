"""ExecuTorch: graphs are lowered to XNNPACK and portable kernels, and run in this process.

Inference alone: of training ExecuTorch 1.5.1 lowers graphs that it can't run, or runs wrong.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node

from backbay.kit.apart import compiled_apart
from backbay.kit.decompositions import core_aten
from backbay.kit.engine import Engine
from backbay.kit.program import Program
from backbay_adapters.conditions import may_take_off


def _is_in_space(convolution: Node) -> bool:
    """Whether a convolution has more than two dimensions: it fails when it is called."""
    return len(convolution.args[3]) > 2  # type: ignore[arg-type] # noqa: PLR2004 (its strides)


class ExecuTorch(Engine):
    """ExecuTorch on CPUs, for inference; training runs in PyTorch."""

    name = "backbay_executorch"
    engine = "executorch"
    dense_inputs = True
    graph_kinds: ClassVar[Any] = ("inference",)
    decompositions = core_aten(torch.ops.aten.gelu)  # its own with tanh is an approximation
    refuses: ClassVar = {
        torch.ops.aten.constant_pad_nd: (may_take_off, "its padding takes nothing off"),
        torch.ops.aten.convolution: (_is_in_space, "its convolutions have at most two dimensions"),
    }

    def supports(self, node: Node) -> bool | str:
        """Return whether ExecuTorch's runtime has a kernel for the operator."""
        name = str(getattr(node.target, "overloadpacket", "")).replace(".", "::")
        return not {name, f"{name}_copy"}.isdisjoint(_kernels()) or "ExecuTorch has no kernel"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Lower a program, and return what runs it."""
        from executorch.runtime import Runtime  # noqa: PLC0415 (when something is compiled)

        # Lowering traces the program anew, which is impossible while torch.compile is at work.
        loaded = Runtime.get().load_program(program.kept(lambda: compiled_apart(program, lower)))
        forward = loaded.load_method("forward")

        def run(*tensors: torch.Tensor) -> Sequence[Any]:
            assert loaded is not None  # a method dies with its program
            results: Sequence[Any] = forward.execute(tensors)
            return results

        return run


def lower(program: torch.export.ExportedProgram) -> bytes:
    """Return a program as ExecuTorch's runtime reads it."""
    from executorch import exir  # noqa: PLC0415 (in a process of its own)
    from executorch.backends.xnnpack.partition import xnnpack_partitioner  # noqa: PLC0415 (likewise)

    partitioner = xnnpack_partitioner.XnnpackPartitioner()
    # What has a kernel is taken, whether it is a core operator or not.
    checks = exir.EdgeCompileConfig(_check_ir_validity=False)
    edge = exir.to_edge_transform_and_lower(program, None, [partitioner], compile_config=checks)
    return bytes(edge.to_executorch().buffer)


@functools.cache
def _kernels() -> frozenset[str]:
    from executorch.runtime import Runtime  # noqa: PLC0415 (when something is compiled)

    return frozenset(x.partition(".")[0] for x in Runtime.get().operator_registry.operator_names)


backbay_executorch = ExecuTorch()
