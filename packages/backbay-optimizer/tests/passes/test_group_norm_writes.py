"""Writes, copies and gradients round group norms whose layouts move."""

import functools

import pytest
import torch
from torch import nn
from torch._dynamo import decorators
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils.checkpoint import checkpoint

from backbay_optimizer.passes.group_norm_silu import group_norm_silu

OPERATOR = "group_norm_silu"
leaf_function = getattr(decorators, "leaf_function", None)


@torch.no_grad()
def check(look, program, x, count):
    """Hold a rewritten program to what it was, with so many norms changed."""
    seen = look(program, x, passes=[group_norm_silu])
    wanted = program(x)
    assert seen.changes[OPERATOR] == count
    torch.testing.assert_close(seen.result, wanted)


def test_a_copy_that_keeps_what_is_overwritten_is_gone(look, norms_anywhere):
    def overwriting(x):
        tokens = F.linear(x.flatten(2).transpose(1, 2), eye)
        y = tokens.reshape(2, 6, 10, 8).permute(0, 3, 1, 2).contiguous()
        tokens.zero_()
        return F.silu(F.group_norm(F.conv2d(y, kernel_of_one), 2))

    eye, kernel_of_one = torch.eye(8), torch.eye(8)[:, :, None, None]
    x = torch.randn(2, 8, 6, 10)
    check(look, overwriting, x, count=1)


def test_a_module_that_is_made_on_the_way_is_taken_for_a_write(look, norms_anywhere):
    def making(x, *, makes):
        tokens = F.linear(x.flatten(2).transpose(1, 2), eye)
        y = tokens.reshape(2, 6, 10, 8).permute(0, 3, 1, 2).contiguous()
        y = y if makes is None else makes()(y)
        return F.silu(F.group_norm(F.conv2d(y, kernel_of_one), 2))

    eye, kernel_of_one = torch.eye(8), torch.eye(8)[:, :, None, None]
    x = torch.randn(2, 8, 6, 10)
    copies = {}
    for makes in (None, nn.SiLU):
        program = functools.partial(making, makes=makes)
        check(look, program, x, count=1)
        with torch.no_grad():
            copies[makes] = look(program, x, passes=[group_norm_silu]).calls("contiguous")
    assert copies[nn.SiLU] == copies[None]


@pytest.mark.skipif(leaf_function is None, reason="this torch has no leaf functions")
def test_what_a_function_holds_is_written_unseen(look, norms_anywhere):
    held = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    kernel_of_one = torch.eye(8)[:, :, None, None]

    @leaf_function
    def square(_):
        held.mul_(held)
        return (torch.zeros(()),)

    @square.register_fake
    def square_fake(_):
        return (torch.zeros(()),)

    def program(x):
        y = x.contiguous()
        square(1.0)
        return F.silu(F.group_norm(F.conv2d(y, kernel_of_one), 2))

    before = held.clone()
    with torch.no_grad():
        wanted = program(held)
        held.copy_(before)
        seen = look(program, held, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 1
    torch.testing.assert_close(seen.result, wanted)
    torch.testing.assert_close(held, before.square())  # it was called


def copied_before_it_is_written(x):
    y = x.cos()
    z = F.silu(F.group_norm(F.conv2d(y, x[:, :, :1, :1]), 2))
    y.sin_()
    return z + F.silu(F.group_norm(F.conv2d(y, x[:, :, 1:2, :1]), 2))


def copied_before_a_part_is_written(x):
    y = x.cos()
    z = F.silu(F.group_norm(F.conv2d(y, x[:, :, :1, :1]), 2))
    y[:, 0].sin_()
    return z + F.silu(F.group_norm(F.conv2d(y, x[:, :, 1:2, :1]), 2))


@pytest.mark.parametrize("program", [copied_before_it_is_written, copied_before_a_part_is_written])
def test_a_copy_is_of_what_was_there_before_a_write(look, norms_anywhere, program):
    torch.manual_seed(0)
    x = torch.randn(8, 8, 6, 10)
    check(look, program, x, count=2)


def read_first_without_gradients(x):
    y = x.cos()
    with torch.no_grad():
        z = F.silu(F.group_norm(F.conv2d(y, x.detach()[:, :, :1, :1]), 2))
    return z + F.silu(F.group_norm(F.conv2d(y, x[:, :, 1:2, :1]), 2))


def left_first_without_gradients(x):
    y = F.silu(F.group_norm(F.conv2d(x, x[:, :, :1, :1]), 2))
    with torch.no_grad():
        z = y.cumsum(2)
    return y.cumsum(3) + z


@pytest.mark.parametrize("program", [read_first_without_gradients, left_first_without_gradients])
def test_a_copy_without_gradients_is_read_where_they_are_wanted(look, norms_anywhere, program):
    torch.manual_seed(0)
    x = torch.randn(8, 8, 6, 10, requires_grad=True)
    wanted = program(x)
    seen = look(program, x, passes=[group_norm_silu])
    assert seen.changes[OPERATOR]
    torch.testing.assert_close(seen.result, wanted)
    dy = torch.randn_like(wanted)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, dy) for y in (seen.result, wanted)))


def test_a_result_with_a_gradient_leaves_where_none_are_recorded(look, norms_anywhere):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 8, 6, 10), torch.randn(8, 8, 1, 1, requires_grad=True)

    def computing(x):
        y = F.group_norm(F.conv2d(x, weight), 2)
        with torch.enable_grad():
            return F.conv2d(y, weight)

    with torch.no_grad():
        seen = look(computing, x, passes=[group_norm_silu])
    assert seen.near == ["a copy of conv2d_1 would leave the graph without its gradient"]
    assert seen.result.requires_grad


def returned_beside_a_view(x):
    y = F.silu(F.group_norm(F.conv2d(x, x[:, :, :1, :1]), 2))
    rows = y.view(8, 8, -1)
    with torch.no_grad():
        z = x.cos().sin()
    return y, rows, z


def test_a_result_and_its_view_are_in_two_places(look, norms_anywhere):
    torch.manual_seed(0)
    x = torch.randn(8, 8, 6, 10, requires_grad=True)
    seen = look(returned_beside_a_view, x, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 1
    y, rows, _ = seen.result
    y.detach().zero_()
    assert not rows.any()


@torch.compiler.allow_in_graph
def turned(x):
    return x.cos_()


@pytest.mark.parametrize("where", ["a function", "a checkpoint"])
def test_a_copy_that_keeps_what_a_body_overwrites_is_gone(look, norms_anywhere, where):
    torch.manual_seed(0)
    x = torch.randn(8, 8, 6, 10).contiguous(memory_format=torch.channels_last)

    def overwriting(x):
        y = F.conv2d(x, x[:, :, :1, :1])
        kept = y.contiguous()
        if where == "a function":
            turned(y)
        else:
            checkpoint(torch.cos_, y, use_reentrant=False)
        return F.silu(F.group_norm(kept, 2))

    with torch.no_grad():
        seen = look(overwriting, x.clone(), passes=[group_norm_silu])
        wanted = overwriting(x.clone())
    torch.testing.assert_close(seen.result, wanted)


def test_a_result_that_is_written_by_a_view_is_read_after_that(look, norms_anywhere):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    weight, step = torch.randn(8, 8, 1, 1), torch.randn(2, 8, 1, 1)

    def overwriting(x):
        y = F.silu(F.group_norm(F.conv2d(x, weight), 2))
        row = y[0]
        z = y + step
        row.zero_()
        return F.silu(F.group_norm(z, 2)), y

    check(look, overwriting, x, count=2)


def offset_is_written(x, weight, bias):
    y = F.group_norm(x, 2, bias, bias)
    bias.add_(1)
    return F.silu(y)


def input_is_written(x, weight, bias):
    y = F.group_norm(x, 2)
    x.relu_()
    return F.silu(y)


def convolutions_bias_is_written(x, weight, bias):
    y = F.conv2d(x, weight, bias)
    bias[::2].add_(1)
    return F.silu(F.group_norm(y, 2))


def step_is_written(x, weight, bias):
    y = F.conv2d(x, weight) + x[:, :, :1, :1]
    x.relu_()
    return F.silu(F.group_norm(y, 2))


def image_is_written(x, weight, bias):
    y = F.conv2d(x, weight)
    z = y + bias.expand(2, -1).reshape(2, -1, 1, 1)
    y.relu_()
    return F.silu(F.group_norm(z, 2))


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (offset_is_written, 0),
        (input_is_written, 0),
        (convolutions_bias_is_written, 1),
        (step_is_written, 1),
        (image_is_written, 1),
    ],
)
def test_what_is_written_on_the_way_is_read_as_it_is_then(look, norms_anywhere, program, count):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    given = (x, torch.randn(8, 8, 1, 1), torch.randn(8))
    with torch.no_grad():
        wanted = program(*(t.clone() for t in given))
        seen = look(program, *given, passes=[group_norm_silu])
    torch.testing.assert_close(seen.result, wanted)
    assert seen.changes[OPERATOR] == count, seen.near


def image_is_written_later(x, weight, bias):
    y = F.conv2d(x, weight)
    z = F.silu(F.group_norm(y + x[:, :, :1, :1], 2))
    y.mul_(2)
    return z


def result_is_written_later(x, weight, bias):
    y = F.silu(F.group_norm(F.conv2d(x, weight), 2))
    z = F.silu(F.group_norm(y + x[:, :, :1, :1], 2))
    y.mul_(2)
    return z


def convolutions_bias_is_written_later(x, weight, bias):
    z = F.silu(F.group_norm(F.conv2d(x, weight, bias), 2))
    with torch.no_grad():
        bias.mul_(2)
    return z


def offset_is_written_later(x, weight, bias):
    z = F.group_norm(F.conv2d(x, weight), 2, None, bias)
    with torch.no_grad():
        bias.mul_(2)
    return F.conv2d(z, weight)


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (image_is_written_later, 1),
        (result_is_written_later, 2),
        (convolutions_bias_is_written_later, 1),
        (offset_is_written_later, 0),
    ],
)
def test_what_is_written_before_backward_raises(look, norms_anywhere, program, count):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    given = [t.requires_grad_() for t in (x, torch.randn(8, 8, 1, 1))]
    bias = torch.randn(8)
    wanted = torch.autograd.grad(program(*given, bias.clone()).sum(), given)
    seen = look(program, *given, bias, passes=[group_norm_silu])
    found = torch.autograd.grad(seen.result.sum(), given)
    for one, other in zip(found, wanted, strict=True):
        # A pixel that is added to all others has a gradient of terms that cancel: eager's own is
        # 1.2e-5 from float64's, where the largest is 3.5.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    assert seen.changes[OPERATOR] == count, seen.near
