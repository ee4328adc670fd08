"""Plans that a search may try, within the limits of each kernel, give what its reference gives."""

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
import importlib
import random

import torch

from backbay_optimizer.kernels import batch_norm, depthwise_convolution, few_row_linears
from backbay_optimizer.kernels import elsewhere, group_norm_silu, linear_epilogue, row_norm
from backbay_optimizer.tuning import found_plans, plan_search

torch.manual_seed(0)
random.seed(0)
tried = []


class Trial(plan_search._Trial):
    def milliseconds(self, plan):
        tried.append(plan)
        results = self.launch(plan)
        assert plan_search._agree(results, self.wanted), plan
        return random.random()


def device(module, *names):
    code = importlib.import_module(module.__name__ + "_device")
    return [getattr(code, name) for name in names]


def drawn(*shape, last=False):
    x = torch.randn(shape, dtype=torch.float32)
    return x.to(memory_format=torch.channels_last) if last else x


plan_search._Trial = Trial
elsewhere._is_elsewhere = lambda x: True
plan_search.LAUNCHES = 6
found_plans.key_of = lambda *_: object()
found_plans.read = lambda *_: None
found_plans.write = lambda *_: None

# A GPU's hundreds of programs take the interpreter long.
batch_norm.plan = lambda *_: batch_norm.Plan(16, 16, 8, stages=2)
row_norm.plan = lambda *_: row_norm.Plan(16, 4, 4, 2)

module = depthwise_convolution
x, w, how = drawn(2, 20, 9, 9, last=True), drawn(20, 1, 3, 3), ([1, 1], [1, 1])
(forward,) = device(module, "depthwise_kernel")
(back,) = device(module, "depthwise_input_kernel")
(filters,) = device(module, "depthwise_weight_kernel")
small = drawn(2, 20, 5, 5, last=True)
launches = [
    lambda: module.launch(forward, x, w, drawn(20), *how),
    lambda: module.launch_input(forward, back, small, x, w, [2, 2], [1, 1]),
    lambda: module.launch_weight(filters, x, x, w, *how),
]
statistics, sums = device(batch_norm, "batch_norm_statistics_kernel", "batch_norm_sums_kernel")
y = drawn(3, 40, 5, 5, last=True)
four = [drawn(40).abs() + 0.5 for _ in range(4)]
launches += [
    lambda: batch_norm.launch_statistics(statistics, y),
    lambda: batch_norm.launch_sums(sums, y, y + 1, *four, "silu"),
]
linears, gated = device(few_row_linears, "linears_kernel", "gated_kernel")
rows, a, b = drawn(5, 72), drawn(40, 72), drawn(24, 72)
launches += [
    lambda: few_row_linears.launch(linears, rows, [a, b], [None, drawn(24)]),
    lambda: few_row_linears.launch_gated(gated, rows, a, drawn(40, 72), None, None),
]
names = "group_norm_window_kernel", "group_norm_panel_kernel"
kernels = tuple(device(group_norm_silu, *names))
names = "group_norm_backward_window_kernel", "group_norm_backward_panel_kernel"
backs = tuple(device(group_norm_silu, *names))
groups = group_norm_silu
groups.SMALL_PANEL = groups.LARGE_PANEL = 1000  # bytes: the larger images are cut into windows
for last in (True, False):
    for side in (3, 9):
        z = drawn(2, 24, side, side, last=last)
        vectors = drawn(24), drawn(24)
        numbers = drawn(2, 4), drawn(2, 4).abs() + 0.5
        launches += [
            lambda z=z, v=vectors: groups.launch(kernels, z, *v, 4, 1e-5, True, drawn(24), z + 1),
            lambda z=z, v=(*vectors, *numbers): groups.launch_backward(
                backs, z, z + 1, *v, 4, True
            ),
        ]
(linear,) = device(linear_epilogue, "linear_kernel")
norm = drawn(40), drawn(40).abs() + 0.5, drawn(40), drawn(40)
launches += [
    lambda: linear_epilogue.launch(linear, rows, a, drawn(40), "gelu", *norm, 1e-3, drawn(5, 40)),
    lambda: linear_epilogue.launch(linear, drawn(70, 8), drawn(200, 8), None, "silu"),
]
pair = tuple(device(row_norm, "row_norm_backward_kernel", "row_norm_totals_kernel"))
t, rstd = drawn(37, 40), drawn(37, 1).abs() + 0.5
launches += [
    lambda: row_norm.launch_backward(pair, [t, t + 1], t, drawn(40), drawn(37, 1), rstd, 0.0),
    lambda: row_norm.launch_backward(pair, [t], t, drawn(40), None, rstd, 1.0, t, False),
]
for launch in launches:
    before = len(tried)
    with elsewhere.used_elsewhere(plan_search.found):
        launch()
    assert len(tried) > before + 1, len(tried)
print("right")
"""


def test_a_plan_within_the_limits_is_wrong(assert_right_in_interpreter):
    assert_right_in_interpreter(PROGRAM)
