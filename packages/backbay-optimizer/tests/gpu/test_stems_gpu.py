"""Folded strides on a CUDA device: what cuDNN makes of the stems of networks, and of patches."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay.proof import Workload, make_golden, observe  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FOLDED = "space_to_depth"


class Stem(nn.Module):
    """How residual networks begin, at two sizes of a kernel."""

    def __init__(self, kernel):
        super().__init__()
        self.convolution = nn.Conv2d(3, 64, kernel, stride=2, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(64)
        nn.init.uniform_(self.norm.running_mean, -0.1, 0.1)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x):
        return F.max_pool2d(F.relu(self.norm(self.convolution(x))), 3, 2, 1)


class Patches(nn.Module):
    """How transformers begin that read images or clips."""

    def __init__(self, *size):
        super().__init__()
        of = nn.Conv2d if len(size) == 2 else nn.Conv3d
        self.convolution = of(3, 128, size, stride=size)

    def forward(self, x):
        return self.convolution(x).flatten(2).transpose(1, 2)


MODELS = {
    "7 by 7": (lambda: Stem(7), (32, 3, 97, 131)),
    "3 by 3": (lambda: Stem(3), (32, 3, 97, 131)),
    "patches of an image": (lambda: Patches(16, 16), (32, 3, 224, 240)),
    "patches that leave pixels over": (lambda: Patches(14, 14), (32, 3, 225, 230)),
    "patches of a clip": (lambda: Patches(2, 16, 16), (8, 3, 4, 224, 240)),
    "one patch a clip": (lambda: Patches(2, 14, 14), (2048, 3, 2, 14, 14)),
}


def samples(*shape, dtype=torch.bfloat16, last=False):
    made = torch.randn(shape, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    form = torch.channels_last if last else torch.contiguous_format
    return made.to(dtype, memory_format=form)


def folded(reports):
    return sum(x.changes for x in reports if x.name == FOLDED)


def assert_right(model, x, *, train, learns=False, **options):
    """Demand results and gradients, of the images only if told, as near to the truth as eager's."""
    workload = Workload(model=model, args=(x,), grad_as_given=not learns)
    golden = make_golden(workload, train=train)
    with golden.context(), torch._inductor.config.patch(force_disable_caches=True):
        call = torch.compile(model, backend=backbay, **options)
        proof = golden.judge(observe(call, golden.at(workload), train=train))
    assert proof.passed, proof.worst


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_folded_is_wrong(name, dtype, train, last, reports):
    make, shape = MODELS[name]
    last = last and len(shape) == 4  # eager lays clips out as they come
    torch.manual_seed(0)
    model = make().to("cuda", dtype).train(train)
    model = model.to(memory_format=torch.channels_last) if last else model
    assert_right(model, samples(*shape, dtype=dtype, last=last), train=train)
    assert folded(reports) == (0 if name == "3 by 3" and last != train else 1)


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", ["7 by 7", "patches of an image"])
def test_a_result_is_laid_out_otherwise_than_eagers(name, last, reports):
    make, shape = MODELS[name]
    convolution = make().convolution.to("cuda", torch.bfloat16)
    if last:
        convolution.to(memory_format=torch.channels_last)
    x = samples(*shape, last=last)
    compiled = torch.compile(convolution, backend=backbay)
    with torch.no_grad():
        found, expected = compiled(x), convolution(x)
    assert folded(reports) == 1
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_a_stem_is_not_fused_with_what_follows_it(reports):
    torch.manual_seed(0)
    model = nn.Sequential(Stem(7), nn.Conv2d(64, 64, 3, padding=1, bias=False))
    model.extend([nn.BatchNorm2d(64), nn.ReLU()])
    model = model.to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()
    assert_right(model, samples(32, 3, 224, 224, last=True), train=False)
    changes = {x.name: x.changes for x in reports}
    assert changes[FOLDED] == 1
    assert changes["fused_convolutions"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["7 by 7", "patches of an image"])
def test_weights_that_learn_under_cuda_graphs_are_folded_once(name, reports):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().to("cuda", torch.bfloat16)
    x, weight = samples(*shape), model.convolution.weight
    compiled = torch.compile(model, backend=backbay, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        found, expected = (
            torch.autograd.grad(call(x).float().square().mean(), weight)[0].float()
            for call in (compiled, model)
        )
        assert (found - expected).square().mean() <= 4e-4 * expected.square().mean()
        with torch.no_grad():
            weight.mul_(-1.5)
    assert folded(reports) == 1


@pytest.mark.slow
@pytest.mark.parametrize("trained", [False, True], ids=["weights are frozen", "weights learn"])
@pytest.mark.parametrize("name", MODELS)
def test_images_that_learn_get_a_wrong_gradient(name, trained, reports):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().to("cuda", torch.bfloat16).train(trained).requires_grad_(trained)
    assert_right(model, samples(*shape), train=True, learns=True)
    assert folded(reports) == 1


@pytest.mark.slow
def test_single_precision_is_folded(reports):
    model = Stem(7).to("cuda").eval()
    with torch.no_grad():
        torch.compile(model, backend=backbay)(samples(32, 3, 97, 131, dtype=torch.float32))
    assert folded(reports) == 0
