"""What a race decided, for the store: ``backend="backbay.auto"`` applies it."""

import datetime as dt
from collections.abc import Iterator, Sequence

import msgspec

from backbay import decisions
from backbay.decisions import Store, StoreError
from backbay.decisions.standing import providers
from backbay.race.record import EAGER
from backbay.race.workload_race import WorkloadRace
from backbay.registry import Registry

KEPT = "kept as {names}: backend='backbay.auto' compiles as was decided, from now on"
ABSTAINED = "kept as {names}: backbay.choose does not race these arms again, unless it is to anew"


def keep(races: Sequence[WorkloadRace], store: Store, registry: Registry) -> Iterator[str]:
    """Keep what was decided, and yield what a reader must know of it."""
    found = [x for x in (_decision(race, registry) for race in races) if x is not None]
    if not found:
        return
    try:
        store.keep_all(found)
    except StoreError as error:
        yield f"the decision is not kept: {error}"
        return
    for said, abstained in ((KEPT, False), (ABSTAINED, True)):
        names = ", ".join(x.name for x in found if x.abstained == abstained)
        if names:
            yield said.format(names=names)


def _decision(race: WorkloadRace, registry: Registry) -> decisions.Decision | None:
    """Return what is kept of a race; nothing where nobody could apply it."""
    decided, entrants = race.decision, {x.name: x for x in race.entrants}
    if decided is None or race.captured is None or EAGER not in race.times:
        return None
    arm, spec = entrants[decided.winner].arm, entrants[decided.winner].spec
    nameless = spec is None or spec.origin.kind == "process"  # no other process finds it
    if nameless and decided.winner != EAGER:
        return None
    place = race.captured.place
    specs = [x.spec for x in race.entrants] if decided.abstained else [spec]
    versions = {k: v for x in specs if x for k, v in providers(x, registry).items()}
    return decisions.Decision(
        workload=race.workload,
        step=race.setup.mode,
        dtype=race.setup.dtype,
        arm=arm,
        abstained=decided.abstained,
        unclear=decided.unclear,
        over_eager=decided.ratio_to_eager,
        interval=decided.ratio_to_eager_ci,
        objective=str(race.objective),
        raced=tuple(entrants),
        graphs=race.captured.graphs,
        place=msgspec.structs.replace(place, versions={**place.versions, **versions}),
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
