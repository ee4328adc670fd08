"""The code that Inductor writes for an NVIDIA GPU, on a machine that has none.

Shapes, layouts and fusions are decided from fake tensors; only few things are asked of the GPU
itself. They are answered here as an H200 would, so that what a rewrite does to the calls of a GPU
can be counted, and tested, anywhere. Nothing can be run, and no choice by timing is made.
"""

import contextlib
import importlib
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._inductor.lowering
import torch.utils._pytree as pytree
import torch.utils._triton
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode, fake_tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget

from backbay.graph.values import value_of
from backbay.kit.codegen import boxed

_FX: Any = importlib.import_module("torch._inductor.compile_fx")  # it exports none of what is used
_CUDNN: Any = torch._C._ConvBackend.Cudnn  # type: ignore[attr-defined] # torch's stub lacks it
H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=139 << 30,
    L2_cache_size=60 << 20,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    gcnArchName="",
)
_CAPABILITY = (H200.major, H200.minor)
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)'''", re.DOTALL)
_CALL = re.compile(r"(?:= |^)(\w+)\.run\(|(extern_kernels\.\w+)\(|= (torch\.ops\.[\w.]+)\(")


def code_for_cuda(graph_module: GraphModule, inputs: Sequence[torch.Tensor]) -> str:
    """Return what Inductor writes for a graph of Dynamo's, in inference, were its inputs on a GPU.

    Args:
        graph_module: a graph without constants; it is not changed.
        inputs: tensors with the sizes, strides and dtypes of its inputs, on any device.
    """
    with _as_on_a_gpu(), torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = [
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
                for x in inputs
            ]
            decompositions = select_decomp_table()
            functional = torch.func.functionalize(graph_module, remove="mutations_and_views")
            aten = make_fx(functional, decomposition_table=decompositions)(*fakes)
        lowering = GraphLowering(aten, is_inference=True)
        with (
            V.set_graph_handler(lowering),
            V.set_fake_mode(mode),
            V.set_debug_handler(DebugContext()),
        ):
            lowering.run(*fakes)
            code, _ = lowering.codegen()
    return code.value


def training_codes_for_cuda(
    function: Callable[..., torch.Tensor],
    *inputs: torch.Tensor,
    rewrite: Callable[[GraphModule], object] | None = None,
) -> list[str]:
    """Return what Inductor writes for the forward and backward of a function, were it on a GPU.

    AOTAutograd needs a device that it can ask for streams: it runs on the CPU, and what it made is
    taken to the GPU, so an operator that it decomposes in another way there is not seen.

    Args:
        function: a function or module that is one graph; nothing of it runs.
        inputs: on the CPU, of which nothing is read. Results may not be written in place by parts.
        rewrite: changes Dynamo's graph before it is compiled. What it knows of a GPU by asking a
            tensor for its device, it has to be told.
    """
    codes: list[str] = []

    def written(graph_module: GraphModule, _: Any, **how: Any) -> Callable[..., Any]:
        (output,) = graph_module.graph.find_nodes(op="output")
        results = [value_of(x) if isinstance(x, Node) else None for x in output.args[0]]
        with _as_on_a_gpu():
            codes.append(_lowered(graph_module, bool(how.get("is_backward"))))
        return boxed(lambda *_: [_empty(x) for x in results])

    def compile_(graph_module: GraphModule, examples: Sequence[Any]) -> Any:
        if rewrite is not None:
            rewrite(graph_module)
        return _FX.compile_fx(graph_module, examples, inner_compile=written)

    torch.compiler.reset()
    uncached = inductor_config.patch(force_disable_caches=True, compile_threads=1)
    with _libraries_of_a_gpu(), uncached:
        total: Any = torch.compile(function, backend=compile_, fullgraph=True)(*inputs).sum()
        total.backward()
    return codes


def _lowered(graph_module: GraphModule, is_backward: bool) -> str:
    _move(graph_module)
    fakes = [value_of(x) for x in graph_module.graph.find_nodes(op="placeholder")]
    with V.set_fake_mode(fakes[0].fake_mode), V.set_debug_handler(DebugContext()):
        _FX.record_original_output_strides(graph_module)
        _FX.view_to_reshape(graph_module)
        _FX._recursive_post_grad_passes(graph_module, is_inference=False)
        lowering = GraphLowering(graph_module, is_backward=is_backward)
        with V.set_graph_handler(lowering):
            lowering.run(*fakes)
            return lowering.codegen()[0].value


def _move(graph_module: GraphModule) -> None:
    """Have a graph of fake tensors on the CPU be one of a GPU."""

    def moved(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cuda", 0)
        if not isinstance(x, fake_tensor.FakeTensor):
            return x
        with x.fake_mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    for node in graph_module.graph.nodes:
        node.args, node.kwargs = pytree.tree_map(moved, (node.args, node.kwargs))
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(moved, node.meta["val"])


def _empty(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


def calls(code: str) -> Counter[str]:
    """Count what the code hands to the GPU, by what is called; Triton's kernels by their names."""
    body = code[code.index("def call(") :].splitlines()
    found = (_CALL.search(line.strip()) for line in body if not line.strip().startswith("#"))
    return Counter(next(filter(None, x.groups())) for x in found if x is not None)


def seconds_to_compile(code: str) -> list[float]:
    """Return the seconds that Triton takes for each kernel of the code, one after another."""
    kernels = _KERNEL.findall(code)
    _compiled(kernels[:1])  # who is first pays for what Triton loads
    return _compiled(kernels)


def _compiled(kernels: Sequence[tuple[str, str]]) -> list[float]:
    times = []
    with (
        _as_on_a_gpu(),
        mock.patch.object(triton_helpers, "set_driver_to_gpu"),
        tempfile.TemporaryDirectory(prefix="backbay-kernels-") as folder,
        mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder, TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        for name, source in kernels:
            kernel = getattr(PyCodeCache.load(source), name)
            start = time.perf_counter()
            kernel.precompile(warm_cache_only=True)
            times.append(time.perf_counter() - start)
    return times


@contextlib.contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "get_device_properties", lambda *_: H200),
        (torch.cuda, "get_device_capability", lambda *_: _CAPABILITY),
        (torch.cuda, "get_device_name", lambda *_: H200.name),
        (CudaInterface, "is_available", lambda *_: True),
        (CudaInterface, "current_device", lambda *_: 0),
        (CudaInterface, "get_device_properties", lambda *_: H200),
        (CudaInterface.Worker, "get_device_properties", lambda *_: H200),
        (fake_tensor, "init_gpu_context", lambda *_: None),
    ]
    with contextlib.ExitStack() as stack:
        for place, name, answer in answers:
            stack.enter_context(mock.patch.object(place, name, answer))
        stack.enter_context(_libraries_of_a_gpu())
        _forget_triton()
        stack.callback(_forget_triton)
        yield


@contextlib.contextmanager
def _libraries_of_a_gpu() -> Iterator[None]:
    """Have Triton compile for a GPU, and convolutions lay out their results as cuDNN does."""
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
    )
    active = property(lambda _: driver)
    with (
        mock.patch.object(type(triton.runtime.driver), "active", active),
        mock.patch.object(torch._C, "_select_conv_backend", return_value=_CUDNN),
        mock.patch.object(torch._C, "_conv_determine_backend_memory_format", _cudnns_layout),
    ):
        yield


def _cudnns_layout(x: torch.Tensor, weight: torch.Tensor, _: Any) -> torch.memory_format:
    last = any(y.stride(1) == 1 and y.shape[1] > 1 for y in (x, weight))
    return torch.channels_last if last else torch.contiguous_format


def _forget_triton() -> None:
    # Whether Triton works here is asked once, and kept.
    for function in vars(torch.utils._triton).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
