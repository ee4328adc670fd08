"""Results on their way to a judge: JSON that names tensors, which are raw bytes in a file.

Nothing is a pickle. Who reads it need not trust who wrote it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from backbay.proof import Outcome, evidence
from backbay.proof.evidence import InvalidEvidence

_MOST_DEEP = 64
_GROUPS = ("tensors", "gradients", "changed")
Tensors = dict[str, torch.Tensor]


class NotPortableError(Exception):
    """A value can't be handed on; the message says which."""


def packed(value: Any, tensors: Tensors) -> Any:
    """Return a value as JSON takes it, and put copies of its tensors with others.

    Raises:
        NotPortableError: it holds a tensor that is not plain memory.
    """
    match value:
        case torch.Tensor():
            made: list[Any] = ["tensor", _kept(value, tensors), str(value.device)]
        case Outcome():
            made = ["outcome", _packed_outcome(value, tensors)]
        case None | bool() | str():
            made = ["plain", value]
        case int() | torch.SymInt():
            made = ["int", str(int(value))]
        case float() | torch.SymFloat():
            made = ["float", float(value).hex()]
        case complex():
            made = ["complex", value.real.hex(), value.imag.hex()]
        case Mapping():
            pairs = [[packed(k, tensors), packed(v, tensors)] for k, v in value.items()]
            made = ["dict", pairs]
        case list() | tuple() | set() | frozenset():
            made = ["tuple", [packed(x, tensors) for x in value]]
        case _:
            made = ["plain", str(value)]
    return made


def unpacked(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return what was packed; sequences are tuples then, and objects are text.

    Raises:
        InvalidEvidence: it was not packed so.
    """
    try:
        return _unpacked(value, tensors, 0)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidEvidence(f"{type(error).__name__}: {str(error)[:200]}") from error


def travelled(value: Any) -> Any:
    """Return a copy of a value as it is once it was handed on, or itself where it can't be."""
    tensors: Tensors = {}
    try:
        structure = packed(value, tensors)
    except NotPortableError:
        return value
    return unpacked(structure, tensors)


def _kept(value: torch.Tensor, tensors: Tensors) -> str:
    wraps: bool = is_traceable_wrapper_subclass(value)
    if value.is_nested or value.is_quantized or wraps:
        raise NotPortableError(f"a {type(value).__name__} is nested, quantized or wraps others")
    if value.layout != torch.strided and value.layout not in evidence.SPARSE_LAYOUTS:
        raise NotPortableError(f"a tensor is {value.layout}")
    name = str(len(tensors))
    plain = value.detach()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    tensors[name] = plain.clone()
    return name


def _packed_outcome(outcome: Outcome, tensors: Tensors) -> dict[str, Any]:
    def named(values: Mapping[str, torch.Tensor | None]) -> list[list[Any]]:
        return [[name, None if x is None else packed(x, tensors)] for name, x in values.items()]

    return {group: named(getattr(outcome, group)) for group in _GROUPS} | {
        "requires_grad": outcome.requires_grad,
        "plain": evidence.portable(outcome).plain,
        "structure": outcome.structure,
        "aliases": sorted(map(list, outcome.aliases)),
        "parameters": {name: str(x) for name, x in outcome.parameters.items()},
        "opaque": list(outcome.opaque),
        "devices": outcome.devices,
        "seeded": list(outcome.seeded),
    }


def _unpacked(value: Any, tensors: Mapping[str, torch.Tensor], depth: int) -> Any:
    if depth > _MOST_DEEP:
        raise ValueError("it is nested too deeply")

    def inside(one: Any) -> Any:
        return _unpacked(one, tensors, depth + 1)

    kind, *rest = value
    made: dict[str, Callable[..., Any]] = {
        "tensor": lambda name, device: tensors[name].to(_device(device)),
        "outcome": lambda content: _unpacked_outcome(content, inside),
        "plain": _plain,
        "int": int,
        "float": float.fromhex,
        "complex": lambda real, imaginary: complex(*map(float.fromhex, (real, imaginary))),
        "dict": lambda pairs: {inside(k): inside(v) for k, v in pairs},
        "tuple": lambda items: tuple(map(inside, items)),
    }
    return made[kind](*rest)


def _plain(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | str):
        raise TypeError(f"{type(value).__name__} is not plain")
    return value


def _unpacked_outcome(content: Any, inside: Any) -> Outcome:
    groups: dict[str, Any] = {
        group: {str(n): None if x is None else inside(x) for n, x in content[group]}
        for group in _GROUPS
    }
    return Outcome(
        **groups,
        requires_grad={str(n): bool(x) for n, x in content["requires_grad"].items()},
        plain=dict(content["plain"]),
        structure=str(content["structure"]),
        aliases=frozenset((str(a), str(b)) for a, b in content["aliases"]),
        parameters={str(n): int(x) for n, x in content["parameters"].items()},
        opaque=tuple(map(str, content["opaque"])),
        devices={str(n): str(x) for n, x in content["devices"].items()},
        seeded=tuple(map(str, content["seeded"])),
    )


def _device(name: str) -> torch.device:
    device, there = torch.device(name), torch.accelerator.current_accelerator()
    is_there = device.type == "meta" or (there is not None and there.type == device.type)
    return device if is_there else torch.device("cpu")
