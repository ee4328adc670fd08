"""What a race decided, for the store: ``backend="backbay.auto"`` applies it."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from backbay import decisions
from backbay.decisions import Store, StoreError
from backbay.race.record import EAGER
from backbay.race.workload_race import WorkloadRace
from backbay.registry import BackendSpec

KEPT = "kept as {names}: backend='backbay.auto' compiles as was decided, from now on"


def keep(races: Sequence[WorkloadRace], store: Store) -> Iterator[str]:
    """Keep what was decided, and yield what a reader must know of it."""
    found = [x for x in map(_decision, races) if x is not None]
    if not found:
        return
    try:
        store.keep_all(found)
    except StoreError as error:
        yield f"the decision is not kept: {error}"
    else:
        yield KEPT.format(names=", ".join(x.name for x in found))


def _decision(race: WorkloadRace) -> decisions.Decision | None:
    """Return what is kept of a race; nothing where it could not tell, or nobody could apply it."""
    decided, entrants = race.decision, {x.name: x for x in race.entrants}
    if decided is None or decided.abstained or race.captured is None:
        return None
    arm, spec = entrants[decided.winner].arm, entrants[decided.winner].spec
    nameless = spec is None or spec.origin.kind == "process"  # no other process finds it
    if nameless and decided.winner != EAGER:
        return None
    place = race.captured.place
    return decisions.Decision(
        workload=race.workload,
        step=race.setup.mode,
        dtype=race.setup.dtype,
        arm=arm,
        over_eager=decided.ratio_to_eager,
        interval=decided.ratio_to_eager_ci,
        objective=str(race.objective),
        raced=tuple(entrants),
        graphs=race.captured.graphs,
        place=msgspec.structs.replace(place, versions={**place.versions, **_provider(spec)}),
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def _provider(spec: BackendSpec | None) -> Mapping[str, str]:
    if spec is None or spec.origin.distribution is None or spec.origin.version is None:
        return {}
    return {spec.origin.distribution: spec.origin.version}
