"""No module imports itself through others, at the top of a file or inside a function."""

import ast
from collections import deque
from pathlib import Path

import pytest

SOURCES = sorted(Path(__file__).parents[2].glob("packages/*/src"))


def circles(*roots: Path) -> list[str]:
    """One circle, ``a -> b -> a``, for each group of modules under folders that import each other.

    An import inside a function counts; one under ``if TYPE_CHECKING:`` does not, and neither does
    a package that Python runs because a module of it is imported.
    """
    paths = {name_of(path, root): path for root in roots for path in root.rglob("*.py")}
    graph = {name: imports(name, path, paths.keys()) for name, path in sorted(paths.items())}
    found, seen = [], set[str]()
    for name in graph:
        circle = None if name in seen else way_back(name, graph)
        if circle is not None:
            found.append(" -> ".join(circle))
            seen.update(x for x in graph if reaches(name, x, graph) and reaches(x, name, graph))
    return found


def name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(name: str, path: Path, modules) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in executed(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*(above if node.level else []), *([node.module] * bool(node.module))])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {x if x in modules else base for x in names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {x.value for x in node.args if isinstance(x, ast.Constant)}
    return (found & set(modules)) - {name}


def executed(node: ast.AST):
    """Every node of a tree but for what only a type checker reads."""
    yield node
    skipped = set()
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        skipped = set(map(id, node.body))
    for child in ast.iter_child_nodes(node):
        if id(child) not in skipped:
            yield from executed(child)


def way_back(start: str, graph: dict[str, set[str]]) -> list[str] | None:
    """The shortest way along imports from a module to itself."""
    waiting, before = deque([start]), dict[str, str]()
    while waiting:
        at = waiting.popleft()
        for following in sorted(graph[at]):
            if following == start:
                circle = [start, at]
                while circle[-1] != start:
                    circle.append(before[circle[-1]])
                return [*circle[::-1]] if at != start else None
            if following not in before:
                before[following] = at
                waiting.append(following)
    return None


def reaches(start: str, end: str, graph: dict[str, set[str]]) -> bool:
    waiting, seen = [start], {start}
    while waiting:
        for following in graph[waiting.pop()] - seen:
            seen.add(following)
            waiting.append(following)
    return end in seen


def test_nothing_here_imports_itself_through_others():
    assert circles(*SOURCES) == []


MADE_UP = {
    "at the top": ("import made.b", "from made import a"),
    "inside a function": ("from made.b import f", "def f():\n    from made import a"),
    "relative": ("from . import b", "from .a import f"),
    "by name": ("import made.b", "import importlib\nimportlib.import_module('made.a')"),
    "in the else of what a type checker reads": (
        "from made import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import made.a",
    ),
}


def made_up(folder: Path, **sources: str) -> Path:
    (folder / "made").mkdir()
    for name, source in {"__init__": "", **sources}.items():
        (folder / "made" / f"{name}.py").write_text(source)
    return folder


@pytest.mark.parametrize("way", MADE_UP)
def test_a_circle_is_seen_and_named(way, tmp_path):
    a, b = MADE_UP[way]
    assert circles(made_up(tmp_path, a=a, b=b)) == ["made.a -> made.b -> made.a"]


def test_a_circle_of_three_is_named_in_the_order_of_its_imports(tmp_path):
    root = made_up(tmp_path, a="import made.c", c="import made.b", b="from made import a")
    assert circles(root) == ["made.a -> made.c -> made.b -> made.a"]


def test_a_circle_with_the_package_itself_counts(tmp_path):
    root = made_up(tmp_path, a="from made import b", b="from made import anything")
    assert circles(root) == []
    (root / "made" / "__init__.py").write_text("from made.a import f as anything")
    assert circles(root) == ["made -> made.a -> made.b -> made"]


@pytest.mark.parametrize(
    "a",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import made.b",
        "import typing\nif typing.TYPE_CHECKING:\n    from made.b import f",
        "import made.elsewhere",
        "import made",
    ],
)
def test_what_is_no_circle_is_not_named(a, tmp_path):
    assert circles(made_up(tmp_path, a=a, b="import made.a")) == []
