"""Puts a diagnosis together: what was seen, measured and tried, in one order."""

import datetime as dt
from collections.abc import Mapping, Sequence

from backbay.diagnose.ranking import ranked
from backbay.diagnose.record import Diagnosis, RankedFinding, Settings, TrialRecord
from backbay.diagnose.requests import Looked
from backbay.explain import Explanation, FindingRecord
from backbay.reporting import machine


def assembled(
    explanation: Explanation,
    looked: Looked | None,
    *,
    findings: Sequence[FindingRecord],
    trials: Mapping[int, Sequence[TrialRecord]],
    own_calls: int,
    versions: Mapping[str, str],
    settings: Settings,
    notes: Sequence[str],
) -> Diagnosis:
    """Return the diagnosis.

    Args:
        explanation: what Dynamo did.
        looked: what was seen inside of Inductor; ``None``: nothing.
        findings: of both.
        trials: what was tried, by position of the finding.
        own_calls: how many calls of the explanation have inputs that were given.
        versions: distribution to version.
        settings: what was asked for.
        notes: what a reader must know.
    """
    found = ranked(findings, trials, own_calls)
    disturbed = machine.disturbance()
    return Diagnosis(
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=machine.machine(settings.device if looked is None else looked.device_name),
        versions=dict(versions),
        settings=settings,
        sentence=_sentence(found),
        findings=found,
        inside=None if looked is None else looked.inside,
        explanation=explanation,
        notes=(*notes, *filter(None, [disturbed])),
    )


def _sentence(findings: Sequence[RankedFinding]) -> str:
    if not findings or not findings[0].urgent:
        return "nothing was found that has to be fixed"
    first = findings[0]
    best = next((x for x in first.trials if x.status == "confirmed"), None)
    if best is None:
        return f"{first.code}: {first.message}"
    return f"{first.code}: {first.message}; with {best.remedy}, {best.sentence}"
