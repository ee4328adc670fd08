"""Compile graphs with Inductor; what it finds out of Triton kernels of ours is kept."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from backbay.kit.codegen import Codegen, Compiled
from backbay_optimizer.inductor.kernel_analysis import analyses_kept
from backbay_optimizer.inductor.static_launch import is_off, marked, static_launch


class InductorCodegen:
    """Compiles graphs of CUDA devices with `compile_graph`."""

    def __init__(self, mode: str | None, options: Mapping[str, Any], other: Codegen) -> None:
        """Make one.

        Args:
            mode: as torch.compile takes it.
            options: Inductor's.
            other: Inductor as the registry has it: compiles graphs of other devices, and words
                errors.
        """
        self._mode = mode
        self._options = options
        self._other = other

    def __call__(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Compile a graph."""
        if not on_cuda(graph_module, example_inputs):
            return self._other(graph_module, example_inputs)
        with self.explained():
            patches = inductor_settings(self._mode, self._options)
            return compile_graph(graph_module, example_inputs, patches)

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Return a context whose errors name Inductor, and what to do about a known fault."""
        return explained(self._other)


def explained(codegen: Codegen) -> contextlib.AbstractContextManager[None]:
    """Return a context in which errors are told as a code generator tells its own."""
    found: Any = getattr(codegen, "explained", contextlib.nullcontext)
    return found()  # type: ignore[no-any-return]


def inductor_settings(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return Inductor's settings for a mode and options, as torch.compile makes them."""
    configured = torch._TorchCompileInductorWrapper(mode, dict(options), None)  # type: ignore[no-untyped-call] # noqa: SLF001 (torch.compile's own way)
    return dict(configured.config)


def on_cuda(graph_module: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Return whether a graph has anything on a CUDA device."""
    held = (*graph_module.parameters(), *graph_module.buffers(), *example_inputs)
    return any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in held)


def compile_graph(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    patches: Mapping[str, Any],
    seen: Callable[[Any], None] = lambda _: None,
) -> Compiled:
    """Compile a graph.

    Args:
        graph_module: Dynamo's, after the passes.
        example_inputs: its inputs.
        patches: Inductor's settings.
        seen: is given the code of each forward and backward that is compiled, and of none that
            comes from AOTAutograd's cache.
    """
    from torch._inductor import compile_fx  # noqa: PLC0415 (as late as Inductor)

    settings, kept = dict(patches), analyses_kept
    if not is_off(patches):
        settings, kept = marked(patches), _kept

    def inner(*given: Any, **more: Any) -> Any:
        with kept():  # a backward, too, which is compiled when it first runs
            code = compile_fx.compile_fx_inner(*given, **more)
        seen(code)
        return code

    with kept():
        run: Any = compile_fx.compile_fx(
            graph_module, example_inputs, inner_compile=inner, config_patches=settings
        )
    return run  # type: ignore[no-any-return]


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    with analyses_kept(), static_launch():
        yield
