"""Which of Inductor's code can be captured: what of it does nothing but hand work to one device."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

WAITS = ("item", "tolist", "cpu", "nonzero", "synchronize")
"""Methods that wait for the device, or copy from it."""
SAFE: Mapping[str, re.Pattern[str]] = {
    # Triton's, cuDNN's and cuBLAS's kernels alone: they wait for nothing.
    "backbay": re.compile(r".*"),
    "inductor": re.compile(r"_alloc_from_pool|_reinterpret_tensor|accumulate_grad_|_?seeds?"),
    "aten": re.compile(
        r"""
        _? (?:add|baddb|b|int_|scaled_)? mm (?:_dtype)? | bias_addmm | addmv | mv | dot
        | _?addmm_activation | _scaled_mm(?:_v2)? | convolution (?:_backward)?
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


def refusal(code: Any) -> str | None:
    """Return why Inductor's code is not captured; None if it may be."""
    return next(_reasons(code), None)


def _reasons(code: Any) -> Iterator[str]:
    given = code.fx_kwargs
    devices = sorted(code.device_types)
    if devices != ["cuda"] or len(code.device_idxs) != 1:
        yield f"it runs on {', '.join(devices)}, {len(code.device_idxs)} of CUDA"
    if given.get("cpp_wrapper") or given.get("fx_wrapper"):
        yield "its wrapper is not in Python"
    written = set(code.mutated_input_idxs)
    if not given.get("is_backward"):  # whose fixed inputs are all that was saved for it
        written -= set(given.get("static_input_idxs") or ())
    if written:
        yield f"it writes {len(written)} inputs that are neither parameters nor buffers"
    yield from _unsafe(code.source_code)


def _unsafe(source: str) -> Iterator[str]:
    # Comments and the sources of kernels, which are text, name operators that are not called.
    paths, spaces = _named(ast.parse(source))
    for path in paths:
        for owner, name in _steps(path):
            if name in WAITS:
                yield f"it waits for the device: {name}"
            for space in sorted({_space(owner), *spaces.get(owner, ())} - {None}):
                if not (space in SAFE and SAFE[space].fullmatch(name)):
                    yield f"{space}.{name} is not known to be safe in a CUDA graph"


def _named(tree: ast.AST) -> tuple[list[str], dict[str, set[str | None]]]:
    """Return the dotted names of code, and which namespaces of operators such a name may be.

    In one walk, which unlike ``ast.walk`` makes no generator for each node: code of a large network
    has 20,000, and all of a warm start waits for this.
    """
    paths, nodes = dict[str, None](), [tree]
    spaces: dict[str, set[str | None]] = {"extern_kernels": {"aten"}}
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Attribute):
            path, start = _path(node)
            paths[path] = None
            nodes.append(start)
            continue
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            for target in node.targets:
                spaces.setdefault(_path(target)[0], set()).add(_space(_path(node.value)[0]))
        for name in node._fields:
            below = getattr(node, name, None)
            if isinstance(below, list):
                nodes += [x for x in below if isinstance(x, ast.AST)]
            elif isinstance(below, ast.AST):
                nodes.append(below)
    return [*paths], spaces


def _path(node: ast.expr) -> tuple[str, ast.expr]:
    """Return a dotted name, and what it begins with: ``.c`` of ``f(x).c``, and ``f(x)``.

    Of what is no name, such as ``x[0]``, the name is empty.
    """
    names = list[str]()
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    first = node.id if isinstance(node, ast.Name) else ""
    return ".".join((first, *reversed(names))), node


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Yield each name of a path, and of what it is: of ``a.b.c`` these are b of a, c of a.b."""
    names = path.split(".")
    for end in range(1, len(names)):
        yield ".".join(names[:end]), names[end]


def _space(path: str) -> str | None:
    """Return the namespace of operators that a dotted name is; None if it is none."""
    torch, _, space = path.partition(".ops.")
    return space if torch == "torch" and space.isidentifier() else None
