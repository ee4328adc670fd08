"""Depthwise kernels as Triton compiles them for a GPU, on a machine without."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, compiler  # noqa: E402

from backbay_optimizer.kernels import depthwise_convolution_device as device  # noqa: E402

CHANNELS, ACROSS = 96, 7
FILTERS = [(3, 1), (5, 1), (5, 2), (7, 1)]
"""Sizes and strides."""


class Compiled:
    """A kernel in the forms that it has on its way to a GPU."""

    def __init__(self, _source, files, _key):
        self.files = {name.rsplit(".", 1)[-1]: path for name, path in files.items()}

    def count(self, form, pattern):
        return len(re.findall(pattern, Path(self.files[form]).read_text("utf-8")))


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return a function that compiles a kernel for filters of a size with a stride."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "CompiledKernel", Compiled)  # the usual one asks a GPU

    def compile_(kernel, size, stride, across=ACROSS):
        constants = {
            **dict.fromkeys(("size_y", "size_x"), size),
            **dict.fromkeys(("stride_y", "stride_x"), stride),
            **dict.fromkeys(("padding_y", "padding_x"), size // 2),
            "block_r": 2 if size <= 5 else 1,
            "block_c": 32,
            "channels": CHANNELS,
            "across": across,
            "even": True,
        }
        signature = {
            name: "*fp32" if name == "partial_ptr" else "*bf16" if name.endswith("_ptr") else "i32"
            for name in kernel.arg_names
        }
        if "bias_ptr" in signature:
            constants["bias_ptr"] = None
        signature |= dict.fromkeys(constants, "constexpr")
        attributes = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(kernel.arg_names)
            if name.endswith("_ptr")
        }
        source = ASTSource(kernel, signature, constants, attributes)
        return compiler.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 1})

    return compile_


def pieces(pixels):
    """Return in how many loops so many pixels are read."""
    return -(-pixels // device._UNROLLED.value)


@pytest.mark.parametrize(("size", "stride"), FILTERS)
def test_the_forward_is_unrolled_too_early_or_not_at_all(compiled, size, stride):
    wide = (ACROSS - 1) * stride + size
    found = compiled(device.depthwise_kernel, size, stride)
    assert found.count("ttir", r"\btt\.load\b") == size + 2 * stride * pieces(wide)
    assert found.count("ptx", r"\bld\.global\b") == size**2 + 2 * stride * wide


def test_the_gradient_by_images_is_unrolled_too_early_or_not_at_all(compiled):
    size, stride, across = 5, 2, 14
    seen, reach = ACROSS + 2, 3
    found = compiled(device.depthwise_input_kernel, size, stride, across)
    assert found.count("ttir", r"\btt\.load\b") == size + (reach + 1) * pieces(seen)
    assert found.count("ptx", r"\bld\.global\b") == size**2 + (reach + 1) * seen


@pytest.mark.parametrize(("size", "stride"), FILTERS)
def test_the_gradient_by_filters_is_unrolled_too_early_or_not_at_all(compiled, size, stride):
    wide, reach = (ACROSS - 1) * stride + size, -(-size // stride)
    found = compiled(device.depthwise_weight_kernel, size, stride)
    early = (reach + 1) * pieces(ACROSS) + 2 * stride * pieces(wide)
    assert found.count("ttir", r"\btt\.load\b") == early
    assert found.count("ttir", r"\btt\.store\b") == size + 1
    late = (reach + 1) * ACROSS + 2 * stride * wide
    assert found.count("ptx", r"\bld\.global\b") == late
    assert found.count("ptx", r"\bst\.global\b") == size**2 + 1
