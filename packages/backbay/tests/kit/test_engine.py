"""A foreign engine on the kit: an interpreter in NumPy stands for it, so that CI needs none."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay import compile_log
from backbay.errors import InputError
from backbay.kit.engine import Engine, makes_integers
from backbay.kit.exchange import aligned, as_tensor, laid_out, shared_array
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


SUMS = (aten.sum.dim_IntList, aten.cumsum.default)


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


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    torch.compiler.reset()
    compile_log.clear()
    torch.manual_seed(0)


def assert_as_eager(model, backend, *batches, train=True, **keywords):
    call = torch.compile(model, backend=backend, **keywords)
    for batch in batches:
        workload = Workload(model=model, args=(torch.randn(batch, 6),))
        golden = make_golden(workload, train=train)
        with golden.context():
            proof = golden.judge(observe(call, golden.at(workload), train=train))
        assert proof.passed, proof.worst


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_batches_of_4_7_and_1_are_right_and_the_engine_runs_them(train):
    backend = engine()
    assert_as_eager(Net(), backend, 4, 7, 1, train=train)
    kinds = {x.kind for x in backend.programs}
    assert kinds == ({"forward", "backward"} if train else {"inference"})
    assert not any(x.fell_back for x in compile_log.records())


def test_two_threads_are_in_what_an_engine_built_at_once():
    met = []

    class Busy(Numpy):
        def build(self, program):
            run, inside = super().build(program), [0]

            def alone(*tensors):
                inside[0] += 1
                met.append(inside[0])
                time.sleep(0.01)
                inside[0] -= 1
                return run(*tensors)

            return alone

    model, x = Net().eval(), torch.randn(4, 6)
    with torch.no_grad():
        call = torch.compile(model, backend=Busy())
        want = call(x)["out"]

        def called():
            with torch.no_grad():
                return [call(x)["out"] for _ in range(5)]

        with ThreadPoolExecutor(4) as pool:
            found = [
                y for future in [pool.submit(called) for _ in range(4)] for y in future.result()
            ]
    assert set(met) == {1}
    assert len(met) >= 21
    for one in found:
        torch.testing.assert_close(one, want)


def test_the_log_says_which_graph_ran_where_and_what_was_left():
    assert_as_eager(Net(), engine(), 4)
    forward, backward = compile_log.records()
    assert (forward.asked, forward.ran) == ("numpy_engine", "numpy_engine")
    assert forward.why.startswith("forward graph: ")
    assert "eager runs aten.sigmoid.default (not in the list" in forward.why
    assert forward.owned < forward.nodes
    assert backward.why.startswith("backward graph: ")


def test_an_engine_for_inference_alone_leaves_training_to_its_fallback_and_says_so():
    backend = engine(graph_kinds=("inference",))
    assert_as_eager(Net(), backend, 4)
    assert not backend.programs
    assert [(x.ran, x.fell_back) for x in compile_log.records()] == [("eager", True)] * 2
    assert "forward graph: numpy_engine takes none" in compile_log.records()[0].why
    assert_as_eager(Net(), backend, 4, train=False)
    assert backend.programs


def test_the_backward_graph_alone_can_be_left():
    backend = engine(graph_kinds=("inference", "forward"))
    assert_as_eager(Net(), backend, 4)
    assert {x.kind for x in backend.programs} == {"forward"}


def test_gradients_that_nobody_wants_are_none():
    model = torch.nn.Linear(6, 3)
    model.bias.requires_grad_(requires_grad=False)
    x = torch.randn(4, 6)
    backend = engine()
    torch.compile(model, backend=backend)(x).sum().backward()
    expected = torch.autograd.grad(model(x).sum(), model.weight)[0]
    torch.testing.assert_close(model.weight.grad, expected)
    assert model.bias.grad is None
    assert {x.kind for x in backend.programs} >= {"backward"}


def test_a_ninth_size_runs_elsewhere_and_the_first_eight_stay_built():
    backend, model = engine(most_sizes=3), torch.nn.Linear(6, 4)
    call = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 4, 5, 6, 2):
            x = torch.randn(batch, 6)
            torch.testing.assert_close(call(x), model(x))
    assert len(backend.programs) == 3
    (left,) = [x for x in compile_log.records() if x.fell_back]
    assert "built a region for 3 sizes, and eager runs all others" in left.why


def test_an_engine_without_symbols_can_leave_what_has_them():
    backend = engine(symbols="elsewhere")
    call = torch.compile(lambda x: x * 2 + 1, backend=backend, dynamic=True)
    for batch in (4, 7):
        assert torch.equal(call(torch.ones(batch, 2)), torch.full((batch, 2), 3.0))
    assert not backend.programs
    assert "has a size that changes" in compile_log.records()[0].why


def test_frozen_weights_are_constants_of_the_region_that_reads_them():
    backend = engine()
    assert_as_eager(Net(), backend, 4, train=False, options={"freeze": True})
    assert len(backend.programs) == 2  # around sigmoid
    held = [sorted(tuple(c.shape) for c in x.constants.values()) for x in backend.programs]
    assert held == [[(8,), (8, 6)], [(4,), (4, 8)]]
    assert all(len(x.inputs) <= 2 for x in backend.programs)


def test_weights_are_inputs_unless_asked_for_and_their_changes_are_seen():
    backend, model = engine(), torch.nn.Linear(6, 4)
    call, x = torch.compile(model, backend=backend), torch.randn(3, 6)
    with torch.no_grad():
        call(x)
        model.weight.mul_(2)
        torch.testing.assert_close(call(x), model(x))
    assert not backend.programs[0].constants


def test_results_have_eagers_strides():
    def turned(x):
        return (x * 2).t(), (x + 1).t().contiguous().t()

    x = torch.randn(4, 6)
    for made, wanted in zip(torch.compile(turned, backend=engine())(x), turned(x), strict=True):
        torch.testing.assert_close(made, wanted)
        assert made.stride() == wanted.stride()


def test_batch_norm_which_has_empty_results_too_is_left():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    found = engine(supports=None).dry_run(model, torch.randn(2, 3, 8, 8))
    assert [(x.covered, x.left) for x in found.graphs] == [(2, "")]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_views_that_are_returned_are_copies_of_the_engines(dynamic):
    def viewing(x):
        n, wide = x.shape[0], x * 2
        return x[n // 2 :], x.narrow(0, n - 2, 2).t(), wide, *wide.split([2, 4], 1), wide.t() + 1

    backend = engine(supports=None)
    call = torch.compile(viewing, backend=backend, dynamic=dynamic)
    for rows in (6, 9):
        x = torch.randn(rows, 6)
        made, wanted = call(x), viewing(x)
        torch.testing.assert_close(made, wanted)
        assert [y.storage_offset() for y in made] == [y.storage_offset() for y in wanted]
        assert made[0].data_ptr() == x[rows // 2].data_ptr()
        assert made[4].untyped_storage().data_ptr() == made[2].untyped_storage().data_ptr()
    assert all(x.owned == x.nodes for x in compile_log.records())
    run = {n.target for p in backend.programs for n in p.graph_module.graph.nodes}
    assert run >= {aten.mul.Tensor, aten.add.Tensor, aten.permute.default}


def test_what_has_no_elements_reaches_the_engine():
    backend = engine(supports=None)
    call = torch.compile(lambda x: (x * 2, (x[:0] * 2).sum(0), x.relu()), backend=backend)
    x = torch.randn(4, 6)
    torch.testing.assert_close(call(x), (x * 2, torch.zeros(6), x.relu()))
    values = [x for p in backend.programs for x in (*p.inputs, *p.results)]
    assert values
    assert all(x.numel() for x in values)


def test_a_reduction_of_everything_comes_without_its_dimensions():
    backend = engine(supports=None)
    call = torch.compile(lambda x, y: (x.amax(), y.amax()), backend=backend)
    x, y = torch.randn(4, 6), torch.tensor(3.0)
    torch.testing.assert_close(call(x, y), (x.amax(), y))
    (program,) = backend.programs
    (node,) = program.graph_module.graph.find_nodes(op="call_function", target=aten.amax.default)
    assert node.args[1] == [0, 1]


def test_sums_of_integers_and_booleans_are_taken_in_the_dtype_of_their_result():
    def counted(x):
        near = x > 0
        whole = near.to(torch.int32)
        return near.cumsum(1), near.sum(0, dtype=torch.int32), whole.sum(1), near.sum(), x.sum()

    backend, x = engine(supports=None), torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(counted, backend=backend)(x), counted(x))
    (program,) = backend.programs
    sums = [n for n in program.graph_module.graph.nodes if n.target in SUMS]
    assert len(sums) == 5
    assert all(n.args[0].meta["val"].dtype == n.meta["val"].dtype for n in sums)


def test_a_program_can_be_saved_for_an_engine_that_compiles_in_another_process(tmp_path):
    backend = engine()
    with torch.no_grad():
        torch.compile(torch.nn.Sequential(torch.nn.Linear(6, 8)), backend=backend)(
            torch.randn(4, 6)
        )
    (program,) = backend.programs
    torch.export.save(program.exported, tmp_path / "program.pt2")
    assert (tmp_path / "program.pt2").stat().st_size


def test_what_an_engine_refuses_is_left_with_its_reason():
    refuses = {
        aten.relu: "is slow",
        aten.neg.default: "is wrong",
        aten.mul: (makes_integers, "multiplies floats only"),
    }
    backend = engine(supports=None, refuses=refuses)
    call, x = torch.compile(lambda x, y: (-x.relu() * 2, y * y), backend=backend), torch.randn(4)
    y = torch.arange(3)
    torch.testing.assert_close(call(x, y), (-x.relu() * 2, y * y))
    (program,) = backend.programs
    assert [n.target for n in program.graph_module.graph.nodes if "call" in n.op] == [
        aten.mul.Tensor
    ]
    why = compile_log.records()[0].why
    assert all(x in why for x in ("is slow", "is wrong", "multiplies floats only"))


def test_pooling_along_one_dimension_and_products_of_booleans_come_as_any_engine_has_them():
    def pooled(x):
        return F.avg_pool1d(x, 2), F.max_pool1d(x, 2), (x > 0) * (x < 1)

    found = []
    backend = engine(supports=lambda _, node: found.append(node) or "here for its nodes")
    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(pooled, backend=backend)(x), pooled(x))
    pools = [n for n in found if "pool" in n.name]
    assert [n.args[0].meta["val"].ndim for n in pools] == [4, 4]
    assert aten.logical_and.default in {n.target for n in found}


def test_any_is_taken_of_booleans():
    backend, x = engine(supports=None), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    made = torch.compile(lambda x: (x.any(1), x.any()), backend=backend)(x)
    torch.testing.assert_close(made, (x.any(1), x.any()))
    (program,) = backend.programs
    read = [n.args[0] for n in program.graph_module.graph.nodes if "any" in n.name]
    assert [x.meta["val"].dtype for x in read] == [torch.bool] * 2


def test_a_graph_that_computes_in_float64_of_float32_is_refused():
    call, x = torch.compile(lambda x: x.double() * 2, backend=engine()), torch.ones(3)
    torch.testing.assert_close(call(x), x.double() * 2)


def test_what_is_returned_is_kept_when_the_engine_writes_over_its_own():
    class Reusing(Numpy):
        shares_results = True

        def build(self, program):
            run, own = super().build(program), {}

            def reused(*tensors):
                made = run(*tensors)
                for number, one in enumerate(made):
                    np.copyto(own.setdefault(number, one), one)
                return [own[number] for number in range(len(made))]

            return reused

    call = torch.compile(lambda x: x * 2, backend=Reusing())
    first = call(torch.ones(3))
    call(torch.zeros(3))
    assert first.tolist() == [2.0] * 3


def test_another_dtype_is_refused_with_the_users_line():
    with pytest.raises(Exception, match=r"computes in float32, and this graph in bfloat16 \(.*:"):
        torch.compile(lambda x: x * 2, backend=engine())(torch.ones(3, dtype=torch.bfloat16))


def test_random_numbers_and_writes_never_reach_the_engine():
    backend = engine(supports=None)
    buffer = torch.zeros(6)

    def step(x):
        buffer.add_(1)
        return F.dropout(x, 0.5) + buffer

    call, x, seen = torch.compile(step, backend=backend), torch.randn(4, 6), []
    for one in (step, call):
        torch.manual_seed(3)
        buffer.zero_()
        seen += [one(x), buffer.clone()]
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert backend.programs
    targets = {n.target for p in backend.programs for n in p.graph_module.graph.nodes}
    assert not targets & {aten.native_dropout.default, aten.copy_.default}
    assert "(draws random numbers)" in compile_log.records()[0].why


def test_an_engines_error_names_engine_graph_cause_and_line():
    class Broken(Numpy):
        def build(self, program):
            if len(program.graph_module.graph.find_nodes(op="call_function", target=EXP)) > 1:
                raise RuntimeError("compilation failed") from ValueError("no room for two")
            return super().build(program)

    with pytest.raises(
        Exception,
        match=r"numpy can't compile this inference graph: ValueError: no room for two "
        r".*\(the graph of .*test_engine.py:\d+: torch.compile",
    ):
        torch.compile(lambda x: x.exp().exp(), backend=Broken())(torch.ones(3))


@pytest.mark.parametrize("freeze", [False, True])
def test_an_engines_error_names_the_operator_that_it_cant_build(freeze):
    class Picky(Numpy):
        def build(self, program):
            if program.graph_module.graph.find_nodes(op="call_function", target=EXP):
                raise RuntimeError("17 has no kernel")
            return super().build(program)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(6))

        def forward(self, x):
            return (x * self.scale).exp() + self.scale.exp()

    call = torch.compile(Model(), backend=Picky(), options={"freeze": freeze})
    said = (
        r"numpy can't compile aten.exp.default in this inference graph: RuntimeError: 17 has no "
        r"kernel \(.*test_engine.py:\d+: return \(x"
    )
    with pytest.raises(Exception, match=said), torch.no_grad():
        call(torch.ones(3, 6))


def test_results_share_no_memory_with_inputs_or_each_other():
    class Passing(Numpy):
        supports = None

        def build(self, program):
            return lambda x: [x, x]

    call = torch.compile(lambda x: (x.clone(), x.clone() * 1), backend=Passing())
    x = torch.ones(4)
    first, second = call(x)
    assert len({y.data_ptr() for y in (x, first, second)}) == 3


def test_a_wrong_number_of_results_is_an_error():
    class Short(Numpy):
        def build(self, program):
            return lambda *tensors: []

    with pytest.raises(Exception, match="gave 0 results where the graph has 1"):
        torch.compile(lambda x: x * 2, backend=Short())(torch.ones(3))


class Kept(Numpy):
    """Notes when it compiles, and when it finds what was compiled."""

    made = 0

    def build(self, program):
        """Keep a byte, and interpret."""

        def make():
            type(self).made += 1
            return b"compiled"

        assert program.kept(make) == b"compiled"
        return super().build(program)


def test_what_was_compiled_is_kept_for_the_next_process_until_anything_changes(monkeypatch):
    monkeypatch.setattr(Kept, "made", 0)

    def compiled(function, size=3, **options):
        torch.compiler.reset()
        torch.compile(function, backend=Kept(), options=options)(torch.ones(size))
        return Kept.made

    assert compiled(lambda x: x * 2) == 1
    assert compiled(lambda x: x * 2) == 1
    assert compiled(lambda x: x * 3) == 2
    assert compiled(lambda x: x * 2, size=4) == 3
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.0")
    assert compiled(lambda x: x * 2) == 4


def test_what_others_may_have_written_is_compiled_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(Kept, "made", 0)
    for _ in range(2):
        torch.compiler.reset()
        torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(3))
    assert Kept.made == 1
    for file in (tmp_path / "cache" / "engines").iterdir():
        file.chmod(0o666)
    torch.compiler.reset()
    torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(3))
    assert Kept.made == 2


def test_what_was_used_longest_ago_goes_first_when_too_much_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(Kept, "made", 0)

    def compiled(size):
        before = Kept.made
        torch.compiler.reset()
        torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(size))
        return Kept.made - before

    assert compiled(2) == 1
    folder = tmp_path / "cache" / "engines"
    (first,) = folder.iterdir()
    monkeypatch.setattr("backbay.kit.program.MOST_KEPT_BYTES_IN_ALL", 2 * first.stat().st_size)
    assert compiled(3) == 1
    (second,) = set(folder.iterdir()) - {first}
    for age, file in enumerate((second, first)):  # the first is the older one, but is used again
        os.utime(file, ns=(10**18 - age * 10**9,) * 2)
    assert compiled(2) == 0
    assert compiled(4) == 1
    assert compiled(2) == 0
    assert compiled(3) == 1
    assert len(list(folder.iterdir())) == 2


def test_a_file_is_kept_for_an_engine_that_reads_files():
    written = []

    class Filed(Numpy):
        def build(self, program):
            def write(path):
                written.append(path.name)
                path.write_text("compiled")

            with program.kept_file("program.so", write) as path:
                assert (path.name, path.read_text()) == ("program.so", "compiled")
            assert not path.exists()
            return super().build(program)

    for _ in range(2):
        torch.compiler.reset()
        torch.compile(lambda x: x * 2, backend=Filed())(torch.ones(3))
    assert written == ["program.so"]


def test_different_constants_are_kept_apart(monkeypatch):
    monkeypatch.setattr(Kept, "made", 0)
    for _ in range(2):
        torch.compiler.reset()
        with torch.no_grad():
            call = torch.compile(torch.nn.Linear(6, 2), backend=Kept(), options={"freeze": True})
            call(torch.ones(1, 6))
    assert Kept.made == 2


def test_bfloat16_goes_through_an_array_and_back():
    x = torch.randn(3, 4).bfloat16()
    assert torch.equal(as_tensor(shared_array(x), torch.bfloat16), x)
    with pytest.raises(TypeError, match=r"gave torch\.float64 where the graph has torch\.float32"):
        as_tensor(np.zeros(2), torch.float32)


def test_a_part_of_a_tensor_is_copied_to_where_a_runtime_wants_it():
    whole = torch.arange(40.0)
    for part in (whole[3:], whole.view(5, 8).t()):
        made = aligned(part)
        assert torch.equal(made, part)
        assert made.is_contiguous()
        assert made.data_ptr() % 64 == 0
    assert aligned(whole).data_ptr() == whole.data_ptr()


def test_a_layout_with_expanded_dimensions_is_made():
    x = torch.randn(1, 4).expand(3, 4)
    made = laid_out(x.contiguous(), x.stride())
    assert made.stride() == x.stride() == (0, 1)
    assert torch.equal(made, x)


def test_a_wrong_declaration_is_an_error():
    with pytest.raises(InputError, match="symbols is 'specialise' or 'elsewhere'"):
        engine(symbols="pass")
    with pytest.raises(InputError, match="graph_kinds has 'inference', 'forward', 'backward', not"):
        engine(graph_kinds=("training",))
