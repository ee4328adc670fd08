"""What never reaches a foreign engine, whatever it supports, and what it refuses."""

import pytest
import torch
from numpy_engine import engine
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay import compile_log

aten = torch.ops.aten


def test_batch_norm_which_has_empty_results_too_is_left():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    found = engine(supports=None).dry_run(model, torch.randn(2, 3, 8, 8))
    assert [(x.covered, x.left) for x in found.graphs] == [(2, "")]


def test_what_has_no_elements_reaches_the_engine():
    backend = engine(supports=None)
    call = torch.compile(lambda x: (x * 2, (x[:0] * 2).sum(0), x.relu()), backend=backend)
    x = torch.randn(4, 6)
    torch.testing.assert_close(call(x), (x * 2, torch.zeros(6), x.relu()))
    values = [x for p in backend.programs for x in (*p.inputs, *p.results)]
    assert values
    assert all(x.numel() for x in values)


def _squares(node):
    return node.args[0] is node.args[1]


def _with_integers(x, ids, table):
    rows = F.embedding(ids, table) * x[ids % 3]
    best = rows.argmax(-1)
    return rows, best, (ids + 1).float() * x, ids // 3, torch.where(ids > 2, x[0], x[1])


def test_an_engine_looks_elements_up_by_integers_and_computes_none():
    found = []
    backend = engine(supports=lambda _, node: found.append(node.target.overloadpacket))
    x, ids, table = torch.randn(4, 4), torch.tensor([0, 4, 1, 3]), torch.randn(5, 4)
    call = torch.compile(_with_integers, backend=backend)
    torch.testing.assert_close(call(x, ids, table), _with_integers(x, ids, table))
    assert {aten.embedding, aten.index, aten.argmax, aten.where} <= set(found)
    assert not {aten.remainder, aten.add, aten.floor_divide, aten.gt} & set(found)
    assert "computes with integers" in compile_log.records()[0].why


def test_an_engine_that_says_so_computes_integers():
    backend = engine(supports=None, computes_integers=True)
    call, ids = torch.compile(lambda ids: ids * 3 + 1, backend=backend), torch.arange(5)
    assert call(ids).tolist() == [1, 4, 7, 10, 13]
    assert backend.programs


def test_what_an_engine_refuses_is_left_with_its_reason():
    refuses = {
        aten.relu: "is slow",
        aten.neg.default: "is wrong",
        aten.mul: (_squares, "has no squares"),
    }
    backend = engine(supports=None, refuses=refuses)
    call, x = torch.compile(lambda x, y: (-x.relu() * 2, y * y), backend=backend), torch.randn(4)
    y = torch.randn(3)
    torch.testing.assert_close(call(x, y), (-x.relu() * 2, y * y))
    (program,) = backend.programs
    assert [n.target for n in program.graph_module.graph.nodes if "call" in n.op] == [
        aten.mul.Tensor
    ]
    why = compile_log.records()[0].why
    assert all(x in why for x in ("is slow", "is wrong", "has no squares"))


def test_a_graph_that_computes_in_float64_of_float32_is_refused():
    call, x = torch.compile(lambda x: x.double() * 2, backend=engine()), torch.ones(3)
    torch.testing.assert_close(call(x), x.double() * 2)


def test_another_dtype_is_refused_with_the_users_line():
    with pytest.raises(Exception, match=r"computes in float32, and this graph in bfloat16 \(.*:"):
        torch.compile(lambda x: x * 2, backend=engine())(torch.ones(3, dtype=torch.bfloat16))


def test_random_numbers_and_writes_never_reach_the_engine():
    backend = engine(supports=None)
    buffer = torch.zeros(6)

    def step(x):
        buffer.add_(1)
        return F.dropout(x, 0.5) + buffer

    call, x, seen = torch.compile(step, backend=backend), torch.randn(4, 6), []
    for one in (step, call):
        torch.manual_seed(3)
        buffer.zero_()
        seen += [one(x), buffer.clone()]
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert backend.programs
    targets = {n.target for p in backend.programs for n in p.graph_module.graph.nodes}
    assert not targets & {aten.native_dropout.default, aten.copy_.default}
    assert "(draws random numbers)" in compile_log.records()[0].why


def test_what_no_engine_is_handed_is_left_with_the_reason():
    backend = engine(supports=None, devices=("xpu",))
    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(lambda x: x * 2, backend=backend)(x), x * 2)
    assert "aten.mul.Tensor (runs on cpu)" in compile_log.records()[0].why
    compile_log.clear()
    backend = engine(supports=None)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(lambda x: x.nonzero() + x.shape[0], backend=backend)(x)
    assert "aten.nonzero.default (has a size that its data decides)" in compile_log.records()[0].why
    assert "aten.add.Tensor (has a size that its data decides)" in compile_log.records()[0].why
