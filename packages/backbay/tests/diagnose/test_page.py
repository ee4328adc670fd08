"""The page of a diagnosis: what comes first, where time is, code, graphs; whole, safe and small."""

import html
import io
import re

import msgspec
import pytest
from made_up_diagnoses import (
    AGAIN,
    BREAK,
    CONFIRMED,
    FILE,
    FINDINGS,
    LAYER,
    LIFT,
    MEAN,
    SMALL,
    compiled,
    diagnosis,
    explanation,
    finding,
    handed,
    inside,
    kernel,
    node,
    side,
)
from page_reader import read
from rich.console import Console

from backbay.diagnose import (
    Diagnosis,
    NeighbourRecord,
    OutsideRecord,
    TrialRecord,
)
from backbay.diagnose import page as pages
from backbay.diagnose.page import changes, page, write_page
from backbay.diagnose.text import text as in_terminal
from backbay.explain.record import (
    CallRecord,
    ProblemRecord,
)

HOSTILE = "</script><script>alert('x')</script><evil a=\"b\" onclick='c'> & ]]>"


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
    assert rows[1].split() == ["gemm", "4.00", "40%", "80%", "0.800", "ms"]
    assert rows[2].split() == ["reduction", "2.00", "20%", "50%", "1.00", "ms"]
    assert "20 GB/s copied" in words(text)


def test_a_profiler_that_slows_a_step_down_makes_shares_of_more_than_all(told):
    step = told.inside.step
    slowed = msgspec.structs.replace(step, wall_ms=step.parts_ms / 2)
    told = msgspec.structs.replace(told, inside=msgspec.structs.replace(told.inside, step=slowed))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(in_terminal(told))
    there = console.export_text().partition("Where a step goes")[2].partition("Kernels")[0]
    rows = section(page(told), "step").partition("<tbody>")[2].split("</tr>")
    on_page = [re.findall(r"(\d+)%(?:</td>| )", words(x))[:1] for x in rows]
    for shares in (re.findall(r"(\d+)%", there), [x for found in on_page for x in found]):
        assert len(shares) > 2
        assert sum(map(int, shares)) == pytest.approx(100, abs=2)


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
