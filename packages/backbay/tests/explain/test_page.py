"""The page and the terminal show what the explanation has; the page needs nothing else."""

import html
import io
import re
from html.parser import HTMLParser

import browser
import msgspec
import pytest
from rich.console import Console

from backbay.explain import Explanation, run
from backbay.explain.boxes import MOST, marks, picture
from backbay.explain.drawing import HEIGHT, ROW, layout
from backbay.explain.page import page, write_page
from backbay.explain.record import BreakRecord, FindingRecord, GraphRecord, NodeRecord, Settings
from backbay.explain.text import text
from backbay.kit.backend import Backend
from backbay.kit.rewrites import rewrite_silu

HOSTILE = "</script><script>alert('x')</script><b>bold</b>\x1b[31m"


class GateEagerly(Backend):
    passes = (rewrite_silu,)
    codegen = "eager"


class Reader(HTMLParser):
    """Collects what a browser would load, draw and show."""

    def __init__(self):
        super().__init__()
        self.loads, self.scripts, self.boxes, self.tags, self.text = [], [], {}, [], []
        self._box = None

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.loads += [v for k, v in attrs if k in {"src", "srcset", "data", "xlink:href"}]
        if tag in {"link", "image", "use", "iframe", "object", "embed", "base"}:
            self.loads.append(str(given))
        if tag == "script":
            self.scripts.append(given.get("type"))
        if "data-node" in given:
            self._box = given["data-node"]
            self.boxes.setdefault(self._box, []).append(given["class"].split())

    def handle_data(self, data):
        self.text.append(data)


def read(page_text):
    reader = Reader()
    reader.feed(page_text)
    return reader


def node(name, *inputs, op="call_function", module="", target="add", shape="4x8"):
    return NodeRecord(
        name=name,
        op=op,
        target=target,
        shape=shape,
        dtype="float32",
        device="cpu",
        line=f"model.py:1: {name}",
        module=module,
        inputs=inputs,
    )


def graph(*nodes, number=0):
    return GraphRecord(
        number=number,
        compile_id="0/0",
        call=0,
        function="forward (model.py:1)",
        dynamic={},
        nodes=nodes,
        operators={},
        groups=(),
        guards=(),
        stages=(),
    )


def told(*graphs, **changes):
    settings = Settings(
        workload="mine", backend=None, mode="infer", dtype="float32", device="cpu", seed=0
    )
    plain = Explanation(
        created="2026-11-21T12:00:00+00:00",
        versions={"torch": "2.13.0"},
        settings=settings,
        sentence="one graph",
        findings=(),
        graphs=graphs,
        breaks=(),
        calls=(),
        problem=None,
        notes=(),
    )
    return msgspec.structs.replace(plain, **changes)


def shown(explanation, width=200):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(text(explanation))
    return console.export_text()


@pytest.fixture(scope="module")
def gated():
    from pathlib import Path

    models = Path(__file__).with_name("models.py")
    return run(f"{models}:gated", backend=GateEagerly(), device="cpu")


def test_the_page_loads_nothing_and_runs_no_script(gated):
    html = page(gated)
    reader = read(html)
    assert not reader.loads
    assert reader.scripts == ["application/json"]
    assert not re.search(r"url\(|@import|https?://(?!meta-pytorch)", html)


def test_every_node_has_a_box_with_its_shape_and_line_and_a_row(gated):
    html = page(gated)
    reader = read(html)
    for one in gated.graphs[0].nodes:
        assert one.name in reader.boxes
        assert f"<td>{one.name}</td>" in html
    titles = re.findall(r'data-node="h"[^>]*><title>(.*?)</title>', html, re.DOTALL)
    assert "float32 4x8" in titles[0]
    assert "h = self.lift(x)" in titles[0]


def test_fusable_groups_are_coloured_and_what_passes_changed_is_marked(gated):
    boxes = read(page(gated)).boxes
    before, after = boxes["gated"][0], boxes["silu"][0]
    assert "removed" in before
    assert any(x.startswith("group-") for x in before)
    assert "added" in after
    assert "changed" in boxes["output"][0]
    assert not {"added", "removed", "changed"} & set(boxes["h"][0])


def test_a_graph_that_differs_in_sizes_only_is_drawn_once(gated):
    html = page(gated)
    assert len(gated.graphs) == 2
    assert "Drawn as" in html
    assert html.count('data-node="h"') == 2  # graph 0, before and after


def test_graphs_that_differ_in_an_operator_are_both_drawn():
    one = graph(node("x", op="placeholder"), node("y", "x", target="sin"))
    other = graph(node("x", op="placeholder"), node("y", "x", target="cos"), number=1)
    html = page(told(one, other))
    assert "Drawn as" not in html
    assert html.count('data-node="y"') == 2


def test_the_diff_is_on_the_page_and_in_the_terminal(gated):
    line = "+silu: float32 4x8 = silu(h, inplace=False)"
    assert line in page(gated)
    assert line in shown(gated)


def test_near_misses_and_recompiles_are_in_both(gated):
    for where in (page(gated), shown(gated)):
        assert "int64, not floating point" in where
        assert "the size of x's dimension 0 changed from 4 to 5" in " ".join(where.split()).replace(
            "&#39;", "'"
        )
        assert "ow dynamic: " in where
        assert "Call 2 (same inputs): " in where
        assert "Call 3 (batch 4 to 5): " in where
        assert "Call 1 (" not in where
        assert "BB501" in where
        assert "BB205" in where


def test_a_finding_links_to_what_its_code_means(gated):
    html = page(gated)
    for code in {x.code for x in gated.findings}:
        assert f'href="#{code.lower()}"' in html
        assert html.count(f'id="{code.lower()}"') == 1


def test_what_comes_from_outside_can_end_no_element():
    broken = BreakRecord(
        reason=HOSTILE,
        explanation=HOSTILE,
        hints=(HOSTILE,),
        context=HOSTILE,
        url="javascript:alert(1)",
        line=HOSTILE,
        stack=(HOSTILE, HOSTILE),
        function=HOSTILE,
        skipped=True,
        calls=(0,),
    )
    finding = FindingRecord(
        code="BB101",
        severity="warning",
        message=HOSTILE,
        line=HOSTILE,
        fixes=(HOSTILE,),
        count=1,
        cost_s=None,
        calls=(),
        page="",
    )
    hostile = {"breaks": (broken,), "findings": (finding,), "notes": (HOSTILE,)}
    html = page(told(graph(node(HOSTILE, module=HOSTILE)), **hostile))
    reader = read(html)
    assert reader.scripts == ["application/json"]
    assert len([x for x in reader.tags if x == "b"]) == 3  # ours, of the reason and the code
    assert "javascript:" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert "\x1b" not in shown(told(**hostile))


def test_the_page_holds_the_explanation_itself(gated, tmp_path):
    path = tmp_path / "page.html"
    write_page(gated, path)
    data = re.search(r'id="explanation">(.*?)</script>', path.read_text(), re.DOTALL)
    assert data is not None
    assert msgspec.json.decode(data[1], type=Explanation) == gated


@browser.needs_browser
def test_no_text_of_the_page_is_clipped_or_covered(gated, tmp_path):
    chain = [node("x", op="placeholder")]
    for number in range(60):
        name = f"a_rather_long_name_of_an_operator_{number}"
        chain.append(node(name, chain[-1].name, module=f"layers.{number}"))
    graphs = (*gated.graphs, graph(*chain, number=2))
    wide = msgspec.structs.replace(gated, graphs=graphs, notes=("a_word" * 30,))
    browser.check_layout(page(wide), tmp_path)


def test_in_a_graph_of_some_size_a_parameter_is_drawn_with_the_node_that_uses_it():
    weight = node("l_self_parameters_weight_", op="placeholder", shape="9x9")
    chain = [node("x", op="placeholder"), weight, node("n0", "x", weight.name)]
    for number in range(1, 50):
        chain.append(node(f"n{number}", chain[-1].name))
    found = picture(chain)
    names = {x.name for x in found.boxes}
    assert names == {x.name for x in chain} - {weight.name}
    assert f"{weight.name}: float32 9x9" in next(x for x in found.boxes if x.name == "n0").title
    assert "drawn with it" in found.remark
    few = picture(chain[:3])
    assert weight.name in {x.name for x in few.boxes}


def test_a_large_graph_is_drawn_by_modules_and_says_so():
    nodes = [node("x", op="placeholder", module="")]
    for layer in range(60):
        for step in range(5):
            nodes.append(node(f"n{layer}_{step}", nodes[-1].name, module=f"layers.{layer}.part"))
    found = picture(nodes)
    assert len(found.boxes) <= MOST
    assert "301 nodes: drawn as stretches" in found.remark
    assert {"layers.0.part", "layers.59.part"} <= {x.label for x in found.boxes}
    stretch = next(x for x in found.boxes if x.label == "layers.7.part")
    assert "n7_4" in stretch.title
    html = page(told(graph(*nodes)))
    assert all(f"<td>{x.name}</td>" in html for x in nodes)


def test_a_graph_too_large_for_modules_is_cut_with_a_word():
    nodes = [node("x", op="placeholder")]
    for number in range(400):
        nodes.append(node(f"n{number}", nodes[-1].name, module=f"m{number % 2}"))
    found = picture(nodes)
    assert len(found.boxes) == MOST
    assert f"of 400 stretches the first {MOST}" in found.remark


def test_stretches_make_no_cycle_where_a_module_is_entered_twice():
    nodes = [node("x", op="placeholder")]
    for number in range(MOST):
        nodes.append(node(f"a{number}", nodes[-1].name, module="shared"))
    nodes.append(node("between", nodes[-1].name, module="other"))
    nodes.append(node("again", "between", "a0", module="shared"))
    boxes = picture(nodes).boxes
    place = {x.name: n for n, x in enumerate(boxes)}
    assert [x.label for x in boxes].count("shared") >= 1
    assert all(place[y] < place[x.name] for x in boxes for y in x.inputs)


def test_a_layout_puts_nothing_above_what_it_uses_and_nothing_on_top_of_another():
    inputs = {"x": (), "w": (), "a": ("x",), "b": ("x", "w"), "c": ("a", "b", "x"), "d": ("c", "x")}
    widths = dict.fromkeys(inputs, 80.0)
    placed = layout(inputs, widths)
    for name, used in inputs.items():
        for other in used:
            assert placed.centre[other][1] + HEIGHT < placed.centre[name][1]
    for one, (x, y) in placed.centre.items():
        assert 40 <= x <= placed.width - 40
        assert y % ROW == 0
        for other, (z, w) in placed.centre.items():
            assert one == other or y != w or abs(x - z) >= 80
    assert len(placed.edges) == 8
    assert layout({}, {}).edges == ()


def test_marks_tell_added_removed_and_changed_apart():
    before = [node("a"), node("b", "a"), node("c", "b")]
    after = [node("a"), node("d", "a"), node("c", "d")]
    assert marks(before, after) == (
        {"b": "removed", "c": "changed"},
        {"d": "added", "c": "changed"},
    )


def test_the_terminal_is_cut_with_a_word_and_the_page_is_not():
    many = told(*(graph(node("x"), number=n) for n in range(40)))
    assert "and 24 more graphs" in shown(many)
    assert page(many).count('<h2 id="graph-') == 40


def test_what_torch_compile_was_asked_for_is_in_the_head_and_in_the_command():
    one = told()
    settings = msgspec.structs.replace(
        one.settings, backend="mine", compile_mode="fast", options={"b": "two words", "a": 1}
    )
    asked = 'mine@fast{a: 1, b: "two words"}'
    several = msgspec.structs.replace(settings, dynamic=False, fullgraph=True)
    made = html.unescape(page(msgspec.structs.replace(one, settings=several)))
    assert f"{asked} dynamic=False fullgraph" in made
    wanted = (
        "--backend mine --mode fast --options '{a: 1, b: \"two words\"}' --no-dynamic --fullgraph"
    )
    assert wanted in made
    plain = html.unescape(page(msgspec.structs.replace(one, settings=settings)))
    assert f"{asked}</span>" in plain
    assert not any(x in plain for x in ("--dynamic", "--no-dynamic", "--fullgraph"))
    dynamic = msgspec.structs.replace(one.settings, backend=None, dynamic=True)
    made = page(msgspec.structs.replace(one, settings=dynamic))
    assert "no backend dynamic=True" in made
    assert "--dynamic" in made
    assert "--backend" not in made
    assert "--mode" not in made
