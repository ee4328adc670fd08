"""Batch size and thread count, of level properties: they change how results are computed.

Threads may change rounding and nothing else. A batch may too, unless the backend declares that it
does not.
"""

import functools
from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F  # noqa: N812 (its usual name)

from backbay.proof import Workload, observe
from backbay_conformance.case import Case, Cases, NotRunnable, Unsupported
from backbay_conformance.levels import sampled
from backbay_conformance.levels.making import threads
from backbay_conformance.subject import Subject, as_module

Program = Callable[[torch.Tensor], torch.Tensor]
_ROWS, _WIDTH = 37, 1031
"""Prime, so that no blocking divides them; large enough that kernels use several threads."""
_THREADS = (3, 1, 2)


def _attention(x: torch.Tensor) -> torch.Tensor:
    parts = x[:, :1024].reshape(-1, 4, 16, 16)
    return F.scaled_dot_product_attention(parts, parts, parts)


def _convolution(x: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(4, 1, 3, 3, device=x.device) / 7
    return F.conv2d(x[:, :1024].reshape(-1, 1, 32, 32), weight)


def _product(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(_WIDTH, 64, device=x.device).div(3).tril()


BY_ROW: Mapping[str, Program] = {
    "attention": _attention,
    "convolution": _convolution,
    "cumsum": lambda x: x.cumsum(-1),
    "gelu": lambda x: F.gelu(x).sin(),
    "layer-norm": lambda x: F.layer_norm(x, (_WIDTH,)),
    "matmul": _product,
    "mean": lambda x: x.mean(-1),
    "softmax": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(-1),
    "variance": lambda x: x.var(-1),
}
"""Programs whose every row depends on the same row of their input only."""
OVER_ROWS: Mapping[str, Program] = {
    "index-add": lambda x: x.new_zeros(5, _WIDTH).index_add(
        0, torch.arange(_ROWS, device=x.device) % 5, x
    ),
    "norm": lambda x: x.norm(),
    "sort": lambda x: x.sort(0).values,
    "sum-of-all": lambda x: x.exp().sum(),
    "sum-of-columns": lambda x: x.sum(0),
}


def cases() -> Cases:
    """Return these cases."""
    for name, program in BY_ROW.items():
        case_id = f"properties/batch-invariance/{name}"
        run = functools.partial(row_depends_on_batch, case_id, program)
        yield Case(id=case_id, run=run, needs=frozenset({"batch_invariant"}))
    for name, program in {**BY_ROW, **OVER_ROWS}.items():
        case_id = f"properties/threads/{name}"
        yield Case(id=case_id, run=functools.partial(threads_change_results, case_id, program))


def row_depends_on_batch(case_id: str, program: Program, subject: Subject) -> None:
    """Compare a row of a batch with the row alone, to the bit; only where that is declared."""
    if subject.traits.batch_invariant is not True:
        raise Unsupported("it does not declare that results of a row do not depend on the batch")
    x = _input(case_id, subject)
    call = subject.compile(program, dynamic=False)
    whole = call(x)
    for row in (0, _ROWS - 1):
        said = f"row {row} alone is not what it is in the batch"
        alone = call(x[row : row + 1])[0]
        subject.same_as_each_other(whole[row], alone, status="fail_behaviour", what=said)


def threads_change_results(case_id: str, program: Program, subject: Subject) -> None:
    """Run what was compiled with another number of threads than it was compiled with."""
    if subject.device.type != "cpu":
        raise NotRunnable("the number of threads is a matter of the CPU")
    workload = Workload(as_module(program), (_input(case_id, subject),))
    golden = subject.golden(workload, train=True)
    call = subject.compile(workload.model)
    for count in _THREADS:
        with threads(count):
            subject.judge(golden, observe(call, workload, train=True, seed=subject.seed))


def _input(case_id: str, subject: Subject) -> torch.Tensor:
    sampled.seed(case_id, subject.seed)
    return torch.randn(_ROWS, _WIDTH, device=subject.device)
