"""An interpreter in NumPy that stands for a foreign engine, so that CI needs none."""

import numpy as np
import torch

from backbay.kit.engine import Engine
from backbay.kit.exchange import shared_array
from backbay.proof import Workload, make_golden, observe

aten = torch.ops.aten
EXP = aten.exp.default
TABLE = {
    aten.mm.default: np.matmul,
    aten.bmm.default: np.matmul,
    aten.addmm.default: lambda bias, a, b: bias + a @ b,
    aten.mul.Tensor: np.multiply,
    aten.add.Tensor: np.add,
    aten.sub.Tensor: np.subtract,
    aten.div.Tensor: np.divide,
    aten.neg.default: np.negative,
    EXP: np.exp,
    aten.relu.default: lambda x: np.maximum(x, 0),
    aten.le.Scalar: np.less_equal,
    aten.where.self: np.where,
    aten.full.default: lambda size, value, **_: np.full(size, value, np.float32),
    aten.permute.default: np.transpose,
    aten.view.default: np.reshape,
    aten.clone.default: lambda x, **_: x,
    aten.expand.default: lambda x, size: np.broadcast_to(x, fitted(x, size)),
    aten.sum.dim_IntList: lambda x, dims, k=False, **_: x.sum(tuple(dims) or None, keepdims=k),
    aten.cumsum.default: np.cumsum,
    aten.gt.Scalar: np.greater,
    aten.ne.Scalar: np.not_equal,
    aten.any.default: np.any,
    aten.any.dim: np.any,
    aten._to_copy.default: lambda x, **_: x,
    aten.amax.default: lambda x, dims, keep=False: x.max(tuple(dims), keepdims=keep),
}


class Numpy(Engine):
    """Interprets graphs with NumPy; what it gives is contiguous, and in C order."""

    name = "numpy_engine"
    engine = "numpy"
    supports = tuple(TABLE)

    def __init__(self):
        super().__init__()
        self.programs = []

    def build(self, program):
        """Check what the kit promises, and return the interpreter."""
        self.programs.append(program)
        nodes = list(program.graph_module.graph.nodes)
        assert all(isinstance(x, torch.Tensor) for x in (*program.inputs, *program.results))
        assert len({id(x) for x in nodes[-1].args[0]}) == len(nodes[-1].args[0])
        constants = {k: shared_array(v) for k, v in program.constants.items()}

        def run(*tensors):
            assert not any(x.requires_grad for x in tensors)
            given, values = iter(tensors), {}
            for node in nodes[:-1]:
                if node.op == "placeholder":
                    values[node] = shared_array(next(given))
                elif node.op == "get_attr":
                    values[node] = constants[node.name]
                else:
                    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                    made = TABLE[node.target](*args, **kwargs)
                    wanted = shared_array(torch.empty(0, dtype=node.meta["val"].dtype)).dtype
                    values[node] = made.astype(wanted, copy=False)
            return [np.array(values[n], order="C") for n in nodes[-1].args[0]]

        return run


def fitted(array, size):
    offset = len(size) - array.ndim
    return [array.shape[d - offset] if x == -1 else x for d, x in enumerate(size)]


class Net(torch.nn.Module):
    """A residual, a softmax, a result that is an input, one that is a number, and one twice."""

    def __init__(self):
        super().__init__()
        self.lift, self.drop = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)

    def forward(self, x, mask=None):
        h = torch.relu(self.lift(x))
        h = h + h.sigmoid()
        out = self.drop(h)
        return {"out": out, "twice": out * 2, "given": x, "size": x.shape[0], "turned": h.t() * 2}


def engine(**attributes):
    return type("Made", (Numpy,), attributes)()


def assert_as_eager(model, backend, *batches, train=True, **keywords):
    call = torch.compile(model, backend=backend, **keywords)
    for batch in batches:
        workload = Workload(model=model, args=(torch.randn(batch, 6),))
        golden = make_golden(workload, train=train)
        with golden.context():
            proof = golden.judge(observe(call, golden.at(workload), train=train))
        assert proof.passed, proof.worst
