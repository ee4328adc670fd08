"""16-bit code for a CPU has vectors of 256 bits where GCC gets wider ones wrong, and only there."""

import pytest
import torch
from torch._inductor import cpp_builder, exc

from backbay_optimizer.backend import backbay
from backbay_optimizer.passes import narrow_vectors as module
from backbay_optimizer.passes.narrow_vectors import narrow_vectors

NARROW = {"cpp.simdlen": 256}


def transposed(a, b):
    return torch.cat([a.t(), b.t()])


def tables(dtype):
    torch.manual_seed(0)
    return torch.randn(2, 64, 64).to(dtype).unbind()


@pytest.fixture
def compiler(monkeypatch):
    """Return what says which compiler and which processor there are."""

    def said(version, capability="AVX512"):
        module.is_wrong.cache_clear()
        monkeypatch.setattr(cpp_builder, "get_compiler_version_info", lambda _: version)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    yield said
    module.is_wrong.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_transposes_of_16_bits_are_garbage(dtype):
    given = tables(dtype)
    torch.compiler.reset()
    assert torch.equal(torch.compile(transposed, backend=backbay)(*given), transposed(*given))


def test_vectors_are_wide_where_they_are_wrong(look, compiler):
    compiler("Configured with many things; gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)")
    seen = look(transposed, *tables(torch.bfloat16), passes=[narrow_vectors])
    assert seen.inductor == NARROW
    assert seen.changes["narrow_vectors"] == 0


def test_vectors_are_wide_for_what_autocast_rounds(look, compiler):
    compiler("gcc version 12.2.0")

    def program(a, b):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.cat([(a @ b).t(), (b @ a).t()])

    assert look(program, *tables(torch.float32), passes=[narrow_vectors]).inductor == NARROW


@pytest.mark.parametrize(
    ("version", "capability", "dtype"),
    [
        ("gcc version 12.3.0", "AVX512", torch.bfloat16),
        ("clang version 19.1.0", "AVX512", torch.bfloat16),
        ("gcc version 12.2.0", "AVX2", torch.bfloat16),
        ("gcc version 12.2.0", "AVX512", torch.float32),
    ],
)
def test_vectors_are_narrow_elsewhere(look, compiler, version, capability, dtype):
    compiler(version, capability)
    assert not look(transposed, *tables(dtype), passes=[narrow_vectors]).inductor


def test_a_machine_without_a_compiler_ends_compilation(look, compiler, monkeypatch):
    compiler("gcc version 12.2.0")

    def missing():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    assert not look(transposed, *tables(torch.bfloat16), passes=[narrow_vectors]).inductor
