"""What an engine compiled is kept under what it was made by: engine, adapter, CPU."""

import importlib
import sys
import textwrap

import pytest
import torch

from backbay.kit.adapter_source import source_digest
from backbay.kit.engine import Engine

PACKAGE = {
    "__init__.py": "",
    "operators.py": "FACTOR = 1\n",
    "backend.py": """
        from backbay.kit.engine import Engine
        from several_files.operators import FACTOR

        class Several(Engine):
            def build(self, program):
                raise NotImplementedError
    """,
}


@pytest.mark.parametrize("changed", sorted(PACKAGE))
def test_a_change_in_any_file_of_an_adapter_is_not_seen(changed, tmp_path, monkeypatch):
    folder = tmp_path / "several_files"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    backend = importlib.import_module("several_files.backend")
    try:
        before = backend.Several().made_by
        assert backend.Several().made_by == before
        (folder / changed).write_text("FACTOR = 2\n")
        assert backend.Several().made_by != before
    finally:
        for name in [x for x in sys.modules if x.startswith("several_files")]:
            del sys.modules[name]


def test_what_another_cpu_compiled_is_read(monkeypatch):
    able = {"avx2": True, "amx_tile": False, "num_logical_cores": 2}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    before = Engine().made_by
    able["num_logical_cores"] = 4
    assert Engine().made_by == before
    able["amx_tile"] = True
    assert Engine().made_by != before
    del able["amx_tile"]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    assert Engine().made_by != before


def test_what_another_exporter_made_is_read(monkeypatch):
    class Exported(Engine):
        engine = "acme-runtime"
        libraries = ("acme-exporter",)

    versions = {"acme-runtime": "1.0", "acme-exporter": "1.0"}
    monkeypatch.setattr("backbay.kit.engine.metadata.version", versions.__getitem__)
    before = Exported().made_by
    assert Exported().made_by == before
    for name in versions:
        versions[name] = "1.1"
        now = Exported().made_by
        assert now != before
        before = now


def test_a_class_without_a_file_is_taken_for_another():
    made = type("Made", (), {"__module__": "of_no_file"})
    assert source_digest([made]) != source_digest([made])
