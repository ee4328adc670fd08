"""What a workload looks like, without running it: a key under which its graphs are known again.

Graphs depend on more than any look shows: on what a file imports, on globals. So what is found by a
key may decide how fast something runs, and never what is computed.
"""

import hashlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

import backbay
from backbay.proof.tree import leaves, structure
from backbay.workloads.workload import Workload

_HELD_APART = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
"""Of a module: what is looked at by its own means."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_VERSIONED = frozenset({"torch", "builtins", *sys.stdlib_module_names} - {"__main__"})
_DEEPEST = 6
"""Objects in objects, as a model's settings have them."""


def likeness(workload: Workload, *, train: bool, dynamic: bool | None) -> str:
    """Return a key that is equal where Dynamo, as far as one sees, captures equal graphs.

    It covers modules with their settings and modes; shapes, dtypes, strides and devices of
    parameters, buffers and inputs; values of all other inputs; the files that classes and functions
    are written in; gradient mode and autocast; torch and backbay.

    Args:
        workload: what is called.
        train: whether forward and backward.
        dynamic: as torch.compile takes it.
    """
    whole, sources = hashlib.sha256(), set[str]()
    for part in _parts(workload, sources):
        whole.update(f"{part}\0".encode("utf-8", "surrogateescape"))
    for module in sorted(sources):
        whole.update(f"{module} {_source(module)}\0".encode())
    whole.update(repr((train, dynamic, torch.__version__, backbay.__version__)).encode())
    return whole.hexdigest()


def _parts(workload: Workload, sources: set[str]) -> Iterator[str]:
    model = workload.model
    kinds = ("cpu", "cuda")
    yield repr((torch.is_grad_enabled(), [torch.is_autocast_enabled(x) for x in kinds]))
    yield repr([torch.get_autocast_dtype(x) for x in kinds])
    for name, module in model.named_modules():
        held = {k: x for k, x in vars(module).items() if k not in _HELD_APART}
        yield f"{name} {_type(type(module), sources)} {_look(held, sources, 0)}"
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        yield f"{name} {_tensor(tensor)}"
    for args, kwargs in ((workload.args, workload.kwargs), *workload.further):
        given = (args, dict(kwargs))
        yield structure(given)
        for name, leaf in leaves(given, "given"):
            yield f"{name} {_look(leaf, sources, 0)}"
    yield _look((workload.loss, workload.optimizer, workload.grad_as_given), sources, 0)


def _look(value: Any, sources: set[str], depth: int) -> str:
    """Return what a value is, as far as that is the same in another process."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, type):
        return _type(value, sources)
    kind = _type(type(value), sources)
    if depth > _DEEPEST or isinstance(value, torch.nn.Module):  # modules come by themselves
        return kind
    parts = _parts_of(value)
    if isinstance(value, FunctionType):
        sources.add(value.__module__ or "")
    return f"{kind}[{', '.join(_look(x, sources, depth + 1) for x in parts)}]"


def _parts_of(value: Any) -> Sequence[Any]:
    """Return what a value is made of."""
    found: Sequence[Any] = (dict(getattr(value, "__dict__", {})),)
    match value:
        case FunctionType():
            cells = [x.cell_contents for x in value.__closure__ or () if _is_filled(x)]
            code = _code(value.__code__)
            found = value.__qualname__, code, value.__defaults__, value.__kwdefaults__, *cells
        case MethodType():
            found = value.__func__, value.__self__
        case partial():
            found = value.func, value.args, value.keywords
        case BuiltinFunctionType():
            found = (value.__qualname__,)
        case Mapping():
            found = [y for pair in value.items() for y in pair]
        case list() | tuple():
            found = value
        case set() | frozenset():
            found = sorted(value, key=repr)
    return found


def _type(kind: type, sources: set[str]) -> str:
    """Return a type's name, and what it is written in where that is no file."""
    sources.update(x.__module__ for x in kind.__mro__)
    written = [x for x in kind.__mro__ if x.__module__ == "__main__" and not _file("__main__")]
    functions = [y for x in written for y in vars(x).values() if isinstance(y, FunctionType)]
    codes = "".join(_code(x.__code__) for x in functions)
    return f"{kind.__module__}.{kind.__qualname__}{codes}"


def _tensor(value: torch.Tensor) -> str:
    strides = value.stride() if value.layout == torch.strided else value.layout
    what = (type(value).__qualname__, value.dtype, tuple(value.shape), strides, value.device)
    return repr((*what, value.requires_grad))


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (it raises where nothing is in it)
    except ValueError:
        return False
    return True


def _code(code: CodeType) -> str:
    held = [_code(x) if isinstance(x, CodeType) else repr(x) for x in code.co_consts]
    whole = hashlib.sha256(repr((code.co_code, code.co_names, held)).encode())
    return whole.hexdigest()[:16]


def _source(module: str) -> str:
    """Return a digest of a module's file; those of Python and of torch are told by versions."""
    file = None if module.partition(".")[0] in _VERSIONED else _file(module)
    if file is None:
        return ""
    try:
        state = Path(file).stat()
    except OSError:
        return ""
    return _contents(file, state.st_mtime_ns, state.st_size)


def _file(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


@lru_cache(maxsize=4096)
def _contents(file: str, changed: int, size: int) -> str:  # noqa: ARG001 (they are of the key)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
