"""Depthwise convolutions on a CUDA device: the kernels themselves, and in Inductor's code."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import depthwise_convolution as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
CASES = [  # images, channels, height, width, filter, stride, padding
    (2, 96, 14, 14, 7, 1, 3),
    (3, 70, 9, 23, 7, 1, 3),
    (1, 1, 1, 1, 7, 1, 3),
    (2, 33, 15, 17, 5, 2, 2),
    (1, 64, 8, 30, 3, 1, 1),
    (2, 24, 7, 7, 3, 2, 1),
    (1, 8, 9, 9, 7, 1, 6),
    (1, 128, 20, 9, 3, 1, 0),
    (0, 8, 9, 9, 7, 1, 3),
    (2, 144, 56, 56, 5, 2, 2),
    (3, 80, 25, 13, 5, 1, 2),
    (2, 32, 112, 112, 3, 1, 1),
    (2, 96, 30, 31, 3, 2, 1),
    (1, 48, 9, 9, 3, 2, 2),
]
EVERY_DTYPE = [CASES[1], CASES[3], CASES[5]]  # what an element takes changes no index


def inputs(case, dtype):
    images, channels, height, width, size, *_ = case
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator, device="cuda").to(dtype)

    x = draw(images, channels, height, width).contiguous(memory_format=torch.channels_last)
    return x, draw(channels, 1, size, size), draw(channels)


def error(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-6)).item()


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(x, torch.bfloat16) for x in CASES] + [(x, y) for x in EVERY_DTYPE for y in DTYPES[:2]],
    ids=str,
)
def test_results_or_gradients_stray_from_float64(case, dtype):
    *_, stride, padding = case
    given = [t.requires_grad_() for t in inputs(case, dtype)]
    how = ([stride] * 2, [padding] * 2)
    assert module.refusal(given[0], given[1]) is None
    y = module.depthwise_convolution(*given, *how)
    wide = [t.detach().cpu().double().requires_grad_() for t in given]
    wanted = module.reference(*wide, *how)
    assert y.shape == wanted.shape
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert error(y.detach().cpu(), wanted.detach()) < TOLERANCE[dtype]
    dy = torch.randn_like(y)
    found = torch.autograd.grad(y, given, dy)
    for one, other in zip(found, torch.autograd.grad(wanted, wide, dy.cpu().double()), strict=True):
        assert error(one.cpu(), other) < 2 * TOLERANCE[dtype]
    again = torch.autograd.grad(module.depthwise_convolution(*given, *how), given, dy)
    assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("last", [False, True])
def test_a_layout_is_misread(last):
    x, weight, bias = inputs((2, 32, 12, 10, 7, 1, 3), torch.float32)
    x = x if last else x.contiguous()
    strided = torch.cat((x, x), 3)[..., ::2]
    for given in (x, strided, x.transpose(2, 3)):
        y = module.depthwise_convolution(given, weight, bias, [1, 1], [3, 3])
        wanted = module.reference(given.double(), weight.double(), bias.double(), [1, 1], [3, 3])
        assert error(y, wanted) < 1e-5
        dx = module.depthwise_convolution_input(y.contiguous(), given, weight, [1, 1], [3, 3])
        wanted = module.reference_input(y.double(), given.double(), weight.double(), [1, 1], [3, 3])
        assert error(dx, wanted) < 1e-5
        dy = y.contiguous().transpose(2, 3).contiguous().transpose(2, 3)
        found = module.depthwise_convolution_weight(dy, given, weight, [1, 1], [3, 3])
        others = module.reference_weight(
            dy.double(), given.double(), weight.double(), [1, 1], [3, 3]
        )
        assert all(error(*pair) < 1e-5 for pair in zip(found, others, strict=True))


def test_torch_finds_fault_in_the_registration():
    x, weight, bias = inputs((2, 8, 9, 9, 7, 1, 3), torch.float32)
    given = (x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), [1, 1], [3, 3])
    assert callable(module.depthwise_convolution)
    torch.library.opcheck(torch.ops.backbay.depthwise_convolution.default, given)


def test_offsets_beyond_32_bits_are_wrong():
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GB of free memory")
    x = torch.empty(270, 200, 200, 208, device="cuda", dtype=torch.bfloat16).movedim(-1, 1)
    x.normal_()
    assert x.numel() > 2**31
    weight = torch.randn(208, 1, 3, 3, device="cuda", dtype=torch.bfloat16)
    y = module.depthwise_convolution(x, weight, None, [1, 1], [1, 1])
    for at in (0, 269):
        wanted = module.reference(x[at : at + 1].float(), weight.float(), None, [1, 1], [1, 1])
        assert error(y[at : at + 1], wanted.double()) < 8e-3


@pytest.mark.parametrize("stride", [1, 2])
def test_offsets_of_gradients_beyond_32_bits_are_wrong(stride):
    if torch.cuda.mem_get_info()[0] < 18 * 2**30:
        pytest.skip("needs 18 GB of free memory")
    x, dy = (
        torch.zeros(270, side, side, 208, device="cuda", dtype=torch.bfloat16).movedim(-1, 1)
        for side in (200, 200 // stride)
    )
    assert x.numel() > 2**31
    dy.normal_()
    for at in (0, -1):  # all that the filters' gradient depends on
        x[at].normal_()
    weight = torch.randn(208, 1, 3, 3, device="cuda", dtype=torch.bfloat16)
    how = ([stride] * 2, [1, 1])
    dx = module.depthwise_convolution_input(dy, x, weight, *how)
    dweight, dbias = module.depthwise_convolution_weight(dy, x, weight, *how)
    wide = [*(torch.cat((t[:1], t[-1:])).double() for t in (dy, x)), weight.double()]
    wanted = module.reference_input(*wide, *how)
    for at in (0, -1):
        assert error(dx[at], wanted[at]) < 8e-3
    assert error(dweight, module.reference_weight(*wide, *how)[0]) < 8e-3
    assert error(dbias, sum(t.double().sum((0, 2, 3)) for t in dy.split(27))) < 8e-3


class Block(nn.Module):
    """What ConvNeXt repeats, without the product."""

    def __init__(self, channels=384):
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return x + self.norm(self.convolution(x).movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize("train", [False, True])
def test_backbay_leaves_a_block_to_cudnn_or_it_differs(train):
    torch.manual_seed(0)
    x = torch.randn(64, 384, 14, 14, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    model = Block().to("cuda", torch.bfloat16).to(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend=backbay)
    with torch.set_grad_enabled(train):
        y, wanted = (f(x.requires_grad_(train)) for f in (compiled, model))
        assert y.stride() == wanted.stride()
        assert error(y.detach(), wanted.detach().double()) < 1e-2
        if train:
            inputs = (x, *model.parameters())
            dy = torch.randn_like(y)
            found, others = (torch.autograd.grad(z, inputs, dy) for z in (y, wanted))
            for one, other in zip(found, others, strict=True):
                assert error(one, other.double()) < 2e-2
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    with torch.set_grad_enabled(train):
        compiled = torch.compile(model, backend=backbay)
        _, codes = run_and_get_code(lambda: compiled(x).sum().backward() if train else compiled(x))
    assert "depthwise_kernel" in "".join(codes)
    assert ("depthwise_weight_kernel" in "".join(codes)) == train
