"""The golden sweep of everything that ships, on a small decoder; and that it can say "wrong"."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from backbay.graph.values import value_of
from backbay.kit.backend import Backend
from backbay.kit.passes import graph_pass
from backbay.proof import Workload
from backbay.workloads.decoder import Decoder, DecoderConfig, returned_loss

TOOL = Path(__file__).parents[2] / "tools" / "golden_sweep.py"
CONFIG = DecoderConfig(vocabulary=64, width=32, layers=1, heads=4, kv_heads=2, hidden=48)
INDUCTOR = {"backbay", "backbay_report", "backbay_silu", "backbay_gelu", "backbay_fold"}


def decoder():
    """Build what `load` asks for; the loss is the model's own."""
    tokens, targets = (torch.randint(CONFIG.vocabulary, (2, 16)) for _ in range(2))
    return Workload(model=Decoder(CONFIG), args=(tokens, targets), loss=returned_loss)


@pytest.fixture(scope="module")
def sweep():
    spec = importlib.util.spec_from_file_location("golden_sweep", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def cases(sweep):
    return list(sweep.cases(f"{__file__}:decoder"))


def wrong(rows):
    return [f"{row} {row.reason}" for row in rows if row.verdict != "right"]


def test_the_sweep_leaves_a_backend_or_a_pass_out(sweep):
    names = {x.name for x in sweep.subjects()}
    assert names >= {*INDUCTOR, "backbay_print", "rewrite_silu", "fold_constants at aten"}
    assert {x.name for x in sweep.subjects() if x.is_aten} >= {
        f"{x} at aten" for x in sweep.AT_BOTH
    }


def test_a_case_is_missing(cases):
    seen = {(x.train, x.dtype, x.dynamic) for x in cases}
    assert len(cases) == 8
    assert all(x.train for x in cases[:4])
    assert seen == {
        (t, d, s) for t in (0, 1) for d in (torch.float32, torch.bfloat16) for s in (0, 1)
    }
    assert all(len(x.goldens) == 1 + x.dynamic for x in cases)


def without_inductor(subject):
    """The same backend with its graph run as it is: all that is ours, and ten times faster."""
    if subject.name not in INDUCTOR:
        return subject
    made = type("Eager", (type(subject.compiler),), {"codegen": "eager"})()
    return dataclasses.replace(subject, compiler=made)


def with_aten_passes_in_one(subjects):
    """Put the passes on ATen graphs into one backend: AOTAutograd takes seconds for each."""
    apart = [x for x in subjects if x.is_control or not x.is_aten]
    passes_of = [x.compiler.passes for x in subjects if x not in apart]
    declared = {"passes": sum(passes_of, ()), "codegen": "eager"}
    one = dataclasses.replace(
        next(x for x in subjects if x not in apart),
        name="all at aten",
        compiler=type("All", (Backend,), declared)(),
    )
    return [*apart, one]


def of_ours_without_inductor(sweep):
    return [without_inductor(x) for x in sweep.subjects() if x.name != "inductor"]


def assert_all_right(rows):
    assert not wrong(rows)
    fired = {row.subject.name for row in rows if any(row.changes.values())}
    assert fired & {"fold_constants", "fold_constants at aten", "all at aten"}


@pytest.mark.parametrize("number", [0, 3, 4])
def test_a_pass_or_a_backend_is_wrong_on_the_decoder(sweep, cases, number):
    """Each dtype, mode and kind of shape is in one of the three."""
    chosen = with_aten_passes_in_one(of_ours_without_inductor(sweep))
    assert {y.name for y in chosen[-1].compiler.passes} == set(sweep.AT_BOTH)
    assert_all_right(list(sweep.swept(cases[number], chosen)))


# In CI the passes on ATen graphs run together, above, and each alone in the command's own run.
@pytest.mark.sweep
@pytest.mark.parametrize("number", range(7))
def test_a_pass_alone_or_a_backend_is_wrong_on_the_decoder(sweep, cases, number):
    chosen = of_ours_without_inductor(sweep)
    assert_all_right(list(sweep.swept(cases[number], chosen)))


def assert_right_with_inductor(sweep, case, names):
    chosen = [x for x in sweep.subjects() if x.name in {"aot_eager", *names}]
    rows = list(sweep.swept(case, chosen))
    assert len(rows) == 1 + len(names)
    assert not wrong(rows)


# In CI `tests/passes/test_decoder.py` has the decoder with every pass and Inductor, and the next
# test has the backend with the most passes, and one of the kit's. The others have fewer passes.
@pytest.mark.sweep
@pytest.mark.parametrize("number", [0, 3], ids=["float32, static", "bfloat16, dynamic"])
def test_a_backend_that_ends_in_inductor_is_wrong_on_the_decoder(sweep, cases, number):
    assert_right_with_inductor(sweep, cases[number], INDUCTOR)


@pytest.mark.slow
def test_a_backend_that_ends_in_inductor_is_wrong_where_every_pass_has_something_to_do(sweep):
    spelled = list(sweep.cases(f"{TOOL}:spelled"))
    case = next(x for x in spelled if x.train and x.dynamic and x.dtype == torch.bfloat16)
    assert_right_with_inductor(sweep, case, {"backbay", "backbay_fold"})


def test_every_pass_has_something_to_do_on_the_spelled_workload(sweep):
    case = next(sweep.cases(f"{TOOL}:spelled"))
    names = {x.name for x in sweep.PASSES}
    chosen = [x for x in sweep.subjects() if x.name in names]
    assert len(chosen) == len(names) == 34
    rows = list(sweep.swept(case, chosen))
    assert not wrong(rows)
    idle = {row.subject.name for row in rows if not any(row.changes.values())}
    # A GPU, attention, and inference: `tests/passes` has that.
    attention = {"constant_masks", "fused_attention", "windowed_attention"}
    gpu = {
        *("batch_norms", "depthwise_convolutions", "embeddings", "fused_counters"),
        *("group_norm_silu", "max_pools", "pooled_convolutions", "row_norms", "silu_to_kernel"),
        *("softmaxes", "space_to_depth"),
    }
    settings = {"narrow_vectors"}  # it changes no graph
    memory = {"linear_cross_entropy"}  # it gains none here
    assert idle == {*gpu, *attention, *settings, *memory, *sweep.INFERENCE}


def test_what_is_for_inference_is_proven_in_training_alone(sweep):
    named = {x.name for x in sweep.subjects() if x.infers and not x.is_aten}
    assert named == {"backbay", *sweep.INFERENCE}


@graph_pass(level="torch")
def halve_what_is_added(graph_module):
    added = [x for x in graph_module.graph.nodes if "add" in x.name][:1]
    for node in added:
        with graph_module.graph.inserting_after(node):
            half = graph_module.graph.call_function(torch.mul, (node, 0.5))
        half.meta = dict(node.meta)
        node.replace_all_uses_with(half, delete_user_cb=lambda user, half=half: user is not half)
    graph_module.recompile()
    return len(added)


@graph_pass(level="torch")
def raise_an_error(graph_module):
    raise ValueError("no such thing")


@graph_pass(level="torch")
def look_at_the_batch(graph_module):
    """Have a guard on the batch; one that leaves a single size would be an error of the pass."""
    values = [value_of(x) for x in graph_module.graph.nodes if x.op == "placeholder"]
    return sum(0 for x in values if isinstance(x, torch.Tensor) and x.ndim and x.shape[0] % 2 == 0)


@pytest.mark.parametrize(
    ("bad", "verdict"),
    [(halve_what_is_added, "WRONG"), (raise_an_error, "FAILED"), (look_at_the_batch, "ANEW")],
)
def test_the_sweep_calls_a_bad_pass_right(sweep, cases, dynamic_case, bad, verdict):
    case = dynamic_case if verdict == "ANEW" else cases[0]
    control = next(x for x in sweep.subjects() if x.name == "aot_eager")
    rows = list(sweep.swept(case, [control, sweep.alone(bad)]))
    assert [x.verdict for x in rows] == ["right", verdict]
    assert rows[1].reason
    assert sweep.exit_code(rows) == 1
    assert sweep.exit_code(rows[:1]) == 1  # nothing of ours was proven


def refusing(name, words):
    """Return a compiler that refuses graphs in which every size is a symbol, as Inductor did."""

    def compiler(graph_module, example_inputs):
        symbols = {str(x) for x in example_inputs if isinstance(x, torch.SymInt)}
        if len(symbols) > 1:
            raise RuntimeError(f"{words} {len(symbols)}")
        return graph_module.forward

    compiler.__name__ = name
    return compiler


def sequences():
    """Build what has two sizes that may be symbols, one of them the batch."""
    return torch.nn.Linear(8, 8), (torch.randn(2, 16, 8),)


@pytest.fixture(scope="module")
def dynamic_case(sweep):
    return next(x for x in sweep.cases(f"{__file__}:sequences") if x.dynamic)


def rows_of(sweep, case, words):
    control = sweep.Subject(name="torchs", compiler=refusing("torchs", "no 3"), is_control=True)
    ours = sweep.Subject(name="ours", compiler=refusing("ours", words))
    return list(sweep.swept_until_shown(case, [control, ours]))


def test_what_torchs_failure_hides_is_called_right_without_another_proof(sweep, dynamic_case):
    rows = rows_of(sweep, dynamic_case, "no 4")
    assert [(x.verdict, x.case.dynamic) for x in rows] == [
        ("FAILED", True),
        ("TORCH'S", True),
        ("right", None),
        ("right", None),
    ]
    assert rows[3].graphs == (1, 1, 0)
    assert len(rows[3].case.goldens) == 3
    assert sweep.exit_code(rows) == 0
    assert sweep.exit_code(rows[:3]) == 1
    assert "batch" in str(rows[3])


def test_a_failure_of_ours_passes_for_torchs_own(sweep, dynamic_case):
    rows = rows_of(sweep, dynamic_case, "another reason")
    assert [x.verdict for x in rows] == ["FAILED", "FAILED"]
    assert sweep.exit_code(rows) == 1


def test_the_batches_of_a_case_repeat_each_other(sweep, dynamic_case):
    third = sweep.by_batch(dynamic_case).goldens[2][0].args[0]
    assert len(third) == 4
    assert len({tuple(x.flatten().tolist()) for x in third}) == 4
