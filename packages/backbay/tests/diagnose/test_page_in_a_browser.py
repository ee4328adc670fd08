"""The page of a diagnosis in a browser: nothing is clipped, and what its script does."""

import re

import browser
import pytest
from made_up_diagnoses import (
    FILE,
    FINDINGS,
    LAYER,
    compiled,
    diagnosis,
    explanation,
    finding,
    handed,
    inside,
    kernel,
    node,
)

from backbay.diagnose.page import page


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
