"""What is found in the records of an explanation: each condition of each code, one by one."""

import msgspec
import pytest

from backbay.compile_log import Record
from backbay.errors import InputError
from backbay.explain.codes import CODES, named, selection, selects
from backbay.explain.findings import findings
from backbay.explain.record import (
    BreakRecord,
    CallRecord,
    GraphRecord,
    NearMissRecord,
    NodeRecord,
    PassRecord,
    ProblemRecord,
    ReasonRecord,
    RecompileRecord,
    StageRecord,
)

LINE = "me/model.py:3: y = f(x)"
HINT = "set torch._dynamo.config.allow_unspec_int_on_nn_module"


def node(name, target="mul", inputs=(), **changed):
    given = {"op": "call_function", "shape": "4x8", "dtype": "float32", "device": "cpu"}
    found = {**given, "line": LINE, "module": "", **changed}
    return NodeRecord(name=name, target=target, inputs=tuple(inputs), **found)


def graph(*nodes, call=0, passes=()):
    stages = (StageRecord(graph="dynamo", passes=tuple(passes), before=(), after=None),)
    return GraphRecord(
        number=0,
        compile_id="0/0",
        call=call,
        function="forward (me/model.py:1)",
        dynamic={},
        nodes=nodes,
        operators={},
        groups=(),
        guards=(),
        stages=stages if passes else (),
    )


def broken(reason="Some call", **changed):
    given = {"explanation": "", "hints": ("do this",), "context": "", "url": "", "line": LINE}
    given |= {"stack": (), "skipped": False, "function": "forward (me/model.py:1)", "calls": (0,)}
    return BreakRecord(reason=reason, **{**given, **changed})


def again(kind="size", subject="the size of x", compile_id="0/1", **changed):
    given = {"function": "forward (me/model.py:1)", "dynamic": {}, "says": f"{subject} changed"}
    given |= {"line": LINE, "compile_s": 1.5, "limit": False, "reasons": ()}
    return RecompileRecord(
        kind=kind, subject=subject, compile_id=compile_id, **{**given, **changed}
    )


def found(graphs=None, breaks=(), calls=(), problem=None, fell=()):
    if graphs is None:
        graphs = [graph()]
    every = [CallRecord(name="x", graphs=1, recompiles=tuple(x)) for x in calls]
    return findings(graphs, breaks, every, problem, fell)


def codes(*arguments, **given):
    return [x.code for x in found(*arguments, **given)]


def test_a_finding_has_what_its_code_says():
    (one,) = found(graphs=[graph(node("x"), node("y", "item", ["x"]))])
    known = CODES["BB301"]
    assert (one.code, one.severity, one.page) == ("BB301", "warning", known.page)
    assert (one.count, one.cost_s, one.calls, one.line) == (1, None, (0,), LINE)
    assert one.message == "item makes the host wait for the device"
    assert one.fixes == ("keep the value in a tensor, and the full size with a mask",)


def test_errors_come_first_and_then_what_was_met_first():
    near = PassRecord(name="p", level="torch", changes=0, near=(miss(),))
    bad = PassRecord(name="q", level="torch", changes=0, error="it raised")
    calls = [[again(kind="value", subject="n"), again(kind="other", subject="m")]]
    assert codes([graph(passes=[near, bad])], calls=calls) == ["BB502", "BB202", "BB203", "BB501"]


def miss(line=LINE):
    return NearMissRecord(pattern="SiLU", node="mul", reason="it is whole", line=line)


def test_what_is_met_twice_at_one_line_is_one_with_a_count():
    with_costs = [[again(kind="value", line="")], [again(kind="value", line="", compile_s=0.5)]]
    (one,) = found(calls=[[], *with_costs, with_costs[0]])
    assert (one.count, one.cost_s, one.calls) == (3, 3.5, (1, 2, 3))
    assert one.line == "forward (me/model.py:1)"
    (unknown,) = found(calls=[[again(kind="value", compile_s=None)]])
    assert unknown.cost_s is None
    breaks = [broken(calls=(2, 1)), broken(calls=(1, 0)), broken(line="me/model.py:9: z")]
    first, second = found(breaks=breaks)
    assert (first.count, first.calls, first.cost_s) == (2, (0, 1, 2), None)
    assert (second.count, second.line) == (1, "me/model.py:9: z")


@pytest.mark.parametrize(("stage", "code"), [("eager", "BB603"), ("compiled", "BB602")])
def test_what_was_raised_is_the_models_or_the_compilations(stage, code):
    problem = ProblemRecord(stage=stage, error="ValueError: no", line=LINE, raised_at="")
    (one,) = found([], calls=[[]], problem=problem)  # and not also that nothing was compiled
    assert (one.code, one.message, one.line) == (code, "ValueError: no", LINE)


def test_a_pass_that_failed_is_found_in_every_graph():
    bad = PassRecord(name="q", level="torch", changes=0, error="it raised")
    good = PassRecord(name="p", level="torch", changes=1)
    (one,) = found([graph(call=3, passes=[good, bad]), graph(call=1, passes=[bad])])
    assert (one.code, one.message, one.line, one.calls) == ("BB502", "it raised", "", (1, 3))


def test_a_break_has_its_advice_its_line_and_its_calls():
    (one,) = found(breaks=[broken(calls=(0, 2))])
    assert (one.code, one.message, one.line) == ("BB101", "Some call", LINE)
    assert (one.fixes, one.calls) == (("do this",), (0, 2))
    assert found(breaks=[broken(line="")])[0].line == "forward (me/model.py:1)"
    (one,) = found(breaks=[broken("Unsupported Tensor.item()", skipped=True)])
    assert one.code == "BB105"
    assert one.message.endswith(", and forward can't be resumed there: all of it is uncompiled")
    (one,) = found(breaks=[broken(skipped=True, function="")])
    assert "and the function can't be resumed" in one.message


def test_nothing_is_compiled_only_where_a_call_gave_no_graph():
    assert codes([], calls=[[]]) == ["BB106"]
    (without,) = found([], calls=[[]])
    assert not any("graph breaks that are listed" in x for x in without.fixes)
    assert "TORCH_COMPILE_DISABLE" in without.fixes[1]
    (with_break, _) = found([], breaks=[broken()], calls=[[]])
    assert with_break.fixes == ("remove the graph breaks that are listed",)
    assert codes([]) == []
    assert codes([graph()], calls=[[]]) == []


def test_a_size_is_dynamic_if_it_changed_once_and_else_recompiled():
    dynamic = {"s0": "x.size(0)"}
    assert codes(calls=[[again(dynamic=dynamic)]]) == ["BB205"]
    assert codes(calls=[[again()]]) == ["BB201"]
    twice = [[again(dynamic=dynamic)], [again(dynamic=dynamic, compile_id="0/2")]]
    assert codes(calls=twice) == ["BB201"]
    elsewhere = again(dynamic=dynamic, compile_id="1/1", line="", function="g (me/model.py:7)")
    (one,) = found(calls=[[again(dynamic=dynamic), elsewhere]])
    assert (one.code, one.count, one.cost_s, one.line) == ("BB205", 2, 3.0, LINE)
    other = again(dynamic=dynamic, subject="the size of y", compile_id="0/2")
    assert codes(calls=[[again(dynamic=dynamic), other]]) == ["BB205", "BB205"]
    assert codes(calls=[[again(kind="value", dynamic=dynamic)]]) == ["BB202"]


def test_what_changes_at_two_lines_is_two_findings():
    calls = [[again(kind="value"), again(kind="value", line="", function="g (me/model.py:7)")]]
    assert [x.line for x in found(calls=calls)] == [LINE, "g (me/model.py:7)"]
    assert codes(calls=calls) == ["BB202", "BB202"]


def test_torchs_word_on_a_modules_numbers_is_handed_on_where_it_is_of_use():
    reason = ReasonRecord(version="0/0", failed="", line="", hint=HINT, says="")
    other = msgspec.structs.replace(reason, hint="something else")
    usual = CODES["BB202"].fix[1:].rstrip(".")
    by_hint = {
        hints: found(calls=[[again(kind=kind, reasons=hints)]])[0].fixes
        for kind, hints in (("value", (other, reason)), ("value", (other,)), ("other", (reason,)))
    }
    assert "allow_unspec_int_on_nn_module = True" in by_hint[other, reason][1]
    assert "in a buffer" in by_hint[other, reason][0]
    assert [x[1:] for x in by_hint[other,]] == [usual]
    assert len(by_hint[reason,]) == 1


def test_the_recompile_limit_is_a_finding_beside_what_changed():
    one = again(kind="value", subject="n", compile_id="0/8", limit=True)
    limit, value = found(calls=[[], [one]])
    assert (limit.code, value.code) == ("BB204", "BB202")
    assert limit.message == "forward was compiled 8 times, and torch compiles it no more; n changed"
    assert (limit.line, limit.calls) == ("forward (me/model.py:1)", (1,))
    nameless = found(calls=[[msgspec.structs.replace(one, function="")]])
    assert nameless[0].message.startswith("a function was")


@pytest.mark.parametrize("target", ["item", "tolist", "nonzero", "masked_select", "unique"])
def test_reading_on_the_host_inside_a_graph_is_found_unless_a_break_says_so(target):
    nodes = [node("x"), node("y", target, ["x"])]
    assert codes([graph(*nodes)]) == ["BB301"]
    assert codes([graph(*nodes)], [broken()]) == ["BB101"]
    assert codes([graph(*nodes, call=1)]) == []
    assert codes([graph(node("x", device=""), nodes[1])]) == []  # no tensor is read
    assert codes([graph(nodes[0], msgspec.structs.replace(nodes[1], op="output"))]) == []


def test_a_break_elsewhere_hides_no_copy_and_no_host_read():
    far = broken(line="me/model.py:9: z")
    nodes = [node("x", device="cpu"), node("y", "item", ["x"], device="")]
    assert codes([graph(*nodes)], [far]) == ["BB101", "BB301"]
    copies = [node("x", device="cpu"), node("y", "to", ["x"], device="cuda:0")]
    assert codes([graph(*copies)], [broken()]) == ["BB101", "BB302"]


def test_a_copy_between_devices_is_from_all_that_differ():
    nodes = [node("x", device="cuda:0"), node("w", device="cpu")]
    (one,) = found([graph(*nodes, node("y", "to", ["x", "w"], device="meta"))])
    assert (one.code, one.message) == ("BB302", "to copies a tensor from cpu, cuda:0 to meta")
    assert codes([graph(*nodes, node("y", "to", ["x"], device="cuda:0"))]) == []
    assert codes([graph(*nodes, node("y", "add", ["x", "w"], device="cuda:0"))]) == []
    assert codes([graph(*nodes, node("y", "size", ["x"], device=""))]) == []
    scalar = node("s", device="cpu", shape="scalar")
    assert codes([graph(scalar, node("y", "to", ["s"], device="cuda:0"))]) == []


def test_mixed_dtypes_are_found_where_the_wider_one_wins():
    half, whole = node("h", dtype="bfloat16"), node("w", dtype="float32")
    (one,) = found([graph(half, whole, node("y", "mul", ["w", "h"]))])
    assert (one.code, one.line) == ("BB401", LINE)
    assert one.message == "mul mixes bfloat16 and float32, and computes in float32"
    assert codes([graph(half, whole, node("y", "mul", ["w", "h"], dtype="bfloat16"))]) == []
    assert codes([graph(whole, node("y", "mul", ["w"]))]) == []
    assert codes([graph(half, whole, node("y", "copy_", ["w", "h"]))]) == []
    integer = node("i", dtype="int64")
    assert codes([graph(integer, whole, node("y", "mul", ["w", "i"]))]) == []
    scalar = node("h", dtype="bfloat16", shape="scalar")
    assert codes([graph(scalar, whole, node("y", "mul", ["w", "h"]))]) == []
    double = node("d", dtype="float64")
    assert codes([graph(double, whole, node("y", "mul", ["w", "d"], dtype="float64"))]) == ["BB401"]


def test_near_misses_of_the_first_call_are_found_with_their_line():
    one = PassRecord(name="p", level="torch", changes=1, near=(miss("me/model.py:5: a"), miss()))
    first, second = found([graph(passes=[one]), graph(call=1, passes=[one])])
    assert (first.code, first.count, first.calls) == ("BB501", 1, (0,))
    assert first.message == "p nearly rewrites SiLU: it is whole"
    assert (first.line, second.line) == ("me/model.py:5: a", LINE)


def test_what_ran_in_a_backends_place_is_found_with_why():
    (one,) = found(fell=[Record(asked="mine", ran="eager", why="no such operator")])
    assert (one.code, one.line) == ("BB601", "")
    assert one.message == "eager ran in place of mine: no such operator"


def test_codes_are_chosen_in_full_or_by_their_beginning_and_notes_in_full_only():
    assert selection(["bb101, BB2", "BB2", " ", "BB"]) == ("BB101", "BB2", "BB")
    assert selection(["BB10"]) == ("BB10",)
    for wrong in ("BB110", "BB1011", "B", "BBx", "BB9"):
        with pytest.raises(InputError, match=f"there is no finding '{wrong.upper()}'"):
            selection([wrong])
    assert selects(["BB101"], "BB101")
    assert selects(["BB3", "BB1"], "BB101")
    assert not selects(["BB2", "BB102"], "BB101")
    assert selects(["BB205"], "BB205")
    assert not selects(["BB2", "BB20"], "BB205")
    assert not selects([], "BB101")


def test_a_code_is_named_in_either_case_and_what_is_no_code_is_nothing():
    assert named("bb101") is CODES["BB101"]
    assert named("decoder") is named("BB") is named("BB10x") is None
    nearest = {"BB110": "BB106", "BB130": "BB106", "BB200": "BB201", "bb2": "BB201"}
    for wrong, near in nearest.items():
        with pytest.raises(InputError, match=rf"finding '{wrong.upper()}': did you mean {near}\?"):
            named(wrong)
    with pytest.raises(InputError, match=r"listed in docs/findings\.md$"):
        named("BB999")
    with pytest.raises(InputError, match=r"did you mean BB101\?"):
        selection(["BBB101"])


def test_codes_say_each_thing_once_and_in_sentences():
    assert list(CODES) == sorted(CODES)
    for code, known in CODES.items():
        assert known.code == code
        assert all(x.endswith(".") and x[0].isupper() for x in (known.what, known.why, known.fix))
        assert known.title[0].islower()


@pytest.mark.parametrize(("was", "apart"), [(0, True), (1, True), (2, False), (None, False)])
def test_sizes_that_torch_compiles_by_themselves_have_a_fix_of_their_own(was, apart):
    call = CallRecord(name="first", graphs=1, recompiles=(again(dynamic={"s0": "x"}, was=was),))
    (found,) = (x for x in findings((), (), (call,), None, ()) if x.code == "BB205")
    assert ("begin with a size of at least 2" in found.fixes[0]) is apart
