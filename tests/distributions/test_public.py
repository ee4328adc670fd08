"""What the other distributions use of the core is public: any author may use it as well."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHERS = {
    "backbay-adapters": {
        "backbay.errors",
        "backbay.kit.apart",
        "backbay.kit.decompositions",
        "backbay.kit.engine",
        "backbay.kit.exchange",
        "backbay.kit.program",
    },
    "backbay-conformance": {
        "backbay",
        "backbay.causes",
        "backbay.cli.completion",
        "backbay.cli.console",
        "backbay.cli.files",
        "backbay.cli.output",
        "backbay.cli.parameters",
        "backbay.cluster",
        "backbay.dependencies",
        "backbay.errors",
        "backbay.proof",
        "backbay.proof.dispatched",
        "backbay.proof.evidence",
        "backbay.proof.fingerprint",
        "backbay.proof.golden",
        "backbay.proof.oracle",
        "backbay.proof.tree",
        "backbay.reference_backends",
        "backbay.registry",
        "backbay.registry.distributions",
        "backbay.registry.options",
        "backbay.registry.target",
        "backbay.registry.toml",
        "backbay.reporting",
        "backbay.reporting.embedding",
        "backbay.reporting.machine",
        "backbay.reporting.page",
        "backbay.reporting.wording",
        "backbay.session",
        "backbay.timing.device",
    },
    "backbay-optimizer": {
        "backbay",
        "backbay.decisions",
        "backbay.graph",
        "backbay.graph.aliases",
        "backbay.graph.constant",
        "backbay.graph.effects",
        "backbay.graph.layouts",
        "backbay.graph.match",
        "backbay.graph.region",
        "backbay.graph.rewrite",
        "backbay.graph.values",
        "backbay.kit.backend",
        "backbay.kit.codegen",
        "backbay.kit.observing",
        "backbay.kit.passes",
        "backbay.kit.rewrites",
        "backbay.registry",
        "backbay.timing",
    },
}
"""Distribution to the modules of the core that it uses; each name that it takes is documented."""


def uses(distribution: str) -> set[tuple[str, str]]:
    found = set()
    for path in (ROOT / "packages" / distribution / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "backbay":
                found |= {(node.module, alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("distribution", OTHERS)
def test_it_uses_a_module_of_the_core_that_nobody_promised(distribution):
    assert {module for module, _ in uses(distribution)} == OTHERS[distribution]


@pytest.mark.parametrize("distribution", OTHERS)
def test_it_uses_a_private_name(distribution):
    assert not [x for x in uses(distribution) if x[1].startswith("_")]


@pytest.mark.parametrize("distribution", OTHERS)
def test_a_function_or_class_that_it_uses_says_nothing(distribution):
    for module, name in uses(distribution):
        one = getattr(importlib.import_module(module), name, None)
        if inspect.isclass(one) or inspect.isfunction(one):
            assert one.__doc__, (module, name)
