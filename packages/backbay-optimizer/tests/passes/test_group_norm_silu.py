"""Group norm and SiLU become one call, and layouts move with them; let loose on the CPU here."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.nn.attention.flex_attention import flex_attention

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


def test_a_block_is_left_or_its_result_is_laid_out_otherwise(look, image, norms_anywhere):
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


def test_a_norm_that_leaves_the_graph_ends_compilation(look, norms_anywhere):
    x, weight = torch.randn(2, 8, 6, 10), torch.randn(8, 8, 1, 1)

    def ending(x):
        return F.silu(F.group_norm(F.conv2d(x, weight), 2))

    with torch.no_grad():
        seen = look(ending, x, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 1
    torch.testing.assert_close(seen.result, ending(x))
    assert seen.result.is_contiguous()


def test_a_padding_in_words_ends_compilation(look, image, norms_anywhere):
    model = Block()
    model.convs[1].padding = "same"
    with torch.no_grad():
        wanted = model(image)
        seen = look(model, image, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 2
    torch.testing.assert_close(seen.result, wanted)
    assert [n.args[6] for n in seen.nodes("group_norm_silu")] == [None, None]


def test_channels_come_first_between_the_calls(look, norms_anywhere):
    image = torch.randn(2, 8, 6, 10)
    model = nn.Sequential(*(Block() for _ in range(4)))
    with torch.no_grad():
        seen = look(model, image, passes=[group_norm_silu])
    assert seen.changes[OPERATOR] == 8
    assert seen.calls("contiguous") == 2
    for node in seen.nodes("group_norm_silu"):
        assert kernel.is_channels_last(node.args[0].meta["example_value"])
    torch.testing.assert_close(seen.result, model(image))


def test_what_reads_views_reads_another_layout(look, image, norms_anywhere):
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


def test_pixels_that_are_tokens_are_copied(look, image, norms_anywhere):
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


def test_a_copy_becomes_a_view_that_is_written_to(look, norms_anywhere):
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


def test_a_view_whose_reader_wants_it_as_it_was_ends_the_rewrite(look, norms_anywhere):
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


@pytest.mark.parametrize("as_eager", [False, True])
def test_dropout_of_eagers_numbers_drops_others(look, norms_anywhere, lift, as_eager):
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


@pytest.mark.parametrize("read", ["rows", "numbers"])
def test_a_view_that_the_new_layout_can_not_be_ends_compilation(look, norms_anywhere, read):
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


@pytest.mark.parametrize("trains", [False, True])
def test_an_activation_in_place_ends_compilation(look, image, norms_anywhere, trains):
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


def test_attention_that_only_reads_ends_the_rewrite(look, norms_anywhere):
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


@pytest.mark.parametrize("bias", [False, True])
def test_a_time_step_takes_a_pass_of_its_own(look, image, norms_anywhere, bias):
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


def test_a_step_that_others_read_is_folded_in(look, image, norms_anywhere):
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


def test_a_norm_that_is_fused_with_its_reader_is_taken(look, image, norms_anywhere):
    with torch.no_grad():
        seen = look(
            lambda x: F.relu(F.group_norm(F.conv2d(x, x[:, :, :1, :1]), 2)) + 1,
            image,
            passes=[group_norm_silu],
        )
    assert not seen.changes[OPERATOR]
    assert seen.near == ["neither SiLU follows it nor what reads it from memory"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_rewritten_model_is_further_from_the_truth(prove, image, norms_anywhere, dtype):
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


def test_eagers_layout_stays_between_the_calls_with_channels_last(
    look, norms_anywhere, monkeypatch
):
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
def alone(norms_anywhere, lift, monkeypatch):
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


def test_small_images_alone_are_rewritten(look, norms_anywhere, monkeypatch):
    monkeypatch.setattr(kernel, "PAYS_FROM", 961)
    with torch.no_grad():
        seen = look(Block(), torch.randn(2, 8, 6, 10), passes=[group_norm_silu])
    assert seen.near == ["960 elements: below 961 it was not faster"]


def test_more_is_copied_than_is_won(look, norms_anywhere, lift):
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
def test_what_can_not_be_rewritten_is(look, norms_anywhere, reason):
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


def test_a_layer_inside_autocast_ends_compilation(look, norms_anywhere):
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
