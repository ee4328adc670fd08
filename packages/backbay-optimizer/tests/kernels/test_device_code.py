"""Compiled graphs that are kept on disk are not those of kernels as they were."""

from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from backbay_optimizer.backend import Optimizing


def device_files(one):
    for source in one.sources:
        if isinstance(source, ModuleType):
            path = Path(source.__file__)
            yield from path.parent.glob(f"{path.stem}_device.py")


WITH_KERNELS = [x for x in Optimizing.passes if any(device_files(x))]


@pytest.mark.parametrize("one", WITH_KERNELS, ids=lambda x: x.name)
def test_a_pass_is_known_without_its_device_code(one):
    for path in device_files(one):
        assert path.read_text("utf-8") in one.decisive()


def test_passes_with_kernels_are_not_found():
    assert {"batch_norms", "embeddings", "group_norm_silu"} < {x.name for x in WITH_KERNELS}
