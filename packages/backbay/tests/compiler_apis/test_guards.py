"""What filters leave out of guards is left out, and checked and said where that is asked for."""

import functools
import sys
from pathlib import Path

import pytest
import torch

import backbay
from backbay.errors import InvalidPreflight, SkippedGuardFailed
from backbay.guards.filters import known

sys.path.insert(0, str(Path(__file__).parent))
from subjects import FACTOR, NN, Scaled, graphs, guards_of

# -- guard filters


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


# -- hooks, which torch does not guard


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scaled()

    def forward(self, x):
        return self.inner(x) + 1


HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("given", [{}, {"guard_filter": NN}], ids=["unfiltered", "filtered"])
@pytest.mark.parametrize("register", HOOKS)
def test_a_hook_added_after_compilation_is_said_instead_of_being_left_out(backend, register, given):
    model, x = Nested(), torch.randn(3, 4)
    compiled = backbay.compile(model, backend=backend, check_guards=True, **given)
    torch.testing.assert_close(compiled(x), model(x))
    handle = getattr(model.inner.lin, register)(lambda *_: None)
    hooks = register.removeprefix("register").replace("_full", "").removesuffix("_hook")
    with pytest.raises(SkippedGuardFailed, match=rf"\['lin'\]\.{hooks}_hooks has a hook"):
        compiled(x)
    handle.remove()
    torch.testing.assert_close(compiled(x), model(x))


def test_a_hook_that_was_there_before_is_called_and_not_said(backend):
    model, x = Nested(), torch.randn(3, 4)
    model.inner.lin.register_forward_hook(lambda module, args, result: result * 2)
    compiled = backbay.compile(model, backend=backend, check_guards=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_hook_is_left_to_torch_where_it_guards_on_hooks(backend):
    model, x = Nested(), torch.randn(3, 4)
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        compiled = backbay.compile(model, backend=backend, check_guards=True)
        compiled(x)
        model.inner.lin.register_forward_hook(lambda module, args, result: result * 2)
        torch.testing.assert_close(compiled(x), model(x))
    assert graphs() == 2
