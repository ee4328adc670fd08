"""How many modules of ours an import takes along: a new pass should be a file beside few others."""

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

BARS = {
    "backbay.kit.rewrites.gelu": 16,
    "backbay_optimizer.passes.linear_epilogues": 21,
    "backbay_optimizer.backend": 111,
}
WITH_LATER = BARS | {"backbay_optimizer.backend": 164}
"""Also lazily: tuning and timing (11), CUDA graphs (13), the store that it keeps its
measurements in (4), the registry and what words errors (9), cutting and checking (3), kernels."""


@pytest.mark.parametrize("module", BARS)
def test_an_import_takes_more_along(run_python, module):
    program = f"""
    import sys
    import {module}
    print(*(x for x in sys.modules if x.startswith("backbay")))
    """
    loaded = run_python(program).stdout.split()
    assert module in loaded
    assert len(loaded) <= BARS[module], sorted(loaded)


@pytest.mark.parametrize("module", WITH_LATER)
def test_it_may_take_more_along_later(module):
    found = closure(module)
    assert len(found) <= WITH_LATER[module], sorted(found)


def test_modules_of_the_kit_and_of_passes_import_each_other():
    """Lazy imports count; an import of a package counts where it is named itself."""
    parts = (
        "backbay.graph",
        "backbay.kit",
        "backbay_optimizer.kernels",
        "backbay_optimizer.passes",
    )
    for name in (x for x in names() if x.startswith(parts)):
        behind, waiting = set(), set(imports(name))
        while waiting:
            one = waiting.pop()
            behind.add(one)
            waiting |= imports(one) - behind
        assert name not in behind, name


def closure(module):
    """Return a module, what it imports, also lazily, and the packages that those are in."""
    found, waiting = set(), {module}
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting |= (imports(one) | {one.rpartition(".")[0]}) - found - {""}
    return found


@cache
def names():
    found = set()
    for package in ("backbay", "backbay_optimizer"):
        folder = Path(importlib.util.find_spec(package).origin).parent
        paths = (x.relative_to(folder.parent).with_suffix("") for x in folder.rglob("*.py"))
        found |= {".".join(x.parts).removesuffix(".__init__") for x in paths}
    return frozenset(found)


@cache
def imports(module):
    """Return the modules of ours that one names in an import anywhere, but for types alone."""
    path = importlib.util.find_spec(module).origin
    tree, found = ast.parse(Path(path).read_text()), set()
    for node in (x for x in ast.walk(tree) if isinstance(x, ast.If)):
        if "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {x.name for x in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = {f"{node.module}.{x.name}" for x in node.names}
            found |= full & names() or {node.module}
    return (found & names()) - {module}
