"""Pages as a browser lays them out: is a text clipped, or under another one?"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
)
_MEASURE = """
<script>
onload = () => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument;
  const view = frame.contentWindow, width = page.documentElement.clientWidth;
  const scrolling = x => {
    const box = x.closest(".scroll, pre");
    return box && view.getComputedStyle(box).overflowX === "auto" ? box : null;
  };
  const shown = (a, b) => ({  // the part that is not scrolled out of sight
    left: Math.max(a.left, b.left), right: Math.min(a.right, b.right),
    top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom),
  });
  const texts = [], clipped = [], outside = [], overlapping = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement, text = node.data.trim();
    if (!text || parent.closest("script, style") || !parent.checkVisibility()) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    const pane = scrolling(parent)?.getBoundingClientRect();
    for (const whole of range.getClientRects()) {
      const box = pane ? shown(whole, pane) : whole;
      if (box.right - box.left < 1 || box.bottom - box.top < 1) continue;
      texts.push({ text, box, parent });
      if (box.right > width + 1 || box.left < -1) outside.push(text);
    }
  }
  for (const one of page.querySelectorAll("body *")) {
    const style = view.getComputedStyle(one);
    const hides = ["hidden", "clip"].includes(style.overflowX);
    if (hides && one.scrollWidth > one.clientWidth + 1) clipped.push(one.textContent.trim());
  }
  texts.forEach((a, n) => texts.slice(n + 1).forEach(b => {
    const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    if (wide > 1.5 && high > 3.5) overlapping.push(a.text + " | " + b.text);
  }));
  const told = { width: page.documentElement.scrollWidth, texts: texts.length, clipped, outside,
    overlapping, background: view.getComputedStyle(page.body).backgroundColor };
  document.body.textContent = "MEASURED" + JSON.stringify(told) + "MEASURED";
};
</script>
"""


def measured(page: str, folder: Path, *, width: int, theme: str) -> dict:
    """Lay a page out, so many pixels wide, and return what is wrong with it."""
    shown = _browse(page, folder, width, theme, _MEASURE, "--dump-dom")
    found = re.search("MEASURED(.*)MEASURED", shown, re.DOTALL)
    assert found, shown[-2000:]
    return json.loads(html.unescape(found[1]))


def pictured(page: str, folder: Path, picture: Path, *, width: int, theme: str) -> None:
    """Take a picture of a page."""
    _browse(page, folder, width, theme, "", f"--screenshot={picture}")
    assert picture.stat().st_size > 0


def acted(page: str, folder: Path, script: str, *, width: int = 1280) -> dict:
    """Open a page, run a script in it, and return what the script returns."""
    run = f"(async () => {{ {script} }})().catch(error => ({{ error: String(error) }}))"
    done = "document.body.textContent = 'MEASURED' + JSON.stringify(told) + 'MEASURED'"
    path = folder / "acted.html"
    path.write_text(f"{page}<script>onload = () => {run}.then(told => {{ {done} }})</script>")
    found = re.search(
        "MEASURED(.*)MEASURED", _started(path, folder, width, "--dump-dom"), re.DOTALL
    )
    assert found
    told = json.loads(html.unescape(found[1]))
    assert "error" not in told, told["error"]
    return told


def check_layout(page: str, folder: Path) -> None:
    """Check a page on a phone and on a screen, light and dark."""
    backgrounds = set()
    for width in (400, 1280):
        for theme in ("light", "dark"):
            found = measured(page, folder, width=width, theme=theme)
            assert found["width"] <= width, (width, theme)
            assert found["texts"] > 10
            for fault in ("clipped", "outside", "overlapping"):
                assert not found[fault], (width, theme, fault, found[fault][:5])
            backgrounds.add(found["background"])
    assert len(backgrounds) == 2


def _browse(page, folder, width, theme, script, *flags):
    themed = html.escape(page.replace("<html ", f'<html data-theme="{theme}" ', 1))
    # A window has a least width; a frame in it has none.
    style = f"width: {width}px; height: 3000px; border: 0"
    frame = f'<iframe style="{style}" srcdoc="{themed}"></iframe>'
    path = folder / f"{width}-{theme}.html"
    path.write_text(f'<!doctype html><body style="margin: 0">{frame}{script}', encoding="utf-8")
    return _started(path, folder, max(width, 500), *flags)


def _started(path, folder, width, *flags):
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [CHROMIUM, *_FLAGS, f"--window-size={width},3000", profile, *flags]
    done = subprocess.run(
        [*command, "--virtual-time-budget=3000", path.as_uri()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout
