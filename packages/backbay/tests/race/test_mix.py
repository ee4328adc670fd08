"""A step that calls a model with inputs of several shapes, and one with the user's optimizer."""

import time

import msgspec
import pytest
import torch
from click.testing import CliRunner

from backbay import Workload
from backbay.cli import main
from backbay.errors import InputError, WorkloadInvalid
from backbay.proof import Step
from backbay.proof.sequence import labels, mixed
from backbay.race import Limits, run
from backbay.race.decide import with_exceptions
from backbay.race.record import Decision
from backbay.race.times import Times
from backbay.workloads import load

QUICK = Limits(backend_s=120.0, timing_s=0.5)


class Repeated(torch.nn.Module):
    """Slow as it is: it does the same again and again."""

    def forward(self, x):
        for _ in range(1000):
            x = torch.relu(x)
        return x


def of_batches(model, *sizes, **given):
    first, *others = (torch.randn(size, 8) for size in sizes)
    return Workload(model, (first,), further=tuple(((x,), {}) for x in others), **given)


def rows_of(arguments):
    return next(x for x in arguments if isinstance(x, torch.Tensor)).shape[0]


def raced(workload, backend, **options):
    report = run(workload, backends={"tried": backend}, limits=QUICK, **options)
    return report, {x.backend: x for x in report.results}


def test_calls_are_called_what_they_differ_by():
    model = torch.nn.Linear(8, 8)
    assert labels(of_batches(model, 4)) == ()
    assert labels(of_batches(model, 4, 1)) == ("batch 4", "batch 1")
    images = [((torch.zeros(2, size),), {"scale": torch.tensor(1.0)}) for size in (3, 5)]
    workload = Workload(model, *images[0], further=(images[1],))
    assert labels(workload) == ("call 1, 2x3 and scalar", "call 2, 2x5 and scalar")


def test_one_call_is_all_calls_in_turn():
    workload = of_batches(torch.nn.Linear(8, 8), 4, 1, loss=torch.Tensor.sum)
    row = mixed(workload)
    outputs = row.model(*row.args)
    assert [tuple(x.shape) for x in outputs] == [(4, 8), (1, 8)]
    assert torch.equal(outputs[1], workload.model(*workload.further[0][0]))
    torch.testing.assert_close(row.loss(outputs), sum(x.sum() for x in outputs))
    assert mixed(row) is row


def test_what_is_wrong_at_one_size_alone_is_wrong(judged_here):
    def fixed(graph_module, example_inputs):
        def call(*arguments):
            (result,) = graph_module(*arguments)
            return (result if rows_of(arguments) == 4 else result * 1.01,)

        return call

    model = torch.nn.Tanh()
    _, alone = raced(of_batches(model, 4), fixed)
    assert alone["tried"].status == "ok"
    _, both = raced(of_batches(model, 4, 2), fixed)
    assert both["tried"].status == "wrong"
    assert "output[1]" in both["tried"].reason


def test_each_call_is_timed_by_itself(judged_here):
    def uneven(graph_module, example_inputs):
        def call(*arguments):
            time.sleep(0.03 * (rows_of(arguments) == 8))
            return graph_module(*arguments)

        return call

    report, found = raced(of_batches(torch.nn.Tanh(), 1, 8), uneven)
    assert report.decision[0].winner == "eager"
    small, large = found["tried"].parts
    assert (small.call, large.call) == ("batch 1", "batch 8")
    assert large.median_ms >= 30 > small.median_ms
    assert large.ratio_to_eager_ci[1] < 1
    assert found["tried"].median_ms >= 30
    assert found["eager"].parts[0].ratio_to_eager == 1
    assert found["tried"].notes[-1].startswith("batch 1: ")


def test_who_is_wrong_while_timed_has_no_times_of_its_calls(judged_here):
    calls = []

    def tires(graph_module, example_inputs):
        def call(*arguments):
            calls.append(None)
            result = torch.relu(next(x for x in arguments if isinstance(x, torch.Tensor)))
            return (result * (1.01 if len(calls) > 60 else 1),)

        return call

    report, found = raced(of_batches(Repeated(), 1, 8), tires)
    assert found["tried"].status == "wrong"
    assert found["tried"].parts == ()
    assert report.decision[0].elsewhere == {}


def around(value):
    return [value * (1 + 0.001 * n) for n in range(12)]


def test_a_decision_says_for_which_calls_it_does_not_hold():
    decided = Decision(workload="w", mode="infer", winner="a", abstained=False, sentence="use a")
    alike = {"eager": around(2.0), "a": around(1.0), "b": around(1.0)}
    other = {"eager": around(2.0), "a": around(1.0), "b": around(0.8), "c": around(0.7)}
    parts = {"batch 1": Times([other]), "batch 8": Times([alike]), "batch 9": Times([])}
    found = with_exceptions(decided, parts)
    assert found.elsewhere == {"batch 1": "c"}
    assert found.sentence == "use a; for batch 1 alone c is faster"
    assert with_exceptions(decided, parts, excluded=["c"]).elsewhere == {"batch 1": "b"}
    assert with_exceptions(decided, {"batch 8": Times([alike])}) == decided
    unclear = msgspec.structs.replace(decided, unclear=True)
    assert with_exceptions(unclear, parts) == unclear


def test_one_call_has_no_parts(judged_here):
    report, found = raced(of_batches(torch.nn.Linear(8, 8), 4), lambda graph, _: graph.forward)
    assert all(x.parts == () for x in found.values())
    assert report.decision[0].elsewhere == {}


def test_batches_of_a_reference_are_called_in_turn():
    options = {"seed": 0, "dtype": torch.float32, "device": torch.device("cpu"), "train": False}
    workload = load("decoder@tiny", batch=(1, 8), **options)
    assert workload.name == "decoder@tiny, batch 1, 8"
    assert labels(workload) == ("batch 1", "batch 8")
    assert workload.reduced().args[0].shape[0] == 2
    assert len(workload.reduced().further) == 1


@pytest.mark.parametrize("batch", ["4,0", "", "x", "1.5"])
def test_a_batch_is_numbers_of_rows(batch):
    done = CliRunner().invoke(main, ["race", "--batch", batch])
    assert done.exit_code == 2
    assert "is not numbers of rows by commas, as in 1,8,64" in done.stderr


@pytest.mark.parametrize("batch", [0, (4, 0), ()])
def test_a_batch_has_rows(batch):
    with pytest.raises(InputError, match="a batch has at least one row, not"):
        run(batch=batch, device="cpu")


def test_further_calls_of_ones_own_are_checked(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import backbay, torch\n"
        "def model():\n"
        "    x = torch.ones(2, 2)\n"
        "    return backbay.Workload(torch.nn.Linear(2, 2), (x,), further=(x,))\n"
    )
    options = {"seed": 0, "dtype": torch.float32, "device": torch.device("cpu"), "train": False}
    with pytest.raises(WorkloadInvalid, match="each is \\(args, kwargs\\)"):
        load(f"{path}:model", **options)


def test_further_calls_of_ones_own_stay_as_they_were_given(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import backbay, torch\n"
        "def model():\n"
        "    x = torch.ones(2, 2)\n"
        "    further = (((torch.ones(3, 2),), {}), ((x,), {}))\n"
        "    return backbay.Workload(torch.nn.Linear(2, 2), (x,), further=further)\n"
    )
    options = {"seed": 0, "dtype": torch.bfloat16, "device": torch.device("cpu"), "train": False}
    workload = load(f"{path}:model", **options)
    ((x,), _), ((same,), _) = workload.further
    assert (x.dtype, tuple(x.shape)) == (torch.bfloat16, (3, 2))
    assert same is workload.args[0]  # one tensor stays one


class Slow(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        Slow.steps += 1
        time.sleep(0.01)
        return super().step(closure)


def test_an_optimizer_is_timed_and_changes_nothing(judged_here):
    model = torch.nn.Linear(8, 8)
    before = model.weight.detach().clone()
    workload = Workload(
        model,
        (torch.randn(4, 8),),
        loss=lambda output: output.square().mean(),
        optimizer=lambda parameters: Slow(parameters, lr=0.1),
    )
    _, found = raced(workload, lambda graph, _: graph.forward, train=True)
    assert {x.status for x in found.values()} == {"ok"}
    assert all(x.median_ms >= 10 for x in found.values())
    assert torch.equal(model.weight, before)
    Slow.steps = 0
    Step(workload, train=True)(model)
    Step(workload, train=False, optimizes=True)(model)
    assert Slow.steps == 0  # a proof has none, nor has inference


def test_an_optimizers_step_is_that_of_the_gradients():
    model = torch.nn.Linear(8, 8)
    made = []

    def optimizer(parameters):
        made.append(parameters)
        return torch.optim.SGD(parameters, lr=0.5)

    workload = Workload(
        model, (torch.randn(4, 8),), loss=lambda x: x.square().mean(), optimizer=optimizer
    )
    Step(workload, train=True, optimizes=True)(model)
    for own, copy in zip(model.parameters(), made[0], strict=True):
        torch.testing.assert_close(copy.detach(), own.detach() - 0.5 * own.grad)
