import html
import json
import re
import subprocess
import sys

import msgspec
import pytest
from page_reader import read

from backbay.race.page import page, write_page
from backbay.race.record import (
    Decision,
    Machine,
    Report,
    Result,
    Settings,
    VerdictRecord,
)

HOSTILE = "</script><script>alert('x')</script> & \"quoted\" <b>bold</b>"
WRONG = VerdictRecord(passed=False, reason="output[0] is off", where="output[0]", ratio=41.2)
RIGHT = VerdictRecord(passed=True, reason="one tensor agrees", where="output[0]", ratio=0.88)


def timed(backend, median, *, workload="mlp", compile_s=2.0, verdict=RIGHT, count=5, **more):
    ratio = 10.0 / median
    return Result(
        workload=workload,
        mode="infer",
        backend=backend,
        status="ok",
        verdict=verdict,
        median_ms=median,
        ci_ms=(median * 0.99, median * 1.01),
        ratio_to_eager=ratio,
        ratio_to_eager_ci=None if backend == "eager" else (ratio * 0.98, ratio * 1.03),
        compile_s=compile_s,
        peak_bytes=3 << 20,
        graphs=1,
        breaks=0,
        samples_ms=tuple(median * (0.98 + 0.01 * n) for n in range(count)),
        **more,
    )


def eager(workload="mlp"):
    return timed("eager", 10.0, workload=workload, compile_s=None, verdict=None)


def failed(backend, status, reason, workload="mlp", **more):
    return Result(
        workload=workload, mode="infer", backend=backend, status=status, reason=reason, **more
    )


def decided(workload="mlp", winner="inductor"):
    sentence = f"{winner} is 2.00x [1.96, 2.06] eager; use {winner}"
    return Decision(
        workload=workload, mode="infer", winner=winner, abstained=False, sentence=sentence
    )


def reported(results, decision=None, notes=()):
    return Report(
        created="2026-01-02T03:04:05+00:00",
        machine=Machine(
            system="Linux 6.8",
            processor="A processor",
            cores=16,
            memory_bytes=1 << 36,
            device="cpu",
        ),
        versions={"python": "3.11.9", "torch": "2.13.0"},
        settings=Settings(
            backends=("eager", "inductor"), mode="infer", dtype="float32", device="cpu", seed=7
        ),
        decision=(decided(),) if decision is None else decision,
        results=tuple(results),
        notes=notes,
    )


@pytest.fixture(scope="module")
def report():
    return reported(
        [
            eager(),
            timed("inductor", 5.0),
            timed("aot_eager", 12.5),
            failed("openvino", "wrong", "output[0] is off by 0.0132", verdict=WRONG),
            failed("file.py:<evil>", "failed", HOSTILE),
            failed("tvm", "unavailable", "apache-tvm is not installed"),
            failed("tensorrt", "crashed", "ended with signal 11"),
            failed("turbine_cpu", "timeout", "no answer in 300 s", notes=("was compiling",)),
        ],
        notes=("clocks were not locked <i>",),
    )


@pytest.fixture(scope="module")
def text(report):
    return page(report)


def test_text_from_a_backend_cannot_become_markup(text):
    reader = read(text)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not {"evil", "i"} & {tag for tag, _ in reader.tags}
    assert "alert('x')" not in reader.scripts["script"]


def test_the_embedded_report_is_the_report(report, text):
    embedded = read(text).scripts["report"]
    assert "<" not in embedded
    assert msgspec.json.decode(embedded, type=Report) == report


def test_nothing_is_loaded_from_elsewhere(text):
    reader = read(text)
    assert not reader.loads
    assert all(target.startswith("#") for target in reader.links)
    without_json = text.replace(reader.scripts["report"], "")
    assert "http:" not in without_json
    assert "https:" not in without_json
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_every_backend_is_shown_with_its_reason_and_notes(report, text):
    shown = " ".join(read(text).text)
    for result in report.results:
        assert result.backend in shown
        assert result.reason in shown
        assert all(note in shown for note in result.notes)
    assert report.notes[0] in shown
    assert report.decision[0].sentence in shown


def test_every_row_has_one_cell_a_heading(text):
    head, *bodies = re.findall(r"<tr.*?</tr>", text, flags=re.DOTALL)
    columns = head.count('scope="col"')
    rows = [row for row in bodies if 'scope="row"' in row]
    assert len(rows) == 8
    assert {row.count("<td") + 1 for row in rows} == {columns}
    assert {int(n) for n in re.findall(r'<td colspan="(\d+)"', text)} == {columns - 1}


def test_ids_are_unique_and_what_refers_to_them_resolves():
    workloads = ("a", "b", "c")
    results = [r for w in workloads for r in (eager(w), timed("inductor", 5.0, workload=w))]
    text = page(reported(results, [decided(w) for w in workloads]))
    reader = read(text)
    assert len(reader.ids) == len(set(reader.ids))
    referred = {target[1:] for target in reader.links} | set(re.findall(r"url\(#([^)]*)\)", text))
    referred |= {a["aria-labelledby"] for _, a in reader.tags if "aria-labelledby" in a}
    assert referred <= set(reader.ids)


def test_intervals_are_in_the_table_and_in_the_plot(text):
    svgs = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert "[1.96, 2.06]" in text.split("<svg")[0].split("<table")[1]
    assert "2.00x [1.96, 2.06]" in svgs[0]
    assert "[4.95, 5.05]" in text


def test_whiskers_end_where_the_interval_does(text):
    speed = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)[0]
    # Bars start at 0; inductor's ends at 2.00, its whisker reaches from 1.96 to 2.06.
    bar = re.search(r'd="M (\S+) \S+\s+L (\S+) [^"]*"[^>]*var\(--series-0\)', speed)
    start, end = float(bar[1]), float(bar[2])
    lines = re.findall(r'd="M (\S+) (\S+)\s+L (\S+) (\S+)\s*"', speed)
    level = [(float(x1), float(x2)) for x1, y1, x2, y2 in lines if y1 == y2]
    scale = (end - start) / 2.0
    expected = (start + 1.96 * scale, start + 2.06 * scale)
    assert any(whisker == pytest.approx(expected, abs=0.3) for whisker in level)


def test_every_sample_is_drawn(text):
    samples = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)[1]
    assert samples.count("<use") == 15


def test_what_has_no_time_is_not_plotted(text):
    plots = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "inductor" in plots
    assert not any(name in plots for name in ("openvino", "tvm", "tensorrt", "turbine_cpu"))


def test_plots_follow_the_theme_and_are_described(text):
    reader = read(text)
    plots = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", plots)) <= {"#ffffff"}
    images = [a["aria-label"] for tag, a in reader.tags if a.get("role") == "img"]
    assert len(images) == plots.count("<svg")
    assert "inductor 2.00x [1.96, 2.06]" in images[0]
    assert text.count("<figcaption>") == len(images)


def test_both_themes_define_every_variable_in_use(text):
    style = read(text).scripts["style"]
    light, media, chosen = re.findall(
        r"(?::root|:root:not\(\[data-theme=\"light\"\]\)|:root\[data-theme=\"dark\"\]) \{(.*?)\}",
        style,
        flags=re.DOTALL,
    )
    assert "prefers-color-scheme: dark" in style
    used = set(re.findall(r"var\((--[\w-]+)\)", text))
    for scheme in (light, media, chosen):
        assert used <= set(re.findall(r"(--[\w-]+):", scheme))
    assert media.split() == chosen.split()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(text, scheme):
    style = read(text).scripts["style"]
    block = style.split("color-scheme: dark;")[1] if scheme == "dark" else style
    colours = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block.split("}")[0]))
    for name in ("--ink", "--soft", "--good", "--bad", "--warn", "--accent"):
        assert contrast(colours[name], colours["--paper"]) >= 4.5, name
    for number in range(7):
        assert contrast(colours[f"--series-{number}"], colours["--paper"]) >= 2.9


def contrast(one, other):
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_backend_keeps_its_colour_in_every_workload():
    results = [eager("a"), timed("inductor", 5.0, workload="a"), timed("x", 4.0, workload="a")]
    results += [eager("b"), timed("x", 4.0, workload="b")]
    text = page(reported(results, [decided("a"), decided("b")]))
    swatches = re.findall(r"var\(--series-(\d)\)\"></span><span>x<", text)
    assert len(swatches) == 2
    assert len(set(swatches)) == 1


def test_the_same_report_gives_the_same_page(report, text, tmp_path):
    assert page(report) == text
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(report))
    script = (
        "import sys, matplotlib, msgspec; matplotlib.rcParams['svg.fonttype'] = 'path'; "
        "matplotlib.rcParams['axes.grid'] = True; "
        "from backbay.race.page import write_page; from backbay.race.record import Report; "
        "write_page(msgspec.json.decode(open(sys.argv[1]).read(), type=Report), sys.argv[2])"
    )
    out = tmp_path / "page.html"
    subprocess.run([sys.executable, "-c", script, path, out], check=True)
    assert out.read_text(encoding="utf-8") == text


def test_drawing_leaves_matplotlibs_settings_alone(report):
    import matplotlib as mpl

    def settings():  # reading "backend" would choose one
        return {name: mpl.rcParams[name] for name in mpl.rcParams if name != "backend"}

    before = settings()
    page(report)
    assert settings() == before


def test_break_even_is_what_compiling_costs_over_what_a_call_saves():
    # 2 s to compile; each call saves 10 - 5 = 5 ms.
    shown = " ".join(read(page(reported([eager(), timed("inductor", 5.0)]))).text)
    assert "400 calls" in shown


def test_a_slower_backend_never_pays_off_and_a_tie_is_not_told():
    slower = page(reported([eager(), timed("inductor", 20.0)]))
    tied = page(reported([eager(), timed("inductor", 9.9)]))
    assert "<td>never</td>" in slower
    assert "calls</td>" not in tied
    assert "<td>never</td>" not in tied


def test_a_name_is_not_mathematics():
    name = "x.py:$a_{b}$"
    svgs = re.findall(r"<svg.*?</svg>", page(reported([eager(), timed(name, 5.0)])), re.DOTALL)
    assert name in svgs[0]


@pytest.mark.parametrize(
    "results",
    [
        [],
        [eager()],
        [failed("tvm", "unavailable", "not installed")],
        [timed("eager", 10.0, count=1), timed("inductor", 5.0, count=1)],
        [timed("inductor", 5.0)],
        [eager(), *(timed(f"package.module_{n}:{'long' * 20}", 4.0 + n) for n in range(12))],
        [Result(workload="mlp", mode="infer", backend="eager", status="ok", median_ms=10.0)],
        [eager(), timed("inductor", 0.001)],
    ],
    ids=["none", "eager", "no time", "one sample", "no eager", "twelve", "bare", "far apart"],
)
def test_unusual_reports_make_a_whole_page(results):
    reader = read(page(reported(results, [] if not results else None)))
    assert reader.tags[-1][0] == "script"
    shown = " ".join(reader.text)
    assert "nan" not in shown
    assert "None" not in shown
    assert all(result.backend in shown for result in results)


def test_the_command_is_quoted_for_a_shell():
    text = page(reported([eager("my models.py:net")], [decided("my models.py:net")]))
    assert "backbay race 'my models.py:net' --backends eager,inductor" in html.unescape(text)


def test_a_page_is_written_as_utf_8(report, text, tmp_path):
    write_page(report, tmp_path / "race.html")
    assert (tmp_path / "race.html").read_bytes() == text.encode()


def test_importing_the_page_loads_no_matplotlib():
    script = "import sys, backbay.race.page; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"import json; {script}"], check=True, capture_output=True, text=True
    )
    assert not {"matplotlib", "torch"} & set(json.loads(done.stdout))


def rows_of(text):
    """Return each row's arm, and whether it is marked, in their order."""
    found = re.findall(
        r'<tr( class="chosen")?>\n<th scope="row".*?</span><span>(.*?)</span></span>', text
    )
    return [(re.sub(r"<small>(.*?)</small>", r" (\1)", arm), bool(chosen)) for chosen, arm in found]


def abstained(**more):
    sentence = "no significant difference (inductor is 1.01x [0.97, 1.05] eager); keep eager"
    return Decision(
        workload="mlp",
        mode="infer",
        winner="eager",
        abstained=True,
        **{"sentence": sentence} | more,
    )


def test_what_to_use_stands_below_what_is_faster_by_chance():
    results = [eager(), timed("inductor", 9.9), timed("x", 9.95)]
    text = page(reported(results, decision=(abstained(),)))
    assert rows_of(text) == [("eager (keep this)", True), ("inductor", False), ("x", False)]
    assert "The arm to use, then the fastest first" in text
    text = page(reported([*results[:2], timed("x", 5.0)], decision=(decided(winner="inductor"),)))
    assert rows_of(text)[0] == ("inductor (use this)", True)


def test_a_row_is_marked_where_nothing_can_be_told():
    sentence = "cannot tell: the machine is busy (2.1 cores by others); run again when idle"
    vague = abstained(sentence=sentence, unclear=True)
    text = page(reported([eager(), timed("inductor", 9.9)], decision=(vague,)))
    assert rows_of(text) == [("inductor", False), ("eager", False)]
    assert "use this" not in text
    assert text.index(sentence) < text.index("<table>")


def test_what_aligns_numbers_is_shown_as_text():
    text = page(reported([eager(), timed("inductor", 5.0), timed("x", 123.0)]))
    assert "u2007" not in text
    assert "\u20075.00" in text


@pytest.mark.parametrize(
    "name", ["</text></svg><script>x</script>", "--><evil>", "\"><evil a='", "]]>"]
)
def test_a_hostile_name_cannot_leave_its_plot(name):
    text = page(reported([eager(), timed(name, 5.0)]))
    reader = read(text)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert "evil" not in {tag for tag, _ in reader.tags}
    svgs = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(svgs) == 5
    assert all(name in html.unescape(svg) for svg in svgs)
