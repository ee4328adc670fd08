"""What an engine is given to build: one region of a graph, and where its result may be kept."""

import contextlib
import hashlib
import operator
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from backbay.cache import (
    Untrusted,
    cache_folder,
    keep_newest,
    mark_used,
    read_bytes_cached,
    write_bytes_cached,
)
from backbay.graph.exported import exported_program
from backbay.graph.region import digest
from backbay.graph.values import value_of
from backbay.kit.aot import GraphKind

MOST_KEPT_BYTES = 1 << 30
"""Of one compiled region; a larger one is compiled anew in each process."""
MOST_KEPT_BYTES_IN_ALL = 8 << 30
"""Of all compiled regions; those that were used longest ago are removed first."""


@dataclass(frozen=True)
class Program:
    """A functional graph of ATen operators that an engine compiles whole.

    Its inputs are tensors, and integers only where the engine takes symbols; its results are
    tensors, each once. What a caller gets beside them (None, numbers, inputs as they were) is put
    back by the kit.
    """

    graph_module: GraphModule
    """Constants are its ``get_attr`` nodes, and buffers of it."""
    kind: GraphKind
    options: Mapping[str, Any]
    """The backend's own, with their defaults."""
    made_by: str
    """The engine, its version, its adapter's source, and the CPU: what decides what is built."""

    @cached_property
    def exported(self) -> torch.export.ExportedProgram:
        """The same as an ExportedProgram, where many compilers start; made when asked for."""
        return exported_program(self.graph_module)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Fake values of the inputs: dtypes, shapes and strides."""
        found = self.graph_module.graph.find_nodes(op="placeholder")
        return tuple(value_of(x) for x in found)

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        """Fake values of the results."""
        (output,) = self.graph_module.graph.find_nodes(op="output")
        return tuple(value_of(x) for x in output.args[0])

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """The constants of the graph, by the names of their ``get_attr`` nodes."""
        found = self.graph_module.graph.find_nodes(op="get_attr")
        return {x.name: operator.attrgetter(str(x.target))(self.graph_module) for x in found}

    def kept(self, make: Callable[[], bytes], what: str = "") -> bytes:
        """Return what ``make`` gives, from disk where a process has made it before.

        The key is the graph, its constants, dtypes, shapes, options, torch, the engine with its
        version, the sources of the adapter's package, and the CPU. What others may have written is
        not read; what can't be written is not kept. Where more than `MOST_KEPT_BYTES_IN_ALL` would
        lie there, what was used longest ago is removed.

        Args:
            make: compiles, or converts.
            what: told apart by, where one program keeps several things.
        """
        path = self._path(what)
        with contextlib.suppress(Untrusted):
            known = read_bytes_cached(path)
            if known is not None:
                mark_used(path)
                return known
        made = make()
        if len(made) <= MOST_KEPT_BYTES:
            with contextlib.suppress(OSError):  # Untrusted is one
                write_bytes_cached(path, made)
                keep_newest(path.parent, MOST_KEPT_BYTES_IN_ALL)
        return made

    @contextlib.contextmanager
    def kept_file(self, name: str, write: Callable[[Path], Any]) -> Iterator[Path]:
        """Yield a temporary file with what `kept` returns, for an engine that reads files alone.

        Args:
            name: of the file.
            write: compiles, and writes to a path.
        """

        def made() -> bytes:
            write(path)
            return path.read_bytes()

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(self.kept(made, name))
            yield path

    def _path(self, what: str) -> Path:
        key = hashlib.sha256()
        for part in (self.made_by, torch.__version__, repr(sorted(self.options.items())), what):
            key.update(f"{part}\0".encode())
        key.update(digest(self.graph_module.graph).encode())
        for constant in self.constants.values():
            key.update(repr((constant.dtype, constant.shape, constant.stride())).encode())
            flat = constant.detach().cpu().reshape(-1)  # a number has no bytes to be viewed
            key.update(flat.view(torch.uint8).numpy().tobytes())
        return cache_folder() / "engines" / f"{key.hexdigest()}.bin"
