"""What ``backbay.default`` and ``backbay.auto`` share: each graph goes to a backend that is chosen.

The choice is made when a graph is compiled; nothing of torch is patched.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backbay import compile_log
from backbay.kit.codegen import minifiable, registry_in_use

if TYPE_CHECKING:
    from backbay.registry.configured import ConfiguredBackend

FALLBACK = "inductor"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a backend is chosen for."""

    graph_module: Any
    """Dynamo's graph."""
    example_inputs: Sequence[Any]
    device: str
    """Type of the first accelerator among the inputs' devices; ``cpu`` if there is none."""
    mode: str | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The backend for one graph."""

    backend: str
    why: str
    """What decided it; one line."""
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    fell_back: bool = False
    """Whether it is another than what is configured, or was decided."""


class Delegating(abc.ABC):
    """A backend of this kind; a class, because torch resets what it is asked to compile with."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._chosen: set[ConfiguredBackend] = set()

    def __call__(self, graph_module: Any, example_inputs: Sequence[Any], **given: Any) -> Any:
        """Compile a graph with the backend that is chosen for it; the compile log says which.

        Args:
            graph_module: Dynamo's graph.
            example_inputs: its inputs.
            given: ``mode`` and ``options``, as torch passes them on.
        """
        device = device_type(example_inputs)
        choice = self.choice(
            Asked(graph_module=graph_module, example_inputs=example_inputs, device=device, **given)
        )
        record = compile_log.Record(
            asked=self.__name__,
            ran=choice.backend,
            why=choice.why,
            fell_back=choice.fell_back,
            device=device,
            nodes=len(graph_module.graph.nodes),
        )
        compile_log.note(record)
        backend = registry_in_use().get_backend(
            choice.backend, mode=choice.mode, options=choice.options
        )
        self._chosen.add(backend)
        return minifiable(backend(graph_module, example_inputs))

    @abc.abstractmethod
    def choice(self, asked: Asked) -> Choice:
        """Return the backend for one graph, which never is this one."""

    def reset(self) -> None:
        """Reset every backend that was chosen; torch.compiler.reset calls this."""
        for backend in self._chosen:
            if hasattr(backend, "reset"):
                backend.reset()
        self._chosen.clear()


def device_type(example_inputs: Sequence[Any]) -> str:
    """Return the type of the first accelerator that an input is on; ``cpu`` if none is."""
    import torch  # noqa: PLC0415 (a graph is being compiled)

    types = [x.device.type for x in example_inputs if isinstance(x, torch.Tensor)]
    return next((x for x in types if x not in {"cpu", "meta"}), "cpu")
