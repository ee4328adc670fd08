"""What the benchmarks of models and patterns conclude, and their tables say."""

import math

import msgspec
import pytest
import torch

from backbay.timing.gpu_work import GpuWork


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


def test_ratio_pools_the_runs_that_timed_both_and_no_others(speed, entry):
    found = entry(
        {"inductor": [2.0] * 5, "backbay": [1.0] * 5},
        {"inductor": [100.0] * 50},
        {"inductor": [2.0] * 5, "backbay": "crashed"},
    )
    ratio = speed("speed.judging").ratio
    assert ratio(found, "inductor", "backbay").value == 2.0
    assert ratio(found, "eager", "backbay") is None


def test_arms_that_are_missing_run_beside_the_pair_and_failures_do_not_run_again(speed, entry):
    to_run = speed("speed.judging").to_run
    wanted = ["eager", "inductor", "backbay", "hand"]
    pair = {"above": "inductor", "below": "backbay"}
    steady = {"inductor": [2.0] * 20, "backbay": [1.0] * 20, "eager": [3.0] * 20}
    shaky = steady | {"backbay": [1.0, 2.0] * 10, "hand": [1.0] * 20}
    assert to_run(None, wanted, **pair) == wanted
    assert to_run(entry(steady), wanted, **pair) == ["inductor", "backbay", "hand"]
    assert to_run(entry(steady | {"hand": "failed"}), wanted, **pair) == []
    assert to_run(entry(shaky), wanted, **pair) == ["inductor", "backbay"]
    assert to_run(entry(shaky, shaky, shaky), wanted, **pair) == []


def test_failures_count_as_one_and_are_listed(speed, entry):
    table = speed("speed.model_table")
    fast = entry({"inductor": [4.0] * 9, "backbay": [1.0] * 9}, name="bert.infer")
    lost = entry({"inductor": [1.0] * 9, "backbay": "crashed"}, name="gpt2.train")
    text = table.text([fast, lost], 2)
    assert "over Inductor's default: **2.000** (2 workloads)" in text
    assert "failed: gpt2.train (backbay crashed)" in text
    assert "not proven" in text


def test_wrong_verdict_takes_the_gain_away(speed, entry):
    verdict = speed("speed.requests").Verdict(passed=False, reason="far off", about="2x8")
    found = entry(
        {"inductor": [4.0] * 9, "backbay": [1.0] * 9},
        name="bert.infer",
        verdicts={"backbay": verdict},
    )
    text = speed("speed.model_table").text([found], 2)
    assert "over Inductor's default: **1.000** (1 workloads)" in text
    assert "**wrong** at 2x8" in text


def test_the_newest_run_is_mixed_with_an_older_one_or_its_proof_forgotten(speed, entry):
    newest, verdict = (
        speed("newest"),
        speed("speed.requests").Verdict(passed=True, reason="", about="2x8"),
    )
    slow, fast = ({"inductor": [4.0] * 9, "backbay": [x] * 9} for x in (4.0, 2.0))
    alone = entry({"backbay": [0.1] * 9}, name="bert.infer")
    old = entry(slow, name="bert.infer", verdicts={"backbay": verdict})
    runs = [
        newest.Run("first", (old, entry(slow, name="gpt2.train"))),
        newest.Run("second", (entry(fast, name="bert.infer"),)),
        newest.Run("third", (alone,)),
    ]
    text = newest.table(runs)
    assert "| bert.infer | second | 2.000 [2.000, 2.000] |" in text
    assert "right at 2x8 (first)" in text
    assert "| gpt2.train | first | 1.000 [1.000, 1.000] |" in text
    assert "over Inductor's default: **1.414** (2)" in text
    assert "over Inductor's default, of inference: **2.000** (1)" in text
    assert "over Inductor's default, of training: **1.000** (1)" in text
    assert "at work" not in text  # nobody watched


def test_how_long_the_gpu_works_is_of_a_run_that_nobody_watched(speed, entry):
    newest, watched = speed("newest"), entry({"inductor": [4.0] * 9, "backbay": [2.0] * 9})
    work = {"inductor": 3.0, "backbay": 2.0}
    arms = {
        name: msgspec.structs.replace(x, work=GpuWork(busy_ms=work[name], launches=1))
        for name, x in watched.runs[0].arms.items()
    }
    run = msgspec.structs.replace(watched.runs[0], arms=arms)
    watched = msgspec.structs.replace(watched, name="bert.infer", runs=(run,))
    other = entry({"inductor": [4.0] * 9, "backbay": [2.0] * 9}, name="gpt2.train")
    text = newest.table([newest.Run("run", (watched, other))])
    assert "at work, of Inductor's default over backbay's: **1.500** (1)" in text


def test_autotuning_is_not_what_it_was_beside_the_default(speed, entry):
    newest = speed("newest")
    tuned = newest.AUTOTUNED
    models = [
        entry({"inductor": [4.0] * 9, "backbay": [2.0] * 9}, name="bert.infer"),
        entry({"inductor": [4.0] * 9, "backbay": [2.0] * 9}, name="vit_b.infer"),
        entry({"inductor": [2.0] * 9, "backbay": [2.0] * 9}, name="gpt2.train"),
    ]
    older = [entry({"inductor": [9.0] * 9, tuned: [1.0] * 9}, name="bert.infer")]
    newer = [  # on another machine: three quarters of the default, and longer than it
        entry({"inductor": [8.0] * 9, tuned: [6.0] * 9}, name="bert.infer"),
        entry({"inductor": [8.0] * 9, tuned: [9.0] * 9}, name="vit_b.infer"),
    ]
    text = newest.table(
        [newest.Run("run", tuple(models))],
        [newest.Run("older", tuple(older)), newest.Run("newer", tuple(newer))],
    )
    assert "in other runs (2 of 3 workloads): **1.442**" in text  # of 1.5, 2 and 1
    assert "only if autotuning is 1.97 times as fast" in text  # 1.442 over 1.15, to the third
    assert "in the mean of the others: gpt2.train" in text
    assert "| bert.infer | 0.750 [0.750, 0.750] |" in text
    raced = entry(
        {"inductor": [4.0] * 9, tuned: [3.0] * 9, "backbay": [2.0] * 9}, name="bert.infer"
    )
    text = newest.table([newest.Run("run", (raced,))], [newest.Run("older", tuple(older))])
    assert "in other runs (1 of 1 workloads): **1.500**" in text  # its own, and not the older one


def test_a_model_with_masks_is_compared_with_the_default_though_it_was_timed_without_them(
    speed, entry
):
    newest = speed("newest")
    names = ("bert.infer", "roberta.infer", "vit_b.infer")
    models = [entry({"inductor": [8.0] * 9, "backbay": [2.0] * 9}, name=x) for x in names]
    by_hand = [
        newest.Run(name, (entry({"hand": [x] * 9, "backbay": [1.0] * 9}, name="bert.infer"),))
        for name, x in {"older": 9.0, "newer": 2.0}.items()
    ]
    text = newest.table([newest.Run("run", tuple(models))], (), by_hand)
    assert "where there are masks: **3.175** (3)" in text  # of 2, 4 and 4
    assert "of models with masks alone: **2.000** (1)" in text
    assert "not timed, so the default counts: roberta.infer" in text
    assert "by hand" not in newest.table([newest.Run("run", tuple(models))])


def test_what_cuda_graphs_save_is_taken_from_another_run_or_counted_where_they_save_little(
    speed, entry
):
    newest = speed("newest")
    steady = {"inductor": [4.0] * 9, newest.GRAPHS: [2.0] * 9}
    runs = [
        newest.Run("old", (entry({**steady, "backbay": [4.0] * 9}, name="bert.infer"),)),
        newest.Run(
            "new",
            (
                entry({**steady, "backbay": [2.5] * 9}, name="bert.infer"),
                entry(
                    {**steady, newest.GRAPHS: [3.9] * 9, "backbay": [4.0] * 9}, name="gpt2.train"
                ),
            ),
        ),
        newest.Run("alone", (entry({"inductor": [4.0] * 9, "backbay": [1.0] * 9}),)),
    ]
    text = newest.table(runs).partition("saved, aim")[2]
    assert "| bert.infer | new | 2.000 [2.000, 2.000] | 1.600 [1.600, 1.600] | 0.750 [0.750" in text
    assert text.count("| new |") == 1
    assert "alone" not in text
    pair = entry({"inductor": [1.0] * 9, newest.GRAPHS: "failed", "backbay": [1.0] * 9})
    total = msgspec.structs.replace(runs[1].entries[0], runs=(*runs[1].entries[0].runs, *pair.runs))
    text = newest.table([newest.Run("longer", (total,))]).partition("saved, aim")[2]
    assert "1.600 [1.600, 1.600] | 0.750 [0.750" in text  # of the run that timed all three


def test_a_part_that_is_saved_lies_outside_of_its_interval(speed):
    newest, of = speed("newest"), speed("speed.judging").Ratio
    theirs = of(value=1.10, low=1.06, high=1.20)
    for value, low, high in ((0.93, 0.90, 0.96), (1.02, 0.97, 1.05), (1.12, 1.11, 1.13)):
        part = newest._part(of(value=value, low=low, high=high), theirs)
        assert part.low < part.value < part.high
    assert part.low == pytest.approx((1 - 1 / 1.11) / (1 - 1 / 1.20))
    assert part.high == pytest.approx((1 - 1 / 1.13) / (1 - 1 / 1.06))
    unsure = of(value=1.10, low=0.99, high=1.20)
    assert newest._part(theirs, unsure).high == math.inf


def test_a_pattern_is_held_against_another_limit_than_memorys_or_the_wrong_aim(speed, entry):
    limits = speed("limits")
    device = speed("speed.requests").Limited(device_name="", copy_bytes_s=1e12, matmul_flops_s=1e14)

    def row(name, bytes_moved, flops=None, ours=None):
        timed = entry({"inductor": [2.0] * 9, "backbay": ours or [1.0] * 9}, name=name)
        return msgspec.structs.replace(timed, bytes_moved=bytes_moved, flops=flops, limits=device)

    rows = [
        row("at_its_limit/1", 850_000_000),
        row("below/1", 800_000_000),
        row("far_below/1", 100_000_000),
        row("of_products/1", 100_000_000, flops=20_000_000_000),
        row("enough_train/1", 760_000_000),
        row("lost/1", 900_000_000, ours="crashed"),
    ]
    text = limits.section(rows)
    assert "forward, 85%: **1 of 4**" in text
    assert "forward and backward, 75%: **1 of 1**" in text
    listed = [x.split(" | ") for x in text.splitlines() if "/1" in x]
    assert listed == [
        ["| lost/1", "not timed", "0.45 |"],
        ["| far_below/1", "0.10", "0.05 |"],
        ["| below/1", "0.80", "0.40 |"],
    ]


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
            second=None if t is None else n / (8 if arm == "inductor" else 2),
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
    # Both calls: 4.5 and 9.0 s, and 4.5 twice.
    assert text.endswith("| yes | 0, 3 | 0.750, 1.500 | 0.667 [0.500, 1.000] |")
    assert not missed
    text, missed = times.row("one", "cold", samples)
    assert "2.000 [2.000, 2.000]" in text
    assert missed
    text, missed = times.row("other", "warm", samples)
    assert "no: Sample" in text
    assert text.endswith("| -, - | -, - | - |")
    assert missed
    assert "not run" in times.row("third", "warm", samples)[0]


def test_stock_arms_with_cuda_graphs_are_left_out_of_the_best_one(speed, entry):
    found = entry(
        {
            "inductor": [4.0] * 9,
            "backbay": [2.0] * 9,
            "inductor:reduce-overhead": [1.0] * 9,
            "hand": [0.5] * 9,
        },
        name="bert.infer",
    )
    text = speed("speed.model_table").text([found], 2)
    assert "over the best stock arm that was run: **0.500**" in text
    assert "of models that have masks: **0.250** (1 workloads)" in text
    unmasked = entry({"inductor": [8.0] * 9, "backbay": [2.0] * 9}, name="resnet50.infer")
    text = speed("speed.model_table").text([found, unmasked], 2)
    assert "where there are masks, of all models: **1.000** (2 workloads)" in text
    assert "0.500 [0.500, 0.500] **slower** (inductor:reduce-overhead)" in text


def test_the_devices_work_is_missing_in_the_table(speed, entry):
    record, work = speed("speed.record"), GpuWork(busy_ms=1.5, launches=7)
    found = entry({"inductor": [4.0] * 9, "backbay": [2.0] * 9}, name="bert.infer")
    arms = {**found.runs[0].arms}
    arms["backbay"] = msgspec.structs.replace(arms["backbay"], work=work)
    run = record.Run(created="now", arms=arms)
    found = msgspec.structs.replace(found, runs=(run,))
    assert "| -, 1.5 in 7 |" in speed("speed.model_table").text([found], 2)


def test_a_difference_of_numbers_whose_squares_overflow_is_a_number(speed):
    relative = speed("speed.model_bench").relative
    large = torch.tensor([3e25, 4e25], dtype=torch.bfloat16)
    assert relative(large, large) == 0
    assert relative(1.5 * large, large) == pytest.approx(0.5, rel=0.02)
    assert math.isnan(relative(torch.tensor([math.nan]), torch.ones(1)))
