"""What a foreign engine compiled is kept on disk: until what changes, and how much of it."""

import os

import pytest
import torch
from numpy_engine import Numpy
from torch.fx import Graph, GraphModule

from backbay.cache import keep_newest
from backbay.kit.program import Program


class Kept(Numpy):
    """Notes when it compiles, and when it finds what was compiled."""

    made = 0

    def build(self, program):
        """Keep a byte, and interpret."""

        def make():
            type(self).made += 1
            return b"compiled"

        assert program.kept(make) == b"compiled"
        return super().build(program)


def test_what_was_compiled_is_kept_for_the_next_process_until_anything_changes(monkeypatch):
    monkeypatch.setattr(Kept, "made", 0)

    def compiled(function, size=3, **options):
        torch.compiler.reset()
        torch.compile(function, backend=Kept(), options=options)(torch.ones(size))
        return Kept.made

    assert compiled(lambda x: x * 2) == 1
    assert compiled(lambda x: x * 2) == 1
    assert compiled(lambda x: x * 3) == 2
    assert compiled(lambda x: x * 2, size=4) == 3
    assert compiled(lambda x: x * 2, freeze=True) == 4
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.0")
    assert compiled(lambda x: x * 2) == 5


def test_what_others_may_have_written_is_compiled_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(Kept, "made", 0)
    for _ in range(2):
        torch.compiler.reset()
        torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(3))
    assert Kept.made == 1
    for file in (tmp_path / "cache" / "engines").iterdir():
        file.chmod(0o666)
    torch.compiler.reset()
    torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(3))
    assert Kept.made == 2


def test_what_was_used_longest_ago_goes_first_when_too_much_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(Kept, "made", 0)

    def compiled(size):
        before = Kept.made
        torch.compiler.reset()
        torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(size))
        return Kept.made - before

    assert compiled(2) == 1
    folder = tmp_path / "cache" / "engines"
    (first,) = folder.iterdir()
    monkeypatch.setattr("backbay.kit.program.MOST_KEPT_BYTES_IN_ALL", 2 * first.stat().st_size)
    assert compiled(3) == 1
    (second,) = set(folder.iterdir()) - {first}
    for age, file in enumerate((second, first)):  # the first is the older one, but is used again
        os.utime(file, ns=(10**18 - age * 10**9,) * 2)
    assert compiled(2) == 0
    assert compiled(4) == 1
    assert compiled(2) == 0
    assert compiled(3) == 1
    assert len(list(folder.iterdir())) == 2


def test_a_file_is_kept_for_an_engine_that_reads_files():
    written = []

    class Filed(Numpy):
        def build(self, program):
            def write(path):
                written.append(path.name)
                path.write_text("compiled")

            with program.kept_file("program.so", write) as path:
                assert (path.name, path.read_text()) == ("program.so", "compiled")
            assert not path.exists()
            return super().build(program)

    for _ in range(2):
        torch.compiler.reset()
        torch.compile(lambda x: x * 2, backend=Filed())(torch.ones(3))
    assert written == ["program.so"]


@pytest.mark.parametrize("scale", [torch.tensor(2.0), torch.ones(3, 0), torch.ones(2, 3).t()])
def test_a_constant_without_dimensions_elements_or_contiguous_strides_is_kept(monkeypatch, scale):
    monkeypatch.setattr(Kept, "made", 0)

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(scale)

        def forward(self, x):
            return x * 2, self.scale * 2

    for _ in range(2):
        torch.compiler.reset()
        call = torch.compile(Scaled(), backend=Kept(), options={"freeze": True})
        with torch.no_grad():
            assert torch.equal(call(torch.ones(3))[1], scale * 2)
    assert Kept.made == 1


def test_what_is_too_large_is_compiled_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(Kept, "made", 0)
    monkeypatch.setattr("backbay.kit.program.MOST_KEPT_BYTES", len(b"compiled") - 1)
    for _ in range(2):
        torch.compiler.reset()
        torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(3))
    assert Kept.made == 2
    assert not list(tmp_path.rglob("*.bin"))


@pytest.mark.parametrize("gone", ["listed", "looked_at"])
def test_what_another_process_removes_meanwhile_is_in_the_way(monkeypatch, tmp_path, gone):
    old, new = tmp_path / "old", tmp_path / "new"
    for age, path in enumerate((new, old)):
        path.write_bytes(b"12345678")
        os.utime(path, ns=(10**18 - age * 10**9,) * 2)
    missing = tmp_path / "missing"
    if gone == "listed":
        monkeypatch.setattr(type(tmp_path), "iterdir", lambda _: iter([missing, old, new]))
    else:
        stat = old.stat()
        missing.write_bytes(b"12345678")
        os.utime(missing, ns=(stat.st_atime_ns - 1, stat.st_mtime_ns - 1))
        unlink = type(tmp_path).unlink

        def unlinked(path, **keywords):
            unlink(missing, missing_ok=True)
            unlink(path, **keywords)

        monkeypatch.setattr(type(tmp_path), "unlink", unlinked)
    keep_newest(tmp_path, 8)
    assert not old.exists()
    assert new.exists()


def test_what_was_compiled_is_lost_where_the_cache_cant_be_kept_small(monkeypatch):
    monkeypatch.setattr(Kept, "made", 0)

    def refused(folder, most_bytes):
        raise PermissionError(folder)

    monkeypatch.setattr("backbay.kit.program.keep_newest", refused)
    assert torch.compile(lambda x: x * 2, backend=Kept())(torch.ones(1)).item() == 2


def test_different_constants_are_kept_apart(monkeypatch):
    monkeypatch.setattr(Kept, "made", 0)
    for _ in range(2):
        torch.compiler.reset()
        with torch.no_grad():
            call = torch.compile(torch.nn.Linear(6, 2), backend=Kept(), options={"freeze": True})
            call(torch.ones(1, 6))
    assert Kept.made == 2


def test_constants_of_another_shape_or_dtype_another_torch_or_name_are_kept_as_one(monkeypatch):
    made = []

    def kept(held, what=""):
        graph, module = Graph(), torch.nn.Module()
        module.register_buffer("held", held)
        graph.output((graph.get_attr("held"),))
        program = Program(GraphModule(module, graph), "inference", {}, "an engine")
        program.kept(lambda: made.append(what) or b"compiled", what)
        return len(made)

    zeros = torch.zeros(2, 3)
    assert kept(zeros) == kept(zeros) == 1
    assert kept(torch.zeros(3, 2)) == 2
    assert kept(zeros.int()) == 3
    assert kept(zeros, "weights") == 4
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert kept(zeros) == 5
