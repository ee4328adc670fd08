"""A case of torch's operator data as a program of plain torch, where no graph alone shows it."""

import functools

from backbay_conformance.case import Case
from backbay_conformance.levels import sampled
from backbay_conformance.levels.opinfo import Operator
from backbay_conformance.repro.record import Made, Make

_DATA = "from torch.testing._internal.common_methods_invocations import op_db"
_PROGRAM = """\
OP = next(x for x in op_db if x.full_name == {name!r})

def made():
    random.seed({seed}), torch.manual_seed({seed}), np.random.seed({seed})
    sample = {sample}
    return [sample.input, *sample.args], sample.kwargs

def seen(call):
    args, kwargs = made()
    try:
        out = call(*args, **kwargs)
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
{gradients}    all = [x for x in tree_leaves((out, args, kwargs)) if torch.is_tensor(x)]
    memory = [x.untyped_storage()._cdata for x in all]
    kinds = [(tuple(x.shape), x.dtype, x.stride(), memory.index(m)) for x, m in zip(all, memory)]
    return kinds, [x.detach() for x in all]{and_gradients}

eager, got = seen({function}), seen(torch.compile({function}, backend=BACKEND{options}))
print("eager:", str(eager)[:2000], "\\ncompiled:", str(got)[:2000])
if isinstance(eager, str) or isinstance(got, str):
    sys.exit(isinstance(eager, str) != isinstance(got, str))
try:  # shapes, dtypes, strides, who shares memory with whom; then values
    assert eager[0] == got[0]
    torch.testing.assert_close(got[1], eager[1], equal_nan=True)
except AssertionError:
    sys.exit(1)
"""
_BACKWARD = """\
    results = [x for x in tree_leaves(out) if torch.is_tensor(x) and x.requires_grad]
    torch.autograd.backward(results, [torch.ones_like(x) for x in results])
"""
_WITH_GRADIENTS = """ + [
        x.grad for x in tree_leaves((args, kwargs)) if torch.is_tensor(x) and x.grad is not None]"""
_FUNCTIONS = {"inplace": "OP.inplace_variant", "method": "OP.method_variant"}


def of_operator(case: Case, request: Make, why: str) -> Made | None:
    """Return a program, if the case is of one of torch's operators; its inputs are the case's."""
    given = case.run.args if isinstance(case.run, functools.partial) else ()
    operator = next((x for x in given if isinstance(x, Operator)), None)
    if operator not in sampled.known() or operator is None or request.setup.all_samples:
        return None
    level, form = case.id.partition("/")[0], case.id.rpartition("/")[2]
    dtype, _, way = form.partition("-")
    trains = level == "training"
    body = _PROGRAM.format(
        name=operator.name,
        seed=sampled.seed_of(case.id, request.setup.seed),
        sample=_sample(level, dtype, way, request.setup.device, trains=trains),
        gradients=_BACKWARD if trains else "",
        and_gradients=_WITH_GRADIENTS if trains else "",
        function=_FUNCTIONS.get(way, "OP.op"),
        options=", dynamic=True" if level == "shapes" else "",
    )
    imports = (
        *("import random", "import numpy as np", _DATA),
        "from torch.utils._pytree import tree_leaves",
    )
    return Made(imports=imports, body=body, kind="operator", note=why)


def _sample(level: str, dtype: str, way: str, device: str, *, trains: bool) -> str:
    if level == "errors":
        return f"list(OP.error_inputs_func(OP, {device!r}))[{dtype}].sample_input"
    of = "float32" if level == "shapes" else dtype
    made = f"next(iter(OP.sample_inputs_func(OP, {device!r}, torch.{of}, {trains})))"
    return f"{made}.noncontiguous()" if way == "noncontiguous" else made
