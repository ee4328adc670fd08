"""Which of Inductor's code can be captured: what of it does nothing but hand work to one device."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from backbay.graph.values import value_of

CALLS = re.compile(
    r"(?:torch\.ops\.(\w+)|\b(aten|prims|inductor_ops|_quantized|extern_kernels))\.(\w+)"
)
"""A call of an operator in Inductor's code."""
WAITS = re.compile(r"\.(?:item|tolist|cpu|nonzero)\(|torch\.cuda\.synchronize")
"""What waits for the device, or copies from it."""
NAMESPACES = {"inductor_ops": "inductor", "extern_kernels": "aten", None: ""}
SAFE: Mapping[str, re.Pattern[str]] = {
    # Triton's, cuDNN's and cuBLAS's kernels alone: they wait for nothing.
    "backbay": re.compile(r".*"),
    "inductor": re.compile(
        r"_alloc_from_pool|_reinterpret_tensor|accumulate_grad_|resize_storage_bytes_|_?seeds?"
    ),
    "aten": re.compile(
        r"""
        _? (?:add|baddb|b|int_|scaled_)? mm (?:_dtype)? | bias_addmm | addmv | mv | dot
        | _scaled_mm(?:_v2)? | convolution (?:_backward)?
        | cudnn_(?:batch_norm|convolution) \w* | (?:native|_native)_(?:batch|group|layer)_norm \w*
        | _scaled_dot_product_(?:flash|efficient|cudnn|fused)_attention (?:_\w+)? (?:_backward)?
        | _(?:flash|efficient|cudnn)_attention_(?:forward|backward)
        | (?:_?adaptive_)? (?:avg|max)_pool[123]d \w* | upsample_\w+ | _upsample_\w+
        | grid_sampler_[23]d (?:_backward)? | embedding_dense_backward | embedding
        | reflection_pad\w+ | replication_pad\w+ | constant_pad_nd
        | randint | rand | randn | rand_like | randn_like | bernoulli_? | native_dropout
        | copy_ | fill_ | zero_ | clone | cat | stack | index_put_? | _unsafe_index_put | index
        | index_select | index_add_? | gather | scatter_? | scatter_add_? | scatter_reduce_?
        | sort | topk | cumsum | cumprod | logcumsumexp | view | as_strided | permute | slice
        | _foreach_\w+ | _fused_(?:adam|adamw|sgd|adagrad)_?
        """,
        re.VERBOSE,
    ),
    "prims": re.compile(r".*"),
}
"""By namespace, operators that were read or seen to do nothing but hand over work."""


def refusal(
    code: Any, graph_module: GraphModule, example_inputs: Sequence[Any], given: Mapping[str, Any]
) -> str | None:
    """Return why Inductor's code is not captured; None if it may be.

    Args:
        code: Inductor's compiled graph.
        graph_module: what it was compiled from.
        example_inputs: the inputs of that.
        given: what Inductor's inner compiler was told.
    """
    return next(_reasons(code, graph_module, example_inputs, given), None)


def _reasons(
    code: Any, graph_module: GraphModule, example_inputs: Sequence[Any], given: Mapping[str, Any]
) -> Iterator[str]:
    devices = sorted(code.device_types)
    if devices != ["cuda"] or len(code.device_idxs) != 1:
        yield f"it runs on {', '.join(devices)}, {len(code.device_idxs)} of CUDA"
    if given.get("cpp_wrapper") or given.get("fx_wrapper"):
        yield "its wrapper is not in Python"
    strange = [x for x in example_inputs if not isinstance(x, (torch.Tensor, torch.SymInt, int))]
    if strange:
        yield f"an input is a {type(strange[0]).__name__}"
    written = set(code.mutated_input_idxs) - set(given.get("static_input_idxs") or ())
    if written:
        yield f"it writes {len(written)} inputs that are neither parameters nor buffers"
    for node in graph_module.graph.nodes:
        value = value_of(node)
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            yield f"{node.name} is of layout {value.layout}"
    yield from _unsafe(code.source_code)


def _unsafe(source: str) -> Iterator[str]:
    if waits := WAITS.search(source):
        yield f"it waits for the device: {waits[0]}"
    for call in CALLS.finditer(source):
        space = NAMESPACES.get(call[1] or call[2], call[1] or call[2])
        if space == "inductor" and call[3] == "resize_storage_bytes_":
            yield "it resizes the memory of an input"
        safe = SAFE.get(space)
        if safe is None or safe.fullmatch(call[3]) is None:
            yield f"{space}.{call[3]} is not known to be safe in a CUDA graph"
