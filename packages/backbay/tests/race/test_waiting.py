"""A row says that its GPU waits for the host, or for copies, and which arm to try then."""

import pytest

from backbay.decisions import parse_arm
from backbay.race.record import Result
from backbay.race.sections import Section, worded
from backbay.race.waiting import with_waits
from backbay.registry import BackendSpec, Option, Origin
from backbay.timing.gpu_work import GpuWork

INDUCTOR = BackendSpec(name="inductor", origin=Origin(kind="torch"), options="inductor")
OURS = BackendSpec(
    name="ours",
    origin=Origin(kind="process"),
    options=(Option(name="cuda_graphs", type="bool", default=False),),
    further_options="inductor",
)
BY_ITSELF = BackendSpec(
    name="ours",
    origin=Origin(kind="process"),
    options=(Option(name="cuda_graphs", type="any", default="auto"),),
    further_options="inductor",
)
AROUND = BackendSpec(
    name="around", origin=Origin(kind="process"), options=(), further_options="inductor"
)
OTHER = BackendSpec(name="other", origin=Origin(kind="process"), options=())


def row(arm="inductor", *, spec=INDUCTOR, step_ms=1.0, status="ok", **work):
    given = parse_arm(arm)
    work = {"busy_ms": 0.4, "launches": 214} | work
    result = Result(
        workload="model",
        mode="infer",
        backend=given.backend,
        compile_mode=given.mode,
        options=given.options,
        scope=given.scope,
        status=status,
        median_ms=step_ms,
        gpu_work=GpuWork(**work),
    )
    return with_waits(result, spec)


@pytest.mark.parametrize(
    ("arm", "spec", "advice"),
    [
        ("inductor", INDUCTOR, "try inductor@reduce-overhead"),
        ("inductor on blocks", INDUCTOR, "try inductor@reduce-overhead on blocks"),
        ("inductor{a: 1}", INDUCTOR, "try inductor@reduce-overhead{a: 1}"),
        ("inductor@default", INDUCTOR, "try inductor@reduce-overhead"),
        ("inductor@max-autotune-no-cudagraphs", INDUCTOR, "try inductor@max-autotune"),
        ("inductor@its-own", INDUCTOR, "of the step (214 kernels)"),
        ("around{a: 1}", AROUND, "try around@reduce-overhead{a: 1}"),
        ("ours{a: 1}", OURS, "try ours{a: 1, cuda_graphs: true}"),
        ("ours{cuda_graphs: false}", OURS, "try ours{cuda_graphs: true}"),
        ("ours{a: 1}", BY_ITSELF, "try ours@reduce-overhead{a: 1}"),
        ("ours{cuda_graphs: false}", BY_ITSELF, "try ours{cuda_graphs: true}"),
        ("eager", None, "try inductor@reduce-overhead"),
        ("other", OTHER, "of the step (214 kernels)"),
        ("file.py:function", None, "of the step (214 kernels)"),
        ("inductor@reduce-overhead", INDUCTOR, "though CUDA graphs were asked for"),
        ("inductor@max-autotune", INDUCTOR, "though CUDA graphs were asked for"),
        ("ours{cuda_graphs: true}", OURS, "though CUDA graphs were asked for"),
        ("inductor{triton.cudagraphs: true}", INDUCTOR, "though CUDA graphs were asked for"),
    ],
)
def test_a_gpu_that_waits_is_not_said_or_another_arm_is_advised(arm, spec, advice):
    (said,) = row(arm, spec=spec).waits
    assert said.startswith("host-bound: the GPU waits 60% of the step (214 kernels)")
    assert said.endswith(advice)


@pytest.mark.parametrize("busy_ms", [0.81, 1.0, 1.2])
def test_a_gpu_that_works_is_called_waiting(busy_ms):
    assert row(busy_ms=busy_ms).waits == ()
    assert row(busy_ms=0.79).waits != ()


def test_what_was_not_timed_is_called_waiting():
    assert row(status="wrong").waits == ()
    assert row(step_ms=None).waits == ()
    assert row(step_ms=0.0).waits == ()


def test_copies_between_devices_are_not_a_reason_or_few_are():
    (said,) = row(busy_ms=0.9, copied_ms=0.1, copies=3).waits
    assert said == "3 copies between host and GPU take 10% of the step"
    assert row(busy_ms=0.9, copied_ms=0.04, copies=3).waits == ()
    assert row(busy_ms=0.9, copied_ms=0.05, copies=3).waits != ()
    assert len(row(copied_ms=0.1, copies=1).waits) == 2


def test_kernels_that_only_move_data_are_a_reason_where_they_take_a_tenth():
    (said,) = row(busy_ms=0.9, moved_ms=0.25, moves=8).waits
    assert said.startswith("moving data and changing its layout or dtype takes 25% of the step")
    assert "(8 kernels)" in said
    assert row(busy_ms=0.9, moved_ms=0.09, moves=8).waits == ()
    assert row(busy_ms=0.9, moved_ms=0.1, moves=8).waits != ()


def test_the_page_and_the_table_leave_it_out():
    result = row()
    section = Section(
        workload="model", mode="infer", objective={}, decision=None, results=(result,)
    )
    (words,) = worded(section)
    assert words.notes == result.waits
