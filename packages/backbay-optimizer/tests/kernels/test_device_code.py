"""Compiled graphs that are kept on disk are not those of kernels as they were."""

from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from backbay_optimizer.backend import Optimizing
from backbay_optimizer.kernels import batch_norm, conditions


def device_files(one):
    for source in one.sources:
        if isinstance(source, ModuleType):
            path = Path(source.__file__)
            yield from path.parent.glob(f"{path.stem}_device.py")


def _knows(one, code):
    return any(code in x for x in one.decisive() if isinstance(x, str))


WITH_KERNELS = [x for x in Optimizing.passes if any(device_files(x))]


@pytest.mark.parametrize("one", WITH_KERNELS, ids=lambda x: x.name)
def test_a_pass_is_known_without_its_device_code(one):
    for path in device_files(one):
        assert _knows(one, path.read_text("utf-8"))


def test_what_a_kernel_takes_from_anothers_device_code_changes_unnoticed():
    one = next(x for x in WITH_KERNELS if x.name == "batch_norms")
    other = Path(batch_norm.__file__).with_name("group_norm_silu_device.py").read_text("utf-8")
    assert "import sigmoid" in conditions.device_code(batch_norm)
    assert other in conditions.device_code(batch_norm)
    assert _knows(one, other)


def test_passes_with_kernels_are_not_found():
    assert {"batch_norms", "embeddings", "group_norm_silu"} < {x.name for x in WITH_KERNELS}


LEAVES = """
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def copy(x_ptr, y_ptr, count, block: tl.constexpr):
        at = tl.arange(0, block)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < count, other=0), mask=at < {written})

    x = torch.arange(40)[8:16]
    copy[(1,)](x, torch.empty_like(x), {read}, block=16)
    print("right")
"""


def test_a_kernel_that_stays_within_its_tensors_is_ended(assert_right_in_interpreter):
    assert_right_in_interpreter(LEAVES.format(read=8, written=8))


@pytest.mark.parametrize(("read", "written"), [(9, 8), (8, 9)])
def test_a_kernel_that_leaves_its_tensors_is_not_ended(assert_right_in_interpreter, read, written):
    with pytest.raises(AssertionError, match="outside of all tensors"):
        assert_right_in_interpreter(LEAVES.format(read=read, written=written))
