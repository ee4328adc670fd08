"""IREE: graphs become MLIR of the torch dialect, which its compiler makes code for this CPU of."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node

from backbay.kit.decompositions import BATCH_NORM, WRAPPED_INDICES, core_aten
from backbay.kit.engine import Engine
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program
from backbay_adapters.conditions import may_lose_a_sign, may_take_off

aten = torch.ops.aten
_SCATTERS = (aten.as_strided_scatter, aten.diagonal_scatter)
_OTHERS = (aten.copysign, aten.fmod, aten.log10, aten.permute_copy, aten.signbit)
_REDUCING = (aten.scatter.reduce, aten.scatter.value_reduce)


class IREE(Engine):
    """IREE on CPUs, for inference and training."""

    name = "backbay_iree"
    engine = "iree-base-compiler"
    libraries = ("iree-base-runtime",)
    # Its own gelu with tanh is an approximation; batch norm in inference it has not. A negative
    # index of what it writes kills the process.
    decompositions: ClassVar = {**core_aten(aten.gelu), **BATCH_NORM, **WRAPPED_INDICES}
    refuses: ClassVar = {
        aten.constant_pad_nd: (may_take_off, "IREE's padding takes nothing off"),
        aten.pow: (may_lose_a_sign, "IREE loses the sign of the base, or 0 to the power of 0"),
        **dict.fromkeys((*_SCATTERS, *_REDUCING, *_OTHERS), "IREE has no code for it"),
    }

    def supports(self, node: Node) -> bool | str:
        """Return whether the torch dialect of MLIR has the operator."""
        name = f"torch.{str(node.target).removesuffix('.default')}"
        return _context().is_registered_operation(name) or "not in MLIR's torch dialect"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Compile a program, and return what runs it in IREE's virtual machine."""
        from iree import runtime  # noqa: PLC0415 (when something is compiled)

        compiled = program.kept(lambda: _compiled(program))
        many = torch.get_num_threads() > 1
        config = runtime.Config(device=runtime.get_device("local-task" if many else "local-sync"))
        module = runtime.VmModule.copy_buffer(config.vm_instance, compiled)
        main = runtime.load_vm_module(module, config).main

        def run(*tensors: torch.Tensor) -> list[Any]:
            made = main(*map(shared_array, tensors))
            return [x.to_host() for x in (made if isinstance(made, tuple) else (made,))]

        return run


def _compiled(program: Program) -> Any:
    from iree.compiler import compile_str  # noqa: PLC0415 (likewise)
    from iree.compiler.extras.fx_importer import FxImporter  # noqa: PLC0415 (likewise)

    importer = FxImporter()
    importer.import_program(program.exported)
    return compile_str(
        str(importer.module),
        target_backends=["llvm-cpu"],
        input_type="torch",
        extra_args=["--iree-llvmcpu-target-cpu=host"],
    )


@functools.cache
def _context() -> Any:
    from iree.compiler.extras.fx_importer import FxImporter  # noqa: PLC0415 (likewise)

    return FxImporter().module.context


backbay_iree = IREE()
