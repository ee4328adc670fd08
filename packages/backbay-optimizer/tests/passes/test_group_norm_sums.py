"""A group norm's kernel adds the two images whose sum is normalised."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.kernels import group_norm_silu as kernel
from backbay_optimizer.passes.group_norm_silu import group_norm_silu

OPERATOR = "group_norm_silu"


class Residual(nn.Module):
    """A block as diffusers has it: norms first, and a sum last, which the next reads twice."""

    def __init__(self, channels=8, wider=8):
        super().__init__()
        how = {"kernel_size": 3, "padding": 1}
        self.norms = nn.ModuleList(nn.GroupNorm(4, x) for x in (channels, wider))
        self.enter, self.leave = nn.Conv2d(channels, wider, **how), nn.Conv2d(wider, wider, **how)
        self.beside = nn.Conv2d(channels, wider, 1) if wider > channels else nn.Identity()

    def forward(self, x):
        y = self.enter(F.silu(self.norms[0](x)))
        y = self.leave(F.silu(self.norms[1](y)))
        return (self.beside(x) + y) / 1.0


def test_a_residual_is_added_before_the_kernel(look, image, norms_anywhere):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 1), Residual(), Residual(wider=16), Residual(16, 16))
    with torch.no_grad():
        seen = look(model, image, passes=[group_norm_silu])
        wanted = model(image)
    assert seen.changes[OPERATOR] == 6
    assert len(seen.nodes("group_norm_silu")) == 4
    sums = seen.nodes("add_group_norm_silu")
    biases = [module.bias for module in (model[1].leave, model[2].leave)]
    assert [n.args[7].meta["example_value"].shape for n in sums] == [x.shape for x in biases]
    assert seen.calls("add") + seen.calls("truediv") == 3  # the last sum, and two biases in one
    for node in sums:
        for read in node.args[:2]:
            assert kernel.is_channels_last(read.meta["example_value"])
    assert all(len(n.args) < 3 or n.args[2] is None for n in sums[1].args[:2] if n.op != "get_attr")
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


def test_blocks_with_residuals_are_further_from_the_truth(prove, image, norms_anywhere):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 1), Residual(wider=16), Residual(16, 16))
    work = Workload(model=model, args=(image.requires_grad_(),))
    assert prove(work, passes=[group_norm_silu])[OPERATOR] == 4


def read_before(y, z):
    total = y + z
    return F.silu(F.group_norm(total, 2, total.mean((0, 2, 3))))


def computed_beside(y, z):
    return F.silu(F.group_norm(y + z.relu(), 2))


def scaled(y, z):
    return F.silu(F.group_norm((y + z) / 2, 2))


def multiplied(y, z):
    return F.silu(F.group_norm(torch.add(y, z, alpha=2), 2))


def read_halfway(y, z):
    total = y + z
    return F.silu(F.group_norm(total / 1.0, 2)) + total


def doubled(y, z):
    return F.silu(F.group_norm(y + y, 2))


def written_on_the_way(y, z):
    total = y + z
    z.relu_()
    return F.silu(F.group_norm(total, 2))


def of_one_row(y, z):
    return F.silu(F.group_norm(y + z[:, :, :1], 2))


def of_another_layout(y, z):
    return F.silu(F.group_norm(y + z.flip(2).contiguous(), 2))


@pytest.mark.parametrize(
    "program",
    [
        *(read_before, computed_beside, scaled, multiplied, read_halfway, doubled),
        *(written_on_the_way, of_one_row, of_another_layout),
    ],
)
def test_another_sum_is_added_in_the_kernel(look, norms_anywhere, program):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    weights = torch.randn(2, 8, 8, 1, 1)

    def summing(x):
        return program(*(F.conv2d(x, weight) for weight in weights))

    with torch.no_grad():
        seen = look(summing, x, passes=[group_norm_silu])
        wanted = summing(x)
    assert not seen.nodes("add_group_norm_silu")
    assert seen.changes[OPERATOR] == 1, seen.near
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


@pytest.mark.parametrize("part", [slice(None), 0], ids=["itself", "by a view"])
@pytest.mark.parametrize("late", [False, True])
def test_a_sum_that_is_written_later_is_wrong(look, norms_anywhere, part, late):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(8, 8, 1, 1)

    def overwriting(x):
        total = x + F.conv2d(x, weight)
        y = F.conv2d(F.silu(F.group_norm(total, 2)), weight)
        if not late:
            total[part].mul_(2)
        z = total + y
        if late:
            total[part].mul_(2)
        return F.conv2d(F.silu(F.group_norm(z, 2)), weight), total

    with torch.no_grad():
        seen = look(overwriting, x, passes=[group_norm_silu])
        wanted = overwriting(x)
    assert len(seen.nodes("add_group_norm_silu")) == 2 - late
    assert seen.changes[OPERATOR] == 2
    torch.testing.assert_close(seen.result, wanted)
