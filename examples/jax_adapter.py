"""JAX on CPUs as a backend: torchax has operators as functions of JAX, and XLA compiles those."""

import importlib.util
import sys
from typing import Any, ClassVar

import torch

import backbay
from backbay.kit.engine import Engine
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program


def function_of(target: Any) -> Any:
    """Return torchax's function for an operator, or the operator itself where it has none."""
    if "torchax" not in sys.modules:
        # The package's own code makes "jax" PyTorch's accelerator, which Dynamo 2.13 can't ask for
        # a stream, and torchax.amp names overloads that PyTorch 2.13 lacks. So neither runs.
        spec: Any = importlib.util.find_spec("torchax")
        sys.modules["torchax"] = package = importlib.util.module_from_spec(spec)
        vars(package)["amp"] = None
    table = importlib.import_module("torchax.ops.jaten").ops_registry.all_aten_ops
    entry = table.get(target) or table.get(getattr(target, "overloadpacket", None))
    return entry.func if entry is not None else target


class InJax(torch.fx.Interpreter):
    """Runs a graph on JAX's arrays."""

    def get_attr(self, *place: Any) -> Any:
        """Return a constant."""
        return shared_array(super().get_attr(*place))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator computes."""
        return function_of(target)(*args, **kwargs)


class Jax(Engine):
    """JAX, through torchax."""

    engine = "jax"
    refuses: ClassVar = {torch.ops.aten.max_pool2d_with_indices_backward: "wrong in torchax"}

    def supports(self, node: torch.fx.Node) -> bool | str:
        """Return whether torchax has an operator."""
        return function_of(node.target) is not node.target or "not in torchax"

    def build(self, program: Program) -> Any:
        """Compile a program with XLA."""
        jax, run = importlib.import_module("jax"), InJax(program.graph_module).run
        in_64_bits = jax.enable_x64(new_val=True)
        inputs = [jax.ShapeDtypeStruct(x.shape, str(x.dtype)[6:]) for x in program.inputs]
        call = in_64_bits(in_64_bits(jax.jit(run).lower)(*inputs).compile())
        return lambda *tensors: jax.block_until_ready(call(*map(shared_array, tensors)))


backbay_jax = Jax()
backbay.register_backend(backbay_jax, "backbay_jax")
