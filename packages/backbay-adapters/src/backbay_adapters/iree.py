"""IREE: graphs become MLIR of the torch dialect, which its compiler makes code for this CPU of."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node

from backbay.kit.engine import Engine, core_aten
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program


def _batch_norm(  # noqa: PLR0917 (its own arguments)
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, _: float, eps: float
) -> tuple[torch.Tensor, ...]:
    mean, scale = (y.view(-1, *[1] * (x.ndim - 2)) for y in (mean, (var + eps).rsqrt()))
    x = (x - mean) * scale  # MLIR's torch dialect does not have it in inference
    x = x if weight is None else x * weight.view_as(mean)
    x = x if bias is None else x + bias.view_as(mean)
    return x, x.new_empty(0), x.new_empty(0)


class IREE(Engine):
    """IREE on CPUs, for inference and training."""

    name = "backbay_iree"
    engine = "iree-base-compiler"
    decompositions: ClassVar = {
        **core_aten(),
        torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm,  # noqa: SLF001
    }

    def supports(self, node: Node) -> bool | str:
        """Return whether the torch dialect of MLIR has the operator."""
        name = f"torch.{str(node.target).removesuffix('.default')}"
        known = not hasattr(node.target, "_schema") or _context().is_registered_operation(name)
        return known or "not in MLIR's torch dialect"

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
