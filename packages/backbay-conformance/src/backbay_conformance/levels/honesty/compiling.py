"""What compiling costs must be told, paid once, and not kept."""

import time

import torch

from backbay.session import NoReply
from backbay_conformance.asking import asked, program
from backbay_conformance.case import Collection, Failed, NotRunnable
from backbay_conformance.levels.honesty.ownership import declared
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("honesty", "compiling")

_A_COMPILATION_S = 0.1
"""No call of a few operators takes so long, and no compilation much less."""


def _chain(x: torch.Tensor) -> torch.Tensor:
    for i in range(6):
        x = (x * 0.9 + i).sin()
    return x


@theme.case()
def compilations_are_not_those_that_dynamo_counts(subject: Subject) -> None:
    from torch._dynamo.utils import counters  # noqa: PLC0415 (Dynamo's own bookkeeping)

    call, before = subject.compile(_chain), counters["stats"]["unique_graphs"]
    for x in (normal(subject, 3), normal(subject, 3), normal(subject, 3).double()):
        subject.near(call(x), _chain(x))
    counted = counters["stats"]["unique_graphs"] - before
    with subject.must("fail_behaviour", f"{len(subject.graphs)} graphs, and Dynamo has {counted}"):
        assert len(subject.graphs) == counted == 2


@theme.case()
def every_call_pays_for_a_compilation(subject: Subject) -> None:
    call, x = subject.compile(_chain), normal(subject, 3, 4)
    call(x)
    call(x)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call(x)
        times.append(time.perf_counter() - start)
    with subject.must("fail_behaviour", f"a warm call of 18 operators takes {min(times):.2f} s"):
        assert min(times) < _A_COMPILATION_S


@theme.case()
def second_call_goes_to_the_backend(subject: Subject) -> None:
    call, x = subject.compile(_chain), normal(subject, 3, 4)
    for count in (1, 2, 3):
        call(x)
        with subject.must("fail_behaviour", f"{len(subject.graphs)} compilations in {count} calls"):
            assert len(subject.graphs) == 1
            assert subject.graphs[0].runs == count


@theme.case()
def time_of_compiling_is_not_told(subject: Subject) -> None:
    from torch._dynamo import utils  # noqa: PLC0415 (Dynamo's own bookkeeping)

    utils.compilation_time_metrics.clear()
    x = normal(subject, 3, 4)
    subject.matches(_chain, x)
    spent = [
        sum(v)
        for k, v in utils.compilation_time_metrics.items()
        if k.endswith("call_user_compiler")
    ]
    with subject.must("fail_behaviour", "Dynamo was told of no time spent in the backend"):
        assert spent
        assert all(0 < seconds < 3600 for seconds in spent)


@theme.case(needs={"training"})
def more_is_kept_for_backward_than_eager_keeps(subject: Subject) -> None:
    def kept(call: object) -> int:
        found: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        assert callable(call)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            _result = call(x)
        return sum(found.values())

    x, call = normal(subject, 64, 64, requires_grad=True), subject.compile(_chain)
    call(x).sum().backward()
    ours, eagers = kept(call), kept(_chain)
    with subject.must("fail_behaviour", f"{ours} bytes are kept for backward, in eager {eagers}"):
        assert ours <= 1.5 * eagers


@theme.case(timeout_s=240.0)
def second_process_finds_nothing_in_the_cache(subject: Subject) -> None:
    if "inductor" not in declared(subject):
        raise NotRunnable("it declares no cache that lasts")
    if subject.spec is None or subject.spec.origin.kind == "process":
        raise NotRunnable("a fresh process does not have the backend by its name")
    x = torch.ones(5, 3, device=subject.device)
    subject.matches(program, x)
    try:
        hits = asked("caches", subject.name, subject.device.type)["hits"]
    except NoReply as error:
        raise Failed("fail_error", f"in a fresh process: {error}") from error
    with subject.must("fail_behaviour", "a second process compiles what the first has compiled"):
        assert hits
