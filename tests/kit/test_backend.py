"""A backend written as a class keeps Dynamo's contract, at every level."""

import textwrap

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

import backbay
from backbay import ledger
from backbay.errors import BackbayError, InputError
from backbay.graph.match import Pattern
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass, rewrite_pass
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
    ledger.clear()


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


def test_passes_of_mixed_levels_run_where_they_belong():
    backend = Aten()
    x = torch.randn(4, requires_grad=True)
    torch.compile(lambda x: x * x.sigmoid(), backend=backend)(x).sum().backward()
    names = [r.name for r in backend.reports]
    assert names == ["to_silu", "seen_aten", "seen_aten"]  # Dynamo's graph, forward, backward
    assert backend.reports[0].changes == 1


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

    with pytest.raises(Exception, match="gives NoneType, not a callable"):
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
    (record,) = ledger.records()
    assert (record.asked, record.ran) == ("plain", "eager")
    assert "to_silu 1x" in record.why


def test_reset_forgets():
    backend = Plain()
    with backbay.registered(backend, "plain_of_the_kit"):
        torch.compile(lambda x: x * x.sigmoid(), backend="plain_of_the_kit")(torch.ones(1))
        assert backend.reports
        backend.reset()
        assert not backend.reports


def test_an_exception_keeps_the_users_own_line():
    class Raises(Backend):
        def compile(self, graph_module, example_inputs):
            raise RuntimeError("no licence")

    with pytest.raises(Exception, match="no licence"):
        torch.compile(lambda x: x + 1, backend=Raises())(torch.ones(1))


PROGRAM = """
import torch
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
import torch._inductor.config as config
config.fx_graph_cache = True

@graph_pass(level="aten", sources=({factor!r},))
def scale(graph_module):
    for node in list(graph_module.graph.nodes):
        if node.target == torch.ops.aten.mul.Tensor:
            node.args = (node.args[0], {factor})
    graph_module.recompile()
    return 1

class Scales(Backend):
    passes = (scale,)

print(torch.compile(lambda x: x * 3.0, backend=Scales())(torch.ones(2))[0].item())
"""


@pytest.mark.slow
def test_a_changed_pass_runs_although_two_processes_share_a_cache(
    run_python, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    said = [
        run_python(textwrap.dedent(PROGRAM.format(factor=factor))).stdout.strip()
        for factor in ("5.0", "5.0", "7.0")
    ]
    assert said == ["5.0", "5.0", "7.0"]
