"""``python -m backbay.engines.owning WORKLOAD NAME...``: how much of a model an engine runs itself.

A backend that hands operators, or whole graphs, to another one says so in the compile log.
"""

import sys

import msgspec
import torch

from backbay import compile_log
from backbay.engines.record import Owned
from backbay.registry import default_registry
from backbay.workloads.loading import build
from backbay.workloads.setup import WorkloadSetup


def owned(reference: str, backend: str) -> Owned | None:
    """Compile a workload for inference, and count; nothing where the backend counts nothing."""
    workload = build(
        WorkloadSetup(
            workload=reference, size=None, mode="infer", dtype="float32", device="cpu", seed=0
        )
    )
    compile_log.clear()
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(workload.model, backend=default_registry.resolve(backend))(
            *workload.args, **workload.kwargs
        )
    counted = [x for x in compile_log.records() if x.asked == backend and x.owned is not None]
    if not counted:
        return None
    return Owned(
        backend=backend,
        workload=reference,
        owned=sum(x.owned or 0 for x in counted),
        operators=sum(x.nodes for x in counted),
    )


if __name__ == "__main__":
    found = [owned(sys.argv[1], name) for name in sys.argv[2:]]
    print(msgspec.json.encode([x for x in found if x is not None]).decode())  # noqa: T201 (who started it reads it)
