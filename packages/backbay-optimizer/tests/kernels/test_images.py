"""Images with channels last: their memory, and operators' results, of which views leave graphs."""

import re
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from backbay_optimizer.kernels import (  # noqa: E402
    batch_norm,
    depthwise_convolution,
    embedding,
    group_norm_silu,
    images,
    max_pool,
    row_norm,
)

SHAPES = [(2, 3, 5, 4), (1, 1, 1, 1), (2, 4, 6), (2, 3, 4, 5, 6), (0, 3, 2, 2)]
WINDOW = [3, 3], [1, 1], [1, 1]


class Nothing:
    """A kernel that does nothing."""

    def __getitem__(self, grid):
        return lambda *given, **constants: None


BOTH = (Nothing(), Nothing())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_images_are_laid_out_otherwise_than_their_row(shape):
    x = torch.randn(shape)
    made = images.laid_out(x)
    assert torch.equal(made, x)
    assert made.movedim(1, -1).is_contiguous()
    assert torch.equal(images.flattened(made), images.flattened(x))
    assert images.new_images(x, shape, torch.int8).stride() == made.stride()
    assert images.new_images(x, shape, torch.int8).dtype == torch.int8


def four(x: Tensor) -> Tensor:
    return torch.linspace(1, 2, 4, device=x.device)


def depthwise(x: Tensor) -> Tensor:
    weight = torch.ones(4, 1, 3, 3)
    return depthwise_convolution.depthwise_convolution(x, weight, None, *WINDOW[1:])


RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool": lambda x: max_pool.max_pool(x, *WINDOW)[0],
    "depthwise_convolution": depthwise,
    "group_norm_silu": lambda x: group_norm_silu.group_norm_silu(x, None, None, 2, 1e-5)[0],
    "add_group_norm_silu": lambda x: group_norm_silu.add_group_norm_silu(
        x, x.detach(), None, None, 2, 1e-5
    )[0],
    "its sum": lambda x: group_norm_silu.add_group_norm_silu(x, x.detach(), None, None, 2, 1e-5)[1],
    "batch_norm": lambda x: batch_norm.batch_norm(x, four(x), four(x), 1e-5)[0],
    "row_norm": lambda x: row_norm.row_norm(x, four(x), None, 1e-5, 0.0, False)[0],  # noqa: FBT003
    "embeddings": lambda x: embedding.embeddings(
        [x.view(16, 16)], [torch.arange(16).view(4, 4)], [-1]
    )[0],
}


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", RESULTS)
def test_a_view_that_leaves_beside_a_result_is_of_something_else(name, last):
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = RESULTS[name](x)
        return y, y.unsqueeze(0), y.detach(), y[1:]

    x = torch.randn(4, 4, 4, 4)  # so that what is turned has the same form
    if last and name != "embeddings":
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    torch._dynamo.reset()
    found = torch.compile(program, backend="aot_eager", fullgraph=True)(x)
    for one, other in zip(found, program(x), strict=True):
        torch.testing.assert_close(one, other)


LAUNCHES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "max_pool": lambda x, _: max_pool.launch(Nothing(), x, *WINDOW),
    "its gradient": lambda x, _: (
        max_pool.launch_backward(Nothing(), x, x.to(torch.int8), 4, 4, *WINDOW),
    ),
    "depthwise_convolution": lambda x, w: (
        depthwise_convolution.launch(Nothing(), x, w, None, *WINDOW[1:]),
    ),
    "depthwise_convolution_input": lambda x, w: (
        depthwise_convolution.launch_input(*BOTH, x[..., :2, :2], x, w, [2, 2], [1, 1]),
    ),
    "group_norm_silu": lambda x, _: group_norm_silu.launch(
        BOTH, x, None, None, 2, 1e-5, silu=True, residual=x
    )[:2],
    "group_norm_silu_backward": lambda x, _: group_norm_silu.launch_backward(
        BOTH, x, x, None, None, torch.zeros(2, 2), torch.ones(2, 2), 2, silu=True
    )[:1],
}


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernels_images_are_views_or_laid_out_otherwise(name, last):
    x = torch.randn(2, 4, 4, 4)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    for y in LAUNCHES[name](x, torch.randn(4, 1, 3, 3)):
        assert not y._is_view()
        assert y.shape[:2] == x.shape[:2]
        is_last = last or not name.startswith("group_norm")  # others have one layout
        assert (y.movedim(1, -1) if is_last else y).is_contiguous()


WRITTEN = {
    "max_pool": RESULTS["max_pool"],
    "depthwise_convolution": RESULTS["depthwise_convolution"],
    "group_norm_silu": RESULTS["group_norm_silu"],
    "its sum": lambda x: sum(group_norm_silu.add_group_norm_silu(x, x, None, None, 2, 1e-5)[:2]),
    "two of one image": lambda x: torch.cat(
        [max_pool.max_pool(x, [n, n], [1, 1], [n // 2] * 2)[0] for n in (3, 1)]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", WRITTEN)
def test_inductor_fills_or_copies_memory_that_a_kernel_writes(
    name, last, codes_for_cuda, monkeypatch
):
    for module in (max_pool, depthwise_convolution, group_norm_silu):
        monkeypatch.setattr(module, "unfit", lambda *_: None)
    x = torch.randn(4, 4, 4, 4)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    codes = codes_for_cuda(lambda x: WRITTEN[name](x * 2).sin(), x.requires_grad_())
    assert len(codes) == 2
    for code in codes:
        calls = re.findall(r"^ +(\w+?)_\d+\.run\(", code, re.MULTILINE)
        ours = [i for i, call in enumerate(calls) if call.endswith("_kernel")]
        assert ours, calls
        # One kernel computes what each of ours reads, and one what reads them: none is a copy.
        most = 2 * len(ours) + 1 + (name == "depthwise_convolution")
        assert len(calls) <= most, calls
