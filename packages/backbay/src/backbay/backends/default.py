"""``backend="backbay.default"``: the backend that the policy names for the device of the graph.

Torch has one default for the whole process; a process that compiles for a CPU and an accelerator
wants one for each. The choice is made when a graph is compiled, from its inputs; nothing of torch
is patched.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backbay import compile_log
from backbay.errors import InputError
from backbay.kit.codegen import minifiable, registry_in_use

if TYPE_CHECKING:
    from backbay.registry.configured import ConfiguredBackend

NAME = "backbay.default"
FALLBACK = "inductor"


class Default:
    """The backend of this name; a class, because torch resets what it is asked to compile with."""

    def __init__(self) -> None:
        self.__name__ = NAME
        self._chosen: set[ConfiguredBackend] = set()

    def __call__(self, graph_module: Any, example_inputs: Sequence[Any], **given: Any) -> Any:
        """Compile a graph with the default backend for its inputs' device.

        The policy in force where the graph is compiled counts, which is where the compiled function
        is first called. A default that does not run here falls back to Inductor; the compile log
        says so.

        Args:
            graph_module: Dynamo's graph.
            example_inputs: its inputs; the first accelerator among their devices decides, else
                ``cpu``.
            given: ``mode`` and ``options``, as torch passes them on.
        """
        device = device_type(example_inputs)
        name, why, fell_back = _choice(device)
        record = compile_log.Record(
            asked=NAME,
            ran=name,
            why=why,
            fell_back=fell_back,
            device=device,
            nodes=len(graph_module.graph.nodes),
        )
        compile_log.note(record)
        mode, options = given.get("mode"), given.get("options")
        backend = registry_in_use().get_backend(name, mode=mode, options=options)
        self._chosen.add(backend)
        return minifiable(backend(graph_module, example_inputs))

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


def _choice(device: str) -> tuple[str, str, bool]:
    """Return the backend, what decided it, and whether it is another than what is configured."""
    configured = registry_in_use().policy.default_for(device)
    if configured is None:
        return FALLBACK, f"no policy names a default for {device}: torch's own", False
    name, source = configured
    try:
        if name == NAME:
            raise InputError(f"{NAME} can't be its own default")  # noqa: TRY301 (as any other)
        registry_in_use().require(name, device)
    except InputError as error:
        return FALLBACK, f"fell back from {name}, which {source} names for {device}: {error}", True
    return name, f"{source} names it for {device}", False


default = Default()
