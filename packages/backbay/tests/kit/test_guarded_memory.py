"""Triton's interpreter ends a kernel that leaves its tensors, and no other."""

import importlib.util

import pytest

from backbay.errors import InputError
from backbay.kit.guarded_memory import guard_memory

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

KERNELS = '''
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.tools.tensor_descriptor import TensorDescriptor
from backbay.kit.guarded_memory import guard_memory

guard_memory()
guard_memory()


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def scale(x_ptr, y_ptr, start, read, written, step, block: tl.constexpr):
    at = tl.arange(0, block)
    x = tl.load(x_ptr + (at + start) * step, mask=at < read, other=0.0)
    tl.store(y_ptr + at, doubled(x), mask=at < written)


@triton.jit
def copy(x_ptr, y_ptr, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@triton.jit
def add(y_ptr, n, block: tl.constexpr):
    at = tl.arange(0, block)
    tl.atomic_add(y_ptr + at, 1.0, mask=at < n)


@triton.jit
def swap(y_ptr, block: tl.constexpr):
    old = tl.zeros((block,), tl.int32)
    tl.atomic_cas(y_ptr + tl.arange(0, block), old, old + 1)


@triton.jit
def copy_described(x, y):
    y.store([0], x.load([0]))


@triton.jit
def count(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr) + 1)


def why(kernel, *arguments, **named):
    """Return why a launch was ended, or None."""
    try:
        kernel[(1,)](*arguments, **named)
    except InterpreterError as error:
        assert isinstance(error.__cause__, IndexError), repr(error.__cause__)
        return str(error.__cause__)


memory = torch.arange(64.0)
x, y = memory[16:24], torch.zeros(8)
END = " outside of all tensors that it was given: mask them, or mend their offsets"
'''

INSIDE = """
assert why(scale, x, y, 0, 8, 8, 1, block=16) is None
torch.testing.assert_close(y, 2 * x)
assert why(scale, x, y, 0, 8, 8, 1, block=8) is None
assert why(scale, memory[1::8], y, 0, 8, 8, 8, block=16) is None
assert why(scale, x[:0], y[:0], 0, 0, 0, 1, block=16) is None
assert why(copy, memory[:8], memory[8:16], block=8) is None
assert why(add, y, 8, block=16) is None
assert why(swap, torch.zeros(8, dtype=torch.int32), block=8) is None
assert why(count, torch.zeros((), dtype=torch.int8)) is None
described = [TensorDescriptor.from_tensor(z, [16]) for z in (x, y)]
assert why(copy_described, *described) is None
torch.testing.assert_close(y, x)
wide = triton.reinterpret(torch.zeros(8), tl.int32)
assert why(copy, wide, torch.zeros(8, dtype=torch.int32), block=8) is None
array = memory[:64].numpy().copy()
assert why(copy, torch.from_numpy(array), torch.from_numpy(array[8:16]), block=32) is None
"""

OUTSIDE = """
assert why(scale, x, y, 0, 9, 8, 1, block=16) == "scale reads 1 of 9 elements" + END
assert why(scale, x, y, -1, 8, 8, 1, block=16) == "scale reads 1 of 8 elements" + END
assert why(scale, x, y, 0, 8, 8, 2, block=16) == "scale reads 4 of 8 elements" + END
assert why(scale, x, y, 0, 8, 16, 1, block=16) == "scale writes 8 of 16 elements" + END
assert why(scale, x[:0], y, 0, 8, 8, 1, block=16) == "scale reads 8 of 8 elements" + END
assert why(copy, x, y, block=16) == "copy reads 8 of 16 elements" + END
assert why(add, y, 9, block=16) == "add updates 1 of 9 elements" + END
assert why(swap, torch.zeros(6, dtype=torch.int32), block=8) == (
    "swap updates 2 of 8 elements" + END
)
assert why(count, torch.zeros(0)) == "count reads 1 of 1 elements" + END
longer = TensorDescriptor(memory[56:], [9], [1], [16])
assert why(copy_described, longer, TensorDescriptor.from_tensor(y, [16])) == (
    "copy_described reads 1 of 9 elements" + END
)
assert why(scale, x, y, 0, 8, 8, 1, block=16) is None  # nothing is left of what was ended
torch.testing.assert_close(y, 2 * x)
"""

ANOTHER = """
from triton.runtime import interpreter
del interpreter.GridExecutor._init_args_hst
from backbay.errors import InputError
from backbay.kit.guarded_memory import guard_memory

try:
    guard_memory()
except InputError as error:
    assert "has no attribute '_init_args_hst'" in str(error), error
    assert str(error).endswith("): test the kernels with one of those"), error
else:
    raise AssertionError("it guards in an interpreter that it does not know")
"""


@pytest.mark.parametrize(
    "program",
    [KERNELS + INSIDE, KERNELS + OUTSIDE, ANOTHER],
    ids=["inside", "outside", "another interpreter"],
)
def test_a_kernel_is_ended_where_it_may_go_on_or_goes_on_outside_of_its_tensors(
    program, run_python, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = tmp_path / "program.py"  # Triton reads the text of its kernels
    path.write_text(f"{program}\nprint('right')\n")
    done = run_python(f"import runpy; runpy.run_path({str(path)!r})", check=False)
    assert done.stdout == "right\n", done.stderr[-3000:]


def test_where_kernels_are_compiled_they_seem_to_be_guarded(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match=r"start the process with TRITON_INTERPRET=1$"):
        guard_memory()
