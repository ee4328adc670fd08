"""``backend="backbay.auto"``: what was decided for this graph before, on this device and torch.

Nothing is raced or timed while a model compiles: decisions come from ``backbay race``, or from a
file that was imported (``backbay decisions import``). Where nothing was decided, Inductor compiles.
"""

from backbay import compile_log
from backbay.backends.delegating import FALLBACK, Asked, Choice, Delegating
from backbay.decisions import Decision, Store
from backbay.decisions.arm import WHOLE
from backbay.decisions.place import place_of
from backbay.decisions.standing import why_not
from backbay.errors import InputError
from backbay.graph.region import captured_digest
from backbay.kit.codegen import registry_in_use

NAME = "backbay.auto"


class Auto(Delegating):
    """The backend of this name."""

    def choice(self, asked: Asked) -> Choice:
        """Return what was decided for a graph.

        Raises:
            InputError: a mode or options are given, which are part of what was decided.
        """
        if asked.mode is not None or asked.options:
            raise InputError(
                f"{NAME} takes mode and options from what was decided for a model: give none, or "
                "name the backend that they are for"
            )
        store = Store(on_problem=_note)
        known = store.decided(
            captured_digest(asked.graph_module), place_of(asked.example_inputs).key
        )
        found = [x for x in known if not x.abstained]
        if not found:
            why = f"; {known[0].why}" if known else ""
            return Choice(backend=FALLBACK, why=f"nothing was decided for this graph here{why}")
        arms = {str(x.arm): x for x in found}
        if len(arms) > 1:
            why = f"decisions differ for this graph: {', '.join(sorted(arms))}"
            return Choice(backend=FALLBACK, why=f"fell back: {why}", fell_back=True)
        decision = found[0]
        why_not = _why_not(decision, asked.device)
        if why_not is not None:
            why = f"fell back from {decision.arm}, {decision.why}: {why_not}"
            return Choice(backend=FALLBACK, why=why, fell_back=True)
        arm = decision.arm
        return Choice(
            backend=arm.backend,
            mode=arm.mode,
            options=arm.options or None,
            why=f"{arm}, {decision.why} ({decision.workload})",
        )


def _why_not(decision: Decision, device: str) -> str | None:
    """Return why what was decided can't be used here; nothing where it can."""
    if decision.arm.backend == NAME:
        return "it can't be its own choice"
    if decision.arm.scope != WHOLE:
        return "it compiles parts of a model, and a graph is all that is known here"
    return why_not(decision, device, registry_in_use())


def _note(problem: str) -> None:
    compile_log.note(compile_log.Record(asked=NAME, ran=FALLBACK, why=problem))


auto = Auto(NAME)
