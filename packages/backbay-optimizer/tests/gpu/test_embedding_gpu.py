"""An embedding's gradient on a CUDA device: the kernels themselves, and what the backend makes."""

import re

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import embedding as module  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES = [  # words, width, tokens
    (50257, 768, 16384),
    (128256, 4096, 4096),
    (3, 768, 5000),
    (300_000, 64, 8192),
    (40_000, 256, 8192),
    (300, 48, 2000),
    (1025, 33, 77),
    (7, 1, 1),
    (5, 1100, 300),
]


def gradient(dy, index, words, ignored):
    (found,) = module.embeddings_backward([dy], [index], [words], [ignored])
    return found


def inputs(case, dtype):
    words, width, tokens = case
    generator = torch.Generator("cuda").manual_seed(0)
    index = torch.rand(tokens, generator=generator, device="cuda").pow(4).mul(words).long()
    dy = torch.randn(tokens, width, generator=generator, device="cuda").to(dtype)
    return dy, index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_stray_or_are_misread(case, dtype):
    dy, index = inputs(case, dtype)
    words, ignored = case[0], int(index[0]) if case[2] > 1 else -1
    found = gradient(dy, index, words, ignored)
    wanted = module.reference_backward(dy.double(), index, words, ignored)
    eager = torch.ops.aten.embedding_dense_backward(
        dy, index, words, ignored, scale_grad_by_freq=False
    )
    again = gradient(dy.t().contiguous().t(), index.int(), words, ignored)
    # In which order tokens are added differs each time, and with it what float32 rounds off.
    order = 2**-22 * module.reference_backward(dy.abs().double(), index, words, ignored)
    allowed = 1.5 * (eager.double() - wanted).abs().max() + order
    for x in (found, again):
        assert ((x.double() - wanted).abs() <= allowed).all()
        assert not x[ignored].any() or ignored < 0


def test_one_word_alone_strays():
    dy, index = inputs((4, 768, 20000), torch.bfloat16)
    found = gradient(dy, torch.zeros_like(index), 4, -1)
    torch.testing.assert_close(found[0].float(), dy.float().sum(0), rtol=2**-8, atol=1e-2)
    assert not found[1:].any()


def test_offsets_beyond_32_bits_wrap():
    words, width = 300_000, 8192  # 4.9 GB
    dy = torch.ones(3, width, device="cuda", dtype=torch.bfloat16)
    index = torch.tensor([0, words - 1, words - 1], device="cuda")
    found = gradient(dy, index, words, -1)
    assert found[0].unique().tolist() == [1]
    assert found[-1].unique().tolist() == [2]
    assert not found[1:-1].any()


def test_offsets_of_tokens_beyond_32_bits_wrap():
    dy = torch.zeros(270_000, 8192, device="cuda", dtype=torch.bfloat16)
    assert dy[:-600].numel() > 2**31
    dy[-600:].normal_()
    index = torch.full((len(dy),), 3, device="cuda")
    for word, tokens in ((2, 600), (1, 23), (0, 3)):  # each is added in another way
        index[-tokens:] = word
    found = gradient(dy, index, 4, -1)
    wanted = module.reference_backward(dy[-600:].double(), index[-600:], 4, -1)
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("words", [2**31 - 65, 2**31 - 64])
def test_numbers_of_words_wrap(words):
    if torch.cuda.mem_get_info()[0] < 64 * 2**30:
        pytest.skip("needs 64 GB of free memory")
    dy = torch.ones(3, 1, device="cuda", dtype=torch.bfloat16)
    index = torch.tensor([0, words - 1, words - 1], device="cuda")
    assert bool(module.refusal([dy], [index], [words])) == (words == 2**31 - 64)
    found = gradient(dy, index, words, -1)
    assert (found[0].item(), found[-1].item()) == (1, 2)
    assert not found[1:-1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [64, 768])
def test_a_table_among_others_strays_or_gets_a_neighbours_gradient(width, dtype):
    words = [100_000, 3, 1025, 70_000]
    pairs = [inputs((n, width, 3000), dtype) for n in words]
    pairs[2] = pairs[2][0], pairs[2][1].int()
    ignored = [-1, 1, int(pairs[2][1][0]), -1]
    dys, indices = zip(*pairs, strict=True)
    found = module.embeddings_backward(list(dys), list(indices), words, ignored)
    for x, *given in zip(found, dys, indices, words, ignored, strict=True):
        wanted = module.reference_backward(given[0].double(), *given[1:])
        sizes = module.reference_backward(given[0].double().abs(), *given[1:])
        allowed = torch.finfo(dtype).eps * wanted.abs() + 2**-18 * sizes + 2**-22
        assert ((x.double() - wanted).abs() <= allowed).all()
        assert x.untyped_storage().nbytes() == x.nbytes


def test_torch_finds_fault_in_the_registration():
    assert callable(module.embeddings)
    tables = [torch.randn(n, 16, device="cuda", requires_grad=True) for n in (50, 9)]
    indices = [torch.randint(n, (3, 7), device="cuda") for n in (50, 9)]
    torch.library.opcheck(torch.ops.backbay.embeddings.default, (tables, indices, [2, -1]))
    # With integers to add, the same bits each time.
    dys = [torch.randn(3, 7, 16, device="cuda").round_() for _ in indices]
    given = (dys, indices, [50, 9], [2, -1])
    torch.library.opcheck(torch.ops.backbay.embeddings_backward.default, given)


@pytest.mark.parametrize("words", [(200_000, 50_000, 70_000), (50_000,) * 10], ids=["3", "10"])
def test_backbay_leaves_a_recommenders_tables_to_inductor_or_differs(words):
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    torch.manual_seed(0)
    tables = torch.nn.ModuleList(torch.nn.Embedding(n, 64) for n in words)
    learnt = list(tables.to("cuda", torch.bfloat16).parameters())
    index = torch.randint(50_000, (2048, len(words)), device="cuda")
    index[:900, 1] = 7

    def program(index):
        *found, last = [x(index[:, i]) for i, x in enumerate(tables)]
        return torch.stack([*found, last.detach()], 1).float().sin().sum()

    compiled = torch.compile(program, backend=backbay, options={"cuda_graphs": False})
    found, codes = run_and_get_code(
        lambda: torch.autograd.grad(compiled(index), learnt, allow_unused=True)
    )
    assert found[-1] is None
    for kernel, launches in (("order", 1), ("add", len(words) - 1)):
        called = re.findall(rf"embedding_{kernel}_kernel_\d+\.run\(", "".join(codes))
        assert len(called) == launches
    # Not eager's: it adds what comes 900 times in 16 bits, some at a time.
    for i, (x, table) in enumerate(zip(found[:-1], learnt, strict=False)):
        slope = table.detach()[index[:, i]].double().cos()
        wanted = module.reference_backward(slope, index[:, i], len(table), -1)
        torch.testing.assert_close(x.double(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_backbay_leaves_an_embedding_to_inductor(dynamic):
    from torch._inductor.utils import run_and_get_code

    table = torch.randn(32768, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    model = torch.nn.Embedding(32768, 512, _weight=table.detach()).requires_grad_()
    compiled = torch.compile(
        lambda x: F.layer_norm(model(x), (512,)), backend=backbay, dynamic=dynamic
    )
    dy, index = inputs((32768, 512, 4096), torch.bfloat16)

    def step():
        y = compiled(index)
        y.backward(dy)
        return y

    y, codes = run_and_get_code(step)
    assert "embedding_add_kernel" in "".join(codes)
    wanted = F.layer_norm(F.embedding(index, table), (512,))
    torch.testing.assert_close(y, wanted, rtol=2e-2, atol=2e-2)
    (other,) = torch.autograd.grad(wanted, table, dy)
    torch.testing.assert_close(model.weight.grad, other, rtol=3e-2, atol=3e-2)


def test_rows_get_other_words_gradients():
    torch.manual_seed(0)
    weight = torch.randn(768, 768, device="cuda", dtype=torch.bfloat16) * 768**-0.5
    table = torch.randn(50257, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def program(index):
        y = F.embedding(index, table)
        for _ in range(3):  # a partitioner that ordered tokens forward kept some of what is read
            y = torch.tanh(y @ weight)
        return y

    torch.compiler.reset()
    compiled = torch.compile(program, backend=backbay, options={"cuda_graphs": False})
    for _ in range(20):
        index = torch.randint(50257, (8, 512), device="cuda")
        pair = [torch.autograd.grad(x(index).float().sum(), table)[0] for x in (compiled, program)]
        torch.testing.assert_close(*pair, rtol=5e-2, atol=5e-2)
