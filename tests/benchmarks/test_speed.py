"""The benchmarks of models and patterns: what they conclude, what they keep, and that they run."""

import gc
import importlib
import itertools
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from backbay.errors import InputError
from backbay.session import LocalClient, Lost
from backbay.timing.gpu_work import GpuWork

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
WHERE = {"device": "none", "size": "tiny", "versions": {"torch": "2"}}


NUMBERS = itertools.count()
OURS = {"speed", "models", "patterns", "newest", "compile_times"}


@pytest.fixture(scope="module")
def speed():
    """Return the benchmarks' modules by name; their folder is on the path as a script's is."""
    sys.path.insert(0, FOLDER)
    yield lambda name: importlib.import_module(name)
    sys.path.remove(FOLDER)
    for name in [x for x in sys.modules if x.split(".")[0] in OURS]:
        del sys.modules[name]


@pytest.fixture
def in_process(speed, monkeypatch):
    """Answer requests here, each way as JSON, as a child process would."""
    asked, handler = speed("speed.requests"), speed("speed.handler")

    class Here:
        def __init__(self):
            self.handler = handler.SpeedHandler()
            self.client = LocalClient(asked.SERVICE, self, {})

        def ask(self, request, *, timeout_s):
            return self.client.ask(request, timeout_s=timeout_s)

        requests = asked.Request

        def answer(self, request):
            return self.handler.answer(request)

        def end(self):
            self.handler = None

        def stop(self):
            self.stopped = True

        def resume(self):
            self.stopped = False

    monkeypatch.setattr(speed("speed.turns"), "started", Here)
    with torch._dynamo.config.patch(recompile_limit=256):  # the bench sets it for its process
        yield Here
    gc.unfreeze()  # the handler froze what there was


def entry(speed, *runs, **more):
    """Return an entry whose runs are arms' milliseconds."""
    record = speed("speed.record")
    made = []
    for run in runs:
        arms = {
            name: record.Sampled(status="ok", samples_ms=tuple(values))
            if isinstance(values, list)
            else record.Sampled(status=values)
            for name, values in run.items()
        }
        made.append(record.Run(created=f"run {next(NUMBERS)}", arms=arms))
    where = record.Where(**WHERE)
    return record.Entry(**{"name": "one", "where": where, "runs": tuple(made), **more})


def test_geometric_mean_of_a_gain_and_its_inverse_is_one(speed):
    mean = speed("speed.judging").geometric_mean
    assert mean([2.0, 0.5]) == pytest.approx(1.0)
    assert mean([1.0, 8.0]) == pytest.approx(8**0.5)
    assert mean([]) == 1.0


@pytest.mark.parametrize(
    ("low", "high", "slower", "undecided"),
    [
        (0.96, 0.975, True, False),
        (0.96, 0.985, False, True),
        (0.975, 0.985, False, False),
        (0.90, 0.97, True, True),
        (1.99, 2.02, False, False),
    ],
)
def test_only_whole_intervals_below_are_slower_and_wide_ones_are_undecided(
    speed, low, high, slower, undecided
):
    found = speed("speed.judging").Ratio(value=(low + high) / 2, low=low, high=high)
    assert (found.slower, found.undecided) == (slower, undecided)


def test_ratio_pools_the_runs_that_timed_both_and_no_others(speed):
    found = entry(
        speed,
        {"inductor": [2.0] * 5, "backbay": [1.0] * 5},
        {"inductor": [100.0] * 50},
        {"inductor": [2.0] * 5, "backbay": "crashed"},
    )
    ratio = speed("speed.judging").ratio
    assert ratio(found, "inductor", "backbay").value == 2.0
    assert ratio(found, "eager", "backbay") is None


def test_arms_that_are_missing_run_beside_the_pair_and_failures_do_not_run_again(speed):
    to_run = speed("speed.judging").to_run
    wanted = ["eager", "inductor", "backbay", "hand"]
    pair = {"above": "inductor", "below": "backbay"}
    steady = {"inductor": [2.0] * 20, "backbay": [1.0] * 20, "eager": [3.0] * 20}
    shaky = steady | {"backbay": [1.0, 2.0] * 10, "hand": [1.0] * 20}
    assert to_run(None, wanted, **pair) == wanted
    assert to_run(entry(speed, steady), wanted, **pair) == ["inductor", "backbay", "hand"]
    assert to_run(entry(speed, steady | {"hand": "failed"}), wanted, **pair) == []
    assert to_run(entry(speed, shaky), wanted, **pair) == ["inductor", "backbay"]
    assert to_run(entry(speed, shaky, shaky, shaky), wanted, **pair) == []


def test_state_adds_runs_up_and_refuses_another_machines(speed, tmp_path):
    record = speed("speed.record")
    state = record.State(tmp_path)
    state.add(entry(speed, {"eager": [1.0]}, name="a/b"))
    state.add(entry(speed, {"inductor": [2.0]}, name="a/b"))
    assert [list(run.arms) for run in state.read("a/b").runs] == [["eager"], ["inductor"]]
    other = record.Where(**WHERE | {"device": "another"})
    with pytest.raises(InputError, match="another folder"):
        state.add(entry(speed, {}, name="a/b", where=other))


def test_a_run_is_kept_twice_when_more_of_it_was_timed(speed, tmp_path):
    record = speed("speed.record")
    state = record.State(tmp_path)
    short, long = (entry(speed, {"eager": values}) for values in ([1.0], [1.0, 2.0]))
    state.add(entry(speed, {"inductor": [2.0]}))
    state.add(short)
    (run,) = long.runs
    run = msgspec.structs.replace(run, created=short.runs[0].created)
    state.add(msgspec.structs.replace(long, runs=(run,)))
    timed = [next(iter(run.arms.values())).samples_ms for run in state.read("one").runs]
    assert timed == [(2.0,), (1.0, 2.0)]


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


def test_failures_count_as_one_and_are_listed(speed):
    table = speed("speed.model_table")
    fast = entry(speed, {"inductor": [4.0] * 9, "backbay": [1.0] * 9}, name="bert.infer")
    lost = entry(speed, {"inductor": [1.0] * 9, "backbay": "crashed"}, name="gpt2.train")
    text = table.text([fast, lost])
    assert "over Inductor's default: **2.000** (2 workloads)" in text
    assert "failed: gpt2.train (backbay crashed)" in text
    assert "not proven" in text


def test_wrong_verdict_takes_the_gain_away(speed):
    verdict = speed("speed.requests").Verdict(passed=False, reason="far off", about="2x8")
    found = entry(
        speed,
        {"inductor": [4.0] * 9, "backbay": [1.0] * 9},
        name="bert.infer",
        verdicts={"backbay": verdict},
    )
    text = speed("speed.model_table").text([found])
    assert "over Inductor's default: **1.000** (1 workloads)" in text
    assert "**wrong** at 2x8" in text


def test_the_newest_run_is_mixed_with_an_older_one_or_its_proof_forgotten(speed):
    newest, verdict = (
        speed("newest"),
        speed("speed.requests").Verdict(passed=True, reason="", about="2x8"),
    )
    slow, fast = ({"inductor": [4.0] * 9, "backbay": [x] * 9} for x in (4.0, 2.0))
    alone = entry(speed, {"backbay": [0.1] * 9}, name="bert.infer")
    old = entry(speed, slow, name="bert.infer", verdicts={"backbay": verdict})
    runs = [
        newest.Run("first", (old, entry(speed, slow, name="gpt2.train"))),
        newest.Run("second", (entry(speed, fast, name="bert.infer"),)),
        newest.Run("third", (alone,)),
    ]
    text = newest.table(runs)
    assert "| bert.infer | second | 2.000 [2.000, 2.000] |" in text
    assert "right at 2x8 (first)" in text
    assert "| gpt2.train | first | 1.000 [1.000, 1.000] |" in text
    assert "over Inductor's default: **1.414** (2)" in text


def test_a_first_call_is_compared_with_another_model_cache_or_arm(speed):
    times = speed("compile_times")
    samples = [
        times.Sample(
            name=name,
            arm=arm,
            when=when,
            seconds=n,
            compiling=n / 2,
            hits=hits,
            misses=0,
            tuned=t,
            second=None if t is None else n / 8,
        )
        for t, name, when, arm, hits, ns in (
            (0, "one", "warm", "inductor", 1, [4.0, 8.0, 6.0]),
            (3, "one", "warm", "backbay", 1, [3.0, 3.0]),
            (5, "one", "cold", "inductor", 0, [10.0, 10.0]),
            (7, "one", "cold", "backbay", 0, [20.0, 20.0]),
            (None, "other", "warm", "backbay", 0, [1.0]),
            (None, "other", "warm", "inductor", 1, [1.0]),
        )
        for n in ns
    ]
    text, missed = times.row("one", "warm", samples)
    assert text.startswith("| one | warm | 2 | 3.00 [2.00, 4.00] | 1.50 [1.50, 1.50] | 0.500 [")
    assert "| 6.00 [4.00, 8.00] | 3.00 [3.00, 3.00] | 0.500 [" in text
    assert text.endswith("| yes | 0, 3 | 0.750, 0.375 |")
    assert not missed
    text, missed = times.row("one", "cold", samples)
    assert "2.000 [2.000, 2.000]" in text
    assert missed
    text, missed = times.row("other", "warm", samples)
    assert "no: Sample" in text
    assert text.endswith("| -, - | -, - |")
    assert missed
    assert "not run" in times.row("third", "warm", samples)[0]


def test_stock_arms_with_cuda_graphs_are_left_out_of_the_best_one(speed):
    found = entry(
        speed,
        {
            "inductor": [4.0] * 9,
            "backbay": [2.0] * 9,
            "inductor:reduce-overhead": [1.0] * 9,
            "hand": [0.5] * 9,
        },
        name="bert.infer",
    )
    text = speed("speed.model_table").text([found])
    assert "over the best stock arm that was run: **0.500**" in text
    assert "of models that have masks: **0.250** (1 workloads)" in text
    unmasked = entry(speed, {"inductor": [8.0] * 9, "backbay": [2.0] * 9}, name="resnet50.infer")
    text = speed("speed.model_table").text([found, unmasked])
    assert "where there are masks, of all models: **1.000** (2 workloads)" in text
    assert "0.500 [0.500, 0.500] **slower** (inductor:reduce-overhead)" in text


def test_the_devices_work_is_missing_in_the_table(speed):
    record, work = speed("speed.record"), GpuWork(busy_ms=1.5, launches=7)
    found = entry(speed, {"inductor": [4.0] * 9, "backbay": [2.0] * 9}, name="bert.infer")
    arms = {**found.runs[0].arms}
    arms["backbay"] = msgspec.structs.replace(arms["backbay"], work=work)
    run = record.Run(created="now", arms=arms)
    found = msgspec.structs.replace(found, runs=(run,))
    assert "| -, 1.5 in 7 |" in speed("speed.model_table").text([found])


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


def test_latents_have_another_side_than_the_table_says(speed):
    case = speed("speed.model_cases").case
    assert case("vae_decoder_nchw.infer").about("full") == "4x4x64x64 latents"
    assert case("vae_decoder_nhwc.train").about("full") == "4x4x32x32 latents"
    (given,) = case("vae_decoder_nhwc.train").build("tiny").args
    assert case("vae_decoder_nhwc.train").about("tiny") == f"1x4x{given.shape[2]}x4 latents"


def test_models_that_train_get_ready_side_by_side(speed):
    models, table = speed("models"), speed("speed.model_table")
    listed = table.listed()
    mixed = models.mixed(listed)
    assert sorted(mixed) == sorted(listed)
    together = [sum(x.train for x in mixed[n : n + 6]) for n in range(len(mixed) - 5)]
    assert max(together) <= 3
    assert max(sum(x.train for x in listed[n : n + 6]) for n in range(len(listed) - 5)) > 3


def test_every_case_has_its_own_name_and_enough_controls(speed):
    cases = speed("speed.model_cases").CASES
    patterns = speed("speed.pattern_cases").PATTERNS
    assert len({x.name for x in cases}) == len(cases) >= 20
    assert sum(x.control for x in cases) >= 5
    assert len({x.name for x in patterns}) == len(patterns) >= 35
    assert all(2 <= len(x.shapes) <= 4 for x in patterns)


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


def test_patterns_compute_at_their_tiny_shape_and_so_do_the_alternatives(speed):
    bench, requests = speed("speed.pattern_bench"), speed("speed.requests")
    for pattern in speed("speed.pattern_cases").PATTERNS:
        request = requests.Prepare(kind="pattern", name=pattern.name, size="tiny", device="cpu")
        made = bench.PatternBench(request)
        assert made.prepared().bytes_moved > 0, pattern.name
        if made._program.alternative is not None:
            assert pattern.alternative, pattern.name
            results = made._step("alt", compiled=False)()
            assert made._error(results) <= made._allowed, pattern.name


def test_wrong_result_is_not_timed(speed, monkeypatch):
    bench, requests = speed("speed.pattern_bench"), speed("speed.requests")
    monkeypatch.setattr(speed("speed.arms"), "compiled", lambda f, *_, **__: lambda *x: 1.1 * f(*x))
    request = requests.Prepare(kind="pattern", name="silu_product", size="tiny", device="cpu")
    made = bench.PatternBench.__new__(bench.PatternBench)
    with monkeypatch.context() as right:
        right.setattr(speed("speed.arms"), "compiled", lambda f, *_, **__: f)
        made.__init__(request)
    answer = made.ready("eager", "")
    assert answer.status == "wrong"
    assert "is allowed" in answer.reason


@pytest.mark.parametrize("mode", ["hoist", "hoist-graphs"])
def test_what_may_be_stale_counts_as_ours_or_as_stock(speed, monkeypatch, mode):
    arms, asked = speed("speed.arms"), []
    monkeypatch.setattr(torch, "compile", lambda f, **given: asked.append(given) or f)
    arms.compiled(abs, f"backbay:{mode}")
    assert asked[0]["options"]["parameter_hoist"]
    assert asked[0]["options"].get("triton.cudagraphs", False) is (mode == "hoist-graphs")
    assert arms.graphed(f"backbay:{mode}") is (mode == "hoist-graphs")
    assert not arms.ours(f"backbay:{mode}")
    assert not arms.stock(f"backbay:{mode}")
    assert arms.stock("inductor:tuned")
    assert arms.ours("backbay:reduce-overhead")


def test_a_patterns_weights_are_taken_for_inputs(speed, reports):
    bench, requests = speed("speed.pattern_bench"), speed("speed.requests")
    request = requests.Prepare(kind="pattern", name="swiglu", size="tiny", device="cpu")
    made = bench.PatternBench(request)
    backend = optimizing_in_eager()
    hoisted = {"parameter_hoist": True}  # in inference layers are merged for that alone
    with torch.no_grad():
        call = torch.compile(made._program.function, backend=backend, options=hoisted)
        call(*made._program.inputs)
    assert [x.changes for x in reports if x.name == "horizontal_fusion"] == [1]


def optimizing_in_eager():
    from backbay.kit.backend import Backend
    from backbay_optimizer.backend import Optimizing

    return type("Eager", (Backend,), {"passes": Optimizing.passes, "codegen": "eager"})()


def test_mask_builders_come_back(speed, monkeypatch):
    module = type(sys)("transformers.models.some.modeling_some")
    module.create_causal_mask = builder = object()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    arms = speed("speed.arms")
    with arms.surrounded("hand"):
        assert module.create_causal_mask() is None
    assert module.create_causal_mask is builder
    with arms.surrounded("inductor"):
        assert module.create_causal_mask is builder


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


def test_state_of_other_code_is_told_apart(speed, tmp_path):
    digest = speed("speed.surroundings").code_digest
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "one.py").write_text("1")
    before = digest(tmp_path)
    (tmp_path / "cli.py").write_text("2")
    assert digest(tmp_path) == before
    (tmp_path / "passes" / "one.py").write_text("2")
    assert digest(tmp_path) != before


def test_state_of_another_optimizer_is_told_apart(speed):
    import backbay
    import backbay_optimizer

    surroundings = speed("speed.surroundings")
    kit, optimizer = (Path(x.__file__).parent for x in (backbay, backbay_optimizer))
    assert surroundings.versions()["backbay"].endswith(surroundings.code_digest(kit, optimizer))
    assert surroundings.code_digest(kit, optimizer) != surroundings.code_digest(kit)


def test_arm_that_is_ready_stays_compiled_while_another_gets_ready(speed, monkeypatch):
    arms, compiled = speed("speed.arms"), []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    call = torch.compile(lambda x: x * 2, backend=backend)
    call(torch.ones(3))
    arms.warm_up.cache_clear()
    monkeypatch.setattr(arms, "_compiler", lambda _: "eager")
    arms.warm_up("another", "cpu", train=True)
    call(torch.ones(3))
    assert len(compiled) == 1


def test_a_pass_runs_in_the_arm_without_it(speed, monkeypatch):
    asked = {}
    monkeypatch.setattr(torch, "compile", lambda _, **how: asked.update(how))
    speed("speed.arms").compiled(torch.relu, "backbay:without-linear_epilogues")
    assert asked["options"] == {"linear_epilogues": False}
