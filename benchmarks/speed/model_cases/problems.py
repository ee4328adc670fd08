"""Problems of KernelBench, each a file that says how a model and its inputs are made.

Such a file (https://github.com/ScalingIntelligence/KernelBench, Ouyang and others, 2025, arXiv
2502.10517) has a class ``Model``, and functions ``get_init_inputs`` and ``get_inputs``. As in
KernelBench the model is called as it was made, which is in training mode, without gradients; in
the precision of all cases.
"""

import importlib.util
import re
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import _pytree as pytree

from backbay.proof import Workload
from speed.model_cases.case import DTYPE, Case

SUFFIX = ".py"
"""A case's name that ends in it is the path of a problem."""


def files(folder: Path) -> list[Path]:
    """Return the problems of a folder, in the order of their numbers."""

    def number(path: Path) -> tuple[int, str]:
        found = re.match(r"\d+", path.name)
        return (int(found[0]) if found else 0, path.name)

    return sorted(folder.glob(f"*{SUFFIX}"), key=number)


def problem(name: str) -> Case:
    """Return the case of a problem; its file is run when it is built."""
    shapes = {"full": "as in its file", "tiny": "as in its file"}
    build = partial(_workload, Path(name))
    return Case(name=name, train=False, as_made=True, build=build, shapes=shapes, proof=False)


def _workload(path: Path, _size: str) -> Workload:
    module = _imported(path)
    made = module.Model(*module.get_init_inputs()).to(dtype=DTYPE)
    return Workload(model=made, args=tuple(pytree.tree_map(_rounded, module.get_inputs())))


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"problem_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rounded(value: object) -> object:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.to(DTYPE)
