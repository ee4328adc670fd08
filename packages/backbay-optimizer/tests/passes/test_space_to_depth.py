"""Strides of convolutions of few channels are folded into channels where that is the same.

The pass is for CUDA and 16 bits. Here it is let loose on the CPU, in any dtype and size; whether it
pays, and where, was measured on a GPU, and a test there runs what it makes.
"""

import sys

import pytest
import torch
from hypothesis import HealthCheck, settings, strategies
from hypothesis import given as drawn
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.proof import Workload
from backbay_optimizer.passes.fused_convolutions import fused_convolutions
from backbay_optimizer.passes.parameter_hoist import parameter_hoist
from backbay_optimizer.passes.space_to_depth import space_to_depth

MODULE = sys.modules["backbay_optimizer.passes.space_to_depth"]


@pytest.fixture
def anywhere(lift, monkeypatch):
    """Let the pass work on the CPU, in any dtype, and whatever the size."""
    lift(space_to_depth, DEVICES=("cpu",))
    lift(space_to_depth, DTYPES=(torch.bfloat16, torch.float32, torch.float64))
    monkeypatch.setattr(MODULE, "RESULTS", 0)
    monkeypatch.setattr(MODULE, "RESULTS_OF_PATCHES", 0)


@pytest.fixture
def copied_or_not(anywhere, monkeypatch):
    """Let it work also where so much is copied that it does not pay."""
    monkeypatch.setattr(MODULE, "COPIED", sys.float_info.max)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def images(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype)


STRIDED = {
    "a stem": ((3, 33, 47), (7, 7), {"stride": 2, "padding": 3}),
    "patches": ((3, 32, 48), (16, 16), {"stride": 16}),
    "patches that leave pixels over": ((3, 35, 47), (4, 4), {"stride": 4}),
    "patches of 2 by 2 of one channel": ((1, 8, 6), (2, 2), {"stride": (2, 2)}),
    "a kernel whose last column is beyond": ((3, 30, 31), (5, 5), {"stride": 3, "padding": 1}),
    "another stride in each direction": (
        (4, 20, 21),
        (5, 4),
        {"stride": (2, 3), "padding": (1, 0)},
    ),
    "a stride in one direction": ((3, 12, 20), (4, 5), {"stride": (1, 2), "padding": 2}),
    "images of one column": ((4, 9, 1), (3, 1), {"stride": (2, 1)}),
    "more padding than kernel": ((3, 9, 9), (4, 4), {"stride": 3, "padding": 5}),
    "six channels": ((6, 16, 16), (4, 4), {"stride": 2, "padding": 1}),
    "volumes": ((3, 4, 9, 11), (2, 4, 4), {"stride": (2, 4, 4)}),
    "one patch a volume": ((2, 2, 4, 4), (2, 4, 4), {"stride": (2, 4, 4)}),
}


def convolved(shape, kernel, how):
    """Return a convolution, and inputs of it."""
    torch.manual_seed(0)
    x, w, b = images(2, *shape), images(5, shape[0], *kernel), images(5)
    function = F.conv3d if len(kernel) == 3 else F.conv2d
    return (lambda x, w, b: function(x, w, b, **how)), (x, w, b)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("layout", ["first", "last", "weights last"])
@pytest.mark.parametrize("case", STRIDED.values(), ids=STRIDED)
def test_a_stride_is_not_folded_or_folded_wrongly(look, case, layout):
    program, (x, w, b) = convolved(*case)
    if x.dim() == 4:
        x = channels_last(x) if layout == "last" else x
        w = w if layout == "first" else channels_last(w)
    x, w, b = (y.detach().requires_grad_() for y in (x, w, b))
    seen = look(program, x, w, b, passes=[space_to_depth])
    assert seen.changes["space_to_depth"] == 1, seen.near
    assert all(n.args[3] == [1, 1] for n in seen.nodes("conv2d"))
    expected = program(x, w, b)
    assert seen.result.stride() == expected.stride()
    torch.testing.assert_close(seen.result, expected)
    cotangent = images(*expected.shape)
    found, right = (torch.autograd.grad(y, (x, w, b), cotangent) for y in (seen.result, expected))
    torch.testing.assert_close(found, right)


@pytest.mark.usefixtures("anywhere")
def test_channels_that_are_folded_are_not_in_eights_for_cudnn(look):
    program, given = convolved(*STRIDED["a stem"])
    seen = look(program, *given, passes=[space_to_depth])
    (node,) = seen.nodes("conv2d")
    x, w = (node.args[n].meta["example_value"] for n in range(2))
    assert x.shape == (2, 16, 20, 27)
    assert w.shape == (5, 16, 4, 4)
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in (x, w))


@pytest.mark.usefixtures("copied_or_not")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@drawn(data=strategies.data())
def test_a_size_is_folded_wrongly(look, data):
    small = strategies.integers(1, 4)
    stride = data.draw(strategies.tuples(small, small).filter(lambda x: x != (1, 1)))
    kernel = tuple(n + data.draw(strategies.integers(0, 4)) for n in stride)
    padding = data.draw(strategies.tuples(*(strategies.integers(0, n) for n in kernel)))
    sides = tuple(n + data.draw(strategies.integers(0, 9)) for n in kernel)
    channels = data.draw(strategies.integers(3, 7))
    x, w = images(2, channels, *sides), images(3, channels, *kernel)
    layouts = data.draw(strategies.tuples(strategies.booleans(), strategies.booleans()))
    x, w = (channels_last(y) if last else y for y, last in zip((x, w), layouts, strict=True))
    learns = data.draw(strategies.sampled_from(["images", "weights", "both"]))
    x, w = x.detach().requires_grad_(learns != "weights"), w.requires_grad_(learns != "images")

    def program(x, w):
        return F.conv2d(x, w, stride=stride, padding=padding)

    seen = look(program, x, w, passes=[space_to_depth])
    expected = program(x, w)
    torch.testing.assert_close(seen.result, expected)
    wanted, cotangent = [y for y in (x, w) if y.requires_grad], images(*expected.shape)
    found, right = (torch.autograd.grad(y, wanted, cotangent) for y in (seen.result, expected))
    torch.testing.assert_close(found, right)
    assert seen.result.stride() == expected.stride()
    if 1 not in expected.shape:  # of one pixel, strides may be what they like
        assert seen.changes["space_to_depth"] == 1, seen.near


@pytest.mark.usefixtures("anywhere")
def test_what_follows_a_symbolic_batch_is_compiled_anew_or_wrong(reports):
    program, (x, w, b) = convolved(*STRIDED["a stem"])
    torch.compiler.reset()
    compiled = torch.compile(program, backend="backbay", options={"tune": "off"})
    for batch in (2, 3, 5):
        given = images(batch, *x.shape[1:])
        torch._dynamo.maybe_mark_dynamic(given, 0)
        with torch.no_grad():
            torch.testing.assert_close(compiled(given, w, b), program(given, w, b))
    assert [x.changes for x in reports if x.name == "space_to_depth"] == [1]


class Tokens(nn.Module):
    """Patches of videos, as Qwen's vision models are given them: as many rows as there are."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv3d(3, 5, (2, 4, 4), stride=(2, 4, 4), bias=False)

    def forward(self, rows):
        return self.patches(rows.view(-1, 3, 2, 4, 4)).view(-1, 5)


@pytest.mark.usefixtures("anywhere")
def test_any_number_of_patches_is_compiled_anew(look):
    model, rows = Tokens(), torch.randn(7, 96)
    torch._dynamo.mark_dynamic(rows, 0)
    seen = look(model, rows, passes=[space_to_depth])
    assert seen.changes["space_to_depth"] == 1, seen.near
    assert not seen.calls("conv3d")
    torch.testing.assert_close(seen.result, model(rows))


def stem(stride=2, **how):
    return lambda x, w: F.conv2d(x, w, stride=stride, **how)


LEFT = {
    "without a stride": (stem(1), (3, 7, 7), {}, None),
    "dilated": (stem(dilation=2), (3, 7, 7), {}, "dilated"),
    "in groups": (stem(groups=2), (4, 7, 7), {}, "2 groups"),
    "eight channels": (stem(), (8, 7, 7), {}, "8 channels"),
    "one channel": (stem(), (1, 7, 7), {}, "1 channels"),
    "a kernel smaller than the stride": (stem(4), (3, 3, 7), {}, "a kernel of (3, 7)"),
    "padding by a word": (stem(1, padding="same"), (3, 7, 7), {}, "'same'"),
    "3 by 3 in inference": (stem(), (3, 3, 3), {"last": True}, "nothing is trained"),
    "no batch": (lambda x, w: F.conv2d(x[0], w, stride=2), (3, 7, 7), {}, "no batch"),
    "symbolic sides": (
        lambda x, w: F.conv2d(x, w, stride=2),
        (3, 7, 7),
        {"dynamic": True},
        "symbol",
    ),
    "kernels of volumes that overlap": (
        lambda x, w: F.conv3d(x.unsqueeze(2), w.unsqueeze(2), stride=(1, 2, 2)),
        (3, 7, 7),
        {},
        "three dimensions",
    ),
    "patches of volumes that are padded": (
        lambda x, w: F.conv3d(x.unsqueeze(2), w.unsqueeze(2), stride=(1, 4, 4), padding=(0, 1, 1)),
        (3, 4, 4),
        {},
        "three dimensions",
    ),
    "patches of volumes, of 18 numbers": (
        lambda x, w: F.conv3d(x.unsqueeze(2), w.unsqueeze(2), stride=(1, 3, 2)),
        (3, 3, 2),
        {},
        "18 numbers",
    ),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("name", LEFT)
def test_what_gains_nothing_is_folded(look, name):
    program, (channels, *kernel), how, reason = LEFT[name]
    x, w = images(2, channels, 24, 25), images(4, channels // (1 + (name == "in groups")), *kernel)
    x = channels_last(x) if how.get("last") else x
    seen = look(program, x, w, passes=[space_to_depth], dynamic=how.get("dynamic"))
    assert not seen.changes["space_to_depth"]
    assert len(seen.near) == (reason is not None)
    assert all(reason in said for said in seen.near), seen.near
    torch.testing.assert_close(seen.result, program(x, w))


TRAINED = {
    "a small kernel, of a few results": ((3, 6, 3), True, None),
    "a small kernel": ((3, 32, 3), True, "copied"),
    "a small kernel, channels last": ((3, 32, 3), True, "last"),
    "a small kernel, images learn, too": ((3, 32, 3), True, "both"),
    "a small kernel, nothing learns": ((3, 32, 3), False, None),
    "six channels": ((6, 64, 7), True, "copied"),
    "a large kernel": ((3, 64, 7), True, None),
}


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_copied_is_folded_or_what_is_not_is_left(look, name):
    (channels, results, size), train, how = TRAINED[name]
    x, w = images(2, channels, 24, 24), images(results, channels, size, size)
    x = channels_last(x) if how == "last" else x
    w.requires_grad_(train)
    x.requires_grad_(how == "both")
    seen = look(stem(padding=size // 2), x, w, passes=[space_to_depth])
    assert seen.changes["space_to_depth"] == (how != "copied")
    assert [how in y for y in seen.near] == [True] * (how == "copied")


@pytest.mark.parametrize(("few", "size"), [("RESULTS", 7), ("RESULTS_OF_PATCHES", 2)])
def test_few_results_are_folded(look, lift, few, size):
    x, w = (images(*n, dtype=torch.bfloat16) for n in ((2, 3, 24, 24), (4, 3, size, size)))
    results = stem()(x, w).numel()
    lift(space_to_depth, DEVICES=("cpu",))
    lift(space_to_depth, **{few: results + 1})
    seen = look(stem(), x, w, passes=[space_to_depth])
    assert seen.near == [f"{results} results: it pays from {results + 1} on"]
    lift(space_to_depth, **{few: results})
    assert look(stem(), x, w, passes=[space_to_depth]).changes["space_to_depth"] == 1


def test_another_device_or_dtype_is_taken_without_a_measurement(look, lift):
    x, w = (images(*n, dtype=torch.bfloat16) for n in ((2, 3, 24, 24), (4, 3, 2, 2)))
    assert "it runs on cpu" in look(stem(), x, w, passes=[space_to_depth]).near[0]
    lift(space_to_depth, DEVICES=("cpu",))
    seen = look(stem(), x.float(), w.float(), passes=[space_to_depth])
    assert seen.near == ["it is of torch.float32: it was measured in 16 bits"]


@pytest.mark.parametrize("inside", [True, False], ids=["in the graph", "around it"])
@pytest.mark.parametrize("case", ["patches", "volumes"])
def test_autocast_computes_in_another_dtype(look, lift, case, inside):
    lift(space_to_depth, DEVICES=("cpu",), RESULTS_OF_PATCHES=0)
    program, given = convolved(*STRIDED[case])
    x, w, b = (y.float() for y in given)
    w.requires_grad_()

    def cast(*given):
        with torch.autocast("cpu", torch.bfloat16):
            return program(*given)

    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        seen = look(cast if inside else program, x, w, b, passes=[space_to_depth])
    assert seen.changes["space_to_depth"] == 1, seen.near
    expected = cast(x, w, b)
    assert seen.result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(seen.result, expected, rtol=2e-2, atol=2e-1)
    found, right = (torch.autograd.grad(y.float().sum(), w)[0] for y in (seen.result, expected))
    torch.testing.assert_close(found, right, rtol=2e-2, atol=2e-1)


class Network(nn.Module):
    """A stem as in a residual network, patches, and what reads them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        y = F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)
        z = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(torch.cat([y.flatten(2).mean(-1), z.mean(1)], -1))


NETWORKS = [
    pytest.param("eager", torch.float32),
    pytest.param("eager", torch.bfloat16),
    pytest.param("inductor", torch.float32, marks=pytest.mark.slow),
    pytest.param("inductor", torch.bfloat16, marks=pytest.mark.sweep),
]


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(("codegen", "dtype"), NETWORKS)
def test_a_network_is_wrong(prove, codegen, dtype):
    torch.manual_seed(0)
    model = Network().to(dtype)
    given = images(2, 3, 33, 35, dtype=dtype)  # a gradient of theirs is not wanted
    workload = Workload(model=model, args=(given,), grad_as_given=True)
    changes = prove(workload, passes=[space_to_depth], codegen=codegen)
    assert changes["space_to_depth"] == 2


@pytest.mark.usefixtures("anywhere")
def test_a_stem_is_not_fused_with_its_batch_norm_or_its_weights_are_not_hoisted(look, lift):
    lift(fused_convolutions, DEVICES=("cpu",), LAUNCH=-(2**20), FOLDING=-(2**20))
    model = Network().eval().to(memory_format=torch.channels_last)
    x = channels_last(images(2, 3, 33, 35, dtype=torch.float32))
    passes = [space_to_depth, fused_convolutions]
    with torch.no_grad():
        seen = look(model, x, passes=passes)
        torch.testing.assert_close(seen.result, model(x))
        hoisted = look(model, x, passes=[*passes, parameter_hoist])
        torch.testing.assert_close(hoisted.result, model(x))
    assert seen.changes["fused_convolutions"] == 1, seen.near
    assert hoisted.changes["parameter_hoist"] == 2, hoisted.near  # patches' weights are a view
    assert not hoisted.calls("folded_batch_norms")


@pytest.mark.usefixtures("anywhere")
def test_one_pixel_has_other_strides_or_what_was_tried_stays_in_the_graph(look):
    x, w = channels_last(images(2, 3, 16, 16)), images(5, 3, 16, 16)
    seen = look(stem(16), x, w, passes=[space_to_depth])
    assert seen.near == ["its result would be laid out otherwise"]
    assert not seen.changes["space_to_depth"]
    assert not seen.calls("permute")
    assert seen.result.stride() == stem(16)(x, w).stride()


@pytest.mark.usefixtures("anywhere")
def test_one_of_two_is_reported_as_both(look):
    def program(x, w):
        return stem()(x, w).sum() + stem(dilation=2)(x, w).sum() + stem(7)(x, w).sum()

    seen = look(program, images(2, 3, 28, 28), images(4, 3, 7, 7), passes=[space_to_depth])
    assert seen.changes["space_to_depth"] == 2
    assert seen.near == ["it is dilated"]
    left = [x.target is torch.conv2d for x in seen.nodes("conv2d")]
    assert left == [False, True, False]
