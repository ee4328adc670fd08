"""Level shapes: sizes that change between calls, sizes that data decides, and odd layouts.

``int(symbol)`` in a backend gives right results and compiles again for every size, so what is
compiled once by torch itself must be compiled once by the backend.
"""

import itertools
from collections.abc import Sequence

import torch

from backbay.proof import Workload, observe
from backbay_conformance.case import Cases, Failed
from backbay_conformance.levels import sampled, sizes
from backbay_conformance.levels.opinfo import Sample
from backbay_conformance.levels.resizing import resizable, series
from backbay_conformance.running import reset
from backbay_conformance.subject import Subject, as_module
from backbay_conformance.watching import Watched

DTYPE = "float32"


def cases(device: str, *, all_samples: bool) -> Cases:
    """Return the cases of this level."""
    yield from sampled.drift("shapes")
    for operator in sampled.known():
        if DTYPE in operator.dtypes(device):
            yield sampled.case(
                f"shapes/{operator.name}/dynamic",
                operator,
                lambda operator, device: resizable(operator.samples(device, DTYPE)),
                three_sizes,
                needs={DTYPE, "dynamic_shapes"},
                all_samples=all_samples,
            )
    yield from sizes.cases()


def three_sizes(subject: Subject, sample: Sample) -> None:
    """Compile for any size, and run at three."""
    module = as_module(sample.function)
    workloads = [Workload(module, x.args, x.kwargs) for x in series(sample)]
    goldens = [subject.golden(x, train=False) for x in workloads]
    call = subject.compile(module, dynamic=True)
    for golden, workload in zip(goldens, workloads, strict=True):
        with golden.context():
            subject.judge(golden, observe(call, workload, train=False, seed=subject.seed))
    given = sizes.used(subject.watched)
    if given <= 1:
        return
    # Dynamo makes some sizes constants, and torch's decompositions ask about more of them.
    counts = {}
    for reference in ("aot_eager", "aot_eager_decomp_partition"):
        counts[reference] = _graphs(reference, subject, workloads)
        if given <= counts[reference]:
            return
    tensors = [[x for x in workload.args if isinstance(x, torch.Tensor)] for workload in workloads]
    sizes_run = [list(itertools.chain.from_iterable(x.shape for x in y[:1])) for y in tensors]
    most = max(counts.values())
    raise Failed(
        "fail_behaviour",
        f"dynamic=True compiled {given} graphs for the sizes {sizes_run}; torch needs {most}",
    )


def _graphs(reference: str, subject: Subject, workloads: Sequence[Workload]) -> int:
    """Return how many graphs one of torch's own backends needs."""
    reset(subject)
    watched = Watched(torch._dynamo.lookup_backend(reference), name=reference)  # noqa: SLF001 (its documented name)
    call = torch.compile(workloads[0].model, backend=watched, dynamic=True)
    for workload in workloads:
        observe(call, workload, train=False, seed=subject.seed)
    return sizes.used(watched)
