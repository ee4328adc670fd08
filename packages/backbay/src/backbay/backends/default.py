"""``backend="backbay.default"``: the backend that the policy names for the device of the graph.

Torch has one default for the whole process; a process that compiles for a CPU and an accelerator
wants one for each.
"""

from backbay.backends.delegating import FALLBACK, Asked, Choice, Delegating
from backbay.errors import InputError
from backbay.kit.codegen import registry_in_use

NAME = "backbay.default"


class Default(Delegating):
    """The backend of this name.

    The policy in force where the graph is compiled counts, which is where the compiled function is
    first called. The first accelerator among the devices of a graph's inputs decides, else ``cpu``.
    A default that does not run here falls back to Inductor.
    """

    def choice(self, asked: Asked) -> Choice:
        """Return what the policy names for a device, with mode and options as they are given."""
        device, mode, options = asked.device, asked.mode, asked.options
        configured = registry_in_use().policy.default_for(device)
        if configured is None:
            why = f"no policy names a default for {device}: torch's own"
            return Choice(backend=FALLBACK, why=why, mode=mode, options=options)
        name, source = configured
        try:
            if name == NAME:
                raise InputError(f"{NAME} can't be its own default")  # noqa: TRY301 (as any other)
            registry_in_use().require(name, device)
        except InputError as error:
            why = f"fell back from {name}, which {source} names for {device}: {error}"
            return Choice(backend=FALLBACK, why=why, mode=mode, options=options, fell_back=True)
        why = f"{source} names it for {device}"
        return Choice(backend=name, why=why, mode=mode, options=options)


default = Default(NAME)
