"""A backend written as a class keeps Dynamo's contract, at every level."""

import math

import pytest
import torch
from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

import backbay
from backbay import compile_log
from backbay.errors import BackbayError, InputError
from backbay.graph.match import Pattern
from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.passes import graph_pass, rewrite_pass
from backbay.kit.rewrites import fold_constants
from backbay.proof import Workload, make_golden, observe
from backbay.registry import Option

to_silu = rewrite_pass(
    Pattern(match=lambda x: torch.sigmoid(x) * x, replacement=lambda x: F.silu(x)), name="to_silu"
)


@graph_pass(level="aten")
def seen_aten(graph_module):
    targets = [str(n.target) for n in graph_module.graph.nodes if n.op == "call_function"]
    assert all(x.startswith(("aten.", "prims.")) or "getitem" in x for x in targets), targets
    return 0


class Plain(Backend):
    passes = (to_silu,)
    codegen = "eager"


class Aten(Backend):
    passes = (to_silu, seen_aten)
    codegen = "eager"


class OwnTorch(Backend):
    passes = (to_silu,)

    def compile(self, graph_module, example_inputs):
        return graph_module.forward


class OwnAten(Backend):
    level = "aten"

    def compile(self, graph_module, example_inputs):
        return graph_module.forward


class ToInductor(Backend):
    passes = (to_silu, seen_aten)


ALL = [Plain, Aten, OwnTorch, OwnAten, pytest.param(ToInductor, marks=pytest.mark.slow)]


class Net(torch.nn.Module):
    """Mutates a buffer, returns a view and a dictionary, gates with SiLU."""

    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(6, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        h = self.lift(x)
        h = h * h.sigmoid()
        return {"out": h, "view": h.transpose(0, 1), "size": h.shape[0]}


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    compile_log.clear()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_gradients_mutation_and_aliasing_are_eagers(kind, dtype):
    torch.manual_seed(0)
    model = Net().to(dtype)
    workload = Workload(model=model, args=(torch.randn(5, 6, dtype=dtype),))
    golden = make_golden(workload, train=True)
    with golden.context():
        call = torch.compile(model, backend=kind())
        proof = golden.judge(observe(call, golden.at(workload), train=True))
    assert proof.passed, proof.worst


@pytest.mark.parametrize("kind", ALL)
def test_dynamic_shapes_compile_once(kind):
    backend, calls = kind(), []
    compiled = torch.compile(
        lambda x: (x * x.sigmoid()).sum(0),
        backend=lambda gm, inputs: (calls.append(1), backend(gm, inputs))[1],
        dynamic=True,
    )
    for rows in (3, 7, 16):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), F.silu(x).sum(0))
    assert len(calls) == 1


@pytest.mark.parametrize("kind", [Plain, Aten, OwnTorch, OwnAten])
def test_weights_changed_after_compilation_count(kind):
    model = torch.nn.Linear(3, 3)
    compiled = torch.compile(model, backend=kind())
    x = torch.randn(2, 3)
    compiled(x)
    with torch.no_grad():
        model.weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))


class Frozen(Backend):
    freeze = True
    passes = (fold_constants,)
    codegen = "eager"


class Scaled(torch.nn.Module):
    """Its scale depends on parameters alone; it counts its calls."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * torch.exp(self.weight)


def test_frozen_parameters_are_folded_and_a_buffer_that_is_written_is_not(reports):
    model, backend, x = Scaled(), Frozen(), torch.randn(3)
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        before = compiled(x)
        torch.testing.assert_close(before, x * math.e)
        assert sum(r.changes for r in reports) >= 1
        model.weight.zero_()
        torch.testing.assert_close(compiled(x), before)
    assert model.calls == 2


def test_nothing_is_frozen_where_gradients_are_recorded():
    model, backend, x = Scaled(), Frozen(), torch.randn(3)
    compiled = torch.compile(model, backend=backend)
    compiled(x).sum().backward()
    assert model.weight.grad is not None
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(compiled(x), x)


def test_passes_of_mixed_levels_run_where_they_belong(reports):
    backend = Aten()
    x = torch.randn(4, requires_grad=True)
    torch.compile(lambda x: x * x.sigmoid(), backend=backend)(x).sum().backward()
    names = [r.name for r in reports]
    assert names == ["to_silu", "seen_aten", "seen_aten"]  # Dynamo's graph, forward, backward
    assert reports[0].changes == 1


def test_a_bare_tensor_is_refused_instead_of_being_indexed():
    class Bare(Backend):
        def compile(self, graph_module, example_inputs):
            return lambda *inputs: graph_module.forward(*inputs)[0]

    with pytest.raises(BackbayError, match="returns Tensor: return a tuple"):
        torch.compile(lambda x: x + 1, backend=Bare())(torch.ones(3))


def test_what_is_no_callable_is_refused():
    class Nothing(Backend):
        def compile(self, graph_module, example_inputs):
            return None

    with pytest.raises(
        Exception, match="gives NoneType, not a callable: return what runs the graph"
    ):
        torch.compile(lambda x: x + 1, backend=Nothing())(torch.ones(3))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"level": "atn"}, "level is 'torch' or 'aten'"),
        ({"partitioner": "x"}, "partitioner is 'min_cut' or 'default'"),
        ({"passes": (len,)}, "is no pass"),
        ({"passes": (seen_aten,), "compile": lambda self, gm, inputs: gm}, "set level = 'aten'"),
        ({"passes": (seen_aten.at("inductor.post_grad"),), "codegen": "eager"}, "inside Inductor"),
    ],
)
def test_a_wrong_declaration_is_an_error_where_the_class_is_written(body, said):
    with pytest.raises(InputError, match=said):
        type("Wrong", (Backend,), body)


def test_options_have_a_schema_defaults_and_short_errors():
    class Tuned(Plain):
        options = (Option(name="level", type="int", default=2, choices=(1, 2)),)

    backend = Tuned()
    with pytest.raises(Exception, match="did you mean 'level'"):
        torch.compile(lambda x: x + 1, backend=backend, options={"levl": 1})(torch.ones(1))
    torch.compiler.reset()
    assert torch.compile(lambda x: x + 2, backend=backend, options={"level": 1})(torch.ones(1)) == 3


def test_inductors_options_and_mode_reach_it():
    class Tuned(Backend):
        options = (Option(name="mine", type="bool"),)

    compiled = torch.compile(
        lambda x: x * 2, backend=Tuned(), options={"mine": True, "epilogue_fusion": False}
    )
    assert compiled(torch.ones(1)) == 2
    torch.compiler.reset()
    with pytest.raises(Exception, match="no_such_option"):
        torch.compile(lambda x: x * 2, backend=Tuned(), options={"no_such_option": 1})(
            torch.ones(1)
        )


def test_it_is_registered_and_found_by_name_like_any_other():
    with backbay.registered(Plain(), "plain_of_the_kit"):
        x = torch.randn(3)
        compiled = torch.compile(lambda x: x * x.sigmoid(), backend="plain_of_the_kit")
        torch.testing.assert_close(compiled(x), F.silu(x))
    (record,) = compile_log.records()
    assert (record.asked, record.ran) == ("plain", "eager")
    assert "to_silu 1x" in record.why


def test_a_record_tells_of_its_own_graph_alone():
    backend = Plain()
    torch.compile(lambda x: x * x.sigmoid(), backend=backend)(torch.ones(1))
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert ["to_silu" in record.why for record in compile_log.records()] == [True, False]


@pytest.mark.slow
def test_reports_of_a_second_backend_of_the_same_passes_do_not_go_to_the_first(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # what is cached runs no pass

    class Hooked(Backend):
        passes = (seen_aten,)

    for number in range(2):
        with collected() as reports:
            torch.compile(lambda x, n=number: x * 2 + n, backend=Hooked())(torch.ones(3))
        assert len(reports) == 1


def test_a_backend_keeps_what_it_compiled():
    backend = Plain()
    with backbay.registered(backend, "plain_of_the_kit"):
        before = dict(vars(backend))
        torch.compile(lambda x: x * x.sigmoid(), backend="plain_of_the_kit")(torch.ones(1))
    assert vars(backend).keys() == before.keys()
    assert {k for k, v in vars(backend).items() if v is not before[k]} <= {"_next"}


class RaisesInCompile(Backend):
    level = "aten"

    def compile(self, graph_module, example_inputs):
        raise RuntimeError("no licence")


@graph_pass(level="torch")
def fails(graph_module):
    raise RuntimeError("no licence")


class RaisesInPass(Backend):
    passes = (fails,)


@pytest.mark.parametrize("kind", [RaisesInCompile, RaisesInPass])
def test_an_exception_while_compiling_names_its_author_and_keeps_the_users_own_line(kind):
    def users_code(x):
        return x + 1234

    with pytest.raises(Exception, match="RuntimeError: no licence") as raised:
        torch.compile(users_code, backend=kind())(torch.ones(3))
    said = str(raised.value)
    assert "raises_in_compile.compile raised" in said or "pass fails raised" in said
    assert "return x + 1234" in said


@pytest.mark.parametrize("kind", [Plain, Aten, OwnTorch, OwnAten])
def test_an_exception_of_the_users_operator_is_eagers(kind):
    def divides(x, at):
        return torch.take(x, at)

    with pytest.raises(Exception, match="index") as eagers:
        divides(torch.ones(3), torch.tensor([7]))
    with pytest.raises(type(eagers.value), match="index"):
        torch.compile(divides, backend=kind())(torch.ones(3), torch.tensor([7]))


@pytest.mark.parametrize("kind", [Plain, Aten, OwnTorch, OwnAten])
def test_autocast_is_kept(kind):
    def mixed(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x @ w
            h = h * h.sigmoid()
        return h, (x @ w).relu()

    x, w = torch.randn(4, 5), torch.randn(5, 6, requires_grad=True)
    out = torch.compile(mixed, backend=kind())(x, w)
    assert [y.dtype for y in out] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(out, mixed(x, w))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = torch.compile(lambda x, w: x @ w, backend=kind())
        assert compiled(x, w).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", [Plain, Aten, OwnTorch, OwnAten])
def test_strides_of_inputs_and_results_are_eagers(kind):
    def turned(x):
        return x.t() * 2, (x * x.sigmoid())[:, ::2]

    for x in (torch.randn(4, 6).t(), torch.randn(8, 9)[::2, 1::3], torch.randn(1, 5).expand(3, 5)):
        torch.compiler.reset()
        out, expected = torch.compile(turned, backend=kind())(x), turned(x)
        torch.testing.assert_close(out, expected)
        assert [y.stride() for y in out] == [y.stride() for y in expected]


@pytest.mark.parametrize("kind", [Plain, Aten, OwnTorch, OwnAten])
def test_graphs_around_a_break_and_recompiles_each_get_their_own_code(kind):
    def broken(x, scale):
        h = x * scale
        torch._dynamo.graph_break()
        return h * h.sigmoid()

    backend, graphs = kind(), []
    compiled = torch.compile(
        broken, backend=lambda gm, inputs: (graphs.append(gm), backend(gm, inputs))[1]
    )
    x = torch.randn(5)
    for scale in (2, 3, 2):
        torch.testing.assert_close(compiled(x, scale), broken(x, scale))
    assert len(graphs) >= 3  # before the break twice, for the two numbers; after it once


@pytest.mark.parametrize("kind", [Plain, Aten, OwnTorch, OwnAten])
def test_results_that_are_inputs_or_views_of_them_stay_so(kind):
    def same(x, y):
        y.mul_(2)
        return x, x.view(-1), y

    x, y = torch.randn(2, 3), torch.ones(4)
    first, view, mutated = torch.compile(same, backend=kind())(x, y)
    assert first.data_ptr() == view.data_ptr() == x.data_ptr()
    assert mutated.data_ptr() == y.data_ptr()
    assert y.tolist() == [2.0] * 4


@pytest.mark.parametrize("kind", [Plain, Aten, OwnTorch, OwnAten])
def test_a_list_and_a_tuple_are_both_results(kind):
    made = kind()
    original = type(made).compile
    if original is not None:
        made.compile = lambda gm, inputs: lambda *xs: list(gm.forward(*xs))
    assert torch.compile(lambda x: (x + 1, x - 1), backend=made)(torch.ones(1)) == (2, 0)


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import torch
import operator_module
from backbay.graph.match import Pattern
from backbay.kit.backend import Backend
from backbay.kit.observing import collected
from backbay.kit.passes import graph_pass, rewrite_pass
import torch._inductor.config as config
config.fx_graph_cache = True

@graph_pass(level="aten", sources=({factor!r},))
def scale(graph_module):
    for node in list(graph_module.graph.nodes):
        if node.target == torch.ops.aten.addmm.default:
            node.kwargs = {{"beta": {factor}}}
    graph_module.recompile()
    return 1

pattern = Pattern(match=lambda x: x @ x, replacement=lambda x: operator_module.product(x))

class ByPass(Backend):
    passes = (scale,)

class ByOperator(Backend):
    passes = (rewrite_pass(pattern, name="scale", sources=(operator_module,)),)

x = torch.eye(32)  # products alone: Inductor calls torch for them, and starts no C++ compiler
by_pass = torch.compile(lambda x: torch.addmm(x, x, x), backend=ByPass())(x)
by_operator = torch.compile(lambda x: x @ x, backend=ByOperator())(x)
print(by_pass[0, 0].item() - 1, by_operator[0, 0].item() - 1)
"""


@pytest.mark.slow
def test_a_changed_pass_or_operator_runs_although_two_processes_share_a_cache(
    run_python, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # its time stamps tell seconds only
    said = []
    for factor in ("5.0", "5.0", "7.0"):
        # Inlined by AOTAutograd: in the keys of its cache there is the operator's name alone.
        (tmp_path / "operator_module.py").write_text(
            "import torch\n"
            "torch.library.define('cached::product', '(Tensor x) -> Tensor')\n"
            "torch.library.impl(\n"
            "    'cached::product', 'CompositeImplicitAutograd',\n"
            f"    lambda x: torch.addmm(x, x, x, beta={factor}),\n"
            ")\n"
            "product = torch.ops.cached.product.default\n"
        )
        program = PROGRAM.format(folder=str(tmp_path), factor=factor)
        said.append(run_python(program).stdout.split())
    assert said == [["5.0", "5.0"], ["5.0", "5.0"], ["7.0", "7.0"]]


def test_what_autotuning_found_is_looked_up_by_another_key_than_it_is_kept_by():
    """It is kept by processes and in calls that see nothing of what holds while compiling."""
    keys, marked = [], []

    @graph_pass(level="inductor.post_grad")
    def look(_):
        keys.append(AutotuneCache._prepare_key("kernel.py"))
        marked.append(dict(torch._inductor.config.unsafe_marked_cacheable_functions))
        return 0

    class Looks(Backend):
        passes = (to_silu, look)

    given = {"users.function": "1"}
    with torch._inductor.config.patch(
        force_disable_caches=True, unsafe_marked_cacheable_functions=given
    ):
        torch.compile(lambda x: x + 1, backend=Looks())(torch.rand(4))
        assert torch._inductor.config.unsafe_marked_cacheable_functions == given
    assert keys == [AutotuneCache._prepare_key("kernel.py")]
    ((name, digest),) = marked[0].items() - given.items()
    assert marked[0].items() > given.items()
    assert to_silu.uuid() in digest
    assert not name.isidentifier()  # no function is called so


@graph_pass(level="torch")
def wants_combo_kernels(graph_module, context):
    if graph_module.graph.find_nodes(op="call_function", target=torch.sin):
        context.inductor["combo_kernels"] = True
    return 0


def settings_of(*functions, codegen=None, **asked):
    """Compile each, and give whether Inductor was to make combo kernels, as a pass in it saw."""
    found = []

    @graph_pass(level="inductor.post_grad")
    def look(_):
        found.append(torch._inductor.config.combo_kernels)
        return 0

    passes = (wants_combo_kernels, *(() if codegen else (look,)))
    declared = {"passes": passes, **({"codegen": codegen} if codegen else {})}
    backend, x = type("Wants", (Backend,), declared)(), torch.rand(4)
    for function in functions:
        with torch._inductor.config.patch(force_disable_caches=True):
            result = torch.compile(lambda x, f=function: f(x) + 1, backend=backend, **asked)(x)
        torch.testing.assert_close(result, function(x) + 1)
    return found


def test_a_setting_that_a_pass_wants_is_lost():
    assert settings_of(torch.sin) == [True]
    torch.compiler.reset()
    assert settings_of(torch.sin, mode="max-autotune-no-cudagraphs") == [True]


def test_a_setting_of_one_graph_is_another_ones():
    assert settings_of(torch.sin, torch.cos) == [True, False]


def test_a_pass_overrules_the_user():
    assert settings_of(torch.sin, options={"combo_kernels": False}) == [False]


def test_a_setting_of_inductor_is_handed_to_another_code_generator():
    assert settings_of(torch.sin, codegen="eager") == []
