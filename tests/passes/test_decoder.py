import pytest
import torch

from backbay import passes
from backbay.race.workloads.loading import load

BOTH = ("common_subexpressions", "fold_constants", "fold_scalar_chain", "remove_dead_code")
ALL = [
    *(getattr(passes, name) for name in passes.__all__),
    *(getattr(passes, name).at("aten") for name in BOTH),
]


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)],
    ids=["float32", "bfloat16", "dynamic"],
)
def test_decoder_after_all_passes_is_wrong(prove, dtype, dynamic):
    decoder = load("decoder", seed=0, dtype=dtype, device=torch.device("cpu"), train=True)
    changes = prove(decoder, passes=ALL, dynamic=dynamic)
    assert changes["fold_constants"]


@pytest.mark.slow
def test_decoder_after_all_passes_is_wrong_with_inductor(prove):
    device = torch.device("cpu")
    decoder = load("decoder", seed=0, dtype=torch.float32, device=device, train=True)
    assert prove(decoder, passes=ALL, codegen="inductor", cached=True)["fold_constants"]
