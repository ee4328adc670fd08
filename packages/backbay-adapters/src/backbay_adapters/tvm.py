"""Apache TVM: graphs become Relax programs, and LLVM compiles them; untuned, so right and slow."""

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch._decomp import get_decompositions
from torch.fx import Node

from backbay.kit.engine import Engine, core_aten
from backbay.kit.program import Program

aten = torch.ops.aten
_POOLS = (aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)


class TVM(Engine):
    """Apache TVM on CPUs, for inference and training; untuned, and so slow."""

    name = "backbay_tvm"
    engine = "apache-tvm"
    # Relax's own norms give the first of their results only; training reads the others too.
    decompositions: ClassVar = {
        **core_aten(),
        **get_decompositions([aten.native_layer_norm, aten.native_group_norm]),
    }

    def supports(self, node: Node) -> bool | str:
        """Return whether Relax's importer of exported programs has the operator."""
        if node.target is aten.index_put.default:
            indices: Any = node.args[1]
            if None in indices or len(indices) != node.meta["val"].ndim:
                return "Relax wants an index for each dimension"
        if node.target in _POOLS and any(x.args[1] != 0 for x in node.users):
            return "Relax's importer gives zeros for the indices"
        name = getattr(node.target, "__name__", "")
        return name in _known() or "Relax's importer has no translation for it"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Import and compile a program, and return what runs it in Relax's virtual machine."""
        import tvm.relax  # noqa: PLC0415 (when something is compiled; it takes seconds)

        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "program.so"
            library.write_bytes(program.kept(lambda: _compiled(program)))
            machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

        def run(*tensors: torch.Tensor) -> list[Any]:
            given = [tvm.runtime.from_dlpack(x.detach().contiguous()) for x in tensors]
            return list(machine["main"](*given))

        return run


def _compiled(program: Program) -> bytes:
    import tvm.relax  # noqa: PLC0415 (as above)
    from tvm.relax.frontend.torch import from_exported_program  # noqa: PLC0415 (likewise)

    module = from_exported_program(program.exported, run_ep_decomposition=False)
    with tvm.target.Target("llvm"):
        module = tvm.relax.transform.DecomposeOpsForInference()(module)
        module = tvm.relax.transform.LegalizeOps()(module)
    made = tvm.relax.build(module, target="llvm")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "program.so"
        made.export_library(str(library))
        return library.read_bytes()


@functools.cache
def _known() -> frozenset[str]:
    from tvm.relax.frontend.torch import exported_program_translator  # noqa: PLC0415 (as above)

    return frozenset(exported_program_translator.ExportedProgramImporter().create_convert_map())


backbay_tvm = TVM()
