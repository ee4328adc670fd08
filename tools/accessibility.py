"""Put a site's pages through axe-core in headless Chromium: no serious finding.

    npm pack axe-core@4.14.1 && tar xzf axe-core-4.14.1.tgz
    sphinx-build -W docs site
    python tools/accessibility.py site --axe package/axe.min.js [--page race.html ...]

Every page is looked at as wide as a phone and as a screen, light and dark. Exit code 1 where axe
calls something serious or critical, or where a page could not be looked at. What is less is shown.
"""

import argparse
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WIDTHS = (400, 1280)
"""Pixels."""
THEMES = {"light": (), "dark": ("--force-dark-mode",)}
"""What Chromium is told, by theme."""
SERIOUS = {"serious", "critical"}
PAGE_S = 60.0
"""Seconds to wait for one page."""
RUNNER = """<!doctype html><title>runner</title><body><script>
const pages = PAGES, widths = WIDTHS;
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 2000px; border: 0`;
  const said = new Promise(done => addEventListener("message", x => done(x.data), {once: true}));
  frame.src = `/${page}?axe`;
  document.body.append(frame);
  const violations = await said;
  frame.remove();
  await fetch("/found", {method: "POST", body: JSON.stringify({page, width, violations})});
}
(async () => { for (const width of widths) for (const page of pages) await look(page, width); })();
</script>"""
LOOK = """<script src="/axe.js"></script><script>
addEventListener("load", async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  parent.postMessage(found.violations.map(x => ({
    rule: x.id, impact: x.impact, help: x.help, nodes: x.nodes.map(y => y.target.join(" ")),
  })), "*");
});
</script>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What axe says of one rule on one page."""

    page: str
    theme: str
    width: int
    rule: str
    impact: str
    text: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as one line."""
        where = ", ".join(self.nodes[:3]) + (", ..." if len(self.nodes) > 3 else "")  # noqa: PLR2004
        return f"{self.impact}: {self.page} ({self.theme}, {self.width} px): {self.text}: {where}"


def main() -> int:
    """Look at every page, print what was found, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path, metavar="SITE", help="a folder of pages")
    parser.add_argument("--axe", type=Path, required=True, metavar="FILE", help="axe.min.js")
    parser.add_argument("--page", action="append", default=[], help="default: all; may be repeated")
    parser.add_argument("--chromium", default=shutil.which("chromium"), metavar="PROGRAM")
    arguments = parser.parse_args()
    if not arguments.chromium:
        parser.error("chromium is not on the path: install it, or name it with --chromium")
    pages = arguments.page or sorted(
        x.relative_to(arguments.site).as_posix() for x in arguments.site.rglob("*.html")
    )
    found = [
        x
        for theme in THEMES
        for x in looked_at(pages, theme, arguments.site, arguments.axe, arguments.chromium)
    ]
    print("\n".join(map(str, found)))
    serious = sum(x.impact in SERIOUS for x in found)
    print(f"{len(pages)} pages, {len(WIDTHS)} widths, {len(THEMES)} themes: {serious} serious")
    return 1 if serious else 0


def looked_at(
    pages: Sequence[str], theme: str, site: Path, axe: Path, chromium: str
) -> Iterator[Found]:
    """Yield what axe finds on pages, in a browser of their own."""
    answers: queue.Queue[dict[str, Any]] = queue.Queue()
    with (
        served(pages, site, axe, answers) as server,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        command = (
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", *THEMES[theme]),
            *("--disable-background-networking", f"--user-data-dir={profile}"),
            *("--remote-debugging-port=0", "--window-size=1300,2100"),  # a port keeps it running
            f"http://127.0.0.1:{server.server_address[1]}/runner",
        )
        browser = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            for _ in range(len(pages) * len(WIDTHS)):
                yield from told(answers.get(timeout=PAGE_S), theme)
        except queue.Empty:
            sys.exit(f"no answer from a page within {PAGE_S:.0f} s")
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()


def told(answer: dict[str, Any], theme: str) -> Iterator[Found]:
    """Yield what one page's answer says."""
    for one in answer["violations"]:
        yield Found(
            page=answer["page"],
            theme=theme,
            width=answer["width"],
            rule=one["rule"],
            impact=one["impact"] or "minor",
            text=f"{one['rule']}: {one['help']}",
            nodes=tuple(one["nodes"]),
        )


def served(
    pages: Sequence[str], site: Path, axe: Path, answers: "queue.Queue[dict[str, Any]]"
) -> ThreadingHTTPServer:
    """Return a server of the site, with axe put into the pages that are looked at."""
    runner = RUNNER.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS))

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, directory=str(site), **keywords)

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/runner":
                self.reply(runner, "text/html")
            elif path == "/axe.js":
                self.reply(axe.read_text(encoding="utf-8"), "text/javascript")
            elif query == "axe":
                page = (site / path.lstrip("/")).read_text(encoding="utf-8")
                self.reply(page.replace("</body>", f"{LOOK}</body>"), "text/html")
            else:
                super().do_GET()

        def do_POST(self) -> None:
            answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.reply("", "text/plain")

        def reply(self, text: str, kind: str) -> None:
            content = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    sys.exit(main())
