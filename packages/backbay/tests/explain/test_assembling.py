"""What a watch saw is put together: each of torch's events goes where it belongs, and once."""

import json
from dataclasses import replace

import torch

from backbay.compile_log import Record
from backbay.explain.assembling import assembled
from backbay.explain.calls import Calls
from backbay.explain.functions import Function
from backbay.explain.record import NodeRecord, PassRecord, ProblemRecord, Settings
from backbay.explain.watching import Captured, Event, Stage
from backbay.kit import Backend
from backbay.kit.rewrites import remove_dead_code, rewrite_silu
from backbay.workloads import function_model

FILE = "/home/me/model.py"
GUARD = "| +- EQUALS_MATCH: L['n'] == 3  # if n > 2:  # me/model.py:6 in forward\n"
BREAK = """Graph break in user code at {file}:{number}
Graph Break Reason: {reason}
  Explanation: because
  Hint: do this

  Developer debug context: builtin f

User code traceback:
  File "{file}", line {number}, in forward
    f(x)
"""


def event(kind, compile_id="0/0", *, call=0, payload="", **data):
    return Event(kind=kind, call=call, compile_id=compile_id, data=data, payload=payload)


def metrics(compile_id="0/0", *, call=0, name="forward", number=1, **data):
    data = {"co_filename": FILE, "co_firstlineno": number, "co_name": name, **data}
    return event("compilation_metrics", compile_id, call=call, **data)


def stopped(compile_id="0/0", *, call=0, reason="Some call", number=3):
    text = BREAK.format(file=FILE, number=number, reason=reason)
    return event("dynamo_graph_break_reason", compile_id, call=call, payload=text)


def again(compile_id, *, call=1, failed="L['n'] == 3  # if n > 2:  # me/model.py:6 in forward"):
    return event("recompile_reasons", compile_id, call=call, payload=f"0/0: {failed}")


def symbol(compile_id, name, source):
    return event("create_symbol", compile_id, symbol=name, source=source)


def captured(compile_id="0/0", call=0, passes=(), after=None):
    stage = Stage("dynamo", (), [], after, list(passes))
    stages = [stage] if passes else []
    return Captured(
        compile_id=compile_id, call=call, nodes=(), operators={"mul": 2}, groups=(("a", "b"),),
        stages=stages,
    )  # fmt: skip


def told(
    *events,
    graphs=(),
    names=("first",),
    problems=None,
    backend="mine",
    kit=None,
    options=None,
    function=None,
    fell=(),
    notes=(),
):
    run = Calls(names=list(names), problems=problems or {}, notes=list(notes), fell=list(fell))
    run.watch.events, run.watch.graphs = list(events), list(graphs)
    settings = Settings(
        workload="w", backend=backend, mode="infer", dtype="float32", device="cpu", seed=0
    )
    return assembled(
        run,
        function=function,
        settings=settings,
        created="now",
        versions={"torch": "2"},
        kit=kit,
        options=options or {},
    )


def fired(name, changes):
    return PassRecord(name=name, level="torch", changes=changes)


def test_what_was_asked_for_and_noted_is_kept():
    found = told(notes=["said"], fell=[Record(asked="a", ran="b", why="c")], graphs=[captured()])
    assert (found.created, found.versions, found.settings.workload) == ("now", {"torch": "2"}, "w")
    assert found.notes[0] == "said"
    assert [x.code for x in found.findings] == ["BB601"]


def test_a_graph_has_its_function_guards_symbols_and_passes():
    tree = f"TREE_GUARD_MANAGER:\n{GUARD}"
    found = told(
        metrics("0/0"),
        metrics("1/0", name="g", number=9),
        event("dynamo_cpp_guards_str", "0/0", payload=tree),
        symbol("0/0", "s0", "L['x'].size()[0]"),
        symbol("1/0", "s1", "L['y'].size()[0]"),
        graphs=[captured(passes=[fired("p", 1)], after=()), captured("1/0", call=1)],
    )
    first, second = found.graphs
    assert (first.number, first.compile_id, first.call) == (0, "0/0", 0)
    assert (second.number, second.compile_id, second.call) == (1, "1/0", 1)
    assert (first.function, second.function) == (f"forward ({FILE}:1)", f"g ({FILE}:9)")
    assert (first.dynamic, second.dynamic) == (
        {"s0": "L['x'].size()[0]"},
        {"s1": "L['y'].size()[0]"},
    )
    assert [(x.source, x.line) for x in first.guards] == [("", f"{FILE}:6: if n > 2:")]
    assert second.guards == second.stages == ()
    assert (first.operators, first.groups) == ({"mul": 2}, (("a", "b"),))
    (stage,) = first.stages
    assert (stage.graph, stage.passes, stage.before, stage.after) == (
        "dynamo",
        (fired("p", 1),),
        (),
        (),
    )


def test_a_function_is_named_by_the_first_version_where_torch_gave_up_early():
    graphs = [captured("0/1"), captured("2/0"), captured("3/0")]
    nameless = metrics("3/0", name="h")
    nameless.data["co_filename"] = None
    found = told(metrics("0/0"), metrics("0/1", name=None), nameless, graphs=graphs)
    assert [x.function for x in found.graphs] == [f"forward ({FILE}:1)", "", ""]
    own = told(metrics("0/0"), metrics("0/1", name="other"), graphs=graphs[:1])
    assert own.graphs[0].function == f"other ({FILE}:1)"


def test_a_resumed_function_is_called_by_its_own_name():
    name = "torch_dynamo_resume_in_my_at_forward_at_7"
    (graph,) = told(metrics(name=name, number=7), graphs=[captured()]).graphs
    assert graph.function == f"my_at_forward, resumed after a break ({FILE}:7)"


def test_the_module_that_calls_a_plain_function_is_the_function():
    def mine(x):
        return x

    inner = metrics("0/0", name="forward")
    inner.data["co_filename"] = function_model.__file__
    graphs = [captured(), captured("1/0")]
    found = told(inner, metrics("1/0", name="g"), graphs=graphs, function=Function.of(mine))
    first, second = found.graphs
    assert first.function == f"mine ({__file__}:{mine.__code__.co_firstlineno})"
    assert second.function == f"g ({FILE}:1)"
    (own,) = told(inner, graphs=[captured()]).graphs  # no function was given
    assert own.function.startswith("forward (")


def test_the_end_of_a_path_is_completed_where_one_file_only_has_it():
    tree = f"TREE_GUARD_MANAGER:\n{GUARD}"
    guarded = event("dynamo_cpp_guards_str", payload=tree)
    other = metrics("1/0")
    other.data["co_filename"] = "/elsewhere/me/model.py"
    (graph,) = told(metrics(), other, guarded, graphs=[captured()]).graphs
    assert graph.guards[0].line == "me/model.py:6: if n > 2:"
    away = event("dynamo_cpp_guards_str", payload=tree.replace("me/model.py", "me/other.py"))
    (graph,) = told(metrics(), away, graphs=[captured()]).graphs
    assert graph.guards[0].line == "me/other.py:6: if n > 2:"


def test_a_break_is_one_however_often_it_is_met():
    found = told(
        metrics(),
        stopped(call=1),
        stopped(call=0),
        stopped(call=1),
        stopped(number=5),
        stopped(reason="Other"),
    )
    assert [(x.reason, x.line, x.calls) for x in found.breaks] == [
        ("Some call", f"{FILE}:3", (1, 0)),
        ("Some call", f"{FILE}:5", (0,)),
        ("Other", f"{FILE}:3", (0,)),
    ]
    first = found.breaks[0]
    assert (first.function, first.hints, first.skipped) == (
        f"forward ({FILE}:1)",
        ("do this",),
        False,
    )


def test_a_break_that_torch_tells_in_its_metrics_alone_is_one_too():
    failed = {
        "fail_type": "Unsupported",
        "fail_reason": "Failed\n  Explanation: x\n\n  Developer debug context: y",
        "fail_user_frame_filename": FILE,
        "fail_user_frame_lineno": 8,
    }
    found = told(metrics("0/0", call=2, **failed))
    (one,) = found.breaks
    assert (one.reason, one.line, one.skipped, one.calls) == ("Failed", f"{FILE}:8", True, (2,))
    (told_already,) = told(stopped("0/0"), metrics("0/0", **failed)).breaks
    assert told_already.reason == "Some call"
    limit = failed | {"fail_reason": "recompile limit exceeded"}
    assert told(metrics("0/0", **limit)).breaks == ()
    assert told(metrics("0/0", **failed | {"fail_type": "ValueError"})).breaks == ()
    skipping = failed | {"fail_reason": "Some call", "fail_user_frame_lineno": 3}
    (both,) = told(stopped("0/0"), metrics("1/0", call=1, **skipping)).breaks
    assert (both.skipped, both.calls) == (True, (0, 1))


def test_what_is_compiled_again_stands_with_its_call_and_says_why():
    found = told(
        metrics("0/0"),
        metrics("0/1", call=1, entire_frame_compile_time_s=0.5),
        symbol("0/0", "s0", "L['x'].size()[0]"),
        symbol("0/1", "s1", "L['x'].size()[0]"),
        symbol("0/1", "s2", "L['y'].size()[0]"),
        symbol("1/0", "s3", "L['y'].size()[0]"),
        again("0/1"),
        event("something_else", "0/1", call=1),
        names=["first", "second"],
        graphs=[captured(), captured("0/1", call=1), captured("0/1", call=1)],
    )
    first, second = found.calls
    assert (first.name, first.graphs, first.recompiles) == ("first", 1, ())
    assert (second.name, second.graphs, second.problem) == ("second", 2, None)
    (one,) = second.recompiles
    assert (one.compile_id, one.function) == ("0/1", f"forward ({FILE}:1)")
    assert one.dynamic == {"s2": "L['y'].size()[0]"}
    assert (one.kind, one.compile_s, one.limit) == ("value", 0.5, False)
    assert one.says == "n was 3, and changed"
    assert one.line == f"{FILE}:6: if n > 2:"
    assert one.subject
    assert [x.version for x in one.reasons] == ["0/0"]
    assert found.sentence == "1 graph, 0 graph breaks, 1 recompile"


def test_the_line_is_of_the_reason_that_is_told():
    gone = "Cache line invalidated because L['___stack0'] got deallocated"
    text = [f"0/1: {gone}", "0/0: L['n'] == 3  # if n > 2:  # me/model.py:6 in f"]
    both = event("recompile_reasons", "0/2", call=0, payload=json.dumps(text))
    (one,) = told(metrics(), both).calls[0].recompiles
    assert len(one.reasons) == 2
    assert (one.says, one.line) == ("n was 3, and changed", f"{FILE}:6: if n > 2:")


def test_a_version_that_is_not_compiled_for_the_limit_says_so():
    limit = metrics("0/8", fail_reason="recompile limit exceeded: 8")
    one = told(limit, again("0/8", call=0)).calls[0].recompiles[0]
    assert (one.limit, one.compile_s) == (True, None)
    attempt = symbol("0/0_1", "s1", "x"), symbol("0/0", "s0", "x"), again("0/0_1", call=0)
    assert told(*attempt).calls[0].recompiles[0].dynamic == {"s1": "x"}
    unknown = told(again("x/y", call=0)).calls[0].recompiles[0]
    assert (unknown.function, unknown.dynamic, unknown.limit) == ("", {}, False)


def problem(stage="compiled", line=""):
    return ProblemRecord(stage=stage, error="ValueError: no", line=line, raised_at="")


def test_a_problem_has_the_line_of_the_function_that_was_being_compiled():
    failed = {"fail_type": "ValueError", "fail_reason": "no"}
    events = [
        metrics("0/0", call=0, name="earlier", **failed),
        metrics("1/0", call=1, name="outer", number=2, **failed),
        metrics("2/0", call=1, name="inner", number=5, **failed),
        metrics("3/0", call=1, name="fine"),
        metrics("4/0", call=2, name="later", number=7, **failed),
    ]
    names = ["first", "second"]
    found = told(*events, names=names, problems={1: problem()})
    assert found.problem == found.calls[1].problem
    assert found.problem.line.startswith(f"{FILE}:5")
    assert found.calls[0].problem is None
    assert told(*events, names=names, problems={1: problem(line="x:1: y")}).problem.line == "x:1: y"
    assert not told(*events, names=names, problems={1: problem("eager")}).problem.line
    assert not told(names=names, problems={1: problem()}).problem.line
    both = told(names=names, problems={1: problem(line="b"), 0: problem(line="a")})
    assert both.problem.line == "a"


def test_the_sentence_counts_graphs_of_the_first_call_and_what_fired_there():
    passes = [fired("p", 2), fired("q", 0)]
    graphs = [
        captured(passes=passes),
        captured("1/0", passes=[fired("p", 1)]),
        captured("0/1", call=1, passes=[fired("p", 5)]),
    ]
    assert told(stopped(), graphs=graphs).sentence == "2 graphs, 1 graph break, p fired 3x"
    failed = told(graphs=graphs[:1], problems={0: problem()})
    assert failed.sentence == "1 graph, 0 graph breaks, p fired 2x, and then it failed"
    itself = told(names=[], problems={-1: problem("eager")})
    assert itself.sentence == "the model itself raised, before anything was compiled"
    assert itself.notes == ()
    several = told(again("0/1", call=0), again("0/2"), names=["a", "b"])
    assert several.sentence == "0 graphs, 0 graph breaks, 2 recompiles"


class Silus(Backend):
    passes = (rewrite_silu, remove_dead_code)
    codegen = "eager"


class Bare(Backend):
    codegen = "eager"


def test_notes_say_what_was_not_seen():
    graphs, ran = [captured()], [captured(passes=[fired("p", 1)])]
    unseen = "mine is not made with Backbay's kit: what it does inside is not seen"
    empty = "Dynamo handed over no graph: nothing was compiled, and the model ran eagerly"
    assert told(graphs=graphs).notes == (unseen,)
    assert told().notes == (empty, unseen)
    assert told(graphs=ran).notes == ()
    (listed,) = told(graphs=graphs, backend=None).notes
    assert listed == (
        "no backend was named: graphs are shown as Dynamo hands them over, and ran eagerly"
    )
    assert told(graphs=graphs, kit=Bare()).notes == ("mine has no passes",)
    assert told(graphs=ran, kit=Bare()).notes == ()
    one, other = told(graphs=graphs, kit=Silus()).notes
    assert one == "pass rewrite_silu, of level torch, did not run: there was no such graph"
    assert "pass remove_dead_code" in other
    assert told(kit=Silus()).notes == (empty,)
    off = {"rewrite_silu": False, "remove_dead_code": False}
    assert told(graphs=graphs, kit=Silus(), options=off).notes == ()
    seen = [captured(passes=[PassRecord(name="rewrite_silu", level="torch", changes=0)])]
    assert len(told(graphs=seen, kit=Silus()).notes) == 1


def resized(name):
    return f"tensor '{name}' size mismatch at index 0. expected 4, actual 5"


def tensor(source, place):
    return f"| +- GuardManager: source={source}, accessed_by=x\n| | +- TENSOR_MATCH: c  # {place}\n"


def node(name, target, *, line="", inputs=()):
    return NodeRecord(
        name=name, op="placeholder" if not inputs else "call_function", target=target, shape="4",
        dtype="float32", device="cpu", line=line, module="", inputs=inputs,
    )  # fmt: skip


def test_a_size_of_which_torch_names_no_line_has_the_one_that_uses_the_tensor_first():
    in_torch = f"return F.linear(input)  # {torch.__path__[0]}/nn/linear.py:134 in forward"
    tree = tensor("L['x']", in_torch) + tensor("L['self'].seen", "a = b  # me/model.py:6 in f")
    nodes = (
        node("l_x_", "L_x_"), node("other", "sin", line="me/model.py:3: z", inputs=("y",)),
        node("h", "linear", line=f"{FILE}:9: h = self.lift(x)", inputs=("l_x_",)),
    )  # fmt: skip
    graph = replace(captured("0/0"), nodes=nodes)

    def line(failed, graphs=(graph,)):
        found = told(
            event("dynamo_cpp_guards_str", "0/0", payload=tree), metrics("0/0"), metrics("0/1"),
            again("0/1", failed=failed), graphs=graphs, names=("first", "again"),
        )  # fmt: skip
        return found.calls[1].recompiles[0].line

    assert line(resized("x")) == f"{FILE}:9: h = self.lift(x)"
    assert line(resized("self.seen")) == f"{FILE}:6: a = b"
    assert line(resized("x"), graphs=()) == ""
    assert line(resized("unknown")) == ""
