"""JAX on CPUs as a backend of torch.compile: torchax translates operators, XLA compiles them.

    pip install backbay-adapters jax torchax
    backbay verify hf:bert --backend examples/jax_adapter.py:backbay_jax --device cpu
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch

import backbay
from backbay.kit.engine import Engine
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """Return the functions of JAX that torchax 0.0.13 has for operators."""
    # The package itself isn't run: it makes "jax" PyTorch's accelerator, which Dynamo can't do with.
    # torchax.amp names overloads that PyTorch 2.13 no longer has.
    sys.modules["torchax"] = package = importlib.util.module_from_spec(
        importlib.util.find_spec("torchax")
    )
    package.amp = None
    importlib.import_module("torchax.ops.jaten")  # fills the registry
    from torchax.ops.ops_registry import all_aten_ops

    return {target: entry.func for target, entry in all_aten_ops.items() if entry.is_jax_function}


def function_of(target: Any) -> Callable[..., Any] | None:
    """Return what computes an operator in JAX, or None."""
    return table().get(target) or table().get(getattr(target, "overloadpacket", None))


class InJax(torch.fx.Interpreter):
    """Runs a graph on JAX's arrays."""

    def get_attr(self, *place: Any) -> Any:
        """Return a constant."""
        return shared_array(super().get_attr(*place))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator computes."""
        return super().call_function(function_of(target) or target, args, kwargs)


class Jax(Engine):
    """JAX, through torchax's functions for operators."""

    engine = "jax"

    def supports(self, node: torch.fx.Node) -> bool | str:
        """Return whether torchax has a function for an operator."""
        return function_of(node.target) is not None or "torchax has none"

    def build(self, program: Program) -> Callable[..., list[Any]]:
        """Compile a program with XLA."""
        import jax

        arrays = [jax.ShapeDtypeStruct(x.shape, str(x.dtype)[6:]) for x in program.inputs]
        with jax.enable_x64(True):
            compiled = jax.jit(InJax(program.graph_module).run).lower(*arrays).compile()

        def run(*tensors: torch.Tensor) -> list[Any]:
            with jax.enable_x64(True):
                return list(jax.block_until_ready(compiled(*map(shared_array, tensors))))

        return run


backbay_jax = Jax()
backbay.register_backend(backbay_jax, "backbay_jax")
