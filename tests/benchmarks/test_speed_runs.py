"""How the benchmarks of models run: in which order, beside whom, and what becomes of who fails."""

import itertools
from types import SimpleNamespace

import msgspec
import pytest
import torch

from backbay.session import Lost


def test_models_that_are_stopped_while_they_are_proven_lose_what_was_timed(
    speed, in_process, tmp_path, monkeypatch
):
    class Stopped(in_process):
        def answer(self, request):
            if isinstance(request, speed("speed.requests").Prove):
                raise KeyboardInterrupt
            return super().answer(request)

    monkeypatch.setattr(speed("speed.turns"), "started", Stopped)
    asked = ["--state", str(tmp_path), "--device", "cpu", "--size", "tiny", "--seconds", "0.1"]
    with pytest.raises(KeyboardInterrupt):
        speed("models").main([*asked, "--only", "dlrm.infer", "--arms", "eager,inductor"])
    (run,) = speed("speed.record").State(tmp_path).read("dlrm.infer").runs
    assert run.arms["eager"].samples_ms


def test_arms_are_timed_before_they_are_settled_or_beside_others(
    speed, in_process, tmp_path, monkeypatch
):
    requests, seen = speed("speed.requests"), []

    class Noted(in_process):
        def answer(self, request):
            seen.append((type(request).__name__, getattr(other, "stopped", False)))
            return super().answer(request)

    turns = speed("speed.turns").Turns()
    other = turns.start()
    monkeypatch.setattr(speed("speed.turns"), "started", Noted)
    monkeypatch.setattr(speed("speed.turns"), "Turns", lambda: turns)
    asked = ["--state", str(tmp_path), "--device", "cpu", "--size", "tiny", "--seconds", "0.1"]
    asked += ["--only", "dlrm.infer", "--arms", "eager,aot_eager", "--no-proof"]
    assert speed("models").main(asked) == 0
    assert list(dict.fromkeys(seen)) == [
        (requests.Prepare.__name__, False),
        (requests.Ready.__name__, False),
        (requests.Settle.__name__, True),
        ("Block", True),
    ]


def test_arm_that_raises_while_it_settles_is_a_row_and_the_others_are_timed(
    speed, in_process, tmp_path, monkeypatch
):
    requests = speed("speed.requests")

    class Fragile(in_process):
        def answer(self, request):
            if isinstance(request, requests.Settle) and request.arm == "aot_eager":
                raise ValueError("no more memory")
            return super().answer(request)

    monkeypatch.setattr(speed("speed.turns"), "started", Fragile)
    asked = ["--state", str(tmp_path), "--device", "cpu", "--size", "tiny", "--seconds", "0.1"]
    asked += ["--only", "dlrm.infer", "--arms", "eager,aot_eager", "--no-proof"]
    assert speed("models").main(asked) == 0
    arms = speed("speed.record").State(tmp_path).read("dlrm.infer").runs[0].arms
    assert (arms["aot_eager"].status, arms["aot_eager"].samples_ms) == ("failed", ())
    assert "no more memory" in arms["aot_eager"].reason
    assert arms["eager"].samples_ms


def test_settling_ends_before_cuda_graphs_are_decided_and_recorded(speed, monkeypatch):
    from backbay_optimizer.tuning import graph_timing

    deciding = graph_timing.MOST_TRIES * graph_timing.CALLS_BEFORE
    recording = 2
    first = 1
    assert deciding - first + recording <= speed("speed.model_bench").SETTLING


def test_what_was_decided_about_cuda_graphs_is_lost_or_mixed_with_other_records(speed):
    from backbay import compile_log

    def note(*said):
        for why in said:
            compile_log.note(compile_log.Record(asked="backbay", ran="inductor", why=why))

    note("CUDA graphs used: before")
    since = len(compile_log.records())
    note("timed: no rewrite", "inference graph recorded as CUDA graph 1", "CUDA graphs not used")
    note("backward graph has no CUDA graph: it waits", "CUDA graphs not used")
    found = speed("speed.arms").replays(since)
    assert found == ("CUDA graphs not used", "backward graph has no CUDA graph: it waits")


def test_a_row_lacks_what_the_log_says_of_cuda_graphs(speed, in_process, tmp_path, monkeypatch):
    from backbay import compile_log

    numbers = itertools.count(1)

    def compiled(function, _arm):
        def call(*args):
            why = f"CUDA graphs: call {next(numbers)}"
            compile_log.note(compile_log.Record(asked="backbay", ran="inductor", why=why))
            return function(*args)

        return call

    monkeypatch.setattr(speed("speed.arms"), "compiled", compiled)
    asked = ["--state", str(tmp_path), "--device", "cpu", "--size", "tiny", "--seconds", "0.1"]
    assert speed("models").main([*asked, "--only", "dlrm.infer", "--arms", "eager"]) == 0
    (run,) = speed("speed.record").State(tmp_path).read("dlrm.infer").runs
    calls = 1 + speed("speed.model_bench").SETTLING
    wanted = [f"CUDA graphs: call {n + 1}" for n in range(calls)]
    assert list(run.arms["eager"].notes[:calls]) == wanted


def test_models_that_train_get_ready_side_by_side(speed):
    models, table = speed("models"), speed("speed.model_table")
    listed = table.listed()
    mixed = models.mixed(listed)
    assert sorted(mixed) == sorted(listed)
    together = [sum(x.train for x in mixed[n : n + 6]) for n in range(len(mixed) - 5)]
    assert max(together) <= 3
    assert max(sum(x.train for x in listed[n : n + 6]) for n in range(len(listed) - 5)) > 3


def test_models_run_in_another_order_than_they_were_named_in(speed):
    models, listed = speed("models"), speed("speed.model_table").listed()
    found = models.chosen(listed, ["vae_decoder_*.train", "dlrm.infer", "vae*", "none"])
    assert [x.name for x in found][:3] == [
        "vae_decoder_nchw.train",
        "vae_decoder_nhwc.train",
        "dlrm.infer",
    ]
    assert {x.name for x in found[3:]} == {
        x.name for x in listed if x.name.startswith("vae") and x not in found[:2]
    }


def test_what_is_undecided_runs_before_what_never_ran(speed, monkeypatch, tmp_path, entry):
    models, state = speed("models"), speed("speed.record").State(tmp_path / "state")
    begun = []
    monkeypatch.setattr(models, "one", lambda case, *_: begun.append(case.name))
    known = entry({"inductor": [1.0, 9.0] * 9, "backbay": [9.0, 1.0] * 9}, name="bert.infer")
    state.add(known)
    asked = ["--state", str(tmp_path / "state"), "--device", "cpu", "--only", "bert.infer", "vit*"]
    assert models.main([*asked, "--arms", "inductor,backbay", "--no-proof"]) == 0
    assert begun == ["vit_b.infer", "vit_b.train", "bert.infer"]


def test_models_run_and_what_is_known_is_not_run_again(speed, in_process, tmp_path, capsys):
    asked = ["--state", str(tmp_path / "state"), "--device", "cpu", "--size", "tiny"]
    asked += ["--only", "dlrm.infer", "--seconds", "0.1", "--out", str(tmp_path / "table.md")]
    main = speed("models").main
    assert main([*asked, "--arms", "eager,aot_eager", "--no-proof"]) == 0
    assert "dlrm.infer: aot_eager: compiled" in capsys.readouterr().out
    assert main([*asked, "--arms", "eager,aot_eager", "--no-proof"]) == 0
    assert "compiled" not in capsys.readouterr().out
    assert "| dlrm.infer (control) | B8, 3 tables of 20x8 |" in (tmp_path / "table.md").read_text()
    kept = msgspec.json.decode((tmp_path / "table.json").read_bytes())
    assert set(kept["entries"][0]["runs"][0]["arms"]) == {"eager", "aot_eager"}


def test_arm_that_takes_its_process_down_is_a_row_and_the_others_are_timed(
    speed, in_process, tmp_path, monkeypatch
):
    requests = speed("speed.requests")

    class Fragile(in_process):
        def ask(self, request, *, timeout_s):
            if isinstance(request, requests.Ready) and request.arm == "aot_eager":
                raise Lost("it died")
            return super().ask(request, timeout_s=timeout_s)

    monkeypatch.setattr(speed("speed.turns"), "started", Fragile)
    asked = [
        "--state",
        str(tmp_path),
        "--device",
        "cpu",
        "--size",
        "tiny",
        "--only",
        "silu_product/tiny",
    ]
    speed("patterns").main([*asked, "--arms", "eager,aot_eager"])
    arms = speed("speed.record").State(tmp_path).read("silu_product/tiny").runs[0].arms
    assert arms["aot_eager"].status == "crashed"
    assert arms["eager"].samples_ms


def test_who_is_timed_runs_alone_and_the_others_go_on_afterwards(speed, in_process):
    turns = speed("speed.turns").Turns()
    one, other = turns.start(), turns.start()
    with turns.alone(one):
        assert other.stopped
        assert not hasattr(one, "stopped")
    assert not other.stopped


def test_work_ends_with_the_time_and_says_so(speed):
    through, done = speed("speed.turns").work_through, []
    asked = {"fresh": True, "ahead": 2}
    assert through([1, 2, 3], lambda x, _: done.append(x), until=60, **asked)
    assert sorted(done) == [1, 2, 3]
    assert not through([4], lambda x, _: done.append(x), until=-1, **asked)
    assert 4 not in done


def test_error_in_one_workload_ends_the_others_processes(speed, in_process):
    turns = speed("speed.turns")
    seen = []

    def work(_, clients):
        seen.append(clients.take())
        raise ValueError("not a result")

    with pytest.raises(ValueError, match="not a result"):
        turns.work_through([1], work, fresh=True, ahead=1, until=60)
    assert seen[0].handler is None


PROBLEM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x, scale):
        assert self.training and not torch.is_grad_enabled() and x.dtype == torch.bfloat16
        return self.norm(x) * scale

def get_inputs():
    return [torch.rand(8, 4), 3]

def get_init_inputs():
    return [4]
"""


def test_problems_of_a_folder_are_run_as_they_were_made(speed, in_process, tmp_path):
    folder = tmp_path / "level3"
    folder.mkdir()
    for name in ("10_Ten.py", "2_Two.py"):
        (folder / name).write_text(PROBLEM)
    asked = ["--state", str(tmp_path / "state"), "--device", "cpu", "--arms", "eager,aot_eager"]
    asked += ["--problems", str(folder), "--seconds", "0.1", "--out", str(tmp_path / "table.md")]
    assert speed("models").main([*asked, "--only", "*/2_*"]) == 0
    table = (tmp_path / "table.md").read_text()
    assert "1 of 2 workloads were run" in table
    assert "2_Two.py | as in its file |" in table
    assert "- nothing" in table
    listed = speed("speed.model_table").listed(folder)
    assert [x.name.rpartition("/")[2] for x in listed] == ["2_Two.py", "10_Ten.py"]


def test_who_asks_for_proofs_alone_gets_times_too(speed, in_process, tmp_path, monkeypatch):
    monkeypatch.setattr(speed("speed.turns"), "started", in_process)
    monkeypatch.setattr(speed("speed.arms"), "compiled", lambda f, *_, **__: f)
    asked = ["--state", str(tmp_path), "--device", "cpu", "--size", "tiny", "--only-proof"]
    assert speed("models").main([*asked, "--only", "dlrm.infer", "--arms", "inductor"]) == 0
    entry = speed("speed.record").State(tmp_path).read("dlrm.infer")
    assert not entry.runs
    assert entry.verdicts["inductor"].passed


@pytest.mark.parametrize(("device", "calls"), [("cpu", 1), ("cuda", 11)])
def test_a_replay_is_not_proven(speed, monkeypatch, device, calls):
    bench, seen = speed("speed.model_bench"), []
    monkeypatch.setattr(bench, "observe", lambda *_, **__: seen.append(len(seen) + 1) or seen[-1])
    made = bench.ModelBench.__new__(bench.ModelBench)
    made._device = torch.device(device)
    made._case, made._request = SimpleNamespace(train=False), SimpleNamespace(seed=0)
    assert made._outcomes(None, None) == list(dict.fromkeys([1, calls]))
    assert len(seen) == calls


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.0, 1.1), (1.1, 1.0)])
def test_a_model_that_is_wrong_in_one_call_is_right(speed, monkeypatch, factors):
    bench, requests = speed("speed.model_bench"), speed("speed.requests")
    monkeypatch.setattr(speed("speed.arms"), "compiled", lambda f, *_, **__: f)

    def outcomes(self, call, workload):
        ways = [lambda *x, factor=factor: factor * call(*x) for factor in factors]
        return [bench.observe(way, workload, train=False) for way in ways]

    monkeypatch.setattr(bench.ModelBench, "_outcomes", outcomes)
    request = requests.Prepare(kind="model", name="dlrm.infer", size="tiny", device="cpu")
    verdict = bench.ModelBench(request).prove(("inductor",), "")["inductor"]
    assert verdict.passed == (factors == (1.0, 1.0)), verdict.reason
