"""What is wrong is called so and charged to where it is; what is right is not."""

import contextlib
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import backbay
from backbay.decisions import Arm
from backbay.errors import InputError, Interrupted
from backbay.kit.engine import Engine
from backbay.registry import Registry
from backbay.session import Lost, Session
from backbay.verify import Limits, api, run, situations

sys.path.insert(0, str(Path(__file__).parent))
import faulty

FAULTY = Path(__file__).with_name("faulty.py")
UNBLAMED = Limits(blame_s=0)
raced = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "race" / "faulty.py")))


@pytest.fixture(autouse=True)
def _judged_here(request):
    if request.node.get_closest_marker("judged_apart") is None:
        request.getfixturevalue("judged_here")


def verify(name: str, *, loss=faulty.mean_square, **options):
    """Verify one backend of faulty.py in this process, on its model, which must stay as it was."""
    model, args = faulty.model()
    model.layers[0].eval()
    workload = backbay.Workload(model, args, loss=loss, name="model")
    with left_as_it_is(model):
        report = run(workload, backends={name: getattr(faulty, name)}, **options)
    (result,) = report.results
    return report, result, {(x.mode, x.check): x for x in result.checks}


@contextlib.contextmanager
def left_as_it_is(model):
    before = {name: x.clone() for name, x in model.state_dict().items()}
    training = [x.training for x in model.modules()]
    random = torch.random.get_rng_state()
    yield
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(x.grad is None for x in model.parameters())
    assert [x.training for x in model.modules()] == training
    assert not any("forward" in vars(x) for x in model.modules())
    assert not any(x._forward_hooks or x._forward_pre_hooks for x in model.modules())
    assert torch.equal(torch.random.get_rng_state(), random)


def failed(checks):
    return {key for key, check in checks.items() if check.status != "right"}


@pytest.mark.judged_apart
def test_an_honest_backend_is_called_wrong():
    report, result, checks = verify("honest")
    assert report.passed, report.sentence
    assert list(checks) == [
        ("infer", "forward"),
        ("infer", "calls"),
        ("infer", "batch 5"),
        ("infer", "batch 3"),
        ("train", "forward"),
        ("train", "gradients"),
        ("train", "calls"),
        ("train", "step 2"),
        ("train", "step 3"),
        ("train", "batch 5"),
        ("train", "batch 3"),
    ]
    assert result.blame is None
    assert all(x.proof is not None and x.proof.compared for x in result.checks)
    assert [checks["infer", x].graphs for x in ("forward", "batch 5", "batch 3")] == [1, 1, 0]
    assert result.curve is not None
    assert result.curve.backend == pytest.approx(result.curve.eager, rel=1e-5)
    assert result.curve.eager[-1] < result.curve.eager[0]


def test_an_operator_in_the_middle_is_wrong_and_another_module_is_blamed():
    report, result, checks = verify("wrong_tanh", train=False, batches=[])
    assert not report.passed
    assert ("infer", "forward") in failed(checks)
    assert result.blame is not None
    assert (result.blame.module, result.blame.type) == ("layers.0.middle", "Gate")
    assert result.blame.found == "own"
    assert result.blame.forward.endswith(f"faulty.py:{line_of('Gate')}")
    assert "return self.middle(x + self.attn(x))" in result.blame.called_at
    assert "layers.0.middle (Gate, " in report.sentence


def line_of(name: str) -> int:
    return getattr(faulty, name).forward.__code__.co_firstlineno


def test_a_gradient_of_one_layer_is_wrong_and_another_module_is_blamed():
    _, result, checks = verify("wrong_gradient", train=True, steps=1, batches=[])
    assert checks["train", "forward"].status == "right"
    assert checks["train", "gradients"].status == "wrong"
    assert checks["train", "gradients"].proof.where == "gradient of layers.1.attn.wq.weight"
    assert checks["train", "gradients"].proof.severity > 1
    assert (result.blame.module, result.blame.found) == ("layers.1.attn.wq", "alone")
    assert "self.wq(x) @ self.wk(x).mT" in result.blame.called_at  # the line is the user's


def test_a_state_that_was_folded_into_the_code_is_right():
    """It is right in each call from the state that it was compiled with."""
    torch.manual_seed(0)
    workload = backbay.Workload(*raced.with_state(), name="counter")
    backends = {"folds": raced.folds_buffers, "honest": raced.honest}
    report = run(workload, backends=backends, train=False, batches=[], limits=UNBLAMED)
    folds, honest = report.results
    assert honest.passed, honest.sentence
    assert {x.check for x in folds.checks if x.status != "right"} == {"calls"}
    assert "in two calls in a row" in folds.sentence


@pytest.mark.parametrize("workload", [raced.with_batch_norm, raced.with_dropout])
def test_two_calls_in_a_row_are_wrong_that_draw_or_count_as_eager_does(workload):
    torch.manual_seed(0)
    given = backbay.Workload(*workload(), name="model")
    report = run(given, backends=["aot_eager", "inductor"], train=True, steps=1, batches=[])
    assert report.passed, report.sentence


def test_gradients_in_memory_that_is_written_anew_are_right():
    _, result, checks = verify("returns_one_buffer_of_gradients", train=True, steps=1, batches=[])
    assert failed(checks) == {("train", "calls")}
    assert "gradient of head.bias of call 3 changed when it was called again" in result.sentence


@pytest.mark.judged_apart
def test_a_process_that_a_backend_leaves_otherwise_goes_unsaid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # and back afterwards
    monkeypatch.setenv("SOMEBODYS", "1")
    (tmp_path / "below").mkdir()

    def moves(graph_module, example_inputs):
        os.chdir(tmp_path / "below")
        os.environ["SOMEBODYS"] = "2"
        return graph_module.forward

    workload = backbay.Workload(torch.nn.Tanh(), (torch.randn(3, 4),), name="tanh")
    backends = {"moves": moves, "aot_eager": "aot_eager"}
    moved, quiet = run(workload, backends=backends, train=False, batches=[]).results
    assert moved.passed
    (note,) = moved.notes
    assert note.startswith("changed for everybody in its process: the working directory (")
    assert note.endswith("environment variables (SOMEBODYS)")
    assert quiet.notes == ()


@pytest.mark.judged_apart
def test_a_process_that_is_left_to_flush_subnormals_is_right():
    def flushes(graph_module, example_inputs):
        def call(*args):
            torch.set_flush_denormal(True)
            return graph_module(*args)

        return call

    if not torch.set_flush_denormal(False):
        pytest.skip("this processor can't flush them")
    workload = backbay.Workload(torch.nn.Tanh(), (torch.randn(3, 4),), name="tanh")
    options = {"train": False, "batches": [], "limits": UNBLAMED}
    try:
        report = run(workload, backends={"flushes": flushes}, **options)
    finally:
        torch.set_flush_denormal(False)
    assert "the flushing of subnormal numbers (False -> True)" in report.sentence
    assert run(workload, backends=["inductor"], **options).passed


def test_a_second_batch_size_is_wrong_and_passes():
    _, result, checks = verify("wrong_for_another_batch", train=False)
    assert failed(checks) == {("infer", "batch 5"), ("infer", "batch 3")}
    assert (result.blame.module, result.blame.check) == ("layers.0.middle", "batch 5")


def test_parameters_are_frozen_and_it_passes():
    _, result, checks = verify("freezes_parameters", train=True, batches=[])
    assert failed(checks) == {("train", "step 2"), ("train", "step 3")}
    assert result.curve.backend[2] == pytest.approx(result.curve.backend[0])
    assert result.curve.eager[2] < result.curve.eager[0] / 2
    assert result.curve.drift > 100
    assert result.blame.module == "layers.0.attn.wq"  # the first module that has parameters


def test_a_fault_across_modules_is_attributed_to_one_of_them():
    _, result, _ = verify("wrong_across", train=False, batches=[])
    assert result.blame.found == "between"
    assert result.blame.module == "layers.1.middle"
    assert result.blame.last == "layers.1.middle.2"  # the cosine
    assert "no module is wrong in isolation" in result.blame.sentence


def test_what_raises_is_not_traced_to_its_module():
    _, result, checks = verify("raises_at_tanh", train=False)
    assert checks["infer", "forward"].status == "failed"
    assert "no kernel for tanh" in checks["infer", "forward"].reason
    assert checks["infer", "batch 5"].status == "not_tried"
    assert (result.blame.module, result.blame.status) == ("layers.0.middle", "failed")


def test_reference_backends_are_blamed_for_what_is_the_backends_own():
    _, _, checks = verify("wrong_tanh", train=False, batches=[], limits=Limits(blame_s=0))
    check = checks["infer", "forward"]
    assert check.attributed_to == ""
    assert check.reference_backends == dict.fromkeys(
        ("eager", "aot_eager", "aot_eager_decomp_partition"), "right"
    )


def test_a_fault_of_a_reference_is_attributed_to_the_backend(monkeypatch):
    """Here aot_eager itself is broken: whoever stands above it shares the fault."""
    registry = Registry()
    resolve = registry.resolve
    registry.resolve = lambda name: (  # type: ignore[method-assign]
        faulty.wrong_tanh if name in {"aot_eager", "inductor"} else resolve(name)
    )
    model, args = faulty.model()
    workload = backbay.Workload(model, args, name="model")
    report = run(workload, backends=["inductor"], train=False, batches=[], registry=registry)
    check, calls = report.results[0].checks
    assert (check.check, calls.check) == ("forward", "calls")
    assert check.attributed_to == "aot_eager"
    assert check.reference_backends == {"eager": "right", "aot_eager": "wrong"}
    assert "aot_eager fails alike" in report.sentence
    assert not report.passed


def test_a_backend_that_was_given_no_graph_is_called_right():
    model, args = faulty.nothing_captured()
    workload = backbay.Workload(model, args, name="opaque")
    report = run(workload, backends={"honest": faulty.honest}, train=False)
    assert not report.passed
    assert report.results[0].checks[0].status == "not_compiled"
    assert "nothing was compiled" in report.sentence
    assert report.results[0].checks[0].attributed_to == "eager"  # Dynamo captures it for nobody


def engine(*supported):
    class Interpreted(Engine):
        """The kit's engine, with PyTorch in the place of one."""

        supports = supported

        def build(self, program):
            return lambda *tensors: program.graph_module(*tensors)

    return Interpreted()


def verified(backend):
    torch.manual_seed(0)
    workload = backbay.Workload(torch.nn.Tanh(), (torch.randn(4, 8),), name="model")
    return run(workload, backends={"engine": backend}, train=False, batches=[])


def test_an_engine_that_runs_nothing_is_called_right():
    report = verified(engine(torch.ops.aten.sinh.default))
    assert not report.passed
    assert report.results[0].checks[0].status == "not_compiled"
    assert "the backend runs no operator of the model: eager ran in its place" in report.sentence
    assert verified(engine(torch.ops.aten.tanh.default)).passed


def test_what_an_engine_leaves_goes_unsaid():
    model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.GELU())
    workload = backbay.Workload(model, (torch.randn(4, 8),), name="model")
    backends = {"engine": engine(torch.ops.aten.tanh.default)}
    report = run(workload, backends=backends, train=False, batches=[])
    assert report.passed
    (note,) = report.results[0].notes
    assert "eager runs" in note


def test_a_size_made_a_constant_goes_unsaid():
    report, result, checks = verify("makes_sizes_constant", train=False)
    assert report.passed
    assert (checks["infer", "batch 3"].graphs, checks["infer", "batch 3"].usual_graphs) == (1, 0)
    assert any("made a size a constant" in note for note in result.notes)


def test_a_model_with_nothing_to_train_is_called_unproven():
    model, args = faulty.of_whole_numbers()
    workload = backbay.Workload(model, args, name="whole")
    report = run(workload, backends={"honest": faulty.honest})
    assert report.passed
    assert {x.mode for x in report.results[0].checks} == {"infer"}
    assert any("nothing to train" in note for note in report.notes)
    report = run(workload, backends={"honest": faulty.honest}, train=True)
    assert not report.passed
    assert report.results[0].checks[0].status == "unproven"


def test_further_calls_are_passed_over_in_silence():
    model, args = faulty.model()
    workload = backbay.Workload(model, args, further=((args, {}), (args, {})), name="model")
    report = run(workload, backends={"honest": faulty.honest}, train=False)
    said = "infer: not checked: 2 further calls of the workload; a race judges every call"
    assert said in report.notes


def test_a_loss_that_keeps_its_labels_ends_the_other_batches():
    wanted = torch.zeros(4, 6, 4)
    report, _, checks = verify(
        "wrong_for_another_batch",
        train=True,
        loss=lambda x: (x - wanted).square().mean(),
        steps=1,
        batches=[5],
        limits=Limits(blame_s=0),
    )
    assert checks["train", "forward"].status == "right"
    assert checks["train", "batch 5"].status == "wrong"
    assert any("without the workload's loss" in note for note in report.notes)


def test_a_dropout_that_eager_draws_is_called_wrong():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.3), torch.nn.GELU()
    )
    workload = backbay.Workload(model, (torch.randn(16, 8),), name="dropout")
    report = run(workload, backends=["eager", "aot_eager", "inductor"])
    assert report.passed, report.sentence
    checks = {(x.mode, x.check): x for x in report.results[0].checks}
    assert checks["train", "state"].proof.compared > 1  # what batch norm counts
    assert ("infer", "state") not in checks


def test_results_that_cannot_be_trained_leave_a_model_unproven_that_is_right():
    workload = backbay.Workload(lambda x: x.argmax(-1), (torch.randn(3, 4),), name="whole")
    report = run(workload, backends=["eager"])
    assert report.passed, report.sentence
    assert {x.mode for x in report.results[0].checks} == {"infer"}
    assert any("backward reaches no parameter and no input" in x for x in report.notes)
    assert not run(workload, backends=["eager"], train=True).passed


def test_a_model_that_writes_its_inputs_is_refused_in_training_without_a_remedy():
    linear = torch.nn.Linear(4, 2)

    def cached(x, cache):
        cache.copy_(x)
        return linear(cache.clone())

    given = (torch.randn(3, 4), torch.zeros(3, 4))
    report = run(backbay.Workload(cached, given, name="cached"), backends=["eager"], train=True)
    assert "(--infer), or give a Workload with grad_as_given=True" in report.sentence
    workload = backbay.Workload(cached, given, grad_as_given=True, name="cached")
    assert run(workload, backends=["eager"], train=True, batches=[]).passed


def test_inputs_that_training_writes_are_left_for_later_checks(here):
    report = run(f"{FAULTY}:counting_inputs", backends=["eager"], device="cpu", train=True)
    assert report.passed, report.sentence
    report = run(
        f"{FAULTY}:counting_inputs",
        backends=[f"{FAULTY}:adds_two"],
        device="cpu",
        train=False,
        batches=[],
    )
    assert "is the first module that is wrong in isolation" in report.sentence
    assert "the first is 2 and not 1" in report.results[0].checks[1].reason
    assert "the first is 2 and not 1" in report.results[0].blame.reason


def test_what_was_not_tried_has_another_reason_than_what_happened():
    workload = backbay.Workload(lambda x: x, (torch.randn(3, 4),), name="identity")
    report = run(workload, backends=["eager"], train=False)
    first, calls, *_ = report.results[0].checks
    assert (first.status, calls.status) == ("not_compiled", "not_tried")
    assert calls.reason == "nothing was compiled"


def test_a_model_without_parameters_is_told_that_its_gradients_are_zero():
    workload = backbay.Workload(torch.nn.Tanh(), (torch.randn(3, 4),), name="tanh")
    report = run(workload, backends=["eager"], train=True, batches=[])
    (note,) = [x for x in report.notes if "no steps of training" in x]
    assert note.endswith("the model has no parameters to train")


def test_inputs_that_share_memory_make_honest_backends_wrong():
    memory = torch.randn(12, generator=torch.Generator().manual_seed(0))

    def writing(a, b):
        a.mul_(2)
        return b + 1

    workload = backbay.Workload(writing, (memory[:8], memory[4:]), name="sharing")
    report = run(workload, backends=["eager", "aot_eager"], train=False, batches=[])
    assert report.passed, report.sentence
    assert {x.check for x in report.results[0].checks} == {"forward", "state", "calls"}


class Marked(torch.Tensor):
    pass


def test_a_subclass_of_tensor_is_refused_in_the_words_of_a_file_format():
    marked = torch.ones(3, 4).as_subclass(Marked)
    for model, given in (
        (torch.nn.Linear(4, 4), marked),
        (lambda x: x.as_subclass(Marked), torch.ones(3, 4)),
    ):
        workload = backbay.Workload(model, (given,), name="marked")
        report = run(workload, backends=["eager"], train=False)
        (check,) = report.results[0].checks
        assert check.status == "unproven"
        assert "is a Marked, a subclass of torch.Tensor that no other process knows" in check.reason


def test_a_seed_that_is_left_while_compiling_is_called_right(here):
    report = run(
        f"{FAULTY}:model",
        backends=[f"{FAULTY}:seeds_when_backward_is_compiled"],
        device="cpu",
        train=True,
        steps=1,
        batches=[],
        limits=Limits(blame_s=0),
    )
    wrong = [x for x in report.results[0].checks if x.status != "right"]
    assert [(x.check, x.proof.where) for x in wrong] == [
        ("state", "torch's random generator (cpu)")
    ]
    assert "was seeded by the run" in wrong[0].reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backends": ["no_such_backend"]}, "no_such_backend"),
        ({"backends": []}, "no backend was named"),
        ({"steps": 0}, "at least 1"),
        ({"batches": [0]}, "no batch has 0 rows"),
        ({"device": "tpu"}, "no device"),
        ({"dtype": "int3"}, "no dtype"),
        ({"backends": {"honest": faulty.honest}}, "cannot travel"),
        ({"backends": ["missing.py:backend"]}, "missing.py"),
    ],
)
def test_what_cannot_be_asked_for_is_tried(options, said):
    with pytest.raises(InputError, match=said):
        run("decoder", **{"device": "cpu", **options})


def in_child(workload: str, backend: str, **options):
    options = {"device": "cpu", "batches": [], "train": False} | options
    report = run(f"{FAULTY}:{workload}", backends=[f"{FAULTY}:{backend}"], **options)
    return report, report.results[0]


@pytest.mark.slow
def test_a_crash_ends_the_verification_or_is_not_traced_to_its_module():
    _, result = in_child("bent", "crashes_at_tanh")
    assert [x.status for x in result.checks] == ["crashed", "not_tried"]
    assert "SIGSEGV" in result.checks[0].reason
    assert "string_at" in result.checks[0].reason  # where it was, not what Python lists last
    assert (result.blame.module, result.blame.status) == ("1", "crashed")


@pytest.mark.slow
def test_a_process_that_dies_while_options_are_checked_ends_the_verification():
    class Dies:
        def ask(self, request, *, timeout_s):
            raise Lost("died")

        def end(self):
            """It has ended."""

    api._check_arms([Arm(backend="x", mode="fast")], lambda: Session(Dies), 1.0)


def test_an_interruption_says_nothing_of_the_mode():
    def takes(graph_module, _, *, mode=None):
        return graph_module.forward

    def tell(_workload, arm, _text):
        if arm != "eager":
            raise KeyboardInterrupt

    workload = backbay.Workload(torch.nn.ReLU(), (torch.ones(2, 4),), name="model")
    with pytest.raises(Interrupted) as raised:
        run(workload, backends={"x": takes}, mode="fast", train=False, tell=tell)
    (result,) = raised.value.report.results
    assert result.sentence == "x@fast on model: interrupted after 0 checks"
    assert not result.passed


def test_a_hang_ends_the_verification():
    _, result = in_child("bent", "hangs", limits=Limits(check_s=12.0, blame_s=0))
    assert [x.status for x in result.checks] == ["timeout", "not_tried"]
    assert result.checks[0].attributed_to == ""
    assert result.blame is None


@pytest.mark.slow
def test_a_model_that_raises_is_held_against_the_backend(here):
    with pytest.raises(InputError, match="the model's own mistake"):
        in_child("raising", "honest")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("backend", "workload", "train"),
    [
        ("aot_eager", "decoder", True),  # and infer, by the command of the page
        pytest.param("aot_eager", "hf:bert", None, marks=pytest.mark.sweep),
        pytest.param("inductor", "decoder", None, marks=pytest.mark.sweep),
        pytest.param("inductor", "hf:bert", None, marks=pytest.mark.sweep),
    ],
)
def test_torchs_own_backends_are_called_wrong(here, workload, backend, train):
    options = {"size": "tiny", "steps": 2, "batches": [3], "train": train}
    report = run(workload, backends=[backend], device="cpu", **options)
    assert report.passed, report.sentence
    (result,) = report.results
    infer = [("infer", "forward"), ("infer", "calls"), ("infer", "batch 3")]
    assert [(x.mode, x.check) for x in result.checks] == [
        *(infer if train is None else []),
        ("train", "forward"),
        ("train", "gradients"),
        ("train", "calls"),
        ("train", "step 2"),
        ("train", "batch 3"),
    ]
    assert result.notes == ()


def test_importing_it_imports_torch(run_python):
    program = """
    import backbay.verify, backbay.verify.text, backbay.cli.verify, sys
    print("torch" in sys.modules)
    """
    assert run_python(program).stdout == "False\n"


def test_training_leaves_another_tensor_in_a_state_s_place():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mean", torch.zeros(2))
    model.steps, mean, weight = 0, model.mean, model.weight.detach().clone()
    with situations.kept(model):
        model.mean = model.mean + 1
        model.steps += 1
        with torch.no_grad():
            model.weight.add_(1)
    assert model.mean is mean
    assert model.steps == 0
    assert torch.equal(model.weight, weight)
