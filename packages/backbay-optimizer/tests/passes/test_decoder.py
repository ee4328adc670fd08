import pytest
import torch

from backbay.kit import rewrites
from backbay.proof import Workload
from backbay.workloads.decoder import Decoder, DecoderConfig, returned_loss
from backbay.workloads.loading import load
from backbay_optimizer.backend import Optimizing

BOTH = ("common_subexpressions", "fold_constants", "fold_scalar_chain", "remove_dead_code")
ALL = [
    *(getattr(rewrites, name) for name in rewrites.__all__),
    *Optimizing.passes,
    *(getattr(rewrites, name).at("aten") for name in BOTH),
]


def decoder(dtype):
    return load("decoder", seed=0, dtype=dtype, device=torch.device("cpu"), train=True)


def of_one_layer():
    """Build a decoder that is compiled in a fraction of the time."""
    torch.manual_seed(0)
    config = DecoderConfig(vocabulary=64, width=32, layers=1, heads=4, kv_heads=2, hidden=48)
    tokens, targets = (torch.randint(config.vocabulary, (2, 16)) for _ in range(2))
    return Workload(model=Decoder(config), args=(tokens, targets), loss=returned_loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decoder_after_all_passes_is_wrong(prove, dtype):
    assert prove(decoder(dtype), passes=ALL, dynamic=False)["fold_constants"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codegen", "dynamic"),
    [("eager", True), ("inductor", False)],
    ids=["dynamic", "inductor"],
)
def test_a_layer_of_it_is_wrong(prove, codegen, dynamic):
    changes = prove(of_one_layer(), passes=ALL, codegen=codegen, dynamic=dynamic, cached=True)
    assert changes["fold_constants"]


# In CI a layer is compiled in these ways, above, and both layers with static shapes.
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("codegen", "dynamic"),
    [("eager", True), ("inductor", None)],
    ids=["dynamic", "inductor"],
)
def test_all_of_it_is_wrong(prove, codegen, dynamic):
    whole = decoder(torch.float32)
    changes = prove(whole, passes=ALL, codegen=codegen, dynamic=dynamic, cached=True)
    assert changes["fold_constants"]
