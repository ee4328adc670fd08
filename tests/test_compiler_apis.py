"""torch.compile's public compiler APIs work with every backend that ships.

Each test runs with the graphs compiled by eager, and, marked slow, with Inductor, as shipped.
"""

import functools
import inspect
import logging
import os
import re
import subprocess
import sys
import zlib

import pytest
import torch
from torch._dynamo.utils import counters

import backbay
from backbay import ledger
from backbay.errors import InvalidPreflight, SkippedGuardFailed
from backbay.guards.filters import known
from backbay.kit.backend import Backend
from backbay.kit.bisect import bisect
from backbay.kit.passes import graph_pass
from backbay.registry import Option

SHIPPED = [
    "backbay",
    "backbay_print",
    "backbay_report",
    "backbay_silu",
    "backbay_gelu",
    "backbay_fold",
]
FAST = [*SHIPPED, "backbay.default"]
FACTOR = 2.0


class Scaled(torch.nn.Module):
    """Holds a number that Dynamo guards on, beside a built-in module."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x):
        return self.lin(x) * self.scale


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    counters.clear()
    ledger.clear()
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


@pytest.fixture(
    params=[*FAST, *(pytest.param(f"{x}+inductor", marks=pytest.mark.slow) for x in FAST)]
)
def backend(request, monkeypatch):
    """Give a shipped backend by its object: torch's registry would keep the name."""
    name, _, with_inductor = request.param.partition("+")
    found = backbay.lookup_backend(name)
    if name == "backbay.default":
        with backbay.policy(default="inductor" if with_inductor else "eager"):
            yield found
        return
    if not with_inductor and found.compile is None:
        monkeypatch.setattr(type(found), "codegen", "eager")
    yield found


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def guards_of(function) -> int:
    """Count the guards of a function's only compiled code, as Dynamo prints them."""
    (entry,) = torch._dynamo.eval_frame._debug_get_cache_entry_list(function)
    return len(re.findall(r"\+- [A-Z_]+:", str(entry.guard_manager)))


# -- guard filters


NN = "skip_guard_on_all_nn_modules_unsafe"


def test_torch_has_the_filters_that_the_page_names():
    assert set(known()) >= {
        "skip_guard_on_inbuilt_nn_modules_unsafe",
        NN,
        "keep_tensor_guards_unsafe",
        "skip_guard_on_globals_unsafe",
    }


@pytest.mark.parametrize("name", sorted(known()))
def test_each_filter_leaves_out_guards_and_the_result_is_right(backend, name):
    x = torch.randn(3, 4)
    model, filtered = Scaled(), Scaled()
    filtered.load_state_dict(model.state_dict())

    backbay.compile(model, backend=backend)(x)
    everything = guards_of(Scaled.forward)
    torch.compiler.reset()
    compiled = backbay.compile(filtered, backend=backend, guard_filter=name)
    torch.testing.assert_close(compiled(x), model(x))
    assert guards_of(Scaled.forward) < everything


def test_what_is_left_out_is_not_guarded_and_what_is_kept_is(backend):
    model, x = Scaled(), torch.randn(3, 4)
    compiled = backbay.compile(model, backend=backend, guard_filter=NN)
    first = compiled(x)
    model.scale = 3.0
    torch.testing.assert_close(compiled(x), first)  # stale, as asked for
    assert graphs() == 1
    torch.testing.assert_close(compiled(x.double().float()[:2]), model(x[:2]))
    assert graphs() == 2


def test_two_filters_of_one_function_do_not_share_what_was_compiled(backend):
    model, x = Scaled(), torch.randn(3, 4)
    stale = backbay.compile(model, backend=backend, guard_filter=NN)
    inbuilt = "skip_guard_on_inbuilt_nn_modules_unsafe"
    right = backbay.compile(model, backend=backend, guard_filter=inbuilt)
    plain = backbay.compile(model, backend=backend)
    first = stale(x)
    right(x)
    plain(x)
    assert graphs() == 3
    model.scale = 3.0
    torch.testing.assert_close(stale(x), first)
    torch.testing.assert_close(right(x), model(x))
    torch.testing.assert_close(plain(x), model(x))


def test_the_same_filter_asked_for_twice_compiles_once(backend):
    model, x = Scaled(), torch.randn(3, 4)
    for _ in range(3):
        keep = functools.partial(torch.compiler.keep_tensor_guards_unsafe, keep_parameters=True)
        backbay.compile(model, backend=backend, guard_filter=[NN, keep])(x)
    assert graphs() == 1


def test_a_guard_stays_only_if_every_filter_keeps_it():
    answers = [[True, True, False, False], [True, False, True, False]]
    filters = [lambda entries, one=one: one for one in answers]
    combined = backbay.guards.filters.filters_of(filters)
    assert combined([None] * 4) == [True, False, False, False]


def test_filters_go_with_mode_and_options_and_the_callers_dict_is_unchanged(backend):
    asked = []

    def spy(entries):
        asked.append(len(entries))
        return [True] * len(entries)

    to_inductor = getattr(backend, "codegen", None) == "inductor" and backend.compile is None
    options = {"epilogue_fusion": False} if to_inductor else {}
    options["guard_filter_fn"] = spy
    before = dict(options)
    model, x = Scaled(), torch.randn(3, 4)
    compiled = backbay.compile(
        model,
        backend=backend,
        mode="max-autotune-no-cudagraphs",
        options=options,
        guard_filter=NN,
    )
    torch.testing.assert_close(compiled(x), model(x))
    assert options == before
    assert asked
    first = compiled(x)
    model.scale = 3.0
    torch.testing.assert_close(compiled(x), first)  # the other filter is in force, too


@pytest.mark.slow
def test_inductor_itself_takes_filter_mode_and_options_together():
    model, x = Scaled(), torch.randn(3, 4)
    asked = {"mode": "max-autotune-no-cudagraphs", "options": {"epilogue_fusion": False}}
    with pytest.raises(RuntimeError, match="Either mode or options"):
        torch.compile(model, **asked)
    compiled = backbay.compile(model, backend="inductor", guard_filter=NN, **asked)
    torch.testing.assert_close(compiled(x), model(x))
    backend = compiled.dynamo_ctx.callback._torchdynamo_orig_backend
    inner = torch._dynamo.eval_frame.innermost_backend(backend).compiler_fn._compiler_fn
    assert inner.config["max_autotune"]
    assert not inner.config["epilogue_fusion"]


def test_mode_and_options_reach_a_backend_together():
    seen = {}

    def takes(graph_module, example_inputs, *, mode=None, options=None):
        seen.update(mode=mode, options=options)
        return graph_module.forward

    compiled = backbay.compile(lambda x: x + 1, backend=takes, mode="fast", options={"a": 1})
    assert compiled(torch.ones(1)) == 2
    assert seen == {"mode": "fast", "options": {"a": 1}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"guard_filter": "skip_guards_on_globals_unsafe"}, "did you mean 'skip_guard_on_globals"),
        ({"guard_filter": "x"}, "it has keep_portable_guards_unsafe, "),
        ({"guard_filter": [3]}, "a guard filter is a function or a name, not int"),
        ({"guard_filter": []}, "guard_filter is empty"),
        ({"check_guards": True}, "check_guards has nothing to check"),
        ({"guard_filter": NN, "check_guards": "log"}, "check_guards is True, False, 'raise'"),
    ],
)
def test_a_wrong_filter_is_said_before_anything_compiles(given, said):
    with pytest.raises(InvalidPreflight, match=said):
        backbay.compile(Scaled(), backend="eager", **given)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(lambda entries: [True], "1 answers for"), (lambda entries: [1] * len(entries), "int: give")],
)
def test_a_filter_that_answers_wrongly_is_named(answer, said):
    compiled = backbay.compile(Scaled(), backend="eager", guard_filter=answer)
    with pytest.raises(Exception, match=f"guard filter <lambda> gives {said}"):
        compiled(torch.ones(1, 4))


# -- the mode that checks what a filter leaves out


def test_a_skipped_guard_that_would_have_failed_is_said_with_the_users_line(backend):
    model, x = Scaled(), torch.randn(3, 4)
    compiled = backbay.compile(model, backend=backend, guard_filter=NN, check_guards=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
    model.scale = 3.0
    with pytest.raises(SkippedGuardFailed) as caught:
        compiled(x)
    said = str(caught.value)
    assert "L['self'].scale == 2.0" in said
    assert "return self.lin(x) * self.scale" in said
    assert f"a guard that {NN} leaves out" in said
    assert "\n" not in said
    model.scale = 2.0
    torch.testing.assert_close(compiled(x), model(x))


def test_it_warns_where_asked_to_and_goes_on_as_without_checking(backend):
    model, x = Scaled(), torch.randn(3, 4)
    compiled = backbay.compile(model, backend=backend, guard_filter=NN, check_guards="warn")
    first = compiled(x)
    model.scale = 3.0
    with pytest.warns(RuntimeWarning, match=r"L\['self'\]\.scale == 2\.0"):
        torch.testing.assert_close(compiled(x), first)


def test_a_guard_on_a_global_is_checked(backend, monkeypatch):
    def f(x):
        return x * FACTOR

    filtered = {"guard_filter": "skip_guard_on_globals_unsafe", "check_guards": True}
    compiled = backbay.compile(f, backend=backend, **filtered)
    assert compiled(torch.ones(1)) == 2
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    with pytest.raises(SkippedGuardFailed, match=r"G\['FACTOR'\] == 2\.0"):
        compiled(torch.ones(1))


def test_a_guard_on_a_closure_after_a_graph_break_is_checked(backend):
    factor = 2.0

    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * factor

    skip_all = {"guard_filter": "skip_all_guards_unsafe", "check_guards": True}
    compiled = backbay.compile(f, backend=backend, **skip_all)
    assert compiled(torch.ones(1)) == 4
    assert compiled(torch.ones(1)) == 4
    factor = 5.0
    with pytest.raises(SkippedGuardFailed, match=r"factor.* == 2\.0.*return y \* factor"):
        compiled(torch.ones(1))


def test_a_tensors_guard_has_the_users_line_too():
    compiled = backbay.compile(
        lambda x: x.sin(), backend="eager", guard_filter="skip_all_guards_unsafe", check_guards=True
    )
    compiled(torch.ones(2))
    with pytest.raises(SkippedGuardFailed, match=r"dtype mismatch.*lambda x: x\.sin\(\)"):
        compiled(torch.ones(2, dtype=torch.float64))


def test_checking_does_not_hinder_training(backend):
    model, x = Scaled(), torch.randn(3, 4)
    compiled = backbay.compile(model, backend=backend, guard_filter=NN, check_guards=True)
    compiled(x).sum().backward()
    compiled(x).sum().backward()
    assert model.lin.weight.grad is not None


def test_where_dynamo_keeps_its_guards_elsewhere_checking_is_an_error():
    from backbay.guards.checking import take

    with pytest.raises(backbay.BackbayError, match="can't find Dynamo's guards in torch"):
        take([], [False], None)


# -- stances


def doubled(x):
    return x * 2


def test_force_eager_compiles_nothing_as_call_context_and_decorator(backend):
    compiled = backbay.compile(doubled, backend=backend)
    with torch.compiler.set_stance("force_eager"):
        assert compiled(torch.ones(1)) == 2
    assert torch.compiler.set_stance("force_eager")(compiled)(torch.ones(1)) == 2
    torch.compiler.set_stance("force_eager")
    assert compiled(torch.ones(1)) == 2
    assert graphs() == 0
    torch.compiler.set_stance("default")
    assert compiled(torch.ones(1)) == 2
    assert graphs() == 1


def test_fail_on_recompile_raises_and_eager_on_recompile_goes_on(backend):
    compiled = backbay.compile(doubled, backend=backend, dynamic=False)
    compiled(torch.ones(3))
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.ones(3))
        with pytest.raises(RuntimeError, match="Detected recompile"):
            compiled(torch.ones(5))
    with torch.compiler.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(torch.ones(5)), torch.full((5,), 2.0))
    assert graphs() == 1


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_a_stance_that_compiles_later_does_compile_with_the_backend(backend, stance):
    seen = []

    def noted(graph_module, example_inputs, **given):
        seen.append(1)
        return backend(graph_module, example_inputs, **given)

    compiled = backbay.compile(doubled, backend=noted)
    try:
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
            assert not seen
            torch.testing.assert_close(compiled(torch.ones(5)), torch.full((5,), 2.0))
    finally:
        torch._dynamo.eval_frame._EXAMPLE_INPUTS = None  # torch keeps it across a reset
    assert seen


def test_a_stance_can_force_the_backend(backend):
    def never(graph_module, example_inputs):
        raise AssertionError("the forced backend was not used")

    compiled = torch.compile(doubled, backend=never)
    with torch.compiler.set_stance("default", force_backend=backend):
        assert compiled(torch.ones(1)) == 2
    assert graphs() == 1


def test_guards_that_are_not_evaluated_still_tell_compiled_shapes_apart(backend):
    compiled = backbay.compile(doubled, backend=backend, dynamic=False)
    compiled(torch.ones(3))
    compiled(torch.ones(5))
    with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
        torch.testing.assert_close(compiled(torch.ones(5)), torch.full((5,), 2.0))
    assert graphs() == 2


# -- reset


@pytest.mark.parametrize("name", [x for x in SHIPPED if x != "backbay_print"])
def test_reset_forgets_the_reports_and_not_what_ran(name, monkeypatch):
    backend = backbay.lookup_backend(name)
    monkeypatch.setattr(type(backend), "codegen", "eager")
    compiled = backbay.compile(doubled, backend=backend, guard_filter=NN)
    compiled(torch.ones(1))
    assert backend.reports
    torch.compiler.reset()
    assert not backend.reports
    assert [x.asked for x in ledger.records()] == [name]
    compiled(torch.ones(1))
    assert graphs() == 2


@graph_pass(level="torch")
def seen(graph_module):
    return 0


class Inner(Backend):
    passes = (seen,)
    codegen = "eager"


def test_reset_reaches_a_code_generator_and_what_the_default_chose():
    inner = Inner()
    with backbay.registered(inner, "inner_of_reset"):
        outer = type("Outer", (Backend,), {"codegen": "inner_of_reset"})()
        for backend in (outer, backbay.lookup_backend("backbay.default")):
            torch.compiler.reset()
            with backbay.policy(default="inner_of_reset"):
                torch.compile(doubled, backend=backend)(torch.ones(1))
            assert inner.reports, backend
            torch.compiler.reset()
            assert not inner.reports, backend


def test_two_backends_with_the_same_passes_each_have_their_own_reports():
    @graph_pass(level="aten")
    def at_aten(graph_module):
        return 0

    kind = type("Same", (Backend,), {"passes": (at_aten,)})
    first, second = kind(), kind()
    for backend in (first, second):
        options = backend._generator([at_aten], {}, {}, None).options
        (hooked,) = options.values()
        assert hooked._tell.__self__ is backend


# -- what code can ask of the compiler


def test_compiled_code_knows_that_it_is_compiled_and_not_exported(backend):
    def f(x):
        asked = (
            torch.compiler.is_compiling(),
            torch.compiler.is_dynamo_compiling(),
            torch.compiler.is_exporting(),
        )
        return x * 2, asked

    assert f(torch.ones(1))[1] == (False, False, False)
    said = backbay.compile(f, backend=backend)(torch.ones(1))[1]
    assert said[:2] == (True, True)
    assert said == torch.compile(f, backend="eager")(torch.ones(1))[1]  # 2.11 says all three
    assert not torch.compiler.is_compiling()


def test_a_pass_is_told_what_torch_tells_any_backend():
    asked = {}

    def ask():
        api = torch.compiler
        return api.is_compiling(), api.is_dynamo_compiling(), api.is_exporting()

    def plain(graph_module, example_inputs):
        asked["plain"] = ask()
        return graph_module.forward

    @graph_pass(level="torch")
    def asks(graph_module):
        asked["pass"] = ask()
        return 0

    @graph_pass(level="aten")
    def asks_later(graph_module):
        asked["later"] = torch.compiler.is_exporting()
        return 0

    kind = type("Asks", (Backend,), {"passes": (asks, asks_later), "codegen": "eager"})
    torch.compile(doubled, backend=plain)(torch.ones(1))
    torch.compile(doubled, backend=kind())(torch.ones(1))
    assert asked["pass"] == asked["plain"]
    assert asked["later"] is False


def test_export_of_a_compiled_module_is_export(backend):
    class Asks(torch.nn.Module):
        def forward(self, x):
            return x * 2 if not torch.compiler.is_exporting() else x * 3

    plain, model, x = Asks(), Asks(), torch.ones(1)
    assert plain(x) == 2
    model.compile(backend=backend)
    torch.testing.assert_close(model(x), torch.compile(plain, backend="eager")(x))
    exported = torch.export.export(model, (x,))
    assert exported.module()(x) == 3


def test_allow_in_graph_puts_the_call_into_the_graph_that_the_backend_gets(backend):
    targets = []

    def noted(graph_module, example_inputs, **given):
        targets.extend(n.target for n in graph_module.graph.nodes)
        return backend(graph_module, example_inputs, **given)

    @torch.compiler.allow_in_graph
    def allowed(x):
        return torch.sin(x)

    compiled = backbay.compile(lambda x: allowed(x) + 1, backend=noted, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert torch.sin not in targets
    assert len(targets) == 4  # x, allowed, add, output


def test_disable_leaves_a_function_to_python_and_breaks_the_graph(backend):
    asked = []

    @torch.compiler.disable
    def apart(x):
        asked.append(torch.compiler.is_compiling())
        return x + 1

    compiled = backbay.compile(lambda x: apart(x * 2) * 3, backend=backend)
    assert compiled(torch.ones(1)) == 9
    assert asked == [False]
    assert graphs() == 2


@torch.compiler.substitute_in_graph(zlib.adler32, skip_signature_check=True)
def adler32(data, value=1, /):
    return 10


def test_substitute_in_graph_traces_the_substitute(backend):
    compiled = backbay.compile(lambda x: x * zlib.adler32(b"a"), backend=backend, fullgraph=True)
    assert compiled(torch.ones(1)) == 10
    assert zlib.adler32(b"a") != 10


# -- other ways to compile


def test_module_compile_and_the_decorator_use_the_backend(backend):
    seen = []

    def noted(graph_module, example_inputs, **given):
        seen.append(1)
        return backend(graph_module, example_inputs, **given)

    model, x = Scaled(), torch.randn(3, 4)
    expected = model(x)
    model.compile(backend=noted)
    torch.testing.assert_close(model(x), expected)
    assert len(seen) == 1

    @backbay.compile(backend=noted, guard_filter=NN)
    def f(x):
        return x + 1

    assert f(torch.ones(1)) == 2
    assert len(seen) == 2


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_default_backend"), reason="torch 2.13 and newer"
)
def test_the_default_backend_can_be_ours(backend):
    seen = []

    def noted(graph_module, example_inputs, **given):
        seen.append(1)
        return backend(graph_module, example_inputs, **given)

    torch.compiler.set_default_backend(noted)
    try:
        assert torch.compile(doubled)(torch.ones(1)) == 2
    finally:
        torch.compiler.set_default_backend(None)
    assert seen


def test_the_kit_takes_mode_options_and_name_always():
    class Takes(Inner):
        options = (Option(name="level", type="int"),)

    backend = Takes()
    graph_module = torch.fx.symbolic_trace(doubled)
    compiled = backend(
        graph_module, [torch.ones(1)], mode="default", options={"level": 1}, name="mine"
    )
    assert compiled(torch.ones(1)) == 2
    assert ledger.records()[-1].asked == "mine"


@pytest.mark.skipif(
    "name" not in inspect.signature(torch.compile).parameters, reason="torch takes no name"
)
@pytest.mark.parametrize("backend", [*FAST, pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("more", [{}, {"mode": "reduce-overhead"}], ids=["", "mode"])
def test_a_name_goes_with_filters(backend, more, monkeypatch):
    found = backbay.lookup_backend(backend)
    if backend.startswith("backbay_") and found.compile is None:
        monkeypatch.setattr(type(found), "codegen", "eager")
    asked = "inductor" if backend == "inductor" else found
    with backbay.policy(default="eager"):
        compiled = backbay.compile(doubled, backend=asked, guard_filter=NN, name="mine", **more)
        assert compiled(torch.ones(1)) == 2


@pytest.mark.skipif(
    "name" in inspect.signature(torch.compile).parameters, reason="torch takes a name"
)
def test_where_torch_takes_no_name_that_is_said_before_anything_compiles():
    with pytest.raises(InvalidPreflight, match=r"takes no name: leave it out, or use torch 2\.13"):
        backbay.compile(doubled, backend="eager", name="mine")


def test_a_function_of_two_arguments_given_options_is_one_short_error():
    def two(graph_module, example_inputs):
        return graph_module.forward

    with pytest.raises(InvalidPreflight) as caught:
        backbay.compile(doubled, backend=two, options={"a": 1})
    said = str(caught.value)
    assert said == (
        "this backend cannot work:\n"
        "  - two takes no options: its function has no parameter of this name"
    )


# -- logs


class Named(Backend):
    codegen = "eager"


def test_the_log_names_each_pass_that_changed_the_graph(caplog):
    silu = backbay.lookup_backend("backbay_silu").passes[0]
    backend = type("Logs", (Named,), {"passes": (silu,)})()
    with caplog.at_level(logging.INFO, "backbay.kit"):
        torch.compile(lambda x: x * x.sigmoid(), backend=backend)(torch.ones(1))
    (record,) = caplog.records
    assert record.name.startswith("backbay.kit")
    assert "pass rewrite_silu: 1x in" in record.getMessage()


LOGGED = """
import torch
import backbay
from backbay.kit.backend import Backend

class Logged(Backend):
    passes = backbay.lookup_backend({name!r}).passes
    codegen = "eager"

def f(x):
    gelu = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))
    return gelu * torch.sigmoid(gelu) * 2 * 4

torch.compile(f, backend=Logged())(torch.ones(3))
"""

FIRED = {
    "backbay_silu": "rewrite_silu",
    "backbay_gelu": "rewrite_gelu",
    "backbay_fold": "fold_scalar_chain",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRED)
def test_torch_logs_and_a_trace_carry_the_names_of_our_passes(
    name, run_python, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCH_LOGS", "+backbay.kit")
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path))
    said = run_python(LOGGED.format(name=name)).stderr
    fired = FIRED[name]
    assert f"pass {fired}: " in said
    assert "def forward" in said
    (log,) = tmp_path.glob("*.log")
    trace = log.read_text()
    before = trace.index(f'"name": "backbay_pass_{fired}_before"')
    after = trace.index(f'"name": "backbay_pass_{fired}_after"')
    assert before < after
    assert "frame_id" in trace[before - 200 : before + 300]  # tlparse puts it beside its graph


def test_no_graph_is_written_out_where_nobody_reads_it(monkeypatch):
    def never(*_, **__):
        raise AssertionError("written out for nobody")

    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", never)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    silu = backbay.lookup_backend("backbay_silu").passes[0]
    backend = type("Quiet", (Named,), {"passes": (silu,)})()
    torch.compile(lambda x: x * x.sigmoid(), backend=backend)(torch.ones(1))
    assert backend.reports[0].changes == 1


# -- the bisector


def fault(level):
    @graph_pass(level=level, name=f"bad_at_{level}")
    def bad(graph_module):
        for node in list(graph_module.graph.nodes):
            if node.op == "call_function" and "mul" in str(node.target):
                node.args = (node.args[0], 7.0)
        graph_module.recompile()
        return 1

    return bad


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("name", [x for x in SHIPPED if x != "backbay_print"])
def test_bisection_names_the_bad_pass_among_those_of_a_backend(name, level):
    passes = (*backbay.lookup_backend(name).passes, fault(level))
    backend = type("Bad", (Named,), {"passes": passes})()
    x = torch.ones(3)

    def works():
        compiled = backbay.compile(lambda x: (x + 1) * 3.0, backend=backend)
        return torch.equal(compiled(x), (x + 1) * 3.0)

    assert not works()
    found = bisect(works)
    assert found.backend == "inductor"
    assert found.debug_info == f"pass bad_at_{level} at level {level}"


def test_bisection_of_what_is_right_finds_nothing():
    backend = type("Good", (Named,), {"passes": (seen,)})()

    def works():
        return bool(backbay.compile(doubled, backend=backend)(torch.ones(1)) == 2)

    assert bisect(works) is None


@pytest.mark.slow
def test_bisection_inside_inductors_own_hooks_names_the_pass():
    backend = type("Bad", (Backend,), {"passes": (seen, fault("aten"))})()
    x = torch.ones(3)

    def works():
        compiled = torch.compile(lambda x: (x + 1) * 3.0, backend=backend)
        return torch.equal(compiled(x), (x + 1) * 3.0)

    found = bisect(works)
    assert found.subsystem == "post_grad_passes"
    assert found.debug_info == "pass bad_at_aten at level aten"


def test_no_pass_is_left_out_where_nothing_is_bisected():
    backend = type("All", (Named,), {"passes": (seen,)})()
    torch.compile(doubled, backend=backend)(torch.ones(1))
    assert [x.name for x in backend.reports] == ["seen"]


# -- caches


CACHED = """
import sys
import torch
import backbay
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from torch._dynamo.utils import counters

ran = []

@graph_pass(level="aten", sources=({factor!r},))
def scale(graph_module):
    ran.append(1)
    for node in list(graph_module.graph.nodes):
        if node.target == torch.ops.aten.addmm.default:
            node.kwargs = {{"beta": {factor}}}
    graph_module.recompile()
    return 1

torch._inductor.config.fx_graph_cache = True
stored = {artefacts!r}
if {load}:
    torch.compiler.load_cache_artifacts(open(stored, "rb").read())
x = torch.ones(32, 32)  # a product alone: Inductor calls torch for it, and starts no C++ compiler
for number, name in enumerate({names!r}):
    ran.clear(), counters.clear()
    passes = (*backbay.lookup_backend(name).passes, scale)
    backend = type("Scales", (Backend,), {{"passes": passes}})()
    function = lambda x: torch.addmm(x, x[:, : number + 1], x[: number + 1])
    out = torch.compile(function, backend=backend)(x)
    graph_hits = counters["inductor"]["fxgraph_cache_hit"]
    hit = graph_hits + counters["aot_autograd"]["autograd_cache_hit"] > 0
    print("SEEN", out[0, 0].item() - number - 1, len(ran), hit)
if not {load}:
    artefacts, info = torch.compiler.save_cache_artifacts()
    open(stored, "wb").write(artefacts)
"""


@pytest.mark.slow
def test_loaded_cache_artefacts_are_hit_with_our_passes_and_missed_by_a_changed_one(
    run_python, tmp_path, monkeypatch
):
    names = ["backbay", "backbay_silu", "backbay_fold"]  # most passes, a kernel, several in turn

    def run(folder, factor, *, load):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
        artefacts = str(tmp_path / "artefacts")
        program = CACHED.format(names=names, factor=factor, artefacts=artefacts, load=load)
        lines = run_python(program).stdout.splitlines()
        return [x.split()[1:] for x in lines if x.startswith("SEEN")]

    assert run("a", 5.0, load=False) == [["5.0", "1", "False"]] * len(names)
    # Hit: the pass had no need to run.
    assert run("b", 5.0, load=True) == [["5.0", "0", "True"]] * len(names)
    assert run("c", 7.0, load=True) == [["7.0", "1", "False"]] * len(names)


# -- the minifier


PLUGIN = """
import torch
import backbay
from backbay.errors import BackbayError
from backbay.kit.passes import graph_pass

@graph_pass(level="torch")
def faulty(graph_module):
    for node in list(graph_module.graph.nodes):
        if "relu" in str(node.target):
            {fault}
    graph_module.recompile()
    return 1

shipped = backbay.lookup_backend({name!r})

class Faulty(type(shipped)):
    name = "faulty"
    codegen = "eager"
    passes = (*shipped.passes, faulty)
    compile = None

faulty_backend = Faulty()
"""

MINIFIED = """
import torch
import torch._dynamo.config as config

config.repro_after = "dynamo"
config.repro_level = {level}
config.debug_dir_root = {folder!r}

def f(x):
    return (x.sin() + 1).relu() * 3

try:
    torch.compile(f, backend="faulty")(torch.ones(3))
except Exception as error:
    print(error)
"""


def test_the_minifier_names_a_backend_and_does_not_take_one_that_works_for_broken(
    backend, tmp_path
):
    from torch._dynamo import config

    wanted = {"repro_after": "dynamo", "repro_level": 3, "debug_dir_root": str(tmp_path)}
    model, x = Scaled(), torch.randn(3, 4)
    # No gradients: the minifier runs backward while it compiles, which Inductor's metrics refuse.
    with config.patch(wanted), torch.no_grad():
        compiled = torch.compile(model, backend=backend)
        torch.testing.assert_close(compiled(x), model(x))
    (launcher,) = tmp_path.rglob("minifier_launcher.py")  # level 3 writes it before it compiles
    assert f"backend={backend.__name__!r}" in launcher.read_text()


RAISES = "raise RuntimeError('no relu here')"
COMPUTES_OTHERWISE = "node.op, node.target = 'call_function', torch.neg"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault", "level", "said", "again"),
    [
        # That this one is named in the launcher, CI sees with every backend, above.
        pytest.param(
            *("backbay_print", RAISES, 2, "no relu here", "no relu here"), marks=pytest.mark.sweep
        ),
        ("backbay_silu", RAISES, 2, "no relu here", "no relu here"),
        ("backbay_fold", COMPUTES_OTHERWISE, 4, "Bad accuracy detected", "AccuracyError"),
    ],
)
def test_the_minifiers_repro_names_the_backend_and_runs(  # noqa: PLR0917 (what pytest gives)
    name, fault, level, said, again, install, tmp_path, monkeypatch
):
    install("faulty", entry_points="[torch_dynamo_backends]\nfaulty = faulty_plugin:faulty_backend")
    (tmp_path / "faulty_plugin.py").write_text(PLUGIN.format(name=name, fault=fault))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    program = tmp_path / "program.py"
    program.write_text(MINIFIED.format(level=level, folder=str(tmp_path / "debug")))
    assert said in run(program).stdout
    (launcher,) = (tmp_path / "debug").rglob("minifier_launcher.py")
    run(launcher)
    repro = tmp_path / "repro.py"
    text = repro.read_text()
    assert "backend='faulty'" in text
    assert "relu" in text
    assert "sin()" not in text  # it is minimal
    assert again in run(repro).stderr
