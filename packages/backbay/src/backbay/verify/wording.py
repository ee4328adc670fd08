"""How a verification reads: the same words in the terminal and in JSON."""

from collections.abc import Sequence

from backbay.errors import plain
from backbay.reporting.wording import counted, short
from backbay.verify.record import FAILURES, BackendRecord, BlameRecord, CheckRecord, Status

STATUSES: dict[Status, str] = {
    "right": "right",
    "wrong": "WRONG",
    "failed": "FAILED",
    "crashed": "CRASHED",
    "timeout": "HANGS",
    "not_compiled": "NOT COMPILED",
    "unproven": "not proven",
    "not_tried": "not tried",
}
_VERBS: dict[Status, str] = {
    "wrong": "is WRONG",
    "failed": "FAILS",
    "crashed": "CRASHES",
    "timeout": "HANGS",
    "not_compiled": "compiles nothing",
    "unproven": "is not proven",
}


def verdict(
    backend: str,
    workload: str,
    checks: Sequence[CheckRecord],
    blame: BlameRecord | None,
    steps: int,
) -> str:
    """Word one backend's verdict in a sentence."""
    failed = next((x for x in checks if x.status in FAILURES), None)
    failed = failed or next((x for x in checks if x.status == "unproven"), None)
    if failed is None:
        return f"{backend} is right on {workload}: {_listed(checks, steps)}"
    # The reason of what is wrong with a state begins with its name.
    where = f"{failed.mode}, " + (f"{failed.check}: " if failed.check != "state" else "")
    said = f"{backend} {_VERBS[failed.status]} on {workload}: {where}{failed.reason}"
    if failed.attributed_to:
        said += f"; {failed.attributed_to} fails alike, so the fault stands below {backend}"
    return said if blame is None else f"{said}; {blame.sentence}"


def summary(results: Sequence[BackendRecord], workload: str) -> str:
    """Word all verdicts in a sentence."""
    if len(results) == 1:
        return results[0].sentence
    right = [x.backend for x in results if x.passed]
    wrong = [x.backend for x in results if not x.passed]
    said = f"{len(right)} of {counted(len(results), 'backend')} right on {workload}"
    if not wrong:
        return f"{said}: {', '.join(right)}"
    return ": ".join(filter(None, (said, ", ".join(right)))) + f"; not {', '.join(wrong)}"


def blamed(blame: BlameRecord) -> str:
    """Word what is to blame in a sentence."""
    if blame.found == "not_found":
        return f"no faulty module was found: {blame.reason}"
    kind = ", ".join(filter(None, (blame.type, short(blame.forward))))
    what = f"{blame.module or 'the model itself'} ({kind})"
    how = _VERBS.get(blame.status, "fails").lower()
    if blame.found == "between":
        return (
            f"no module {how} in isolation: it takes {blame.last} compiled together with what "
            f"comes before it in {what}"
        )
    own = ", in its own operators, not in a module that it calls" if blame.found == "own" else ""
    return f"{what} is the first module that {how} in isolation{own}: {blame.reason}"


def _listed(checks: Sequence[CheckRecord], steps: int) -> str:
    right = [x for x in checks if x.status == "right"]
    modes = {mode: [x.check for x in right if x.mode == mode] for mode in ("infer", "train")}
    said = []
    if modes["infer"]:
        said.append("forward in eval mode")
    if modes["train"]:
        said.append("forward and gradients in training mode")
    if any(x.check == "calls" for x in right):
        said.append("called again and again")
    if any(x.startswith("step ") for x in modes["train"]):
        said.append(f"{counted(steps, 'step')} of training")
    batches = dict.fromkeys(x.check for x in right if x.check.startswith("batch "))
    if batches:
        sizes = [x.removeprefix("batch ") for x in batches]
        said.append(f"also with a batch of {' and '.join(sizes)}")
    return plain(", ".join(said))
