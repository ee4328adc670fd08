"""The operators that a foreign engine gets in the place of others."""

import pytest
import torch
from numpy_engine import engine
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.kit.decompositions import BATCH_NORM, NORMS, WRAPPED_INDICES, core_aten

aten = torch.ops.aten
BY_INDEX = (aten.index.Tensor, aten.index_put.default)
SUMS = (aten.sum.dim_IntList, aten.cumsum.default)


def test_a_reduction_of_everything_comes_without_its_dimensions():
    backend = engine(supports=None)
    call = torch.compile(lambda x, y: (x.amax(), y.amax()), backend=backend)
    x, y = torch.randn(4, 6), torch.tensor(3.0)
    torch.testing.assert_close(call(x, y), (x.amax(), y))
    (program,) = backend.programs
    (node,) = program.graph_module.graph.find_nodes(op="call_function", target=aten.amax.default)
    assert node.args[1] == [0, 1]


def nodes(function, *given, **attributes):
    """Return the nodes that an engine is asked about, once the function's results are right."""
    found = []

    def supports(_, node):
        found.append(node)
        return "here for its nodes"

    backend = engine(supports=supports, **attributes)
    made = torch.compile(function, backend=backend)(*given)
    torch.testing.assert_close(made, function(*given))
    return found


def test_a_variance_comes_without_its_dimensions_or_its_correction():
    def variances(x, number):
        return x.var(), *torch.var_mean(x, 1, keepdim=True), x.std(()), number.var(correction=0)

    found = nodes(variances, torch.randn(4, 6), torch.tensor(3.0))
    variances = [n for n in found if "var" in str(n.target)]
    assert [n.args[1] for n in variances] == [[0, 1], [1], [0, 1], []]
    assert [n.kwargs["correction"] for n in variances] == [1, 1, 1, 0]


def test_a_scattered_source_is_larger_than_its_index():
    def scattered(x, rows):
        added = x.scatter_add(0, rows, x), x.scatter_reduce(0, rows, x, "amax")
        return x.scatter(0, rows, -x), *added, x.scatter(0, rows, 3.0)

    found = nodes(scattered, torch.randn(4, 6), torch.tensor([[1], [3]]).expand(-1, 5))
    scatters = [n for n in found if "scatter" in str(n.target)]
    sources = [n.args[3] for n in scatters]
    assert len(scatters) == 4
    assert [x.meta["val"].shape for x in sources if x != 3] == [(2, 5)] * 3


def test_indices_that_count_from_the_end_are_wrapped_for_those_that_ask():
    def read(x, i, mask):
        put = x.clone()
        put[:, i] = x[:, :3] * 2
        put[mask, i[0]] = x[0, 0]
        return x[-1] * 2, x[1] * 2, x[:, i] * 2, put

    x, mask = torch.randn(4, 6), torch.tensor([True, False, True, True])
    i = torch.tensor([1, -1, -4], dtype=torch.int32)
    found = nodes(read, x, i, mask, decompositions={**core_aten(), **WRAPPED_INDICES})
    numbers = [n.args[2] for n in found if n.target is aten.select.int]
    assert numbers
    assert min(numbers) >= 0
    indices = [x for n in found if n.target in BY_INDEX for x in n.args[1] if x is not None]
    integers = [x for x in indices if x.meta["val"].dtype != torch.bool]
    assert len(integers) == 2
    assert {(x.target, x.meta["val"].dtype) for x in integers} == {(aten.where.self, torch.int64)}
    assert aten.lt.Scalar not in {n.target for n in nodes(read, x, i, mask)}


def test_sums_of_integers_and_booleans_are_taken_in_the_dtype_of_their_result():
    def counted(x):
        near = x > 0
        whole = near.to(torch.int32)
        return near.cumsum(1), near.sum(0, dtype=torch.int32), whole.sum(1), near.sum(), x.sum()

    backend, x = engine(supports=None, computes_integers=True), torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(counted, backend=backend)(x), counted(x))
    (program,) = backend.programs
    sums = [n for n in program.graph_module.graph.nodes if n.target in SUMS]
    assert len(sums) == 5
    assert all(n.args[0].meta["val"].dtype == n.meta["val"].dtype for n in sums)


def test_pooling_along_one_dimension_and_sums_of_booleans_come_as_any_engine_has_them():
    def pooled(x):
        return F.avg_pool1d(x, 2), F.max_pool1d(x, 2), (x > 0) * (x < 1), (x > 0) + (x < 1)

    found = []
    backend = engine(supports=lambda _, node: found.append(node) or "here for its nodes")
    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(pooled, backend=backend)(x), pooled(x))
    pools = [n for n in found if "pool" in n.name]
    assert [n.args[0].meta["val"].ndim for n in pools] == [4, 4]
    assert {aten.logical_and.default, aten.logical_or.default} <= {n.target for n in found}
    assert not {aten.mul.Tensor, aten.add.Tensor} & {n.target for n in found}


def test_any_is_taken_of_booleans():
    backend, x = engine(supports=None), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    made = torch.compile(lambda x: (x.any(1), x.any()), backend=backend)(x)
    torch.testing.assert_close(made, (x.any(1), x.any()))
    (program,) = backend.programs
    read = [n.args[0] for n in program.graph_module.graph.nodes if "any" in n.name]
    assert [x.meta["val"].dtype for x in read] == [torch.bool] * 2


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_batch_norm_in_inference_can_be_taken_apart(affine, shape):
    norm = torch.nn.BatchNorm1d if len(shape) < 4 else torch.nn.BatchNorm2d
    model = norm(3, affine=affine).eval()
    with torch.no_grad():
        for one in (model.running_mean, *model.parameters()):
            one.copy_(torch.randn(3))
        model.running_var.copy_(torch.rand(3) + 0.5)
    found = []
    backend = engine(
        supports=lambda _, node: found.append(node.target) or "here for its nodes",
        decompositions={**core_aten(), **BATCH_NORM},
    )
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    assert aten.rsqrt.default in found
    assert not [x for x in found if "batch_norm" in str(x)]


def targets(function, *given, **attributes):
    found = []

    def supports(_, node):
        found.append(node.target)
        return "here for its nodes"

    backend = engine(supports=supports, **attributes)
    made = torch.compile(function, backend=backend)(*given)
    torch.testing.assert_close(made, function(*given))
    return set(found)


def test_what_an_engine_has_otherwise_is_taken_apart_for_it_alone():
    x = torch.randn(2, 6)
    assert aten.native_layer_norm.default in targets(lambda x: F.layer_norm(x, (6,)), x)
    apart = targets(lambda x: F.layer_norm(x, (6,)), x, decompositions=core_aten(*NORMS))
    assert aten.native_layer_norm.default not in apart
    assert aten.gelu.default in targets(F.gelu, x)
    assert aten.gelu.default not in targets(F.gelu, x, decompositions=core_aten(aten.gelu))


def test_attention_is_whole_unless_it_is_taken_apart():
    q, k, v = torch.randn(3, 2, 2, 4, 8)
    apart = targets(F.scaled_dot_product_attention, q, k, v)
    assert not [x for x in apart if "scaled_dot_product" in str(x)]
    whole = targets(F.scaled_dot_product_attention, q, k, v, decomposes_attention=False)
    assert [x for x in whole if "scaled_dot_product" in str(x)]


def test_products_of_integers_and_squeezes_come_as_any_engine_has_them():
    def function(x):
        whole = (x > 0).to(torch.int32)
        return whole.prod(), whole.prod(1), whole.cumprod(1), x.sum((0, 1)).sqrt()

    found = []
    backend = engine(
        supports=lambda _, node: found.append(node) or "here for its nodes", computes_integers=True
    )
    x = torch.randn(3, 4).abs()
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))
    products = [n for n in found if "prod" in n.name]
    assert {n.args[0].meta["val"].dtype for n in products} == {torch.int64}
    squeezed = torch.randn(1, 3, 1, 4)
    assert aten.squeeze.dims not in targets(lambda x: x.squeeze((0, 2, 3)) * 2, squeezed)
