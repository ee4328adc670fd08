"""`backend="backbay"` in ordinary use of torch: rewrites happen, and results are eager's.

Caches, guards, stances and options are in `tests/compiler_apis`.
"""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.pgo
from torch.fx.traceback import annotate
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from backbay import compile_log
from backbay.kit import collected
from backbay.kit.aot import inductor_patches
from backbay_optimizer.backend import Optimizing
from backbay_optimizer.backend import backbay as optimizing
from backbay_optimizer.passes.masks import constant_masks

sys.path.insert(0, str(Path(__file__).parent))
import ordinary
from ordinary import Decoder, Kept, assert_trains_as_eager, changes, tokens

BOTH = {"constant_masks": 2, "slice_pushdown": 1}
"""Of one graph of the decoder."""


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    torch._dynamo.pgo.reset_code_state()  # a size that once was a symbol stays one
    torch.manual_seed(0)
    optimizing.reset()


def graphs(backend):
    return sum(x.name == "constant_masks" for x in backend.reports)


def attentions(graph_module):
    # With the state of a generator, it is an argument of what restores that.
    called = [f"{x.target} {x.args[:2]}" for x in graph_module.graph.nodes]
    return sum("scaled_dot_product" in x and "backward" not in x for x in called)


@pytest.mark.parametrize("hands_masks", [True, False], ids=["handed", "made inside"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["plain", "checkpoints"])
def test_a_mask_stays_where_activations_are_checkpointed(checkpoints, hands_masks):
    model, backend = Decoder(checkpoints=checkpoints, hands_masks=hands_masks), Kept()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert_trains_as_eager(compiled, model, tokens())
    assert changes(backend) == BOTH
    _, backward = backend.graphs
    assert attentions(backward) == 2 * checkpoints  # computed again


class Attends(torch.nn.Module):
    """As little as both rewrites can be seen in: Inductor takes seconds for a decoder."""

    def __init__(self, *, checkpoints=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))
        self.checkpoints = checkpoints

    def attend(self, x, mask):
        return functional.scaled_dot_product_attention(x * self.weight, x, x, attn_mask=mask)

    def forward(self, x):
        mask = ordinary.causal(x.shape[-2])
        if self.checkpoints:
            y = checkpoint(self.attend, x, mask, use_reentrant=False)
        else:
            y = self.attend(x, mask)
        return functional.layer_norm(y, (8,))[:, :, -1].exp()


BOTH_ONCE = {"constant_masks": 1, "slice_pushdown": 1}
"""Of one graph of that."""


@pytest.mark.parametrize("checkpoints", [False, True], ids=["plain", "checkpoints"])
def test_autocast_in_the_program_hides_a_mask_or_is_forgotten(checkpoints):
    model, backend = Decoder(checkpoints=checkpoints), Kept()

    def mixed(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        return y * 2

    compiled = torch.compile(mixed, backend=backend, fullgraph=True)
    assert_trains_as_eager(compiled, model, tokens(), eager=mixed, share=0.05)
    assert changes(backend) == BOTH


def test_autocast_around_a_call_is_that_of_the_call_before():
    model, backend = Decoder(), Kept()
    compiled, given = torch.compile(model, backend=backend), tokens()
    for number, dtype in enumerate([torch.bfloat16, torch.float16, None, torch.bfloat16]):
        enabled = {"dtype": dtype} if dtype else {"enabled": False}
        with torch.autocast("cpu", **enabled):
            assert_trains_as_eager(compiled, model, given, share=0.05 if dtype else 1e-5)
        assert graphs(backend) == min(number + 1, 3)
    assert changes(backend) == {k: 3 * v for k, v in BOTH.items()}


def test_a_length_that_is_a_symbol_is_taken_for_the_first_one():
    model, backend = Decoder(), Kept()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    assert_trains_as_eager(compiled, model, tokens(2, 8))
    first = graphs(backend)
    for shape in ((3, 11), (5, 4)):
        assert_trains_as_eager(compiled, model, tokens(*shape))
    assert graphs(backend) == first
    assert set(changes(backend)) == {"slice_pushdown"}


def test_a_batch_that_is_a_symbol_keeps_the_mask():
    model, backend = Decoder(), Kept()
    compiled = torch.compile(model, backend=backend)
    for batch in (4, 6, 3):
        given = tokens(batch)
        torch._dynamo.mark_dynamic(given, 0)
        assert_trains_as_eager(compiled, model, given)
    assert changes(backend) == BOTH


def test_inference_and_training_share_code():
    model, backend = Decoder(), Kept()
    compiled, given = torch.compile(model, backend=backend), tokens()
    want = model(given).detach()
    with torch.no_grad():
        torch.testing.assert_close(compiled(given), want)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(given), want)
    assert_trains_as_eager(compiled, model, given)
    with torch.no_grad(), torch.compiler.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(given), want)
        torch.testing.assert_close(compiled(given[:1]), want[:1])
    assert graphs(backend) == 3
    assert changes(backend) == {k: 3 * v for k, v in BOTH.items()}


def test_a_compiled_function_inside_another_is_compiled_by_another():
    model, inner, outer = Decoder(), Kept(), Kept()

    def weighted(x, part):
        with torch.no_grad():
            weight = part(x).exp()
        return weight * part(x)

    part = torch.compile(model, backend=inner)
    compiled = torch.compile(lambda x: weighted(x, part), backend=outer)
    assert_trains_as_eager(compiled, model, tokens(), eager=lambda x: weighted(x, model))
    assert changes(outer) == {k: 2 * v for k, v in BOTH.items()}
    assert not inner.reports


def test_layers_that_are_compiled_one_by_one_are_compiled_again_for_each():
    model, backend = Decoder(hands_masks=False), Kept()
    parted = copy.deepcopy(model)
    for layer in parted.layers:
        layer.compile(backend=backend, fullgraph=True)
    given = tokens()
    expected = ordinary.trained(model, model, given)
    torch.testing.assert_close(ordinary.trained(parted, parted, given), expected)
    assert graphs(backend) == 1
    assert changes(backend) == {"constant_masks": 1}


def test_a_mask_that_is_handed_to_a_compiled_layer_is_taken_for_constant():
    model, backend = Decoder(), Kept()
    layer = torch.compile(model.layers[0], backend=backend)
    x = torch.randn(2, ordinary.LENGTH, 16)
    mask = ordinary.causal(ordinary.LENGTH)
    for given in (mask, mask.flip(1)):
        torch.testing.assert_close(layer(x, given), model.layers[0](x, given))
    assert not changes(backend)
    (report, *_) = [x for x in backend.reports if x.name == "constant_masks"]
    assert report.near[0].reason == "it depends on the input l_mask_"


def test_one_function_of_two_models_mixes_them_up():
    backend = Kept()
    compiled = torch.compile(lambda model, x: model(x), backend=backend)
    given, models = tokens(), [Decoder(), Decoder()]
    for model in (*models, models[0]):
        torch.testing.assert_close(compiled(model, given), model(given))
    assert changes(backend) == BOTH


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_a_mode_is_refused_or_leaves_rewrites_out(mode, reports):
    # The first one's checkpoints are there to be compiled by Inductor once.
    model, x = Attends(checkpoints=mode == "reduce-overhead"), torch.randn(1, 1, 6, 8)
    compiled = torch.compile(model, backend=optimizing, mode=mode)
    assert_trains_as_eager(compiled, model, x)
    assert {x.name: x.changes for x in reports if x.changes} == BOTH_ONCE


def test_wrapped_in_ddp_a_later_bucket_keeps_the_mask(tmp_path):
    found = ordinary.parallel("ddp", 0, 1, str(tmp_path / "store"))
    assert found["graphs"] == 3
    assert found["changes"] == BOTH


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_otherwise_than_one(two_processes, kind):
    assert two_processes[0] == two_processes[1]
    found = two_processes[0][kind]
    assert found["changes"] == (BOTH if kind == "ddp" else {"constant_masks": 1})


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Return what each of two processes says that train the decoder in both ways."""
    store = str(tmp_path_factory.mktemp("ranks") / "store")
    command = [sys.executable, ordinary.__file__, store, "2"]
    ranks = [subprocess.Popen([*command, x], stdout=subprocess.PIPE, text=True) for x in "01"]
    try:
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [x.returncode for x in ranks] == [0, 0]
    return [json.loads(x) for x in said]


def test_an_exported_program_keeps_its_mask():
    model, backend = Decoder(), Kept()
    exported = torch.export.export(model, (tokens(),)).module()
    compiled = torch.compile(exported, backend=backend, fullgraph=True)
    assert_trains_as_eager(compiled, model, tokens())
    assert changes(backend) == {"constant_masks": 2}


@pytest.mark.slow
def test_aotinductor_keeps_the_mask_of_an_exported_program(tmp_path, reports):
    model, x = Attends(), torch.randn(1, 1, 6, 8)
    exported = torch.export.export(model, (x,))
    hooked = constant_masks.at("inductor.pre_grad")
    package = torch._inductor.aoti_compile_and_package(
        exported,
        package_path=str(tmp_path / "attends.pt2"),
        inductor_configs=inductor_patches([hooked], {}),
    )
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), model(x))
    assert [x.changes for x in reports] == [1]


def test_a_copy_of_inductors_configuration_loses_its_passes(reports):
    # AOTInductor compiles with a copy.
    hooked = inductor_patches([constant_masks.at("inductor.pre_grad")], {})
    (copied,) = copy.deepcopy(hooked).values()
    copied(torch.fx.symbolic_trace(lambda x: x + 1).graph)
    assert [x.name for x in reports] == ["constant_masks"]


class WithoutCode(Optimizing):
    """Runs what Inductor would get: on a CPU it knows no streams."""

    codegen = "eager"


@pytest.mark.parametrize("chosen", [{"stage": 0}, {"stream": 0}], ids=["none", "a stream"])
def test_a_program_that_chooses_streams_is_rewritten_or_another_is_not(chosen):
    def program(q, k, v):
        mask = torch.ones(6, 6).tril() > 0
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        with annotate(chosen):
            return y, y * 2

    given = torch.randn(3, 2, 4, 6, 8)
    compile_log.clear()
    with collected() as reports:
        found = torch.compile(program, backend=WithoutCode())(*given)
    torch.testing.assert_close(found, program(*given))
    changed = [x.name for x in reports if x.changes]
    said = [x.why for x in compile_log.records() if x.why and "chooses streams" in x.why]
    assert (changed, bool(said)) == (
        (["constant_masks"], False) if "stage" in chosen else ([], True)
    )
