"""ExecuTorch: graphs are lowered to XNNPACK and to portable kernels, and run in this process."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from backbay.kit.apart import compiled_apart
from backbay.kit.engine import Engine
from backbay.kit.program import Program


class ExecuTorch(Engine):
    """ExecuTorch on CPUs, for inference and training."""

    name = "backbay_executorch"
    engine = "executorch"

    def supports(self, node: Node) -> bool | str:
        """Return whether ExecuTorch's runtime has a kernel for the operator."""
        name = str(getattr(node.target, "overloadpacket", "")).replace(".", "::")
        return not {name, f"{name}_copy"}.isdisjoint(_kernels()) or "ExecuTorch has no kernel"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Lower a program, and return what runs it."""
        # Lowering traces the program anew, which is impossible while torch.compile is at work.
        lowered = program.kept(lambda: compiled_apart(program, lower))
        loaded = _runtime().load_program(lowered)
        forward = loaded.load_method("forward")

        def run(*tensors: torch.Tensor) -> Sequence[Any]:
            assert loaded is not None  # a method dies with its program
            results: Sequence[Any] = forward.execute(tensors)
            return results

        return run


def lower(program: torch.export.ExportedProgram) -> bytes:
    """Return a program as ExecuTorch's runtime reads it."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (  # noqa: PLC0415 (late)
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower  # noqa: PLC0415 (likewise)

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    lowered: bytes = edge.to_executorch().buffer
    return lowered


@functools.cache
def _kernels() -> frozenset[str]:
    names = _runtime().operator_registry.operator_names
    return frozenset(x.partition(".")[0] for x in names)


def _runtime() -> Any:
    from executorch.runtime import Runtime  # noqa: PLC0415 (when something is compiled)

    return Runtime.get()


backbay_executorch = ExecuTorch()
