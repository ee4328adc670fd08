"""What a run gave, as a file for another process: a bounded header and raw bytes, never code.

Tensors are kept in the safetensors format, as bytes; their dtypes, shapes and strides, and what
else was observed of the run, are JSON in its header. A sparse one is kept as its parts. Whoever
reads such a file need not trust who wrote it: what does not fit together is `InvalidEvidence`.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from backbay.proof.outcome import Outcome

MOST_PICKED = 1 << 14
"""Elements of one tensor that are handed on where not all are."""
_MOST_HEADER = 1 << 24
_KEY = "backbay"
_DTYPES = {
    str(x).removeprefix("torch."): x
    for x in vars(torch).values()
    if isinstance(x, torch.dtype) and "q" not in str(x)
}
_GROUPS = ("tensors", "gradients", "changed")
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""Of each sparse layout, the methods that return what it is made of."""
SPARSE_LAYOUTS = frozenset(_PARTS)
_SPARSE = {str(x).removeprefix("torch."): x for x in _PARTS}
_MOST_GAPS = 64
"""Elements of memory for each of a tensor's, at most, for it to be laid out with its gaps."""


class InvalidEvidence(Exception):  # noqa: N818 (what a file is, not a failure of who reads it)
    """A file does not hold what a run gave; the message says why, to follow a colon."""


class _Layout(msgspec.Struct, frozen=True, array_like=True):
    """How the bytes of one tensor are to be read."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Sparse(msgspec.Struct, frozen=True, array_like=True):
    """How the parts of one sparse tensor are to be put together."""

    layout: str
    shape: tuple[int, ...]
    coalesced: bool


class _Rest(msgspec.Struct, frozen=True, kw_only=True):
    """What an outcome holds beside tensors."""

    requires_grad: dict[str, bool]
    plain: dict[str, Any]
    structure: str
    aliases: tuple[tuple[str, str], ...]
    unreached: tuple[str, ...]
    """Gradients that are None."""
    parameters: dict[str, str]
    """Fingerprints, which are wider than JSON's numbers."""
    opaque: tuple[str, ...]
    devices: dict[str, str]
    seeded: tuple[str, ...]


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    layouts: dict[str, _Layout]
    sparse: dict[str, _Sparse] = {}
    rest: _Rest | None = None


def picked(outcome: Outcome, seed: int) -> Outcome:
    """Return an outcome with some elements of each large tensor, drawn from a seed.

    The shape and dtype of such a tensor become plain values, which are compared as well. Outcomes
    of equal names and shapes are reduced to the same elements.
    """
    shapes: dict[str, str] = {}

    def some(name: str, value: torch.Tensor | None) -> Any:
        if value is None or value.numel() <= MOST_PICKED or value.layout != torch.strided:
            return value
        shapes[f"shape of {name}"] = str(list(value.shape))
        generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
        positions = torch.randint(value.numel(), (MOST_PICKED,), generator=generator)
        return value.reshape(-1)[positions.to(value.device)]

    tensors, gradients, changed = (
        {name: some(name, x) for name, x in named.items()}
        for named in (outcome.tensors, outcome.gradients, outcome.changed)
    )
    return replace(
        outcome,
        tensors=tensors,
        gradients=gradients,
        changed=changed,
        plain=outcome.plain | shapes,
    )


def portable(outcome: Outcome) -> Outcome:
    """Return an outcome whose plain values are as `write` and `read` leave them."""
    return replace(outcome, plain={name: _portable(x) for name, x in outcome.plain.items()})


def write(outcome: Outcome, path: str | PathLike[str]) -> None:
    """Write an outcome to a file.

    Raises:
        InvalidEvidence: it holds a tensor that is not plain memory, such as a quantized one.
    """
    gradients = {name: x for name, x in outcome.gradients.items() if x is not None}
    groups = {"tensors": outcome.tensors, "gradients": gradients, "changed": outcome.changed}
    rest = _Rest(
        requires_grad=outcome.requires_grad,
        plain=portable(outcome).plain,
        structure=outcome.structure,
        aliases=tuple(sorted(outcome.aliases)),
        unreached=tuple(outcome.gradients.keys() - gradients.keys()),
        parameters={name: str(x) for name, x in outcome.parameters.items()},
        opaque=outcome.opaque,
        devices=outcome.devices,
        seeded=outcome.seeded,
    )
    tensors = {
        f"{group} {n}": x
        for group, named in groups.items()
        for n, x in named.items()
        if not x.is_meta  # there are no bytes, and its device says so
    }
    write_tensors(tensors, path, rest)


def read(path: str | PathLike[str]) -> Outcome:
    """Read an outcome, on the CPU.

    Raises:
        InvalidEvidence: the file holds none.
    """
    tensors, rest = _read(path)
    if rest is None:
        raise InvalidEvidence("it says nothing of the run")
    groups: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
    for key, value in tensors.items():
        group, _, name = key.partition(" ")
        if group not in groups:
            raise InvalidEvidence(f"nobody knows what {key[:80]!r} is")
        groups[group][name] = value
    groups["gradients"] |= dict.fromkeys(rest.unreached)
    return Outcome(
        **groups,
        requires_grad=rest.requires_grad,
        plain=rest.plain,
        structure=rest.structure,
        aliases=frozenset(rest.aliases),
        parameters={name: int(x) for name, x in rest.parameters.items()},
        opaque=rest.opaque,
        devices=rest.devices,
        seeded=rest.seeded,
    )


def write_tensors(
    tensors: Mapping[str, torch.Tensor], path: str | PathLike[str], rest: _Rest | None = None
) -> None:
    """Write tensors to a file; no two of them may share memory.

    Raises:
        InvalidEvidence: one is not plain memory.
    """
    raw, layouts, sparse = {}, {}, {}
    for name, value in tensors.items():
        if value.layout in _PARTS:
            coalesced = value.layout == torch.sparse_coo and value.is_coalesced()
            layout = str(value.layout).removeprefix("torch.")
            sparse[name] = _Sparse(layout, tuple(value.shape), coalesced)
            found = {_part(name, x): getattr(value.detach(), x)() for x in _PARTS[value.layout]}
        else:
            found = {name: value}
        for part, plain in found.items():
            if plain.layout != torch.strided or plain.is_quantized:
                raise InvalidEvidence(f"{name} is {value.layout}, and no plain memory")
            here = plain.detach().resolve_conj().resolve_neg()
            layouts[part] = _Layout(_dtype_name(here), tuple(here.shape), here.stride())
            flat = here.contiguous().cpu().flatten()
            if flat.stride(0) != 1:  # of one element, any stride is contiguous
                flat = flat.clone(memory_format=torch.contiguous_format)
            raw[part] = flat.view(torch.uint8)
    header = msgspec.json.encode(_Header(layouts=layouts, sparse=sparse, rest=rest)).decode()
    save_file(raw, path, metadata={_KEY: header})


def read_tensors(path: str | PathLike[str]) -> dict[str, torch.Tensor]:
    """Read tensors, on the CPU.

    Raises:
        InvalidEvidence: the file holds none.
    """
    return _read(path)[0]


def _read(path: str | PathLike[str]) -> tuple[dict[str, torch.Tensor], _Rest | None]:
    file = Path(path)
    if file.is_symlink() or not file.is_file():
        raise InvalidEvidence("there is no such file")
    try:
        with safe_open(str(file), framework="pt") as opened:
            text = (opened.metadata() or {}).get(_KEY, "")
            if len(text) > _MOST_HEADER:
                raise InvalidEvidence("its header is too long")
            header = msgspec.json.decode(text, type=_Header)
            if header.layouts.keys() != set(opened.keys()):
                raise InvalidEvidence("its header is of other tensors")
            found = {n: _restored(opened.get_tensor(n), x) for n, x in header.layouts.items()}
            whole = {n: _joined(n, x, found) for n, x in header.sparse.items()}
            return found | whole, header.rest
    except (SafetensorError, msgspec.MsgspecError, OSError) as error:
        raise InvalidEvidence(str(error).partition("\n")[0][:200]) from error


def _restored(raw: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """Return bytes as the tensor that they are; nothing is allocated for what does not fit."""
    dtype = _DTYPES.get(layout.dtype)
    if dtype is None or raw.dtype != torch.uint8 or min((0, *layout.shape)) < 0:
        raise InvalidEvidence(f"no tensor is {layout.dtype[:40]}{list(layout.shape)[:16]}")
    if math.prod(layout.shape) * dtype.itemsize != raw.numel():
        raise InvalidEvidence(f"{raw.numel()} bytes are not {layout.dtype}{list(layout.shape)}")
    value = raw.clone().view(dtype).reshape(layout.shape)
    if len(layout.strides) != len(layout.shape):
        raise InvalidEvidence("a tensor has as many strides as sizes")
    try:
        meta = torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device="meta")
        dense = bool(torch.ops.aten.is_non_overlapping_and_dense(meta))
    except RuntimeError as error:
        raise InvalidEvidence(f"no tensor has strides {list(layout.strides)[:16]}") from error
    if dense:
        return torch.empty_strided(layout.shape, layout.strides, dtype=dtype).copy_(value)
    return _with_gaps(value, layout.strides)


def _with_gaps(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor laid out as it was: with gaps, or the same memory for several elements.

    Where that would take much memory it has none.
    """
    shape, given = value.shape, value
    for dim, stride in enumerate(strides):
        if stride == 0 and value.numel():
            value = value.narrow(dim, 0, 1)
    span = sum((size - 1) * stride for size, stride in zip(value.shape, strides, strict=True))
    if not value.numel() or not 0 <= span < value.numel() * _MOST_GAPS:
        return given
    memory = torch.zeros(span + 1, dtype=value.dtype)
    laid_out = memory.as_strided(value.shape, strides)
    try:
        laid_out.copy_(value)
    except RuntimeError:  # elements overlap
        return given
    return laid_out.expand(shape)


def _part(name: str, method: str) -> str:
    return f"{name}\0{method}"


def _joined(name: str, sparse: _Sparse, found: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a sparse tensor, and take its parts from what was found."""
    layout = _SPARSE.get(sparse.layout)
    if layout is None:
        raise InvalidEvidence(f"no tensor is {sparse.layout[:40]}")
    try:
        parts = [found.pop(_part(name, x)) for x in _PARTS[layout]]
        if layout == torch.sparse_coo:
            indices, values = parts
            made = torch.sparse_coo_tensor(indices, values, sparse.shape, check_invariants=True)
            return made._coalesced_(sparse.coalesced)
        compressed, plain, values = parts
        return torch.sparse_compressed_tensor(
            compressed, plain, values, sparse.shape, layout=layout, check_invariants=True
        )
    except (KeyError, RuntimeError, TypeError) as error:
        raise InvalidEvidence(f"no tensor is {sparse.layout} of such parts") from error


def _portable(value: Any) -> Any:
    finite = isinstance(value, float) and math.isfinite(value)
    if value is None or finite or isinstance(value, str | bool):
        return value
    return f"{type(value).__name__} {value!r}"


def _dtype_name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
