"""What is tried for a finding, and why what is not tried can't be."""

from types import SimpleNamespace

import msgspec
import pytest

from backbay.decisions import Arm
from backbay.diagnose.remedies import Remedies
from backbay.explain import BreakRecord, RecompileRecord
from backbay.explain.findings import finding
from backbay.explain.record import ReasonRecord
from backbay.race.requests import ArmSetup

LINE = "model.py:7: x.item()"
BATCH = "L['x'].size()[0]"


def broken(line=LINE, reason="Unsupported Tensor.item() call", **known):
    usual = {
        "reason": reason, "explanation": "", "hints": (), "context": "", "url": "", "line": line,
        "stack": (), "skipped": False, "function": "forward at model.py:1", "calls": (0,),
    }  # fmt: skip
    return BreakRecord(**usual | known)


def recompiled(*sizes, hint="", says="x changes", line=LINE):
    reason = ReasonRecord(version="0/0", failed="", line="", hint=hint, says="")
    return RecompileRecord(
        compile_id="0/1", function="forward", reasons=(reason,), kind="size", subject="x",
        dynamic={f"s{n}": x for n, x in enumerate(sizes)}, says=says, line=line, compile_s=None,
        limit=False,
    )  # fmt: skip


@pytest.fixture
def tried(registry):
    """Return what is tried for a finding, by name."""

    def found(code, *, breaks=(), recompiles=(), device="cpu", dynamic=None, **arm):
        calls = (SimpleNamespace(recompiles=recompiles),)
        remedies = Remedies(
            explanation=SimpleNamespace(breaks=breaks, calls=calls),
            arm=ArmSetup(arm=Arm(**{"backend": "inductor"} | arm), dynamic=dynamic),
            device=device,
            registry=registry,
        )
        return {x.name: x for x in remedies.of(finding(code, "x changes", LINE))}

    return found


ITEM = "torch._dynamo.config.capture_scalar_outputs = True"
MARK, DYNAMIC = "torch._dynamo.mark_dynamic(x, 0)", "torch.compile(dynamic=True)"
NUMBERS = "torch._dynamo.config.allow_unspec_int_on_nn_module = True"


def test_two_breaks_of_a_line_are_tried_once_and_one_elsewhere_is_not_taken_for_it(tried):
    printed = broken("other.py:1: print(x)", "Failed to trace builtin operator",
                     context="builtin print")  # fmt: skip
    found = tried("BB102", breaks=(printed, broken(), broken()))
    assert {name: (x.unfit, x.through) for name, x in found.items()} == {ITEM: ("", False)}
    assert tried("BB102", breaks=(broken(skipped=True),))[ITEM].through
    branch = broken(reason="Data-dependent branching")
    assert list(tried("BB102", breaks=(branch, broken()))) == [ITEM]
    assert list(tried("BB102", breaks=(broken(line="", function=LINE),))) == [ITEM]
    (unfit,) = (x.unfit for x in tried("BB102", breaks=(printed,)).values())
    assert unfit.startswith("only a change of the code")


def test_a_mark_is_tried_only_where_leading_sizes_of_inputs_are_all_that_changed(tried):
    batch = recompiled(BATCH, "L['args'][0].size()[0]")
    other = recompiled(BATCH, "L['x'].size()[1]")
    assert list(tried("BB205", recompiles=(batch,))) == [MARK]
    sources = sources_of("L['args'][0], L['x']")
    assert list(tried("BB201", recompiles=(batch, other))) == [sources, DYNAMIC]
    assert list(tried("BB201", recompiles=(recompiled(),))) == [DYNAMIC]
    (sizes,) = tried("BB201").values()
    assert (sizes.name, sizes.dynamic, sizes.mark) == (DYNAMIC, True, False)
    assert sizes.calls_again
    assert list(tried("BB201", recompiles=(recompiled("L['self'].size()[0] + 1"),))) == [DYNAMIC]
    without_line = recompiled(BATCH, line="", says="y changes")
    without_line = msgspec.structs.replace(without_line, function=LINE)
    for known in (recompiled(BATCH, says="y changes"), recompiled(BATCH, line=""), without_line):
        assert list(tried("BB205", recompiles=(known,))) == [MARK]
    elsewhere = recompiled("L['x'].size()[1]", says="y changes", line="other.py:1")
    assert list(tried("BB205", recompiles=(batch, elsewhere))) == [MARK]
    (marked,) = tried("BB205", recompiles=(batch,)).values()
    assert (marked.dynamic, marked.mark, marked.calls_again) == (None, True, True)


def sources_of(names):
    return f'torch.compiler.config.dynamic_sources = "{names}"'


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("L['self'].seen.size()[0]", "L['self'].seen"),
        ("L['self']._modules['one']._buffers['seen'].size()[1]", None),
        ("L['x'].size()[1]", "L['x']"),
        ("L['n']", "L['n']"),
        ("G['sizes'][0]", "G['sizes'][0]"),
        ("L['x'].size()[1] + 1", ""),
        ("2*L['n']", ""),
        ("L['x'][(1, 2)].size()[0]", ""),
    ],
)
def test_what_became_dynamic_is_so_from_the_beginning_by_torchs_name(tried, source, named):
    named = source.partition(".size()")[0] if named is None else named
    found = tried("BB205", recompiles=(recompiled(source),))
    assert list(found) == [*([sources_of(named)] if named else []), DYNAMIC]
    if named:
        one = found[sources_of(named)]
        assert (one.dynamic_sources, one.dynamic, one.calls_again) == (named, None, True)


def test_of_several_none_is_left_out(tried):
    one, other = recompiled("L['n']"), recompiled("2*L['n']")
    assert list(tried("BB205", recompiles=(one, other))) == [DYNAMIC]


def test_what_was_given_up_is_compiled_through_another_function_with_more_versions(tried):
    (remedy,) = tried("BB204").values()
    assert remedy.settings == {"recompile_limit": 64}
    assert remedy.calls_again
    assert remedy.through


@pytest.mark.parametrize("dynamic", [True, False])
def test_sizes_are_made_dynamic_for_sizes_alone_and_only_once(tried, dynamic):
    number = recompiled(hint=f"set {NUMBERS}")
    assert list(tried("BB202", recompiles=(number,))) == [NUMBERS]
    assert tried("BB202", recompiles=(number,))[NUMBERS].calls_again
    names = list(tried("BB201", recompiles=(number,), dynamic=dynamic))
    assert names == ([NUMBERS] if dynamic else [NUMBERS, DYNAMIC])


@pytest.mark.parametrize(
    ("code", "known", "unfit"),
    [
        ("BB701", {}, "CUDA graphs need a GPU"),
        ("BB701", {"device": "cuda:0"}, ""),
        ("BB701", {"device": "cuda", "backend": "eager"}, "it is Inductor's"),
        ("BB701", {"device": "cuda", "mode": "max-autotune"}, "it is Inductor's"),
        ("BB701", {"device": "cuda", "options": {"freezing": True}}, "it is Inductor's"),
        ("BB702", {}, "not installed"),
        ("BB702", {"backend": "backbay"}, "it is what was diagnosed"),
        ("BB703", {}, ""),
        ("BB703", {"scope": "blocks"}, "a part of the model is compiled already"),
        ("BB704", {}, ""),
        ("BB705", {}, ""),
        ("BB601", {}, "only a change of the code"),
    ],
)
def test_what_can_not_be_tried_says_why(tried, code, known, unfit):
    (remedy,) = tried(code, **known).values()
    assert unfit in remedy.unfit
    assert bool(remedy.unfit) is bool(unfit)


def test_a_remedy_is_named_and_not_carried_out(tried):
    found = ("BB701", "BB703", "BB704", "BB705")
    changes = [next(iter(tried(code).values())) for code in found]
    assert [(x.arm, x.channels_last, x.matmul_precision) for x in changes] == [
        ({"mode": "reduce-overhead"}, False, ""),
        ({"scope": "blocks"}, False, ""),
        ({}, True, ""),
        ({}, False, "high"),
    ]


def test_another_backend_is_tried_without_the_first_ones_mode_and_options(
    tried, install, tmp_path, monkeypatch
):
    (tmp_path / "plug_in.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    install("plug-in", entry_points="[torch_dynamo_backends]\nbackbay = plug_in:fn\n")
    (remedy,) = tried(
        "BB702", device="cpu:0", mode="max-autotune", options={"freezing": True}
    ).values()
    assert remedy.unfit == ""
    assert remedy.arm == {"backend": "backbay", "mode": None, "options": {}}
