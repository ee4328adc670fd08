"""What a diagnosis finds of its own, and the order of all findings: what costs most comes first."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from backbay.diagnose.record import KernelRecord, RankedFinding, TrialRecord, Work
from backbay.diagnose.requests import Looked
from backbay.explain import Explanation, FindingRecord
from backbay.explain.findings import finding
from backbay.reporting.wording import counted, milliseconds, seconds

_STEPS = 1000
_HOST_SHARE = 0.5
_FAR, _KERNEL_SHARE, _KERNEL_MS = 0.5, 0.1, 0.05
"""A kernel is worth a word that is below half of the limit, takes a tenth of the time of all, and
takes so long that its launch is not what is measured."""
_PRODUCTS_SHARE = 0.1
"""Of a step, from where on faster products are worth a word."""
_BREAKS, _NOTHING = {"BB101", "BB102", "BB103", "BB104", "BB105"}, "BB106"
_RANK = ("error", "warning", "note")


def known(explanation: Explanation) -> Iterator[FindingRecord]:
    """Yield an explanation's findings; what compiling took says nothing where nothing compiled."""
    for one in explanation.findings:
        alone = explanation.settings.backend is None
        yield msgspec.structs.replace(one, cost_s=None) if alone else one


def measured(looked: Looked) -> Iterator[FindingRecord]:
    """Yield what a step, its kernels and the model say."""
    inside = looked.inside
    step, kernels = inside.step, [k for graph in inside.graphs for k in graph.kernels]
    host_ms = step.host_ms + step.guards_ms
    whole_ms = step.parts_ms
    if kernels and host_ms > _HOST_SHARE * whole_ms:
        words = (
            f"the host takes {_ms(host_ms)} of {_ms(whole_ms)} of a step: launches, guards and "
            "Python"
        )
        yield finding("BB701", words, "")
    far = max(filter(_is_far, kernels), key=_lost_ms, default=None)
    if far is not None and far.share is not None and far.of_limit is not None:
        words = (
            f"{far.name} takes {far.share:.0%} of the time in kernels, and reaches "
            f"{far.of_limit:.0%} of this machine's limit"
        )
        yield finding("BB702", words, far.lines[-1] if far.lines else "")
    if looked.blocks > 1:
        words = (
            f"{looked.blocks} repeated blocks are compiled as one graph, in "
            f"{seconds(inside.compile_s)}"
        )
        yield finding("BB703", words, "", cost_s=inside.compile_s)
    if looked.convolutions:
        words = f"{counted(looked.convolutions, 'convolution')} with channels first in memory"
        yield finding("BB704", words, _longest_line(kernels, "convolution"))
    products_ms = step.by_work.get("gemm", 0.0)
    if looked.could_be_tf32 and products_ms > _PRODUCTS_SHARE * whole_ms:
        words = (
            f"matrix products take {_ms(products_ms)} of {_ms(whole_ms)} of a step, in full "
            "float32: this GPU has TF32 for them"
        )
        yield finding("BB705", words, _longest_line(kernels, "gemm"))


def ranked(
    findings: Sequence[FindingRecord],
    trials: Mapping[int, Sequence[TrialRecord]],
    own_calls: int,
) -> tuple[RankedFinding, ...]:
    """Return findings with what was tried for each, in order.

    Errors come first, since nothing runs as it is meant to; then what has a confirmed remedy, by
    what it saves; then the others, by severity and by what compiling took. What was met only with
    batch sizes that nobody asked for comes after what is met as it is.

    Args:
        findings: what was found.
        trials: what was tried, by position of the finding.
        own_calls: how many calls of the explanation have inputs that were given.
    """
    made = [_ranked(x, trials.get(n, ()), own_calls) for n, x in enumerate(findings)]
    nothing = any(x.code == _NOTHING for x in made) and any(x.code in _BREAKS for x in made)
    return tuple(sorted(made, key=lambda x: _position(x, nothing=nothing)))


def _ranked(found: FindingRecord, trials: Sequence[TrialRecord], own_calls: int) -> RankedFinding:
    saved = [_saved_s(x) for x in trials if x.status == "confirmed"]
    return RankedFinding(
        **msgspec.structs.asdict(found),
        saved_s=max(saved, default=None),
        trials=tuple(trials),
        supposed=bool(found.calls) and min(found.calls) >= own_calls,
    )


def _position(one: RankedFinding, *, nothing: bool) -> tuple[float, ...]:
    # Where breaks are why nothing is compiled, they are the error, and that is what they lead to.
    grave = one.severity == "error" or (nothing and one.code in _BREAKS)
    return (
        not grave,
        nothing and one.code == _NOTHING,
        one.supposed,
        one.saved_s is None,
        -(one.saved_s or 0.0),
        _RANK.index(one.severity),
        -(one.cost_s or 0.0),
    )


def _saved_s(trial: TrialRecord) -> float:
    """Return what a confirmed remedy saves in the first thousand steps, as far as it is shown."""
    before, after = trial.before, trial.after
    assert before is not None, "a confirmed remedy was measured"
    assert after is not None, "likewise"
    saved = 0.0
    faster = trial.speedup_ci is not None and trial.speedup_ci[0] > 1
    if faster and before.step_ms is not None and after.step_ms is not None:
        saved += _STEPS * (before.step_ms - after.step_ms) / 1e3
    if (after.recompiles or 0) < (before.recompiles or 0):
        saved += max(0.0, before.compile_s - after.compile_s)
    return saved


def _is_far(kernel: KernelRecord) -> bool:
    known = kernel.of_limit is not None and kernel.share is not None and kernel.ms is not None
    return known and (
        kernel.of_limit < _FAR and kernel.share > _KERNEL_SHARE and kernel.ms > _KERNEL_MS  # type: ignore[operator] # they are known
    )


def _lost_ms(kernel: KernelRecord) -> float:
    return (kernel.ms or 0.0) * (1 - (kernel.of_limit or 0.0))


def _longest_line(kernels: Sequence[KernelRecord], work: Work) -> str:
    found = [x for x in kernels if x.work == work and x.lines]
    longest = max(found, key=lambda x: x.ms or 0.0, default=None)
    return longest.lines[-1] if longest is not None else ""


def _ms(value: float) -> str:
    return f"{milliseconds(value, None)} ms"
