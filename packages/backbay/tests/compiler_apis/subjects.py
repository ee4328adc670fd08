"""What the tests of torch.compile's public APIs share."""

import re

import torch
from torch._dynamo.utils import counters

from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass

SHIPPED = [
    "backbay",
    "backbay_print",
    "backbay_report",
    "backbay_silu",
    "backbay_gelu",
    "backbay_fold",
]
FAST = [*SHIPPED, "backbay.default"]
FACTOR = 2.0
NN = "skip_guard_on_all_nn_modules_unsafe"


class Scaled(torch.nn.Module):
    """Holds a number that Dynamo guards on, beside a built-in module."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x):
        return self.lin(x) * self.scale


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def guards_of(function) -> int:
    """Count the guards of a function's only compiled code, as Dynamo prints them."""
    (entry,) = torch._dynamo.eval_frame._debug_get_cache_entry_list(function)
    return len(re.findall(r"\+- [A-Z_]+:", str(entry.guard_manager)))


def doubled(x):
    return x * 2


@graph_pass(level="torch")
def seen(graph_module):
    return 0


class Inner(Backend):
    passes = (seen,)
    codegen = "eager"
    resets = 0

    def reset(self):
        super().reset()
        self.resets += 1
