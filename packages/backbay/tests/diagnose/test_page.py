"""The page of a diagnosis: what comes first, where time is, code, graphs; whole, safe and small."""

import html
import re
from html.parser import HTMLParser

import browser
import msgspec
import pytest

from backbay.diagnose import (
    CompiledGraph,
    Diagnosis,
    KernelRecord,
    LimitRecord,
    NeighbourRecord,
    OutsideRecord,
    RankedFinding,
    SideRecord,
    StepRecord,
    TrialRecord,
    WhiteBox,
)
from backbay.diagnose import page as pages
from backbay.diagnose.page import changes, page, write_page
from backbay.diagnose.record import Settings
from backbay.explain import Explanation
from backbay.explain.record import (
    BreakRecord,
    CallRecord,
    GraphRecord,
    NodeRecord,
    ProblemRecord,
    RecompileRecord,
)
from backbay.explain.record import Settings as ExplainSettings
from backbay.reporting.machine import Machine

HOSTILE = "</script><script>alert('x')</script><evil a=\"b\" onclick='c'> & ]]>"
FILE = "/nowhere/model.py"
LIFT, GATE, MEAN = f"{FILE}:9: h = self.lift(x)", f"{FILE}:11: g = h * 2", f"{FILE}:12: g.mean()"


class Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.links, self.loads, self.text = [], [], [], [], []
        self.scripts, self.open = {}, None
        self.classes = {}

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        self.links += [v for k, v in attrs if k == "href"]
        self.loads += [v for k, v in attrs if k in {"src", "srcset", "data", "xlink:href"}]
        if tag in {"script", "style"}:
            self.open = given.get("id", tag)
            self.scripts[self.open] = ""

    def handle_endtag(self, tag):
        if tag in {"script", "style"}:
            self.open = None

    def handle_data(self, data):
        if self.open is None:
            self.text.append(data)
        else:
            self.scripts[self.open] += data


def read(text):
    reader = Reader()
    reader.feed(text)
    return reader


def words(text):
    """Return what a reader sees, with single spaces."""
    return " ".join(" ".join(read(text).text).split())


def section(text, name):
    """Return one section of a page."""
    found = re.search(rf'<section aria-labelledby="{name}">.*?</section>', text, re.DOTALL)
    return found[0] if found else ""


def cells(text):
    """Return the cells of the icicle: label, left and width in per cent, and where each leads."""
    found = re.findall(
        r'<(?:a href="#([^"]*)"|button type="button") class="cell ([^"]*)" '
        r'style="left: ([\d.]+)%; width: ([\d.]+)%" title="([^"]*)"',
        text,
    )
    return [
        (html.unescape(title), float(left), float(width), anchor, look)
        for anchor, look, left, width, title in found
    ]


def kernel(name, work="pointwise", ms=1.0, lines=(GATE,), **more):
    extern = name.startswith(("extern_kernels.", "torch.ops."))
    given = {
        "kind": "extern" if extern else "cpp",
        "operators": ("aten.mul.Tensor",),
        "share": None if ms is None else ms / 10,
        "bytes": 4096,
        "operations": None,
        "of_limit": 0.5,
        "not_fused": (),
        "code": "" if extern else f"void {name.partition(':')[0]}() {{}}",
    }
    return KernelRecord(name=name, work=work, ms=ms, lines=lines, **{**given, **more})


LAYER = (
    kernel("extern_kernels.mm:1", "gemm", 4.0, (LIFT,), of_limit=0.8, operations=1 << 20),
    kernel(
        "cpp_fused_mul_0:2",
        lines=(MEAN, GATE),
        not_fused=(NeighbourRecord(kernel="extern_kernels.mm:1", reason="torch's own"),),
    ),
    kernel(
        "cpp_fused_mean_1:3",
        "reduction",
        2.0,
        (MEAN,),
        not_fused=(NeighbourRecord(kernel="cpp_fused_mul_0:2", reason="no shared axis"),),
    ),
)
MODULE = """
def call(args):
    # [Provenance debug handles] extern_kernels.mm:1
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    # [Provenance debug handles] cpp_fused_mul_0:2
    cpp_fused_mul_0(buf0, buf1)
"""


def compiled(*kernels, number=0, code=MODULE):
    return CompiledGraph(
        number=number,
        compile_id=f"{number}/0",
        direction="inference",
        calls=1.0,
        kernels=kernels,
        code=code,
    )


def inside(*graphs, **changed):
    by_work = {}
    for one in (k for g in graphs for k in g.kernels):
        by_work[one.work] = by_work.get(one.work, 0.0) + (one.ms or 0.0)
    step = StepRecord(
        wall_ms=12.0,
        wall_ci_ms=(11.5, 12.5),
        kernels_ms=sum(by_work.values()),
        outside_ms=0.5,
        copies_ms=0.0,
        guards_ms=0.25,
        host_ms=2.25,
        by_work=by_work,
        peak_bytes=None,
    )
    given = {
        "outside": (OutsideRecord(name="aten::topk", ms=0.5),),
        "step": step,
        "limit": LimitRecord(copy_bytes_s=2e10, product_operations_s=1e11),
        "phases_s": {"Dynamo": 1.0, "lowering": 3.0},
        "compile_s": 4.0,
        "notes": (),
    }
    return WhiteBox(graphs=graphs, **{**given, **changed})


def node(name, *inputs, line="", op="call_function", target="add", shape="4x8", module=""):
    return NodeRecord(
        name=name,
        op=op,
        target=target,
        shape=shape,
        dtype="float32",
        device="cpu",
        line=line,
        module=module,
        inputs=inputs,
    )


def handed(*nodes, number=0):
    return GraphRecord(
        number=number,
        compile_id="0/0",
        call=0,
        function=f"forward ({FILE}:8)",
        dynamic={},
        nodes=nodes,
        operators={},
        groups=(),
        guards=(),
        stages=(),
    )


SMALL = handed(
    node("l_x_", op="placeholder", target="l_x_"),
    node("h", "l_x_", line=LIFT, target="linear"),
    node("g", "h", line=GATE, target="mul"),
    node("output", "g", op="output", target="output"),
)
BREAK = BreakRecord(
    reason="print can't be compiled",
    explanation="",
    hints=("leave it out",),
    context="",
    url="",
    line=f"{FILE}:10: print(h)",
    stack=(),
    function=f"forward ({FILE}:8)",
    skipped=True,
    calls=(0,),
)
AGAIN = RecompileRecord(
    compile_id="0/1",
    function=f"forward ({FILE}:8)",
    reasons=(),
    dynamic={"s0": "L['x'].size()[0]"},
    kind="size",
    subject="the size of x's dimension 0",
    says="the size of x's dimension 0 changed from 4 to 5",
    line="",
    compile_s=1.5,
    limit=False,
)


def explanation(**changed):
    settings = ExplainSettings(
        workload="mine", backend=None, mode="infer", dtype="float32", device="cpu", seed=0
    )
    given = {
        "findings": (),
        "graphs": (SMALL,),
        "breaks": (BREAK,),
        "calls": (
            CallRecord(name="first", graphs=1),
            CallRecord(name="batch 4 to 5", graphs=1, recompiles=(AGAIN,)),
        ),
        "problem": None,
        "notes": (),
    }
    return Explanation(
        created="2026-11-25T12:00:00+00:00",
        versions={"torch": "2.13.0"},
        settings=settings,
        sentence="one graph",
        **{**given, **changed},
    )


def side(step_ms, **changed):
    given = {"graphs": 1, "breaks": 0, "recompiles": 0, "compile_s": 4.0, "peak_bytes": None}
    interval = None if step_ms is None else (step_ms * 0.99, step_ms * 1.01)
    return SideRecord(step_ms=step_ms, step_ci_ms=interval, **{**given, **changed})


CONFIRMED = TrialRecord(
    remedy="torch._dynamo.config.reorderable_logging_functions = {print}",
    status="confirmed",
    sentence="2 graph breaks before, 0 after; the step is 1.50x [1.45, 1.55] as fast",
    before=side(12.0, graphs=3, breaks=2),
    after=side(8.0),
    speedup=1.5,
    speedup_ci=(1.45, 1.55),
)


def finding(code="BB101", severity="warning", **changed):
    given = {
        "message": "print can't be compiled",
        "line": f"{FILE}:10: print(h)",
        "fixes": ("leave print out",),
        "count": 1,
        "cost_s": None,
        "calls": (0,),
        "page": "",
    }
    return RankedFinding(code=code, severity=severity, **{**given, **changed})


def diagnosis(box=None, *, findings=(), explained=None, **changed):
    return Diagnosis(
        created="2026-11-25T12:00:00+00:00",
        machine=Machine(
            system="Linux", processor="A processor", cores=2, memory_bytes=1 << 34, device="cpu"
        ),
        versions={"python": "3.11.7", "torch": "2.13.0"},
        settings=Settings(
            workload="mine.py:model",
            arm="inductor",
            dynamic=None,
            fullgraph=False,
            mode="infer",
            dtype="float32",
            device="cpu",
            seed=3,
        ),
        findings=findings,
        inside=box,
        explanation=explained or explanation(),
        **{"sentence": "nothing was found that has to be fixed", "notes": (), **changed},
    )


FINDINGS = (
    finding(trials=(CONFIRMED,), saved_s=4.0),
    finding("BB703", "note", message="2 repeated blocks", line="", fixes=()),
)


@pytest.fixture(scope="module")
def told():
    return diagnosis(inside(compiled(*LAYER)), findings=FINDINGS, notes=("the machine was busy",))


@pytest.fixture(scope="module")
def text(told):
    return page(told)


def test_what_to_fix_first_comes_first_with_its_line_what_was_tried_and_its_numbers(text):
    first = words(section(text, "first"))
    assert first.startswith("Fix this first BB101 print can't be compiled")
    for part in ("model.py:10 print(h)", "confirmed", CONFIRMED.remedy, CONFIRMED.sentence):
        assert part in first
    assert "ms a step 12.0 → 8.00" in first
    assert "graph breaks 2 → 0" in first
    assert "Saves 4.0 s in the first 1,000 steps" in first
    assert "BB703" in words(section(text, "then"))
    assert "BB703" not in first
    order = [text.index(f'id="{x}"') for x in ("first", "then", "step", "kernels", "graphs")]
    assert order == sorted(order)


def test_where_nothing_is_urgent_the_page_says_so_and_the_rest_is_worth_a_look():
    text = page(diagnosis(inside(compiled(*LAYER)), findings=FINDINGS[1:]))
    assert "Nothing was found that has to be fixed." in words(section(text, "first"))
    assert "<article" not in section(text, "first")
    assert words(section(text, "then")).startswith("Worth a look BB703")


def test_what_only_a_made_up_batch_met_is_marked():
    met = finding("BB205", "note", message="a size became dynamic")
    for supposed in (True, False):
        one = msgspec.structs.replace(met, supposed=supposed)
        shown = words(page(diagnosis(findings=(one,))))
        assert ("Only where the batch varies" in shown) is supposed


@pytest.mark.parametrize(
    ("interval", "better"), [((1.4, 1.6), True), ((0.5, 0.6), False), ((0.9, 1.2), None)]
)
def test_a_step_is_better_or_worse_only_where_the_whole_interval_says_so(interval, better):
    trial = msgspec.structs.replace(CONFIRMED, speedup_ci=interval)
    assert changes(trial)[0].better is better


def test_what_did_not_change_is_not_among_the_changes():
    trial = msgspec.structs.replace(CONFIRMED, before=side(12.0), after=side(8.0))
    assert [x.name for x in changes(trial)] == ["ms a step", "to compile"]
    assert changes(TrialRecord(remedy="x", status="not_tried", sentence="no GPU")) == []


def test_fewer_recompiles_are_good_and_more_graphs_are_neither():
    trial = msgspec.structs.replace(
        CONFIRMED,
        before=side(None, graphs=0, recompiles=1, peak_bytes=1 << 20),
        after=side(None, graphs=1, recompiles=0, peak_bytes=1 << 21),
    )
    found = {x.name: (x.before, x.after, x.better) for x in changes(trial)}
    assert found["recompiles"] == ("1", "0", True)
    assert found["graphs"] == ("0", "1", None)
    assert found["peak memory"] == ("1.00 MiB", "2.00 MiB", None)
    assert "ms a step" not in found


def test_the_icicle_has_a_step_its_graphs_your_lines_and_their_kernels(text):
    found = {title.partition(":")[0]: rest for title, *rest in cells(text)}
    whole_ms = 7.0 + 0.5 + 0.25 + 2.25
    assert found["a step"][:2] == [0, 100]
    assert found["graph 0, inference"][1] == pytest.approx(100 * 7.0 / whole_ms, abs=0.01)
    host = [100 * 7.0 / whole_ms, 100 * 2.25 / whole_ms]  # beside the graph, which takes longer
    assert found["rest of the host"][:2] == pytest.approx(host, abs=0.01)
    assert found["aten"][1] == pytest.approx(100 * 0.5 / whole_ms, abs=0.01)
    line, gemm = found["h = self.lift(x)"], found["extern_kernels.mm"]
    assert line[:2] == gemm[:2]
    assert gemm[1] == pytest.approx(100 * 4.0 / whole_ms, abs=0.01)
    assert gemm[2:] == ["kernel-0-0", "work-gemm"]


def test_a_kernel_of_several_lines_stands_below_the_last_of_them(text):
    places = {
        title.partition(":")[0]: (left, left + width) for title, left, width, *_ in cells(text)
    }
    mul, gate = places["cpp_fused_mul_0"], places["g = h * 2"]
    assert gate[0] <= mul[0] < mul[1] <= gate[1] + 0.01
    mean, line = places["cpp_fused_mean_1"], places["g.mean()"]
    assert line == mean


def test_a_cell_says_its_time_its_share_and_what_it_is(text):
    title = next(x for x, *_ in cells(text) if x.startswith("cpp_fused_mul_0"))
    assert title == (
        "cpp_fused_mul_0: 1.00 ms, 10.0% of the step; pointwise, 50% of the limit, computes 2 lines"
    )


def test_what_is_too_narrow_is_taken_together_and_nothing_is_lost():
    narrow = [
        kernel(f"cpp_fused_{n}:{n}", ms=0.001, lines=(f"{FILE}:{20 + n}: x",)) for n in range(9)
    ]
    text = page(diagnosis(inside(compiled(kernel("extern_kernels.mm:99", "gemm", 9.0), *narrow))))
    found = {title.partition(":")[0]: rest for title, *rest in cells(text)}
    assert "9 others" in found
    assert not any(x.startswith("cpp_fused") for x in found)
    assert found["9 others"][1] == pytest.approx(100 * 0.009 / (9.009 + 3.0), abs=0.01)


def test_a_long_line_begins_in_its_cell_and_is_told_whole():
    code = f"y = {'x + ' * 30}1"
    one = kernel("cpp_fused_0:1", lines=(f"{FILE}:30: {code}",))
    text = page(diagnosis(inside(compiled(one))))
    title = next(x for x, *_ in cells(text) if x.startswith("y = "))
    assert title.startswith("y = x + x + ")
    assert title.endswith(f"model.py:30: {code}")
    assert f">{code[:41]}…</span>" in text


def test_kinds_of_work_are_held_against_the_limit_with_what_that_would_save(text):
    rows = [words(x) for x in re.findall(r"<tr>.*?</tr>", section(text, "step"), re.DOTALL)]
    assert rows[1].split() == ["gemm", "4.00", "33%", "80%", "0.800", "ms"]
    assert rows[2].split() == ["reduction", "2.00", "17%", "50%", "1.00", "ms"]
    assert "20 GB/s copied" in words(text)


def test_kernels_that_inductor_does_not_count_have_no_limit():
    known = kernel("cpp_fused_0:1", ms=1.0, of_limit=0.5)
    unknown = kernel("cpp_fused_1:2", ms=3.0, of_limit=None)
    some = section(page(diagnosis(inside(compiled(known, unknown)))), "step")
    assert "0.500 ms of the 1.00 ms that Inductor counts" in words(some)
    none = section(page(diagnosis(inside(compiled(unknown)))), "step")
    assert "not counted by Inductor" in words(none)


def test_the_calls_of_a_kernel_for_the_same_lines_are_one_entry():
    layers = [
        kernel(f"{name}:{2 * n + m}", work, ms)
        for n in range(4)
        for m, (name, work, ms) in enumerate(
            [("extern_kernels.mm", "gemm", 2.0), ("cpp_fused_mul_0", "pointwise", 0.5)]
        )
    ]
    other = kernel("cpp_fused_mul_0:99", ms=0.1, lines=(MEAN,))
    text = page(diagnosis(inside(compiled(*layers, other))))
    entries = re.findall(r'<details class="entry".*?</details>', text, re.DOTALL)
    assert [words(x).partition(" ms")[0] for x in entries] == [
        "extern_kernels.mm 4 times model.py:11 g = h * 2 8.00",
        "cpp_fused_mul_0 4 times model.py:11 g = h * 2 2.00",
        "cpp_fused_mul_0 model.py:12 g.mean() 0.100",
    ]
    assert "void cpp_fused_mul_0() {}" in entries[1]
    assert "The same as for other lines ." in words(entries[2])
    assert section(text, "kernels").count("void cpp_fused_mul_0() {}") == 1


def test_code_stands_beside_your_lines_with_what_is_fused_and_what_is_not(text):
    gemm, mean, mul = re.findall(r'<details class="entry".*?</details>', text, re.DOTALL)
    said = words(mul)
    for part in (
        "11 g = h * 2 12 g.mean()",
        "Fused into it aten.mul.Tensor",
        "Not fused with it extern_kernels.mm : torch's own",
        "Called as cpp_fused_mul_0(buf0, buf1)",
        "Generated code void cpp_fused_mul_0() {}",
        "4.00 KiB read and written",
    ):
        assert part in said
    assert "Called as extern_kernels.mm(arg0_1, arg1_1, out=buf0)" in words(gemm)
    assert "None: this is torch's own kernel." in words(gemm)
    assert "Called as" not in words(mean)  # the module does not say


def test_pairs_of_inductors_own_kernels_that_were_not_fused_are_listed_once(text):
    pairs = words(section(text, "kernels")).partition("Not fused, and Inductor's reason")[2]
    assert "cpp_fused_mul_0 and cpp_fused_mean_1 , which reads its result: no shared axis" in pairs
    assert "torch's own" not in pairs


def test_the_generated_module_is_there_whole(text):
    assert "The whole generated module of graph 0" in text
    assert (
        html.escape("extern_kernels.mm(arg0_1, arg1_1, out=buf0)")
        in text.partition("The whole generated module")[2]
    )


def test_phases_breaks_and_recompiles_are_told(text):
    assert "4.0 s in an empty cache" in words(section(text, "compiling"))
    assert "lowering 3.0 s 75%" in words(section(text, "compiling"))
    calls = words(section(text, "calls"))
    assert "print can't be compiled model.py:10 print(h)" in calls.replace("/nowhere/", "")
    assert "runs uncompiled" in calls
    assert "the size of x's dimension 0 changed from 4 to 5" in calls
    assert "Now dynamic: x.size(0) (s0)" in calls
    assert "Call 2 (batch 4 to 5) : 1 graph compiled" in calls


def boxes(text):
    """Return each drawing of a page, folded or whole, as its title with its boxes."""
    svgs = re.findall(r'<svg class="graph".*?</svg>', text, re.DOTALL)
    return {
        html.unescape(re.search('aria-label="([^"]*)"', x)[1]): re.findall('data-node="([^"]*)"', x)
        for x in svgs
    }


def test_graphs_are_drawn_and_each_box_leads_to_its_kernel(text):
    found = boxes(text)
    assert found["Graph 0 (inference): its kernels, as Inductor runs them"] == [
        x.name for x in LAYER
    ]
    assert found["Graph 0: its nodes, as Dynamo hands them over"] == [x.name for x in SMALL.nodes]
    for name, anchor in (("cpp_fused_mul_0:2", "kernel-0-1"), ("h", "kernel-0-0")):
        assert re.search(rf'<a href="#{anchor}"><g class="[^"]*" data-node="{name}">', text)
    assert text.count("<path") == 2 + 3
    assert text.count('<svg class="graph" role="group"') == 2  # it has links


def test_a_result_that_is_written_later_is_not_what_a_kernel_reads():
    late = NeighbourRecord(kernel="cpp_fused_1:2", reason="it is the same buffer")
    text = page(
        diagnosis(
            inside(compiled(kernel("cpp_fused_0:1", not_fused=(late,)), kernel("cpp_fused_1:2"))),
            explained=explanation(graphs=()),
        )
    )
    assert text.count("data-node=") == 2
    assert "<path" not in text


def test_layers_that_repeat_are_folded_and_can_be_seen_one_by_one():
    layers = []
    for n in range(6):
        before = [layers[-1].name] if layers else []
        for m, target in enumerate(("linear", "relu", "add")):
            layers.append(node(f"n{n}_{m}", *before, target=target, module=f"layers.{n}.part"))
            before = [layers[-1].name]
    text = page(diagnosis(explained=explanation(graphs=(handed(*layers),))))
    folded, whole = boxes(text).values()
    assert whole == [x.name for x in layers]
    assert folded == ["n0_0", "n0_1", "n0_2", "n1_0"]
    assert "the 3 nodes before, 5 times more" in text
    assert "layers.1 to layers.5" in text
    assert "folded here:\nn1_0\nn1_1" in text
    assert text.count("<path") == 17 + 3


def test_a_graph_that_is_too_large_to_follow_says_so(monkeypatch):
    several = [kernel(f"cpp_fused_{n}:{n}", lines=(f"{FILE}:{n}: x",)) for n in range(400)]
    nodes = [node(f"n{n}", module=f"m{n % 7}", target=f"op{n}") for n in range(400)]
    text = page(
        diagnosis(inside(compiled(*several)), explained=explanation(graphs=(handed(*nodes),)))
    )
    assert "One by one, the 400 would be too many to follow: --json has them." in words(text)
    assert "drawn as stretches of nodes in one module" in words(text)
    assert len(boxes(text)) == 1


def test_graphs_that_differ_in_sizes_only_are_drawn_once():
    sized = handed(*(msgspec.structs.replace(x, shape="5x8") for x in SMALL.nodes), number=1)
    text = page(diagnosis(explained=explanation(graphs=(SMALL, sized))))
    assert len(boxes(text)) == 1


def test_a_page_of_a_big_model_is_bounded_and_says_what_is_left_out():
    code = "x" * 20_000
    graphs = [
        compiled(
            *(
                kernel(f"cpp_fused_{g}_{n}:{n}", ms=1.0, lines=(f"{FILE}:{n}: x",), code=code)
                for n in range(60)
            ),
            number=g,
            code=code,
        )
        for g in range(8)
    ]
    findings = [finding("BB703", "note", message=f"finding {n}") for n in range(60)]
    many = explanation(breaks=(BREAK,) * 60, graphs=(SMALL,))
    told = diagnosis(inside(*graphs), findings=tuple(findings), explained=many)
    text = page(told)
    shown = words(text)
    assert len(msgspec.json.encode(told)) > pages.MOST_EMBEDDED
    assert len(text) < 4_000_000
    assert len([x for x in boxes(text) if "its kernels" in x]) == pages.MOST_GRAPHS
    assert 0.9 * pages.MOST_CODE < text.count("x" * 100) * 100 <= pages.MOST_CODE
    for part in (
        "20 more findings left out: --json has them all.",
        "330 more entries left out, 330 ms in all: --json has them all.",
        "Left out, so that the page stays small: --json has it.",
        "20 more breaks left out: --json has them all.",
        "2 more graphs left out: --json has them all.",
        "is not embedded in this file",
    ):
        assert part in shown
    assert "diagnosis" not in read(text).scripts
    assert 'id="save"' not in text


def test_nothing_is_said_to_be_left_out_of_a_small_one(text):
    shown = words(text)
    assert "left out" not in shown.lower().replace("leave print out", "")
    assert "not embedded" not in shown


def test_the_page_holds_the_diagnosis_itself(told, text, tmp_path):
    path = tmp_path / "page.html"
    write_page(told, path)
    assert path.read_bytes() == text.encode()
    embedded = read(text).scripts["diagnosis"]
    assert msgspec.json.decode(embedded, type=Diagnosis) == told


def hostile():
    """Return a diagnosis whose every text from outside tries to leave its place."""
    line = f"{FILE}:9: {HOSTILE}"
    near = NeighbourRecord(kernel=f"{HOSTILE}:1", reason=HOSTILE)
    made = {"lines": (line, HOSTILE), "operators": (HOSTILE,), "code": HOSTILE}
    kernels = (
        kernel(f"{HOSTILE}:1", **made),
        kernel(f"cpp{HOSTILE}:2", **made, not_fused=(near,)),
    )
    box = inside(
        compiled(*kernels, code=HOSTILE),
        outside=(OutsideRecord(name=HOSTILE, ms=1.0),),
        phases_s={HOSTILE: 1.0},
    )
    trial = msgspec.structs.replace(CONFIRMED, remedy=HOSTILE, sentence=HOSTILE)
    found = finding(message=HOSTILE, line=line, fixes=(HOSTILE,), trials=(trial,))
    again = msgspec.structs.replace(
        AGAIN, says=HOSTILE, function=HOSTILE, line=line, dynamic={HOSTILE: HOSTILE}
    )
    explained = explanation(
        breaks=(
            msgspec.structs.replace(
                BREAK, reason=HOSTILE, line=line, hints=(HOSTILE,), function=HOSTILE
            ),
        ),
        calls=(
            CallRecord(
                name="first",
                graphs=1,
                recompiles=(again,),
                problem=ProblemRecord(stage="compiled", error=HOSTILE, line=line, raised_at=line),
            ),
        ),
        problem=ProblemRecord(stage="eager", error=HOSTILE, line=line, raised_at=line),
        graphs=(handed(node(HOSTILE, line=line, target=HOSTILE, module=HOSTILE, shape=HOSTILE)),),
    )
    told = diagnosis(box, findings=(found,), explained=explained, notes=(HOSTILE,))
    settings = msgspec.structs.replace(told.settings, workload=HOSTILE, arm=HOSTILE)
    machine = msgspec.structs.replace(told.machine, processor=HOSTILE, device=HOSTILE)
    versions = {HOSTILE: HOSTILE}
    return msgspec.structs.replace(told, settings=settings, machine=machine, versions=versions)


def test_nothing_from_outside_can_leave_its_place():
    text = page(hostile())
    reader = read(text)
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("script") == 2
    assert "evil" not in tags
    assert not [given for _, given in reader.tags if {"onclick", "onload"} & set(given)]
    assert "alert" not in reader.scripts["script"]
    assert "alert('x')" in " ".join(reader.text)


def test_nothing_is_loaded_from_elsewhere(text):
    reader = read(text)
    assert not reader.loads
    assert all(target.startswith("#") for target in reader.links)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {x for x, _ in reader.tags}
    without_json = text.replace(reader.scripts["diagnosis"], "")
    assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp", without_json)


def test_ids_are_unique_and_what_refers_to_them_resolves(text):
    reader = read(text)
    assert len(reader.ids) == len(set(reader.ids))
    referred = {target[1:] for target in reader.links}
    referred |= {x["aria-labelledby"] for _, x in reader.tags if "aria-labelledby" in x}
    referred |= {x["for"] for _, x in reader.tags if "for" in x}
    assert referred <= set(reader.ids)


def test_every_colour_is_defined_in_both_themes(text):
    style = read(text).scripts["style"]
    used = set(re.findall(r"var\((--[\w-]+)", text)) - {"--work"}
    light, dark, chosen = re.findall(
        r'(?::root|:root:not\(\[data-theme="light"\]\)|:root\[data-theme="dark"\]) \{(.*?)\}',
        style,
        flags=re.DOTALL,
    )
    for scheme in (light, dark, chosen):
        assert used <= set(re.findall(r"(--[\w-]+):", scheme))


def test_every_kind_of_work_has_a_colour_of_its_own(text):
    from typing import get_args

    from backbay.diagnose.record import Work

    style = read(text).scripts["style"]
    found = dict(re.findall(r"\.work-(\w+) \{ --work: var\((--series-\d)\)", style))
    assert set(found) == set(get_args(Work))
    assert len(set(found.values())) == len(found)


def test_mode_and_options_are_asked_for_as_the_command_takes_them(told):
    settings = msgspec.structs.replace(
        told.settings, arm="inductor@max-autotune{max_fusion_size: 8}"
    )
    shown = words(page(msgspec.structs.replace(told, settings=settings)))
    assert "--backend inductor --mode max-autotune --options '{max_fusion_size: 8}' " in shown


@pytest.mark.parametrize("name", ["train.py", "mine"])
def test_no_command_is_made_up_for_a_script_or_an_object(told, name):
    settings = msgspec.structs.replace(told.settings, workload=name)
    shown = words(page(msgspec.structs.replace(told, settings=settings)))
    assert "backbay diagnose" not in shown
    assert "Where this was measured A processor, 2 cores" in shown


@pytest.mark.parametrize(
    "told",
    [
        diagnosis(explained=explanation(graphs=(), breaks=(), calls=())),
        diagnosis(inside()),
        diagnosis(inside(compiled())),
        diagnosis(inside(compiled(kernel("cpp_fused_0:1", ms=None, of_limit=None, lines=())))),
        diagnosis(inside(compiled(kernel("unnumbered", bytes=None, operators=())), phases_s={})),
        diagnosis(
            explained=explanation(
                graphs=(),
                problem=ProblemRecord(stage="eager", error="ValueError: x", line="", raised_at=""),
            )
        ),
    ],
    ids=["nothing", "no graph", "no kernel", "untimed", "bare", "raised"],
)
def test_unusual_diagnoses_make_a_whole_page(told):
    text = page(told)
    reader = read(text)
    assert reader.tags[-1][0] == "script"
    shown = words(text)
    assert "Fix this first" in shown
    assert "nan" not in shown.split()
    assert " None " not in shown.replace(" None: ", " ")
    assert {x[1:] for x in reader.links} <= set(reader.ids)


def test_an_error_comes_before_everything():
    problem = ProblemRecord(stage="eager", error="ValueError: bad", line=LIFT, raised_at="")
    text = page(diagnosis(explained=explanation(problem=problem)))
    assert "The model itself, uncompiled: ValueError: bad" in words(section(text, "error"))
    assert text.index('id="error"') < text.index('id="first"')


def test_the_command_is_quoted_for_a_shell_and_asks_the_same(told):
    settings = msgspec.structs.replace(
        told.settings, workload="my models.py:net", mode="train", dynamic=True, fullgraph=True
    )
    shown = words(page(msgspec.structs.replace(told, settings=settings)))
    assert (
        "backbay diagnose 'my models.py:net' --backend inductor --dynamic --fullgraph --train "
        "--dtype float32 --device cpu --seed 3" in shown
    )


def test_drawing_a_page_needs_no_torch(run_python):
    done = run_python(
        """
        import sys
        import backbay.diagnose.page
        assert "torch" not in sys.modules
        """
    )
    assert done.returncode == 0


@browser.needs_browser
def test_no_text_of_the_page_is_clipped_or_covered(told, tmp_path):
    long = "cpp_fused_" + "a_rather_long_operator_" * 6
    wide = compiled(
        *LAYER, kernel(f"{long}:4", lines=(f"{FILE}:30: y = {'wide + ' * 40}1",)), number=0
    )
    findings = (*FINDINGS, finding(message="a_word" * 30, line=f"{FILE}:1: {'b' * 200}"))
    text = page(diagnosis(inside(wide), findings=findings, notes=("a_word" * 30,)))
    opened = text.replace("<details", "<details open")
    assert opened != text
    browser.check_layout(text, tmp_path)
    browser.check_layout(opened, tmp_path)


@browser.needs_browser
def test_a_page_without_script_hides_what_needs_one(text, tmp_path):
    found = browser.acted(
        re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL),
        tmp_path,
        """
        const all = selector => [...document.querySelectorAll(selector)];
        document.querySelector("a.cell").click();
        return {
          tools: all(".tools, .told, #theme, #save, .scripted").some(x => x.checkVisibility()),
          titles: all(".cell").every(x => x.title),
          hash: location.hash,
        };
        """,
    )
    assert found == {"tools": False, "titles": True, "hash": "#kernel-0-0"}


@browser.needs_browser
def test_a_kernel_in_the_icicle_opens_its_code(text, tmp_path):
    found = browser.acted(
        text,
        tmp_path,
        """
        const cell = document.querySelector("a.cell[href='#kernel-0-1']");
        const entry = document.getElementById("kernel-0-1");
        const before = entry.open;
        cell.click();
        await new Promise(done => setTimeout(done, 50));
        const once = entry.open;
        entry.open = false;
        cell.click();
        return { before, once, again: entry.open };
        """,
    )
    assert found == {"before": False, "once": True, "again": True}


@browser.needs_browser
def test_the_icicle_is_reached_by_one_tab_and_walked_by_arrows(text, tmp_path):
    found = browser.acted(
        text,
        tmp_path,
        """
        const cells = [...document.querySelectorAll(".cell")];
        const name = x => x.title.split(":")[0];
        const stops = cells.filter(x => x.tabIndex === 0).length;
        const walked = [];
        cells[0].focus();
        for (const key of ["ArrowDown", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowDown",
                           "ArrowUp"]) {
          document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key }));
          walked.push(name(document.activeElement));
        }
        const told = document.querySelector("#icicle ~ .told").textContent;
        return { stops, walked, told, later: cells.filter(x => x.tabIndex === 0).length };
        """,
    )
    assert found["stops"] == found["later"] == 1
    assert found["walked"] == [
        "graph 0, inference",
        "rest of the host",
        "graph 0, inference",
        "h = self.lift(x)",
        "extern_kernels.mm",
        "h = self.lift(x)",
    ]
    assert found["told"].startswith("h = self.lift(x): 4.00 ms, 40.0% of the step")


@browser.needs_browser
def test_a_line_fills_the_width_and_a_step_shows_everything_again(text, tmp_path):
    found = browser.acted(
        text,
        tmp_path,
        """
        const cells = [...document.querySelectorAll(".cell")];
        const named = x => cells.find(y => y.title.startsWith(x));
        const shown = () => cells.filter(x => x.checkVisibility()).length;
        const before = shown();
        named("h = self.lift").click();
        const width = named("h = self.lift").style.width, zoomed = shown();
        named("a step").click();
        const back = shown();
        named("h = self.lift").click();
        cells[0].dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
        return { before, width, zoomed, back, escaped: shown() };
        """,
    )
    assert found["width"] == "100%"
    assert found["zoomed"] == 4
    assert found["before"] == found["back"] == found["escaped"]


@browser.needs_browser
def test_a_finger_gets_the_numbers_and_not_another_place(text, tmp_path):
    found = browser.acted(
        text,
        tmp_path,
        """
        const cell = document.querySelector("a.cell[href='#kernel-0-1']");
        const tap = { bubbles: true, cancelable: true, pointerType: "touch" };
        cell.dispatchEvent(new PointerEvent("click", tap));
        const told = document.querySelector("#icicle ~ .told");
        return { hash: location.hash, told: told.textContent,
                 link: told.querySelector("a").getAttribute("href") };
        """,
    )
    assert found["hash"] == ""
    assert found["told"].startswith("cpp_fused_mul_0: 1.00 ms")
    assert found["link"] == "#kernel-0-1"


@browser.needs_browser
def test_kernels_are_searched_by_name_line_and_operator(text, tmp_path):
    found = browser.acted(
        text,
        tmp_path,
        """
        const find = document.getElementById("find");
        const shown = wanted => {
          find.value = wanted;
          find.dispatchEvent(new Event("input"));
          return [...document.querySelectorAll(".entry")].filter(x => x.checkVisibility()).length;
        };
        return { name: shown("MUL_0()"), line: shown("self.lift"), none: shown("nowhere at all"),
                 said: document.getElementById("found").textContent, all: shown("") };
        """,
    )
    assert found == {"name": 1, "line": 1, "none": 0, "said": "0 of 3", "all": 3}


@browser.needs_browser
def test_a_drawing_is_searched_enlarged_and_unfolded(tmp_path):
    layers = [
        node(f"n{n}_{m}", target=target, module=f"layers.{n}")
        for n in range(4)
        for m, target in enumerate(("linear", "relu", "add"))
    ]
    text = page(diagnosis(explained=explanation(graphs=(handed(*layers),))))
    found = browser.acted(
        text,
        tmp_path,
        """
        const views = document.querySelector(".views");
        const find = selector => views.querySelector(selector);
        const input = find("[type=search]"), svg = find(".folded svg");
        const width = () => Number(svg.getAttribute("width"));
        const first = width();
        find(".more").click();
        const larger = width();
        find(".fit").click();
        const hits = wanted => {
          input.value = wanted;
          input.dispatchEvent(new Event("input"));
          return [...views.querySelectorAll(".hit")].filter(x => x.checkVisibility()).length;
        };
        const folded = hits("n2_1");
        find(".to-whole").click();
        const whole = hits("n2_1");
        input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
        return { first, larger, fit: width(), pane: find(".whole").clientWidth, folded, whole,
                 told: find(".told").textContent, said: find(".hits").textContent,
                 shown: [find(".folded").checkVisibility(), find(".whole").checkVisibility()] };
        """,
    )
    assert found["larger"] == pytest.approx(1.25 * found["first"])
    assert found["fit"] == pytest.approx(found["pane"] - 4, abs=3)
    assert (found["folded"], found["whole"]) == (1, 1)
    assert found["told"].startswith("n2_1 = relu()")
    assert found["said"] == "1 of 1 found"
    assert found["shown"] == [False, True]


@browser.needs_browser
def test_the_theme_changes_and_the_json_is_saved(text, tmp_path):
    found = browser.acted(
        text,
        tmp_path,
        """
        const background = () => getComputedStyle(document.body).backgroundColor;
        const before = background();
        document.getElementById("theme").click();
        const saved = [];
        HTMLAnchorElement.prototype.click = function () { saved.push(this.download); };
        document.getElementById("save").click();
        return { changed: background() !== before, saved };
        """,
    )
    assert found == {"changed": True, "saved": ["diagnose.json"]}
