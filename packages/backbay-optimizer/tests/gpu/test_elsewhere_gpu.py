"""On a GPU that takes itself for one that nobody measured: plans are searched, and are right."""

import functools

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from torch._inductor import config  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils import _pytree as pytree  # noqa: E402

from backbay import compile_log  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.kernels import (  # noqa: E402
    batch_norm,
    depthwise_convolution,
    elsewhere,
    embedding,
    few_row_linears,
    float8_rows,
    group_norm_silu,
    linear_epilogue,
    max_pool,
    rotated_heads,
    row_norm,
    softmax,
)
from backbay_optimizer.tuning import found_plans, plan_search, variants  # noqa: E402


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch):
    monkeypatch.setattr(elsewhere, "MEASURED", (8, 0))
    monkeypatch.setattr(found_plans, "_known", {})


def drawn(*shape, last=False):
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return x.to(memory_format=torch.channels_last) if last else x


def depthwise():
    given = drawn(8, 64, 28, 28, last=True), drawn(64, 1, 7, 7), None, [1, 1], [3, 3]
    return depthwise_convolution.depthwise_convolution, given, depthwise_convolution.reference


def depthwise_input():
    images = drawn(8, 64, 14, 14, last=True), drawn(8, 64, 28, 28, last=True)
    given = *images, drawn(64, 1, 5, 5), [2, 2], [2, 2]
    operator = depthwise_convolution.depthwise_convolution_input
    return operator, given, depthwise_convolution.reference_input


def depthwise_weight():
    given = *(drawn(8, 64, 28, 28, last=True) for _ in range(2)), drawn(64, 1, 3, 3), [1, 1], [1, 1]
    operator = depthwise_convolution.depthwise_convolution_weight
    return operator, given, depthwise_convolution.reference_weight


def batch_norms():
    given = drawn(16, 64, 28, 28, last=True), torch.rand(64).cuda(), torch.rand(64).cuda(), 1e-5
    return batch_norm.batch_norm, given, None


def batch_norm_sums():
    images = (drawn(16, 64, 28, 28, last=True) for _ in range(2))
    given = *images, *(torch.rand(64).cuda() + 0.5 for _ in range(4)), "relu"
    return batch_norm.batch_norm_sums, given, batch_norm.reference_sums


def few_rows():
    given = drawn(16, 512), [drawn(256, 512), drawn(128, 512)], [None, None]
    return few_row_linears.few_row_linears, given, few_row_linears.reference


def gated():
    given = drawn(16, 512), drawn(256, 512), drawn(256, 512), None, None, "silu"
    return few_row_linears.gated_linears, given, few_row_linears.gated_reference


def group_norms(*, last):
    given = drawn(2, 64, 64, 64, last=last), drawn(64), drawn(64), 32, 1e-5, True
    return group_norm_silu.group_norm_silu, given, None


def group_norms_backward():
    images = (drawn(2, 64, 64, 64, last=True) for _ in range(2))
    numbers = (torch.rand(2, 32).cuda() + 0.5 for _ in range(2))
    given = *images, drawn(64), drawn(64), *numbers, 32, True
    operator = group_norm_silu.group_norm_silu_backward
    return operator, given, group_norm_silu.reference_backward


def epilogue():
    given = drawn(4096, 256), drawn(512, 256), drawn(512), "gelu"
    return linear_epilogue.linear_epilogue, given, linear_epilogue.reference


def row_norms():
    given = [drawn(512, 1024)], drawn(512, 1024), drawn(1024), None, torch.rand(512, 1).cuda()
    return row_norm.row_norm_backward, (*given, 0.0, None, True), None


def softmaxes():
    given = drawn(600, 4096), 0.5, torch.bfloat16, False, True
    return softmax.softmax, given, None


def softmaxes_read_twice():
    given = drawn(300, 40000), 0.5, torch.bfloat16, True, True
    return softmax.softmax, given, None


def statistics(rows):
    x, target = drawn(rows, 20000), torch.randint(20000, (rows,), device="cuda")
    return softmax.cross_entropy, (x, target, 1.0, -100), None


def embeddings(words=4000):
    index = torch.randint(words, (30, 100), device="cuda")
    given = [drawn(30, 100, 256)], [index], [words], [7]
    return embedding.embeddings_backward, given, reference_of_embeddings


def reference_of_embeddings(*given):
    return list(map(embedding.reference_backward, *given))


WINDOW = [3, 3], [2, 2], [1, 1]


def pooled():
    return max_pool.max_pool, (drawn(4, 64, 56, 56, last=True), *WINDOW), max_pool.reference


def pooled_backward():
    dy = drawn(4, 64, 28, 28, last=True)
    offsets = max_pool.reference(drawn(4, 64, 56, 56, last=True), *WINDOW)[1]
    given = dy, offsets, 56, 56, *WINDOW
    return max_pool.max_pool_backward, given, max_pool.reference_backward


def quantised(kind):
    by = {"": None, "rms_norm": drawn(4096), "silu": drawn(512, 4096)}[kind]
    residual = drawn(512, 4096) if kind == "rms_norm" else None
    given = drawn(512, 4096), by, residual, kind, 1e-5, 0.0, 1e-12, 448.0
    return float8_rows.float8_rows, given, None


def turned():
    heads = [drawn(2, 100, n, 128) for n in (16, 4)]
    angles = drawn(1, 100, 128), drawn(1, 100, 128)
    given = heads, [drawn(128), drawn(128)], *angles, 1e-6, 0.0
    return rotated_heads.rotated_heads, given, None


CASES = {
    f.__name__: f
    for f in (
        *(depthwise, depthwise_input, depthwise_weight, batch_norms, batch_norm_sums, few_rows),
        *(gated, group_norms_backward, epilogue, row_norms, softmaxes, softmaxes_read_twice),
        *(embeddings, pooled, pooled_backward, turned),
    )
}
CASES["group_norms_first"] = lambda: group_norms(last=False)
CASES["group_norms_last"] = lambda: group_norms(last=True)
CASES["statistics_of_parts"] = lambda: statistics(100)
CASES["statistics"] = lambda: statistics(600)
CASES |= {f"quantised_{x}": functools.partial(quantised, x) for x in float8_rows.KINDS}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_within_the_limits_is_wrong(name, caplog, monkeypatch):
    operator, given, reference = CASES[name]()
    written = []
    monkeypatch.setattr(found_plans, "write", lambda key, plan: written.append((key, plan)))
    with elsewhere.used_elsewhere(plan_search.found):
        found = torch.compile(lambda: operator(*given), fullgraph=True)()
    assert written
    assert "is wrong here" not in caplog.text
    wanted = reference(*given) if reference else operator(*given)  # by the H100's plan
    assert _agree(found, wanted)


def _agree(found, wanted):
    """Whether results are alike; of float8, whose sums may be rounded to another, within one."""
    found, wanted = (
        [
            x.bfloat16().asinh() if x.dtype == float8_rows.FLOAT8 else x
            for x in pytree.tree_leaves(y)
        ]
        for y in (found, wanted)
    )
    return plan_search._agree(found, wanted)


def last(text):
    return [x.why for x in compile_log.records() if text in x.why]


@pytest.fixture
def rewrites_pay(monkeypatch):
    """Time variants, but decide by other times: beside other tests theirs say too little."""
    timed = variants.timed

    def paying(arms, *given, **how):
        rounds = {off: len(x) for off, x in timed(arms, *given, **how).items()}
        return {off: [3.0 if off else 1.0] * n for off, n in rounds.items()}

    monkeypatch.setattr(variants, "timed", paying)


@pytest.mark.usefixtures("rewrites_pay")
def test_a_convolution_is_rewritten_unasked_or_only_once(monkeypatch):
    monkeypatch.setattr(plan_search, "LAUNCHES", 3)
    searches, searched = [], plan_search.searched
    monkeypatch.setattr(plan_search, "searched", lambda *x: searches.append(x) or searched(*x))
    conv = torch.nn.Conv2d(384, 384, 7, padding=3, groups=384)
    model = conv.cuda().bfloat16().to(memory_format=torch.channels_last)
    x = drawn(128, 384, 28, 28, last=True)
    wanted = F.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=3, groups=384)

    def uses(tune):
        torch.compiler.reset()
        backbay.reset()
        compile_log.clear()
        with torch.no_grad():
            found = torch.compile(model, backend=backbay, options={"tune": tune})(x)
        torch.testing.assert_close(found.double(), wanted, rtol=0.02, atol=0.02)
        return any("depthwise_convolutions 1x" in x.why for x in compile_log.records())

    assert not uses("cache")
    assert not uses("off")
    assert uses("full")
    assert last("timed: depthwise_convolutions kept")
    assert len(searches) == 1
    found_plans._known.clear()  # as in another process
    assert uses("cache")
    assert last("timed on 20")
    assert len(searches) == 1


def test_a_wrong_kernel_is_used(monkeypatch):
    launched, launch = [], depthwise_convolution.launch

    def twice(*given):
        launched.append(given)
        return 2 * launch(*given)

    monkeypatch.setattr(depthwise_convolution, "plan_here", lambda plan, _: plan)
    monkeypatch.setattr(depthwise_convolution, "launch", twice)
    monkeypatch.setattr(variants, "BUDGET_S", 0.2)
    monkeypatch.setattr(config, "force_disable_caches", True)  # they have right code of this graph
    conv = torch.nn.Conv2d(384, 384, 7, padding=3, groups=384)
    model = conv.cuda().bfloat16().to(memory_format=torch.channels_last)
    x = drawn(128, 384, 28, 28, last=True)
    compile_log.clear()
    with torch.no_grad():
        found = torch.compile(model, backend=backbay, options={"tune": "full"})(x)
        torch.testing.assert_close(found, model(x), rtol=0.02, atol=0.02)
    assert launched
    assert last("is not used: its results are others")
