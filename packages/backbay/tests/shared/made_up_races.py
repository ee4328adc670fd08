"""Reports of races that nobody ran."""

import numpy as np

from backbay.campaign.plan import Unit
from backbay.campaign.record import Campaign, Row
from backbay.race.record import Decision, Machine, Report, Result, Settings, VerdictRecord

ARMS = (
    "eager",
    "inductor",
    "inductor@reduce-overhead",
    "inductor@max-autotune-no-cudagraphs on blocks",
    "backbay",
    "backbay{parameter_hoist: true, tune: full}",
    "openvino",
    "package.with_a_long_name.backends:another_backend",
)
WORKLOADS = (
    "decoder@tiny",
    "hf:bert@base",
    "hf:llama@base, batch 8",
    "timm:resnet50@base",
    "timm:swin_base_patch4_window7_224@base",
    "models/of/this/repository/diffusion_transformer.py:build_the_whole_pipeline",
)
GPU = "NVIDIA H100 80GB HBM3"


def raced(workload, mode="infer", *, arms=ARMS, seed=0, device=GPU, created="2026-01-02"):
    random = np.random.default_rng(seed)
    results = [_result(workload, mode, arm, number, random) for number, arm in enumerate(arms)]
    winner = max((x for x in results if x.ratio_to_eager), key=lambda x: x.ratio_to_eager)
    sentence = f"{winner.arm} is {winner.ratio_to_eager:.2f}x eager; use {winner.arm}"
    return Report(
        created=f"{created}T03:04:05+00:00",
        machine=Machine(
            system="Linux", processor="A processor", cores=8, memory_bytes=1 << 36, device=device
        ),
        versions={"python": "3.11.9", "backbay": "0.1", "torch": "2.13.0"},
        settings=Settings(backends=arms, mode=mode, dtype="bfloat16", device="cuda", seed=0),
        decision=(
            Decision(
                workload=workload,
                mode=mode,
                winner=winner.arm,
                abstained=False,
                ratio_to_eager=winner.ratio_to_eager,
                sentence=sentence,
            ),
        ),
        results=tuple(results),
    )


def _result(workload, mode, arm, number, random):
    known = {"workload": workload, "mode": mode, "backend": arm, "arm": arm}
    if number == 6:
        return Result(**known, status="unavailable", reason="openvino is not installed")
    if number == 7:
        status = ("wrong", "failed", "crashed", "timeout")[int(random.integers(4))]
        return Result(**known, status=status, reason="output[0] is off by 0.0132, at [3, 17]")
    ratio = 1.0 if number == 0 else float(np.exp(random.normal(0.2, 0.7)))
    median = 10.0 / ratio
    return Result(
        **known,
        status="ok",
        verdict=None if number == 0 else VerdictRecord(passed=True, reason="right", ratio=0.9),
        median_ms=median,
        ci_ms=(median * 0.99, median * 1.01),
        ratio_to_eager=ratio,
        ratio_to_eager_ci=None if number == 0 else (ratio * 0.98, ratio * 1.03),
        compile_s=12.5,
        peak_bytes=3 << 30,
        graphs=1,
        breaks=0,
        samples_ms=tuple(median * (0.98 + 0.002 * n) for n in range(20)),
    )


def row(workload, mode="infer", **changed):
    unit = Unit(workload=workload, mode=mode, dtype="bfloat16", device="cuda", arms=ARMS)
    name = f"{abs(hash((workload, mode))) % 10**8}.json"
    fields = {
        "unit": unit,
        "device_name": GPU,
        "status": "raced",
        "file": name,
        "report": raced(workload, mode, seed=len(workload) + len(mode)),
    }
    return Row(**{**fields, **changed})


def campaign(*rows, **changed):
    fields = {
        "created": "2026-01-02T03:04:05+00:00",
        "name": "nightly",
        "versions": {"torch": "2.13.0", "backbay": "0.1"},
        "arms": ARMS,
        "rows": rows,
    }
    return Campaign(**{**fields, **changed})


def whole():
    """Return a campaign with everything that a row can be."""
    rows = [row(workload, mode) for workload in WORKLOADS for mode in ("infer", "train")]
    lost = row("hf:lost@base", status="lost", report=None, file="", reason="its worker died twice")
    waiting = row("hf:late@base", status="waiting", report=None, file="")
    return campaign(*rows, lost, waiting, partial=True, notes=("a note that a reader must know",))
