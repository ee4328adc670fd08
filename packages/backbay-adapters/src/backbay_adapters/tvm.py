"""Apache TVM: graphs become Relax programs, and LLVM compiles them; untuned, so right and slow."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.fx import Node

from backbay.kit.decompositions import NORMS, WRAPPED_INDICES, core_aten
from backbay.kit.engine import Engine
from backbay.kit.exchange import aligned
from backbay.kit.program import Program
from backbay_adapters.conditions import has_gaps, is_interrupted

aten = torch.ops.aten


_POOLING = (
    lambda node: any(x.args[1] != 0 for x in node.users),
    "Relax's importer gives zeros for the indices",
)


class TVM(Engine):
    """Apache TVM on CPUs, for inference and training; untuned, and so slow."""

    name = "backbay_tvm"
    engine = "apache-tvm"
    libraries = ("apache-tvm-ffi",)
    # Of elu Relax reads one factor of three; with negative indices it leaves the tensor's memory.
    decompositions: ClassVar = {**core_aten(*NORMS, aten.elu), **WRAPPED_INDICES}
    refuses: ClassVar = {
        aten.constant_pad_nd: (lambda x: not x.args[1], "Relax wants to pad something"),
        aten.as_strided: "Relax's importer takes it for a view of all elements",
        aten.index: (is_interrupted, "Relax puts the indexed dimension elsewhere"),
        aten.index_put: (has_gaps, "Relax wants an index for each dimension"),
        aten.max_pool2d_with_indices: _POOLING,
        aten.max_pool3d_with_indices: _POOLING,
    }

    def supports(self, node: Node) -> bool | str:
        """Return whether Relax's importer of exported programs has the operator."""
        name = getattr(node.target, "__name__", "")
        return name in _known() or "Relax's importer has no translation for it"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Import and compile a program, and return what runs it in Relax's virtual machine."""
        import tvm.relax  # noqa: PLC0415 (when something is compiled; it takes seconds)
        from tvm.relax.frontend.torch import from_exported_program  # noqa: PLC0415 (likewise)

        def compile_to(library: Path) -> None:
            module = from_exported_program(program.exported, run_ep_decomposition=False)
            with tvm.target.Target("llvm"):
                module = tvm.relax.transform.DecomposeOpsForInference()(module)
                module = tvm.relax.transform.LegalizeOps()(module)
            tvm.relax.build(module, target="llvm").export_library(str(library))

        with program.kept_file("program.so", compile_to) as library:
            machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

        def run(*tensors: torch.Tensor) -> list[Any]:
            given = [tvm.runtime.from_dlpack(aligned(x)) for x in tensors]
            return list(machine["main"](*given))

        return run


@functools.cache
def _known() -> frozenset[str]:
    from tvm.relax.frontend.torch import exported_program_translator  # noqa: PLC0415 (as above)

    return frozenset(exported_program_translator.ExportedProgramImporter().create_convert_map())


backbay_tvm = TVM()
