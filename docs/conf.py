"""How the pages of this folder become a site: `sphinx-build -W --keep-going docs site`."""

import re
from typing import Any

import backbay

REPOSITORY = "https://github.com/backbay/backbay/blob/main"

project = "Backbay"
author = copyright = "Backbay contributors"  # noqa: A001 (Sphinx's name)
version = release = backbay.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
html_theme = "furo"
html_title = "Backbay"
html_theme_options = {"source_repository": REPOSITORY.partition("/blob/")[0]}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
nb_execution_timeout = 600  # seconds for one cell: some compile, on whatever machine builds a site
nb_execution_raise_on_error = True
nb_merge_streams = True
html_extra_path = ["extra"]  # llms.txt, and the gallery's pages as commands wrote them
exclude_patterns = ["extra"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["triton"]  # of which most machines that build a site have none
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = [
    "ref.python",  # torch's types are no pages of ours
    "myst-nb.lexer",  # a cell that was not run states no language
]

_OUTSIDE = re.compile(r"\]\((?:\.\./)+(?P<path>(?!docs/)[^)]+)\)")


def link_to_repository(_app: Any, _page: str, source: list[str]) -> None:
    """Let links to files that are no pages lead to the repository; pages say them relatively."""
    source[0] = _OUTSIDE.sub(rf"]({REPOSITORY}/\g<path>)", source[0])


def as_code(_app: Any, _context: Any, lines: list[str]) -> None:
    """Show a command's examples as they are typed."""
    said = [x.removeprefix("| ") for x in lines]
    text = [x for x in said if x.strip() not in ("", "Examples:")]
    lines[:] = ["", ".. code-block:: text", "", *text, ""] if text else []


def accessible(_app: Any, _page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    """Let captions state their level, and let a keyboard reach what scrolls."""
    for part in ("body", "furo_navigation_tree"):
        html = context.get(part, "")
        html = re.sub(r'<(pre|div(?= class="table-wrapper))\b', r'<\1 tabindex="0"', html)
        context[part] = html.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Any) -> None:
    """Register the above."""
    app.connect("html-page-context", accessible, priority=900)  # after the theme's
    app.connect("source-read", link_to_repository)
    app.connect("sphinx-click-process-epilog", as_code)
