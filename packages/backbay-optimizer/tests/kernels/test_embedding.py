"""An embedding's gradient on the CPU: reference, registration, kernels in Triton's interpreter."""

import importlib.util
import re

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402
from torch._higher_order_ops.triton_kernel_wrap import (  # noqa: E402
    triton_kernel_wrapper_functional,
)
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from backbay_optimizer.kernels import conditions, elsewhere  # noqa: E402
from backbay_optimizer.kernels import embedding as module  # noqa: E402


def tokens(words, *shape):
    torch.manual_seed(0)
    return torch.randint(words, shape)


@pytest.mark.parametrize("ignored", [None, 0, 3])
@pytest.mark.parametrize("shape", [(7,), (2, 5), (0,), ()], ids=str)
def test_rows_or_gradients_are_not_torchs(shape, ignored):
    table = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    index = tokens(6, *shape)
    (y,) = module.embeddings([table], [index], [-1 if ignored is None else ignored])
    wanted = F.embedding(index, table, ignored)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0)
    dy = torch.randn_like(y)
    found, other = (torch.autograd.grad(z, table, dy)[0] for z in (y, wanted))
    torch.testing.assert_close(found, other)


def test_sixteen_bits_are_added_in_sixteen_bits():
    dy = torch.full((300, 2), 1.0, dtype=torch.bfloat16)
    index = torch.zeros(300, dtype=torch.long)
    found = module.reference_backward(dy, index, 2, -1)
    assert found[0].tolist() == [300, 300]  # bfloat16 stops at 256
    assert found.dtype == torch.bfloat16


def test_a_second_derivative_is_silently_wrong():
    table = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    (y,) = module.embeddings([table], [tokens(4, 3)], [-1])
    (once,) = torch.autograd.grad(y.square().sum(), table, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad"):
        once.sum().backward()


def test_torch_finds_fault_in_the_registration():
    tables = [torch.randn(n, 4, requires_grad=True) for n in (6, 3)]
    indices = [tokens(6, 2, 3), tokens(3, 5)]
    assert callable(module.embeddings)
    torch.library.opcheck(torch.ops.backbay.embeddings.default, (tables, indices, [1, -1]))
    given = ([torch.randn(2, 3, 4), torch.randn(5, 4)], indices, [6, 3], [1, -1])
    torch.library.opcheck(torch.ops.backbay.embeddings_backward.default, given)


class Nothing:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **constants: self.launches.append((grid, given, constants))


def test_sizes_that_are_symbols_cannot_be_cut():
    kernel = Nothing()

    def program(dy, index):
        return module.launch((kernel,) * 4, [dy], [index], [50], [-1])

    make_fx(program, tracing_mode="symbolic")(torch.randn(2, 8, 16), tokens(50, 2, 8))
    assert len(kernel.launches) == 4


def test_a_plan_is_searched_for_a_small_table(monkeypatch):
    searched = []
    monkeypatch.setattr(module, "plan_here", lambda plan, launch: searched.append(launch) or plan)
    indices = [tokens(n, 5) for n in (9, 50, 7)]
    dys = [torch.randn(5, 16) for _ in indices]
    module.launch((Nothing(),) * 4, dys, indices, [9, 50, 7], [1, 2, 3])
    dy, drawn, *numbers = searched[0].given
    assert dy is dys[1]
    assert (drawn.words, numbers) == (50, [50, 2])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_program_breaks_or_differs(dynamic):
    def program(table, index):
        return module.embeddings([table * 2], [index], [1])[0].sin()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    table = torch.randn(9, 4, requires_grad=True)
    for count in (6, 7):
        index = tokens(9, 2, count)
        found, wanted = compiled(table, index), program(table, index)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), table) for y in (found, wanted)))


def test_a_name_that_is_no_operator_is_found():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing  # noqa: B018 (it raises)


@pytest.mark.parametrize(
    ("words", "width", "shape", "reason"),
    [
        (50257, 768, (16, 1024), None),
        (50257, 768, (64, 1024), "more than words"),
        (50257, 768, (0, 1024), "0 tokens"),
        (1024, 768, (4, 64), "below"),
        (50257, 771, (16, 1024), "begin anywhere"),
        (2000000, 16, (8, 1024), None),
        (2000000, 16, (9, 1024), "if all were one word"),
        (2000000, 32, (9, 1024), None),
        (3 << 16, 256, (64, 1024), None),
        ((3 << 16) - 1, 256, (64, 1024), "rows so short"),
        ((3 << 16) - 1, 272, (64, 1024), None),
    ],
)
def test_it_is_used_where_it_was_not_measured(words, width, shape, reason, monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: elsewhere.MEASURED)
    with torch._subclasses.FakeTensorMode():
        table = torch.empty(words, width, device="cuda", dtype=torch.bfloat16)
        index = torch.empty(shape, device="cuda", dtype=torch.long)
        found = module.unfit_table(table, index) or module.small([table])
    assert found is None if reason is None else reason in found


def test_a_number_of_tokens_that_only_a_run_tells_is_multiplied(monkeypatch):
    monkeypatch.setattr(module, "unfit", lambda x: None)
    monkeypatch.setattr(module, "unmeasured", lambda x: None)
    with torch._subclasses.FakeTensorMode(shape_env=ShapeEnv()) as mode:
        table = torch.empty(50257, 768)
        index = torch.empty(2, mode.shape_env.create_unbacked_symint(), dtype=torch.long)
        assert "only a run tells" in module.unfit_table(table, index)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_tokens_are_ordered_in_forward(monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Driver:
        """Stands for a GPU whose kernels are only read: torch asks them what they write."""

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

    monkeypatch.setattr(driver, "_active", Driver())
    monkeypatch.setattr(module, "refusal", lambda *_: None)

    def program(table, index, weight):
        (y,) = module.embeddings([table], [index], [-1])
        for _ in range(3):
            y = (y @ weight).sin()
        return y

    given = torch.randn(3000, 16, requires_grad=True), tokens(12, 100, 100), torch.randn(16, 16)
    counts = []

    def partition(*joint, **how):
        for part in min_cut_rematerialization_partition(*joint, **how):
            nodes = part.graph.nodes
            counts.append(sum(x.target is triton_kernel_wrapper_functional for x in nodes))
        raise NotImplementedError  # there is no device to run it on

    backend = aot_autograd(
        fw_compiler=None, partition_fn=partition, decompositions=select_decomp_table()
    )
    torch._dynamo.reset()
    with pytest.raises(Exception, match="NotImplementedError"):
        torch.compile(program, backend=backend)(*given)
    assert counts == [0, 4]


def test_a_gradient_that_the_kernels_cannot_take_is_not_refused(monkeypatch):
    monkeypatch.setattr(conditions, "has_triton", lambda: True)
    assert "on cpu" in module.refusal([torch.empty(2, 3)], [torch.empty(2)], [9])
    with torch._subclasses.FakeTensorMode():
        dy, index = torch.empty(5, 3, device="cuda"), torch.empty(5, device="cuda")
        for words in ([2**31], [7, 2**31]):
            given = [dy] * len(words), [index] * len(words)
            most = [*words[:-1], words[-1] - sum(words[:-1]) - 65]
            assert module.refusal(*given, most) is None
            most[-1] += 1
            assert "2147483584 words" in module.refusal(*given, most)
        nothing = torch.empty(0, 3, device="cuda"), torch.empty(0, device="cuda")
        assert module.refusal(*([x] for x in nothing), [9]) == "it is empty"
        assert module.refusal([dy, nothing[0]], [index, nothing[1]], [9, 9]) == "it is empty"
        many, most = torch.empty(2**30, 1, device="cuda"), torch.empty(2**30, device="cuda")
        assert module.refusal([many], [most], [9]) is None
        assert "too many" in module.refusal([many] * 2, [most] * 2, [9, 9])
        for other in (torch.empty(5, 4, device="cuda"), dy.half()):
            assert "differ in dtype" in module.refusal([dy, other], [index] * 2, [9, 9])


INTERPRETED = """
    import torch
    from torch.testing import assert_close
    from backbay_optimizer.kernels import embedding as module
    from backbay_optimizer.kernels import embedding_device as device

    kernels = (
        device.embedding_count_kernel,
        device.embedding_place_kernel,
        device.embedding_order_kernel,
        device.embedding_add_kernel,
    )
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        for words, width, tokens, ignored in (
            (5, 16, 300, -1),  # every word comes often
            (5, 70, 300, 2),
            (40, 33, 90, 0),
            (1100, 8, 30, -1),  # of more than one program's words
            (3, 1, 1, -1),
            (2, 1040, 70, -1),  # of more than one program's columns
        ):
            index = torch.randint(words, (tokens,))
            if words == 40:
                index[:35] = 7
                index = index.int().view(9, 10)
            dy = torch.randn(*index.shape, width).to(dtype)
            given = (dy, index, words, ignored)
            wanted = module.reference_backward(*given)
            plan = module.plan(width)
            other = plan._replace(at_once=16, stages=3, staged_from=40)
            one_by_one = other._replace(short=16)
            for how in (plan, other, one_by_one):
                (found,) = module.launch(kernels, *([x] for x in given), chosen=how)
                assert found.dtype == wanted.dtype and found.shape == wanted.shape
                assert_close(found, wanted)
    # One token more than from which a word comes often, and as many.
    index = torch.tensor([0] * (module.OFTEN + 1) + [1] * module.OFTEN + [2])
    (found,) = module.launch(kernels, [torch.ones(len(index), 16)], [index], [4], [-1])
    assert found[:, 0].tolist() == [module.OFTEN + 1, module.OFTEN, 1, 0]
    outside = torch.tensor([-(2**40), 0, 3, 2**40])
    (found,) = module.launch(kernels, [torch.ones(4, 16)], [outside], [3], [-1])
    assert found[:, 0].tolist() == [1, 0, 0]
    # Of several tables no token is a neighbour's word, and each has a word that comes often.
    indices = [torch.tensor([3, -1, 2, 9, *[0] * 40]), torch.tensor([*[1] * 40, -2]), outside]
    indices[1] = indices[1].int()
    indices[0] = indices[0].view(4, 11)
    dys = [torch.randn(*x.shape, 16) for x in indices]
    words, ignored = [3, 1200, 3], [2, -1, 0]
    for how in (module.plan(16), module.plan(16)._replace(short=8)):
        found = module.launch(kernels, dys, indices, words, ignored, chosen=how)
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in found)
        for x, dy, index, n, none in zip(found, dys, indices, words, ignored, strict=True):
            dy = torch.where(((index >= 0) & (index < n))[..., None], dy, 0.0)
            assert_close(x, module.reference_backward(dy, index.clamp(0, n - 1), n, none))
    print("right")
"""


def test_the_kernels_are_wrong_in_tritons_interpreter(assert_right_in_interpreter):
    assert_right_in_interpreter(INTERPRETED)


DRAWN = """
    import torch
    from hypothesis import given, strategies as st
    from interpreted import few, round_casts
    from torch.testing import assert_close
    from backbay_optimizer.kernels import embedding as module
    from backbay_optimizer.kernels import embedding_device as device

    round_casts()
    few(18)
    DTYPES = [torch.float32, torch.float16, torch.bfloat16]
    module._PROGRAMS = 5  # a program takes several pieces of words that come often
    kernels = (
        device.embedding_count_kernel,
        device.embedding_place_kernel,
        device.embedding_order_kernel,
        device.embedding_add_kernel,
    )

    @given(st.data())
    def check(data):
        draw = data.draw
        dtype = draw(st.sampled_from(DTYPES))
        words, width = draw(st.integers(1, 70)), draw(st.sampled_from([1, 7, 16, 33, 48]))
        leading = draw(st.sampled_from([(300,), (5, 14), (2, 3, 7), (1,)]))
        torch.manual_seed(draw(st.integers(0, 9)))
        asked = draw(st.sampled_from([1, 3, words]))  # of few words each comes often
        index = torch.randint(min(asked, words), leading)
        index = index.to(draw(st.sampled_from([torch.int32, torch.int64])))
        ignored = draw(st.integers(-1, words - 1))
        scale = draw(st.sampled_from([1.0, 2.0**-20, 2.0**9]))
        dy = (scale * torch.randn(*leading, width)).to(dtype)
        dy[index == ignored] = draw(st.sampled_from([1.0, float("inf"), float("nan")]))
        if draw(st.booleans()):
            dy = torch.cat((dy, dy), -1)[..., ::2]
            index = torch.stack((index, index), -1)[..., 0]
        how = module.plan(width)
        other = how._replace(at_once=16, stages=3, staged_from=40)
        how = draw(st.sampled_from([how, other, other._replace(short=16)]))
        given = [dy], [index], [words], [ignored]
        if draw(st.booleans()):
            more = torch.randint(90, (40,))
            place = draw(st.integers(0, 1))
            others = torch.randn(40, width).to(dtype), more, 90, draw(st.integers(-1, 89))
            for x, y in zip(given, others):
                x.insert(place, y)
        every = module.launch(kernels, *given, chosen=how)
        for found, (dy, index, words, ignored) in zip(every, zip(*given), strict=True):
            wanted = module.reference_backward(dy.double(), index, words, ignored)
            sizes = module.reference_backward(dy.double().abs(), index, words, ignored)
            assert found.dtype == dtype and found.shape == wanted.shape
            close = {"rtol": torch.finfo(dtype).eps, "atol": 2**-21 * sizes.max().item()}
            assert_close(found.double(), wanted.to(dtype).double(), **close)

    check()
    print("right")
"""


def test_the_gradient_of_drawn_tokens_strays_from_float64(assert_right_in_interpreter):
    assert_right_in_interpreter(DRAWN)


@pytest.mark.slow
def test_each_tables_tokens_are_numbered_in_a_kernel_of_their_own(codes_for_cuda, monkeypatch):
    monkeypatch.setattr(module, "unfit", lambda *_: None)
    tables = [torch.randn(50, 64).to(torch.bfloat16).requires_grad_() for _ in range(20)]
    index = torch.randint(50, (40, 20))

    def program(index, *tables):
        found = module.embeddings(list(tables), [*index.unbind(1)], [-1] * 20)
        return torch.stack(found, 1).float().sin()

    both = "".join(codes_for_cuda(program, index, *tables))  # tokens may be numbered in either
    calls = re.findall(r"^ +(\w+)_\d+\.run\(", both, re.MULTILINE)
    assert 1 <= sum("where" in x for x in calls) <= 3
    assert calls.count("embedding_add_kernel") == 20
