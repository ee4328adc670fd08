"""Which of Inductor's code can be captured: what of it does nothing but hand work to one device."""

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

_OPERATORS = "torch.ops."
_QUOTED = "(?:{})".format(
    "|".join(
        rf"{q}{{3}}(?:[^{q}\\]+|\\.|{q}(?!{q}{q}))*{q}{{3}}|{q}(?:[^{q}\\\n]+|\\.)*{q}"
        for q in "'\""
    )
)
_TEXT = re.compile(rf"((?:f|fr|rf){_QUOTED})|{_QUOTED}|#[^\n]*", re.DOTALL | re.IGNORECASE)
"""Comments and texts, as kernels are: what they name is not called. As a group texts that are
formatted, in which something may be."""
_PATH = re.compile(r"(?:\b\w+)?(?:\s*\.\s*[^\W\d]\w*)+")
_ALIAS = re.compile(r"^\s*([\w.]+)\s*=\s*torch\.ops\.(\w+)\s*$", re.MULTILINE)
"""What the code calls a namespace of operators, and the namespace."""


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
    # By its text: to parse the code takes as long as all that a cache does to load it.
    bare = _TEXT.sub(r"\1", source)
    spaces = {"extern_kernels": "aten", **dict(_ALIAS.findall(bare))}
    paths = {"".join(x.split()): None for x in _PATH.findall(bare)}
    for owner, name in dict.fromkeys(x for path in paths for x in _split(path)):
        if name in WAITS:
            yield f"it waits for the device: {name}"
        space = spaces.get(owner)
        if owner.startswith(_OPERATORS) and owner.count(".") == _OPERATORS.count("."):
            space = owner.removeprefix(_OPERATORS)
        if space is not None and not (space in SAFE and SAFE[space].fullmatch(name)):
            yield f"{space}.{name} is not known to be safe in a CUDA graph"


def _split(path: str) -> Iterator[tuple[str, str]]:
    """Yield each name that is asked for, and of what: of ``a.b.c`` these are b of a, c of a.b."""
    names = path.split(".")
    for end in range(1, len(names)):
        yield ".".join(names[:end]), names[end]
