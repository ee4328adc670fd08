"""Kernels on GPUs that they were not measured on are left alone, unless they are asked for."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from backbay_optimizer.kernels import (  # noqa: E402
    elsewhere,
    embedding,
    float8_rows,
    linear_cross_entropy,
    max_pool,
    rotated_heads,
    softmax,
)
from backbay_optimizer.kernels.elsewhere import used_elsewhere  # noqa: E402

X = torch.ones(4, 3)


def test_kernels_take_a_place_where_nobody_measured_them(monkeypatch):
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: False)
    assert 'options={"tune": "full"} measures it' in (elsewhere.unmeasured(X) or "")
    with used_elsewhere(lambda plan, _: plan) as now:
        assert not now.asked
        assert elsewhere.unmeasured(X) is None
        assert now.asked
    assert elsewhere.unmeasured(X) is not None
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: True)
    assert elsewhere.unmeasured(X) is None


@pytest.mark.parametrize(
    ("capability", "searched"), [((9, 0), False), ((8, 0), True), ((10, 0), True)]
)
def test_a_measured_gpu_or_a_cpu_is_elsewhere_for(capability, searched, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    with torch._subclasses.FakeTensorMode():
        assert elsewhere._is_elsewhere(torch.empty(2, device="cuda")) is (capability != (9, 0))
    assert not elsewhere._is_elsewhere(X)


def test_a_number_that_varies_is_taken_for_one():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with torch._subclasses.FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(X)
        assert elsewhere._is_symbolic(x)
        assert elsewhere._is_symbolic(x.shape[0])
    assert not any(map(elsewhere._is_symbolic, (X, X.shape[0], 0.5, "silu", None)))


class Noted:
    """A kernel that does nothing, and notes how it is launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        def note(*_, **constants):
            self.launches.append((*grid, constants))

        return note


def rows(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, device="cuda", dtype=dtype)


def images(*shape):
    return rows(*shape).to(memory_format=torch.channels_last)


def embeddings(kernel):
    dy, index = rows(16384, 768), rows(16384, dtype=torch.int64)
    embedding.launch((kernel,) * 4, [dy], [index], [50257], [-1])


WINDOW = [3, 3], [2, 2], [1, 1]


def pooled(kernel):
    max_pool.launch(kernel, images(128, 64, 112, 112), *WINDOW)


def pooled_smaller(kernel):
    max_pool.launch(kernel, images(32, 480, 28, 28), *WINDOW)


def pooled_backward(kernel):
    dy = images(128, 64, 56, 56)
    max_pool.launch_backward(kernel, dy, dy.to(torch.int8), 112, 112, *WINDOW)


def norms(kernel):
    recipe = float8_rows.Recipe("rms_norm", 1e-5)
    float8_rows.launch(kernel, rows(512, 14336), rows(14336), None, recipe)


def heads(kernel):
    both, weights = [rows(1, 512, n, 128) for n in (32, 8)], [rows(128), rows(128)]
    angles = rows(1, 512, 128), rows(1, 512, 128)
    rotated_heads.launch(kernel, both, weights, *angles, rotated_heads.How())


def few_statistics(kernel):
    softmax.launch_statistics(kernel, rows(263, 128256), 1.0)


def statistics(kernel):
    softmax.launch_statistics(kernel, rows(264, 128256), 1.0, is_log=True)


def written(kernel):
    softmax.launch(kernel, rows(264, 128256), 1.0, torch.bfloat16, is_log=False)


def gradients(kernel):
    logits, given = rows(264, 128256), rows(264)
    linear_cross_entropy.launch_gradient(kernel, logits, given, given, given, 128256, 1.0)


def embeddings_of_short_rows(kernel):
    dys, indices = [rows(8192, 64)] * 2, [rows(8192, dtype=torch.int64)] * 2
    embedding.launch((kernel,) * 4, dys, indices, [100_000, 300_000], [-1, -1])


POOL = {"is_large": False, "size_y": 3, "size_x": 3, "stride_y": 2, "stride_x": 2}
POOL |= {"padding_y": 1, "padding_x": 1, "multiple": 8, "num_warps": 4}
LARGE = {"height": 112, "width": 112, "out_height": 56, "out_width": 56, "block_c": 64, **POOL}
SMALL = {"height": 28, "width": 28, "out_height": 14, "out_width": 14, "block_c": 32, **POOL}
STATISTICS = {"chunk": 8192, "is_aligned": True, "depth": 4, "lanes": 1024, "num_warps": 4}
ADDED = {"programs": 1056, "often_from": 16, "together": 4, "block": 1024, "narrow": 16}
ADDED |= {"at_once": 64, "stages": 4, "staged_from": 512, "short": 256, "num_warps": 4}

MEASURED = {  # grids and constants, as they were measured on an H100 or an H200
    embeddings: [
        (64, {"block": 256, "num_warps": 4}),
        (50, {"often_from": 16, "block": 1024, "num_warps": 4}),
        (64, {"block": 256, "num_warps": 4}),
        (13621, ADDED),
    ],
    embeddings_of_short_rows: [
        (64, {"block": 256, "num_warps": 4}),
        (391, {"often_from": 16, "block": 1024, "num_warps": 4}),
        (64, {"block": 256, "num_warps": 4}),
        (7306, {**ADDED, "block": 64, "together": 16, "num_warps": 2}),
        (19806, {**ADDED, "block": 64, "together": 16, "num_warps": 2}),
    ],
    pooled: [(25088, 1, {"block_p": 16, **LARGE})],
    pooled_smaller: [(392, 15, {"block_p": 16, **SMALL})],
    pooled_backward: [(25992, 1, {"block_p": 16, **LARGE})],
    norms: [(512, {"columns": 14336, "width": 16384, "kind": "rms_norm", "num_warps": 8})],
    heads: [(512, 5, {"half": 64, "block": 8, "blocks": 4, "is_alone": False, "num_warps": 4})],
    few_statistics: [(263, 16, {**STATISTICS, "is_log": False})],
    statistics: [(264, 1, {**STATISTICS, "is_log": True})],
    written: [
        (264, {"depth": 4, "lanes": 8192, "num_warps": 32, "is_aligned": True, "is_log": False})
    ],
    gradients: [(264, 63, {"block": 2048, "num_warps": 4})],
}
SEARCHED = [x for x in MEASURED if x is not gradients]  # see its module


@pytest.fixture
def noted(monkeypatch):
    """How something launches kernels on a GPU of a compute capability that isn't there."""

    def launches(launch, capability):
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        kernel = Noted()
        with torch._subclasses.FakeTensorMode():
            launch(kernel)
        return kernel.launches

    return launches


def other(plan, launch):
    """Return a plan of which each field that may be is twice as large, or half."""
    found = {}
    for field, (_, most) in launch.limits.items():
        n = getattr(plan, field)
        found[field] = 2 * n if 2 * n <= most else n // 2
    return plan._replace(**found)


@pytest.mark.parametrize("launch", MEASURED, ids=lambda x: x.__name__)
def test_a_measured_gpu_or_one_that_nobody_asks_for_gets_another_launch(launch, noted):
    assert noted(launch, (8, 0)) == MEASURED[launch]
    with used_elsewhere(other):
        assert noted(launch, (9, 0)) == MEASURED[launch]


@pytest.mark.parametrize("launch", SEARCHED, ids=lambda x: x.__name__)
def test_a_plan_that_was_searched_is_not_launched(launch, noted):
    searched = []

    def search(plan, this):
        searched.append((plan, other(plan, this)))
        return searched[0][1]

    with used_elsewhere(search):
        found = noted(launch, (8, 0))[-1][-1]
    ((first, plan),) = searched
    renamed = {"warps": "num_warps"}
    for field, n in plan._asdict().items():
        name = renamed.get(field, field)
        if field == "chunk" and not n:
            assert found.get(name, 8192) == 8192
            continue
        assert found[name] == n, field
        assert n != getattr(first, field), field


@pytest.mark.parametrize("launch", SEARCHED, ids=lambda x: x.__name__)
def test_what_is_measured_is_beyond_what_is_searched(launch, noted):
    asked = []
    with used_elsewhere(lambda plan, this: asked.append((plan, this)) or plan):
        noted(launch, (8, 0))
    ((plan, this),) = asked
    for field, (least, most) in this.limits.items():
        n = getattr(plan, field)
        assert least <= n <= most or (field, n) == ("chunk", 0)
    assert set(plan._fields) == set(this.limits)


def test_more_pixels_are_searched_than_numbers_have_bits_for():
    assert max_pool.LIMITS["block_p"][1] <= max_pool._BLOCK


def test_a_large_table_is_searched_whole():
    """A check of it would take more memory than a GPU has that trains."""
    with torch._subclasses.FakeTensorMode():
        dy, index = rows(16384, 4096), rows(4, 4096, dtype=torch.int32)
        for words, part in ((1000, 1), (128256, 4)):
            this = embedding._searched((), dy, index, words, -1)
            _, tokens, few, ignored = this.given
            assert (tokens.count, tokens.words) == (16384 // part, -(-words // part))
            assert (few, ignored, tokens.dtype) == (tokens.words, -1, torch.int32)


def test_what_a_search_draws_is_no_token_or_no_place():
    tokens = embedding.Tokens(5000, 300, torch.int32, torch.device("cpu"))
    assert tokens.index.dtype == torch.int32
    assert tokens.index.min() == 0
    assert tokens.index.max() < 300
    counts = tokens.index.bincount()
    assert (counts > embedding.OFTEN).any()
    assert ((counts > 0) & (counts <= embedding.OFTEN)).any()
    drawn = max_pool.Offsets((2, 8, 6, 7), WINDOW, torch.float32, torch.device("cpu"))
    assert drawn.places.is_contiguous(memory_format=torch.channels_last)
    assert set(drawn.places.flatten().tolist()) == set(range(9))
    assert "cpu" not in repr((tokens, drawn))  # plans are kept by it
