"""What a measured time depends on beside the model."""

import sys
from importlib import metadata

import pytest
import torch

from backbay.decisions.place import place_on


@pytest.mark.parametrize(
    ("installed", "version"),
    [({"triton": "3.7.1"}, "3.7.1"), ({"pytorch-triton": "3.8.0+git"}, "3.8.0+git"), ({}, None)],
)
def test_tritons_version_is_its_distributions_and_it_is_not_imported(
    installed, version, monkeypatch
):
    def said(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", said)
    monkeypatch.setitem(sys.modules, "triton", None)  # to import it would raise
    place = place_on(torch.device("cpu"), {"mine": "1.0"})
    assert place.versions.get("triton") == version
    assert place.versions["mine"] == "1.0"
    assert place.versions["torch"] == torch.__version__
    assert place.key != place_on(torch.device("meta")).key
