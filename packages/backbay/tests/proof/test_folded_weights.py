"""Weights that were rounded once more, as when a batch norm is folded into them, are honest."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from backbay.proof import Workload, make_golden, observe
from backbay.proof.monte_carlo import Reweighed


def network():
    layers = []
    for channels in (8, 64):
        norm = nn.BatchNorm2d(64)
        nn.init.uniform_(norm.running_mean, -0.1, 0.1)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
        convolution = nn.Conv2d(channels, 64, 3, stride=2, padding=1, bias=False)
        layers += [convolution, norm, nn.ReLU()]
    return nn.Sequential(*layers)


def folded(model):
    """Fold in single precision, and round once."""
    model = copy.deepcopy(model).float()
    for at in (0, 3):
        model[at] = fuse_conv_bn_eval(model[at], model[at + 1])
        model[at + 1] = nn.Identity()
    return model.bfloat16().to(memory_format=torch.channels_last)


def judged(seed, change):
    """Return what the proof says of the network in bfloat16, folded after a change."""
    torch.manual_seed(seed)
    model = network().eval().bfloat16().to(memory_format=torch.channels_last)
    x = torch.randn(16, 8, 96, 96).bfloat16().to(memory_format=torch.channels_last)
    workload = Workload(model=model, args=(x,))
    golden = make_golden(workload, train=False)
    other = copy.deepcopy(model)
    change(other)
    return golden.judge(observe(folded(other), workload, train=False))


def nothing(_):
    pass


def far_eps(model):
    model[1].eps = model[4].eps = 1e-2


def near_eps(model):
    model[1].eps = model[4].eps = 1e-3


def no_mean(model):
    model[4].running_mean.zero_()


def called_wrong(change, networks):
    return sum(not judged(seed, change).passed for seed in range(networks))


def test_folded_batch_norms_are_called_wrong():
    assert called_wrong(nothing, 8) <= 1  # 7 where no weight is rounded once more


@pytest.mark.parametrize("change", [far_eps, no_mean])
def test_batch_norms_that_are_folded_wrongly_are_called_right(change):
    assert called_wrong(change, 4) == 4


@pytest.mark.sweep
def test_what_the_rule_sees_of_many_networks_has_changed():
    assert called_wrong(nothing, 40) <= 4
    assert called_wrong(no_mean, 40) == 40
    assert called_wrong(near_eps, 40) >= 34


def test_the_model_itself_is_moved_or_what_a_run_writes():
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).train()
    x, before = torch.randn(8, 64), [y.clone() for y in model.parameters()]
    plain = copy.deepcopy(model)
    with Reweighed(list(model.parameters()), 0):
        moved = model(x)
    expected = plain(x)
    assert not torch.equal(moved, expected)
    torch.testing.assert_close(moved, expected)
    assert all(map(torch.equal, model.parameters(), before))
    assert not torch.equal(model[1].running_mean, torch.zeros(64))
