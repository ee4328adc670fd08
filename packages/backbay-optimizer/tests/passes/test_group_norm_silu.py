"""Group norm and SiLU become one call, and layouts move with them; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from backbay.graph.values import computed
from backbay.kit.passes import graph_pass
from backbay.proof import Workload
from backbay_optimizer.kernels import group_norm_silu as kernel
from backbay_optimizer.passes.group_norm_silu import group_norm_silu

OPERATOR = "group_norm_silu"


class Block(nn.Module):
    """A residual block of a diffusion model's decoder."""

    def __init__(self, channels=8, dtype=torch.float32):
        super().__init__()
        how = {"kernel_size": 3, "padding": 1, "dtype": dtype}
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels, dtype=dtype) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, **how) for _ in range(3))

    def forward(self, x):
        x = self.convs[0](x)
        y = self.convs[1](F.silu(self.norms[0](x)))
        y = self.convs[2](F.silu(self.norms[1](y)))
        return x + y


@pytest.fixture
def anywhere(lift, monkeypatch):
    lift(group_norm_silu, DEVICES=("cpu",))
    lift(group_norm_silu, DTYPES=(torch.float32, torch.bfloat16))
    lift(group_norm_silu, COPIED=0.5)
    monkeypatch.setattr(kernel, "pays", lambda x, groups: None)
    monkeypatch.setattr(kernel, "PAYS_FROM", 1)


@pytest.fixture(params=[False, True], ids=["first", "last"])
def image(request):
    torch.manual_seed(0)
    form = torch.channels_last if request.param else torch.contiguous_format
    return torch.randn(2, 8, 6, 10).contiguous(memory_format=form)


def test_a_block_is_left_or_its_result_is_laid_out_otherwise(look, image, anywhere):
    torch.manual_seed(0)
    model = Block()
    with torch.no_grad():
        wanted = model(image)
        seen = look(model, image, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 2
    assert seen.calls("group_norm") == seen.calls("silu") == 0
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()
    shifts = [n.args[6] for n in seen.nodes("group_norm_silu")]
    assert [x is None for x in shifts] == [True, False]  # the first's bias is the residual's too


def test_a_norm_that_leaves_the_graph_ends_compilation(look, anywhere):
    x, weight = torch.randn(2, 8, 6, 10), torch.randn(8, 8, 1, 1)

    def ending(x):
        return F.silu(F.group_norm(F.conv2d(x, weight), 2))

    with torch.no_grad():
        seen = look(ending, x, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 1
    torch.testing.assert_close(seen.result, ending(x))
    assert seen.result.is_contiguous()


def test_a_padding_in_words_ends_compilation(look, image, anywhere):
    model = Block()
    model.convs[1].padding = "same"
    with torch.no_grad():
        wanted = model(image)
        seen = look(model, image, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 2
    torch.testing.assert_close(seen.result, wanted)
    assert [n.args[6] for n in seen.nodes("group_norm_silu")] == [None, None]


def test_channels_come_first_between_the_calls(look, anywhere):
    image = torch.randn(2, 8, 6, 10)
    model = nn.Sequential(*(Block() for _ in range(4)))
    with torch.no_grad():
        seen = look(model, image, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 8
    assert seen.calls("contiguous") == 2
    for node in seen.nodes("group_norm_silu"):
        assert kernel.is_channels_last(node.args[0].meta["example_value"])
    torch.testing.assert_close(seen.result, model(image))


def test_what_reads_views_reads_another_layout(look, image, anywhere):
    model = nn.ModuleList(Block() for _ in range(3))

    def attending(x):
        x = model[1](model[0](x))
        y = x.contiguous().view(2, 8, 60).transpose(1, 2)
        y = (y @ y.transpose(1, 2)).softmax(-1) @ y
        return model[2](x + y.transpose(1, 2).reshape(2, 8, 6, 10))

    with torch.no_grad():
        seen = look(attending, image, passes=[group_norm_silu])
        wanted = attending(image)
    assert seen.changes[OPERATOR] == 6, seen.near
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


class Tokens(nn.Module):
    """What a UNet has between its blocks: pixels are tokens there."""

    def __init__(self, channels=8):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.enter, self.leave = (nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.inner, self.linear = nn.LayerNorm(channels), nn.Linear(channels, channels)

    def forward(self, x):
        n, c, h, w = x.shape
        y = self.enter(self.norm(x)).permute(0, 2, 3, 1).reshape(n, h * w, c)
        y = y + self.linear(self.inner(y))
        y = y.reshape(n, h, w, c).permute(0, 3, 1, 2).contiguous()
        return x + self.leave(y)


class Steps(nn.Module):
    """A block that is told the time step."""

    def __init__(self, channels=8, bias=True):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.norm = nn.GroupNorm(4, channels)
        self.last = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x, step):
        return self.last(F.silu(self.norm(self.conv(x) + step[:, :, None, None])))


def test_pixels_that_are_tokens_are_copied(look, image, anywhere):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Tokens(), Block(), Tokens(), Block())
    with torch.no_grad():
        seen = look(model, image, passes=[group_norm_silu])
        wanted = model(image)
    assert seen.changes[OPERATOR] == 8
    assert len(seen.nodes("group_norm_silu")) == 6
    sums = seen.nodes("add_group_norm_silu")
    assert [n.args[6] for n in sums] == [False, False]
    first = image.is_contiguous()
    assert seen.calls("contiguous") == 2 + 2 * first  # of the model, and at both ends
    for node in seen.nodes("contiguous"):
        given, made = (x.meta["example_value"] for x in (node.args[0], node))
        assert (given is made) == (node.op == "call_method")  # the model's own do nothing now
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


def test_a_copy_that_keeps_what_is_overwritten_is_gone(look, anywhere):
    def overwriting(x):
        tokens = F.linear(x.flatten(2).transpose(1, 2), eye)
        y = tokens.reshape(2, 6, 10, 8).permute(0, 3, 1, 2).contiguous()
        tokens.zero_()
        return F.silu(F.group_norm(F.conv2d(y, kernel_of_one), 2))

    eye, kernel_of_one = torch.eye(8), torch.eye(8)[:, :, None, None]
    x = torch.randn(2, 8, 6, 10)
    with torch.no_grad():
        seen = look(overwriting, x, passes=[group_norm_silu])
        wanted = overwriting(x)
    assert seen.changes[OPERATOR] == 1
    torch.testing.assert_close(seen.result, wanted)


def test_a_copy_becomes_a_view_that_is_written_to(look, anywhere):
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 8, 6, 10)

    def overwriting(x):
        y = model(x)
        row = y.permute(0, 2, 3, 1).reshape(2, -1).to(torch.float32)
        row.add_(1)
        return y * 2, row.sum()

    with torch.no_grad():
        seen = look(overwriting, x, passes=[group_norm_silu])
        wanted = overwriting(x)
    assert seen.near == ["reshape reads permute in a layout that can't be had again"]
    torch.testing.assert_close(seen.result, wanted)


def test_a_view_whose_reader_wants_it_as_it_was_ends_the_rewrite(look, anywhere):
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(), Block()), torch.randn(2, 8, 6, 10)

    def reading(x):
        return model(x).flatten(2).transpose(1, 2).cumsum(1)

    with torch.no_grad():
        seen = look(reading, x, passes=[group_norm_silu])
        wanted = reading(x)
    assert seen.changes[OPERATOR] == 4, seen.near
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


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


def test_a_residual_is_added_before_the_kernel(look, image, anywhere):
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


def test_blocks_with_residuals_are_further_from_the_truth(prove, image, anywhere):
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
def test_another_sum_is_added_in_the_kernel(look, anywhere, program):
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
def test_a_sum_that_is_written_later_is_wrong(look, anywhere, part, late):
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
def test_a_copy_is_of_what_was_there_before_a_write(look, anywhere, program):
    torch.manual_seed(0)
    x = torch.randn(8, 8, 6, 10)
    with torch.no_grad():
        seen = look(program, x, passes=[group_norm_silu])
        wanted = program(x)
    assert seen.changes[OPERATOR] == 2
    torch.testing.assert_close(seen.result, wanted)


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
def test_a_copy_without_gradients_is_read_where_they_are_wanted(look, anywhere, program):
    torch.manual_seed(0)
    x = torch.randn(8, 8, 6, 10, requires_grad=True)
    wanted = program(x)
    seen = look(program, x, passes=[group_norm_silu])
    assert seen.changes[OPERATOR]
    torch.testing.assert_close(seen.result, wanted)
    dy = torch.randn_like(wanted)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, dy) for y in (seen.result, wanted)))


def test_a_result_with_a_gradient_leaves_where_none_are_recorded(look, anywhere):
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


@pytest.mark.parametrize("as_eager", [False, True])
def test_dropout_of_eagers_numbers_drops_others(look, anywhere, lift, as_eager):
    lift(group_norm_silu, COPIED=0.1)
    torch.manual_seed(0)
    x, weight = torch.randn(2, 8, 6, 10), torch.randn(8, 8, 1, 1)

    def dropping(x):
        y = F.silu(F.group_norm(F.conv2d(x, weight), 2))
        return F.conv2d(F.dropout(y, 0.5), weight)

    with torch.no_grad(), torch._inductor.config.patch(fallback_random=as_eager):
        torch.manual_seed(1)
        seen = look(dropping, x, passes=[group_norm_silu])
        torch.manual_seed(1)
        wanted = dropping(x)
    assert seen.changes[OPERATOR] == 1
    (dropout,) = seen.nodes("dropout")
    (read,) = dropout.all_input_nodes
    assert kernel.is_channels_last(read.meta["example_value"]) != as_eager
    if as_eager:
        torch.testing.assert_close(seen.result, wanted)


def returned_beside_a_view(x):
    y = F.silu(F.group_norm(F.conv2d(x, x[:, :, :1, :1]), 2))
    rows = y.view(8, 8, -1)
    with torch.no_grad():
        z = x.cos().sin()
    return y, rows, z


def test_a_result_and_its_view_are_in_two_places(look, anywhere):
    torch.manual_seed(0)
    x = torch.randn(8, 8, 6, 10, requires_grad=True)
    seen = look(returned_beside_a_view, x, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 1
    y, rows, _ = seen.result
    y.detach().zero_()
    assert not rows.any()


@pytest.mark.parametrize("read", ["rows", "numbers"])
def test_a_view_that_the_new_layout_can_not_be_ends_compilation(look, anywhere, read):
    torch.manual_seed(0)
    x, weight = torch.randn(8, 8, 6, 10), torch.randn(4, 480)

    def viewing(x):
        y = F.silu(F.group_norm(F.conv2d(x, x[:, :, :1, :1]), 2))
        rows = y.view(8, -1)
        return rows if read == "rows" else F.linear(rows, weight)

    with torch.no_grad():
        seen = look(viewing, x, passes=[group_norm_silu])
        wanted = viewing(x)
    assert seen.changes[OPERATOR] == 1
    torch.testing.assert_close(seen.result, wanted)


@torch.compiler.allow_in_graph
def turned(x):
    return x.cos_()


@pytest.mark.parametrize("where", ["a function", "a checkpoint"])
def test_a_copy_that_keeps_what_a_body_overwrites_is_gone(look, anywhere, where):
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


@pytest.mark.parametrize("trains", [False, True])
def test_an_activation_in_place_ends_compilation(look, image, anywhere, trains):
    torch.manual_seed(0)
    weight = torch.randn(8, 8, 1, 1)

    def activating(x):
        y = F.silu(F.group_norm(F.conv2d(x, weight), 2), inplace=True)
        return F.conv2d(F.silu(F.group_norm(F.conv2d(y, weight) + y, 2), inplace=True), weight)

    image.requires_grad_(trains)
    seen = look(activating, image, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 2, seen.near
    torch.testing.assert_close(seen.result, activating(image))
    if trains:
        torch.testing.assert_close(
            *(torch.autograd.grad(y.sum(), image) for y in (seen.result, activating(image)))
        )


def test_attention_that_only_reads_ends_the_rewrite(look, anywhere):
    torch.manual_seed(0)
    x, weights = torch.randn(2, 8, 6, 10), torch.randn(2, 8, 8, 1, 1)

    def attending(x):
        y = F.silu(F.group_norm(F.conv2d(x, weights[0]), 2))
        q = y.flatten(2).transpose(1, 2)[:, None]
        z = flex_attention(q, q, q)[:, 0].transpose(1, 2).reshape(y.shape)
        return F.silu(F.group_norm(F.conv2d(y + z, weights[1]), 2))

    with torch.no_grad():
        seen = look(attending, x, passes=[group_norm_silu])
        wanted = attending(x)
    assert seen.changes[OPERATOR] == 2, seen.near
    torch.testing.assert_close(seen.result, wanted, rtol=1e-4, atol=1e-5)


def test_a_result_that_is_written_by_a_view_is_read_after_that(look, anywhere):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    weight, step = torch.randn(8, 8, 1, 1), torch.randn(2, 8, 1, 1)

    def overwriting(x):
        y = F.silu(F.group_norm(F.conv2d(x, weight), 2))
        row = y[0]
        z = y + step
        row.zero_()
        return F.silu(F.group_norm(z, 2)), y

    with torch.no_grad():
        seen = look(overwriting, x, passes=[group_norm_silu])
        wanted = overwriting(x)
    assert seen.changes[OPERATOR] == 2
    torch.testing.assert_close(seen.result, wanted)


@pytest.mark.parametrize("bias", [False, True])
def test_a_time_step_takes_a_pass_of_its_own(look, image, anywhere, bias):
    torch.manual_seed(0)
    model, step = Steps(bias=bias), torch.randn(2, 8)
    with torch.no_grad():
        seen = look(model, image, step, passes=[group_norm_silu])
        wanted = model(image, step)
    (norm,) = seen.nodes("group_norm_silu")
    convolution, shift = norm.args[0], norm.args[6]
    assert convolution.target in {torch.conv2d, torch.ops.aten.conv2d.default}
    assert shift.meta["example_value"].shape == (2, 8)
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


def test_a_step_that_others_read_is_folded_in(look, image, anywhere):
    torch.manual_seed(0)
    model, step = Steps(), torch.randn(2, 8)

    def both(x):
        total = model.conv(x) + step[:, :, None, None]
        return model.last(F.silu(model.norm(total))) + total

    with torch.no_grad():
        seen = look(both, image, passes=[group_norm_silu])
        wanted = both(image)
    (norm,) = seen.nodes("group_norm_silu")
    assert norm.args[6] is None
    torch.testing.assert_close(seen.result, wanted)


def test_a_norm_that_is_fused_with_its_reader_is_taken(look, image, anywhere):
    with torch.no_grad():
        seen = look(
            lambda x: F.relu(F.group_norm(F.conv2d(x, x[:, :, :1, :1]), 2)) + 1,
            image,
            passes=[group_norm_silu],
        )
    assert not seen.changes[OPERATOR]
    assert seen.near == ["neither SiLU follows it nor what reads it from memory"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_rewritten_model_is_further_from_the_truth(prove, image, anywhere, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(Block(dtype=dtype), Block(dtype=dtype))
    work = Workload(model=model, args=(image.to(dtype).requires_grad_(),))
    assert prove(work, passes=[group_norm_silu])[OPERATOR] == 4


@graph_pass()
def as_on_cuda(graph_module):
    """Have group norms and what activates them put channels first, as on CUDA they do."""
    for node in graph_module.graph.nodes:
        if node.target in {F.group_norm, F.silu}:
            value = node.meta["example_value"]
            node.meta["example_value"] = computed(torch.Tensor.contiguous, value)
    return 0


def test_eagers_layout_stays_between_the_calls_with_channels_last(look, anywhere, monkeypatch):
    image = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    model = nn.Sequential(*(Block() for _ in range(2))).to(memory_format=torch.channels_last)
    with torch.no_grad():
        seen = look(model, image, passes=[as_on_cuda, group_norm_silu])
        wanted = model(image)
    assert seen.changes[OPERATOR] == 4
    assert seen.calls("contiguous") == 0
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.stride() == wanted.stride()


@pytest.fixture
def alone(anywhere, lift, monkeypatch):
    lift(group_norm_silu, COPIED=4)
    asked = []
    monkeypatch.setattr(
        kernel, "pays_alone", lambda x, groups, trains: asked.append((groups, trains))
    )
    return asked


def activated(x, weight, bias):
    return F.silu(F.group_norm(x, 4, weight, bias))


@pytest.mark.parametrize("trains", [False, True])
def test_a_norm_alone_is_left_or_moves_a_layout(look, image, alone, trains):
    image.requires_grad_(trains)
    given = image, torch.rand(8), torch.randn(8)
    seen = look(activated, *given, passes=[as_on_cuda, group_norm_silu])
    assert seen.changes[OPERATOR] == 1
    assert seen.calls("group_norm") == seen.calls("contiguous") == 0
    assert alone == [(4, trains)]
    wanted = activated(*given)
    torch.testing.assert_close(seen.result, wanted)
    assert seen.result.is_contiguous()
    if trains:
        dy = torch.randn_like(wanted)
        torch.testing.assert_close(
            *(torch.autograd.grad(y, image, dy) for y in (seen.result, wanted))
        )


def test_a_norm_alone_of_an_image_with_gaps_moves_a_layout(look, alone):
    x = torch.randn(2, 16, 6, 10).contiguous(memory_format=torch.channels_last)[:, ::2]
    given = x, torch.rand(8), torch.randn(8)
    seen = look(activated, *given, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 1
    torch.testing.assert_close(seen.result, activated(*given))
    assert seen.result.stride() == activated(*given).stride()


def test_a_norm_alone_is_further_from_the_truth(prove, alone):
    torch.manual_seed(0)
    model = nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU())
    work = Workload(model=model, args=(torch.randn(2, 8, 6, 10).requires_grad_(),))
    assert prove(work, passes=[group_norm_silu])[OPERATOR] == 1


LEFT_ALONE = {
    "would be copied": Block(),
    "what reads it would be fused with it": lambda x: F.silu(F.group_norm(x, 4)) + 1,
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_a_norm_beside_what_would_be_slower_is_taken(look, alone, reason):
    with torch.no_grad():
        seen = look(LEFT_ALONE[reason], torch.randn(2, 8, 6, 10), passes=[group_norm_silu])
    assert not seen.changes[OPERATOR]
    assert any(reason in near for near in seen.near), seen.near


def test_small_images_alone_are_rewritten(look, anywhere, monkeypatch):
    monkeypatch.setattr(kernel, "PAYS_FROM", 961)
    with torch.no_grad():
        seen = look(Block(), torch.randn(2, 8, 6, 10), passes=[group_norm_silu])
    assert seen.near == ["960 elements: below 961 it was not faster"]


def test_more_is_copied_than_is_won(look, anywhere, lift):
    lift(group_norm_silu, COPIED=4)
    with torch.no_grad():
        seen = look(Block(), torch.randn(2, 8, 6, 10), passes=[group_norm_silu])
    assert seen.near == ["2 norms read 1920 elements, and 1920 would be copied"]


def sample_is_written(x):
    y = F.conv2d(x, x[:, :, :3, :3])
    y[0].zero_()
    return F.silu(F.group_norm(y, 2))


@torch.compiler.allow_in_graph
def opaque(x):
    return x * 2


REFUSED = {
    "may write to conv2d": lambda x: F.silu(F.group_norm(opaque(F.conv2d(x, x[:, :, :3, :3])), 2)),
    "may write to y": sample_is_written,
    "used elsewhere": lambda x: (y := F.group_norm(x, 2)).neg() + F.silu(y),
    "no batch of images": lambda x: F.silu(F.group_norm(x.flatten(2), 2)),
    "may write to silu": lambda x: F.silu(F.group_norm(F.conv2d(x, x[:, :, :3, :3]), 2)).add_(1),
    "no convolution": lambda x: F.silu(F.group_norm(x + 1, 2)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_can_not_be_rewritten_is(look, anywhere, reason):
    x = torch.randn(2, 8, 6, 10)
    seen = look(REFUSED[reason], x, passes=[group_norm_silu])
    assert not seen.changes[OPERATOR]
    assert any(reason in near for near in seen.near), seen.near
    torch.testing.assert_close(seen.result, REFUSED[reason](x))


def test_it_fires_on_a_cpu(look):
    x = torch.randn(2, 8, 6, 10)
    seen = look(lambda x: F.silu(F.group_norm(x, 2)), x, passes=[group_norm_silu])
    assert not seen.changes[OPERATOR]
    assert "it runs on cpu: the kernel is Triton's" in seen.near


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
def test_what_is_written_on_the_way_is_read_as_it_is_then(look, anywhere, program, count):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    given = (x, torch.randn(8, 8, 1, 1), torch.randn(8))
    with torch.no_grad():
        wanted = program(*(t.clone() for t in given))
        seen = look(program, *given, passes=[group_norm_silu])
    torch.testing.assert_close(seen.result, wanted)
    assert seen.changes[OPERATOR] == count, seen.near


def test_a_layer_inside_autocast_ends_compilation(look, anywhere):
    def program(x, weight, bias):
        with torch.autocast("cpu", torch.bfloat16):
            y = F.conv2d(x, weight, bias)
            z = F.conv2d(F.silu(F.group_norm(y, 2)), weight, bias)
        return z  # noqa: RET504 (the graph ends outside)

    torch.manual_seed(0)
    given = torch.randn(2, 8, 6, 20)[..., ::2], torch.randn(8, 8, 1, 1), torch.randn(8)
    with torch.no_grad():
        seen = look(program, *given, passes=[group_norm_silu])
        wanted = program(*given)
    assert seen.result.dtype == wanted.dtype
    torch.testing.assert_close(seen.result, wanted, rtol=0.05, atol=0.05)


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
def test_what_is_written_before_backward_raises(look, anywhere, program, count):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 10).contiguous(memory_format=torch.channels_last)
    given = [t.requires_grad_() for t in (x, torch.randn(8, 8, 1, 1))]
    bias = torch.randn(8)
    wanted = torch.autograd.grad(program(*given, bias.clone()).sum(), given)
    seen = look(program, *given, bias, passes=[group_norm_silu])
    torch.testing.assert_close(torch.autograd.grad(seen.result.sum(), given), wanted)
    assert seen.changes[OPERATOR] == count, seen.near
