"""What a backend can lose while its numbers are right, and whether the golden outcome sees it."""

import dataclasses
import math
import random
import warnings

import pytest
import torch
from torch import nn

from backbay.proof import (
    Golden,
    ProofImpossible,
    Step,
    Workload,
    digest,
    evidence,
    make_golden,
    observe,
)
from backbay.proof.fingerprint import fingerprint
from backbay.proof.shrink import shrunk


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.linear = nn.Linear(16, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        h = self.norm(x)
        return {"logits": self.linear(h), "view": x[:2], "steps": 3, "hidden": h.detach()}


@pytest.fixture
def workload():
    torch.manual_seed(0)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    return Workload(model=Net(), args=(x,), name="net")


@pytest.fixture
def golden(workload):
    return make_golden(workload, train=True)


@pytest.fixture
def outcome(workload):
    return observe(workload.model, workload, train=True)


def broken(golden, outcome, **changes):
    proof = golden.judge(dataclasses.replace(outcome, **changes))
    assert not proof.passed
    with pytest.raises(AssertionError):
        proof.raise_if_wrong()
    return f"{proof.worst.where}: {proof.worst.reason}"


def test_eager_is_right(golden, outcome):
    proof = golden.judge(outcome)
    assert proof.passed
    assert not proof.failures
    assert "gradient of linear.weight" in {v.where for v in proof.verdicts}
    assert "buffer norm.running_mean after the run" in {v.where for v in proof.verdicts}


def test_detached_output_is_caught(golden, outcome):
    flags = outcome.requires_grad | {"output.logits": False}
    assert "is detached" in broken(golden, outcome, requires_grad=flags)


def test_detached_output_is_caught_where_only_the_loss_is_used(workload):
    workload = dataclasses.replace(workload, loss=lambda out: out["logits"].square().mean())
    golden = make_golden(workload, train=True)
    assert "loss" in golden.eager.tensors

    def detaching(x):
        return {k: v.detach() if k != "steps" else v for k, v in workload.model(x).items()}

    proof = golden.judge(observe(detaching, workload, train=True))
    reasons = {f"{v.where}: {v.reason}" for v in proof.failures}
    assert any("is None: backward does not reach it" in reason for reason in reasons)
    assert any("output.logits: is detached" in reason for reason in reasons)


@pytest.mark.parametrize("by", [1.001, 1.01])
def test_wrong_gradient_is_caught(golden, outcome, by):
    name = "gradient of linear.weight"
    gradients = outcome.gradients | {name: outcome.gradients[name] * by}
    assert name in broken(golden, outcome, gradients=gradients)


def test_missing_and_extra_gradients_are_caught(golden, outcome):
    assert outcome.gradients["gradient of unused.weight"] is None
    lost = outcome.gradients | {"gradient of linear.weight": None}
    assert "backward does not reach it" in broken(golden, outcome, gradients=lost)
    extra = outcome.gradients | {"gradient of unused.weight": torch.zeros(2, 2)}
    assert "though eager's is None" in broken(golden, outcome, gradients=extra)


def test_lost_and_extra_mutation_are_caught(golden, outcome):
    assert "was not updated" in broken(golden, outcome, changed={})
    extra = outcome.changed | {"args[0]": torch.zeros(8, 16)}
    assert "eager leaves it as it is" in broken(golden, outcome, changed=extra)


def test_overwritten_parameter_is_caught(golden, workload):
    def overwriting(x):
        output = workload.model(x)
        workload.model.linear.weight.data[0, 0] += 1
        return output

    proof = golden.judge(observe(overwriting, workload, train=True))
    assert any("was overwritten" in v.reason for v in proof.failures)


def test_changed_stride_is_caught(golden, outcome):
    logits = outcome.tensors["output.logits"].t().contiguous().t()
    tensors = outcome.tensors | {"output.logits": logits}
    assert "strides" in broken(golden, outcome, tensors=tensors)


def test_lost_and_extra_aliasing_are_caught(golden, outcome):
    assert ("output.view", "args[0]") in outcome.aliases
    assert "is a copy" in broken(golden, outcome, aliases=frozenset())
    extra = outcome.aliases | {("output.logits", "args[0]")}
    assert "shares memory with args[0]" in broken(golden, outcome, aliases=extra)


def test_outputs_that_share_memory_or_do_not_are_caught():
    class Both(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            return y, y[1:], y.clone()

    workload = Workload(Both(), (torch.rand(4),))
    golden = make_golden(workload, train=False)

    def parted(x):
        y = x + 1
        return y, y[1:].clone(), y.clone()

    def joined(x):
        y = x + 1
        return y, y[1:], y

    assert golden.judge(observe(workload.model, workload, train=False)).passed
    lost = golden.judge(observe(parted, workload, train=False)).worst
    extra = golden.judge(observe(joined, workload, train=False)).worst
    assert (lost.where, lost.kind) == ("output[1]", "metadata")
    assert lost.reason == "is a copy, and eager's shares memory with output[0]"
    assert (extra.where, extra.kind) == ("output[2]", "metadata")
    assert extra.reason == "shares memory with output[0], and eager's does not"


def test_other_structure_and_plain_values_are_caught(golden, outcome):
    assert "output structure" in broken(golden, outcome, structure="*")
    assert "is 4, and eager's is 3" in broken(golden, outcome, plain={"output.steps": 4})
    lost = {k: v for k, v in outcome.tensors.items() if k != "output.logits"}
    assert "was not returned" in broken(golden, outcome, tensors=lost)
    extra = outcome.tensors | {"output.more": torch.zeros(1)}
    assert "eager returns no such tensor" in broken(golden, outcome, tensors=extra)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float_that_was_rounded_otherwise_is_wrong_or_another_is_right(dtype):
    def program(x, order):
        y = x.to(dtype)[order]
        return y.sum(), float(y.cumsum(0)[-1]), 0.1, math.inf, len(order)

    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    workload = Workload(model=program, args=(x, torch.arange(1000)))
    golden = make_golden(workload, train=False)

    def judged(call):
        return golden.judge(evidence.portable(observe(call, workload, train=False)))

    golden = dataclasses.replace(golden, eager=evidence.portable(golden.eager))
    other = judged(lambda x, _: program(x, torch.arange(999, -1, -1)))
    assert other.passed, other.worst
    assert judged(program).passed
    for place, wrong, reason in (
        (1, lambda y: 1.1 * y, "root-mean-square error is"),
        (1, lambda _: math.nan, "is 'float nan'"),
        (3, lambda _: 1e9, "is 1000000000.0, and eager's is 'float inf'"),
        (4, lambda y: float(y), "is 1000.0, and eager's is 'int 1000'"),
    ):

        def call(*given, place=place, wrong=wrong):
            results = [*program(*given)]
            results[place] = wrong(results[place])
            return tuple(results)

        worst = judged(call).worst
        assert worst.where == f"output[{place}]"
        assert reason in worst.reason


def test_a_float_of_whole_numbers_may_be_another():
    workload = Workload(model=lambda n: n.sum().item() / 3, args=(torch.arange(5),))
    golden = make_golden(workload, train=False)
    assert golden.judge(observe(workload.model, workload, train=False)).passed
    near = golden.judge(observe(lambda n: n.sum().item() / 3 + 1e-15, workload, train=False))
    assert not near.passed


def test_observing_restores_buffers_inputs_and_random_state(workload):
    class Mutating(Net):
        def forward(self, x):
            x.add_(torch.rand_like(x))
            return super().forward(x)

    workload = dataclasses.replace(workload, model=Mutating())
    before = {name: x.clone() for name, x in workload.model.named_buffers()}
    x, state = workload.args[0].clone(), torch.get_rng_state()
    first = observe(workload.model, workload, train=False)
    assert set(first.changed) >= {"args[0]", "buffer norm.running_mean"}
    for name, value in workload.model.named_buffers():
        assert torch.equal(value, before[name])
    assert torch.equal(workload.args[0], x)
    assert torch.equal(torch.get_rng_state(), state)
    second = observe(workload.model, workload, train=False)
    assert torch.equal(first.tensors["output.logits"], second.tensors["output.logits"])


class Replacing(nn.Module):
    """Puts other tensors into its buffers' places."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("kept", None)
        self.same = nn.Module()
        self.same.register_buffer("mean", self.mean)  # tied
        self.inner = nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.inner(x) - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.kept = x.detach()[:1] * 2
        return y


@pytest.mark.parametrize("train", [False, True])
def test_a_buffer_that_is_replaced_stays_replaced_or_is_not_judged(train):
    workload = Workload(model=Replacing(), args=(torch.randn(8, 4),))
    model, mean, before = workload.model, workload.model.mean, workload.model.mean.clone()
    golden = make_golden(workload, train=train)
    assert model.mean is model.same.mean is mean
    assert torch.equal(mean, before)
    assert model.kept is None
    assert model.inner.num_batches_tracked == 0
    replaced = {"buffer mean", "buffer kept"}
    assert replaced <= golden.eager.changed.keys() == golden.truth.changed.keys()
    assert "buffer same.mean" not in golden.eager.changed

    def other(x):
        y = model(x)
        model.mean = model.mean + 1.0
        return y

    assert golden.judge(observe(model, workload, train=train)).passed
    worst = golden.judge(observe(other, workload, train=train)).worst
    assert (worst.where, worst.kind) == ("buffer mean after the run", "mutation")
    lost = golden.judge(observe(model.inner, workload, train=train))
    missed = {x.where for x in lost.failures if x.kind != "value"}
    assert "buffer mean after the run" in missed
    assert model.mean is mean


class Gathering(nn.Module):
    """Keeps what it computed in plain attributes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.hidden = torch.zeros(8, 4)
        self.position = None
        self.means = []
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.position is None:
            self.position = torch.arange(len(x))[:, None] * 0.1
        self.hidden.mul_(0.5)
        self.hidden = torch.tanh(self.linear(x) + self.hidden).detach()
        self.means.append(self.hidden.mean())
        self.last = self.hidden[-1]
        return self.linear(self.hidden) + self.position + sum(self.means) + self.calls


def test_what_a_model_keeps_in_attributes_hides_a_wrong_result_or_stays():
    model = Gathering()
    workload = Workload(model=model, args=(torch.randn(8, 4),))
    hidden, kept = model.hidden, dict(vars(model))
    golden = make_golden(workload, train=False)
    assert dict(vars(model)) == kept
    assert model.hidden is hidden
    assert not hidden.any()
    assert (model.position, model.means, model.calls) == (None, [], 0)
    assert golden.judge(observe(model, workload, train=False)).passed
    wrong = golden.judge(observe(lambda x: model(x) + 0.01, workload, train=False))
    assert wrong.worst.where == "output"
    assert not wrong.passed


def weight_normed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and used
        return nn.utils.weight_norm(nn.Linear(4, 4))


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))


@pytest.mark.parametrize(
    ("make", "train"), [(weight_normed, False), (weight_normed, True), (scripted, False)]
)
def test_a_module_that_keeps_state_in_its_own_way_cannot_be_proven(make, train):
    workload = Workload(model=make(), args=(torch.randn(8, 4),))
    golden = make_golden(workload, train=train)
    assert golden.judge(observe(workload.model, workload, train=train)).passed


def test_state_is_restored_after_a_backend_raised(workload):
    def raising(x):
        workload.model(x)
        raise RuntimeError("boom")

    before = workload.model.norm.running_mean.clone()
    with pytest.raises(RuntimeError, match="boom"):
        observe(raising, workload, train=False)
    assert torch.equal(workload.model.norm.running_mean, before)


def test_saved_golden_judges_as_the_made_one(golden, outcome, tmp_path):
    golden.save(tmp_path / "golden.pt")
    loaded = Golden.load(tmp_path / "golden.pt")
    assert loaded.judge(outcome) == golden.judge(outcome)
    assert loaded.working == golden.working
    assert loaded.noise == golden.noise
    assert loaded.notes == golden.notes
    wrong = outcome.tensors | {"output.logits": outcome.tensors["output.logits"] * 1.001}
    broken(loaded, outcome, tensors=wrong)


def test_file_of_another_format_is_refused(tmp_path):
    torch.save({"format": 0}, tmp_path / "golden.pt")
    with pytest.raises(ValueError, match="another version"):
        Golden.load(tmp_path / "golden.pt")


@pytest.mark.parametrize(("train", "rows"), [(False, 1), (True, 2)])
def test_truth_that_does_not_fit_is_made_on_fewer_rows(workload, train, rows):
    if not train:
        workload.model.eval()
    full = make_golden(workload, train=train, memory_bytes=10**9)
    assert not full.reduced
    assert full.at(workload) is workload
    limit = _just_too_little(workload, train=train)
    golden = make_golden(workload, train=train, memory_bytes=limit)
    assert golden.reduced
    assert "smaller inputs" in golden.notes[0]
    small = golden.at(workload)
    assert small.model is workload.model
    assert small.args[0].shape[0] == rows
    assert golden.judge(observe(workload.model, small, train=train)).passed
    assert not golden.judge(observe(workload.model, workload, train=train)).passed


def _just_too_little(workload, *, train):
    """Find a limit that the full inputs exceed and the reduced ones do not."""
    for limit in range(1_000, 60_000, 250):
        try:
            if make_golden(workload, train=train, memory_bytes=limit).reduced:
                return limit
        except ProofImpossible:
            continue
    pytest.fail("no limit tells the full inputs from the reduced ones")


def test_truth_that_never_fits_is_impossible(workload):
    with pytest.raises(ProofImpossible, match="even on smaller inputs"):
        make_golden(workload, train=True, memory_bytes=10)


def test_inputs_without_a_common_batch_are_impossible_to_reduce():
    class Scaled(nn.Module):
        def forward(self, x, by):
            return x * by

    workload = Workload(model=Scaled(), args=(torch.ones(3, 2), torch.ones(2)))
    with pytest.raises(ProofImpossible, match=r"Workload\.reduced"):
        make_golden(workload, train=False, memory_bytes=10)


def test_workload_s_own_reduction_is_used(workload):
    def reduced():
        return Workload(model=Net(), args=(workload.args[0][:3],))

    own = dataclasses.replace(workload, reduced=reduced)
    small = shrunk(own, train=True)
    assert small.args[0].shape[0] == 3
    assert small.model is own.model


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyError])
def test_what_takes_no_float64_is_the_model_s_own_error(error):
    class Narrow(torch.nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise error("no kernel")
            return x * 2

    with pytest.raises(ProofImpossible, match="float64 run of the model raised"):
        make_golden(Workload(Narrow(), (torch.ones(3),)), train=False)


def test_a_result_on_another_device_is_right(golden, outcome):
    devices = outcome.devices | {"output.logits": "cpu"}
    said = broken(golden, outcome, devices=devices)
    assert said == "output.logits: is on cpu, and eager's is on the model's device"


def test_a_result_without_numbers_stops_the_judge(workload, tmp_path):
    linear = Workload(workload.model.linear, workload.args)
    golden = make_golden(linear, train=False)
    given = observe(lambda x: linear.model(x).to("meta"), linear, train=False)
    evidence.write(given, tmp_path / "given")
    for one in (given, evidence.read(tmp_path / "given")):
        worst = golden.judge(one).worst
        assert (worst.where, worst.kind) == ("output", "metadata")
        assert worst.reason == "is on meta, and eager's is on the model's device"


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 - 1])
def test_a_run_that_seeds_is_called_as_eager(workload, seed):
    golden = make_golden(workload, train=False, seed=seed)

    def judged(before=lambda: None, after=lambda: None):
        def call(x):
            before()
            found = workload.model(x)
            after()
            return found

        return golden.judge(observe(call, workload, train=False, seed=seed))

    assert judged(before=lambda: torch.rand(5)).passed  # drawing is not seeding
    for seeds in (lambda: torch.manual_seed(seed), lambda: torch.manual_seed(torch.initial_seed())):
        for proof in (judged(before=seeds), judged(after=seeds)):
            worst = proof.worst
            assert (worst.where, worst.kind) == ("torch's random generator (cpu)", "mutation")


def test_a_model_that_seeds_is_held_against_who_runs_it(workload):
    class Seeding(nn.Module):
        def forward(self, x):
            torch.manual_seed(3)
            return x + torch.rand_like(x)

    seeding = Workload(Seeding(), workload.args)
    golden = make_golden(seeding, train=False)
    assert golden.judge(observe(seeding.model, seeding, train=False)).passed


def test_a_result_in_float8_cannot_be_proven():
    class Quantised(torch.nn.Module):
        def forward(self, x):
            return torch.eye(3, dtype=torch.float8_e4m3fn), x * 2

    workload = Workload(Quantised(), (torch.ones(3),))
    golden = make_golden(workload, train=False)
    assert golden.judge(observe(workload.model, workload, train=False)).passed

    def other(x):
        return torch.zeros(3, 3, dtype=torch.float8_e4m3fn), x * 2

    assert not golden.judge(observe(other, workload, train=False)).passed


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (
            lambda x: torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged),
            "nested tensor, .*: prove a model that returns its values",
        ),
        (lambda x: (x * 2, x.to("meta")), "on the meta device, .*: build the model on another"),
    ],
)
def test_a_result_without_numbers_of_its_own_is_another_computations(program, kind):
    workload = Workload(model=program, args=(torch.randn(5, 3),))
    with pytest.raises(ProofImpossible, match=rf"output(\[1\])? is .*{kind}"):
        make_golden(workload, train=False)


def test_a_model_that_goes_on_from_call_to_call_is_taken_for_one_that_looks_for_modes():
    generator, counted = torch.Generator().manual_seed(3), []

    def drawing(x):
        return x + torch.randn(x.shape, generator=generator)

    def counting(x):
        counted.append(x)
        return x * len(counted)

    for program in (drawing, counting):
        with pytest.raises(ProofImpossible, match=r"else each time, .* generator of its"):
            make_golden(Workload(program, (torch.ones(3),)), train=False)

    def seeding(x):
        return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3))

    make_golden(Workload(seeding, (torch.ones(3),)), train=False)


def test_a_frozen_parameter_may_be_given_a_gradient():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight.requires_grad = False
    workload = Workload(model, (torch.randn(2, 3),))
    golden = make_golden(workload, train=True)
    assert golden.judge(observe(model, workload, train=True)).passed

    def gives(x):
        model[1].weight.grad = torch.ones(3, 3)
        return model(x)

    proof = golden.judge(observe(gives, workload, train=True))
    assert not proof.passed
    assert proof.worst.where == "gradient of 1.weight"
    assert "is given, though eager has none" in proof.worst.reason


class Shuffled(nn.Module):
    """Is zero, apart from rounding that differs from call to call, as where atomics add up."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 64)
        self.order = random.Random(3)

    def forward(self, x):
        parts = list(self.linear(x).unbind(-1))
        shuffled = self.order.sample(parts, len(parts))
        return sum(shuffled) - sum(parts)


def test_what_differs_from_call_to_call_by_rounding_alone_is_taken_for_drift():
    torch.manual_seed(0)
    workload = Workload(Shuffled(), (torch.randn(32, 8),))
    first, second = (workload.model(*workload.args) for _ in range(2))
    assert (first - second).abs().mean() > 0.1 * first.abs().mean()
    for train in (False, True):
        golden = make_golden(workload, train=train)
        for _ in range(5):
            assert golden.judge(observe(workload.model, workload, train=train)).passed

    def wrong(x):
        return workload.model(x) + 1e-3 * x.mean()

    assert not golden.judge(observe(wrong, workload, train=True)).passed


def test_a_gradient_that_drifts_from_call_to_call_allows_any_other():
    calls = []

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, given):
            calls.append(given)
            return given * len(calls)

    workload = Workload(lambda x: Layer.apply(x), (torch.randn(4, 3),))
    with pytest.raises(ProofImpossible, match=r"each time, .* \(gradient of args\[0\] differs by"):
        make_golden(workload, train=True)
    assert make_golden(workload, train=False)


def test_a_nested_tensor_stops_training_or_a_digest_with_torchs_own_words():
    class Nesting(nn.Module):
        def forward(self, x):
            return torch.nested.nested_tensor_from_jagged(x * 2, torch.tensor([0, 2, 5]))

    x = torch.randn(5, 3)
    with pytest.raises(ProofImpossible, match="prove a model that returns its values"):
        make_golden(Workload(Nesting(), (x,)), train=True)
    nested = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
    with pytest.raises(
        ProofImpossible, match=r"args\[0\] is a nested tensor, .*values and offsets"
    ):
        digest(Workload(nn.Linear(3, 3), (nested,)))


def test_training_that_trains_nothing_is_impossible():
    class Detached(nn.Module):
        def forward(self, x):
            return x.detach() * 2

    with pytest.raises(ProofImpossible, match="reaches no parameter"):
        make_golden(Workload(model=Detached(), args=(torch.ones(2),)), train=True)


def test_step_is_repeatable_and_gradients_do_not_pile_up(workload):
    step = Step(workload, train=True)
    step(workload.model)
    first = workload.model.linear.weight.grad.clone()
    step(workload.model)
    assert torch.allclose(workload.model.linear.weight.grad, first)
    assert Step(workload, train=False)(workload.model)["logits"].requires_grad is False


def test_digest_sees_parameters_inputs_and_their_order(workload):
    same = dataclasses.replace(workload, args=(workload.args[0].clone(),))
    first = digest(workload)
    assert first == digest(same)
    flipped = dataclasses.replace(workload, args=(workload.args[0].flip(0),))
    assert first != digest(flipped)
    other = dataclasses.replace(workload, kwargs={"flag": True})
    assert first != digest(other)
    with torch.no_grad():
        workload.model.linear.bias[0] += 1e-6
    assert first != digest(workload)


def test_fingerprint_cannot_read_one_element_of_an_odd_stride():
    one = torch.rand(1, 1, 2)[..., 1]
    assert fingerprint(one) == fingerprint(one.clone(memory_format=torch.contiguous_format))


def test_fingerprint_sees_each_byte_and_each_position():
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.complex64, torch.bool):
        x = torch.arange(21).to(dtype)
        assert fingerprint(x) == fingerprint(x.clone())
        assert fingerprint(x) != fingerprint(x.flip(0))
        changed = x.clone()
        changed[-1] = 0
        assert fingerprint(x) != fingerprint(changed)
    assert fingerprint(torch.tensor(torch.nan)) == fingerprint(torch.tensor(torch.nan))
    assert fingerprint(torch.zeros(3, 2).t()) == fingerprint(torch.zeros(2, 3))
