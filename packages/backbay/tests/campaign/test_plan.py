"""What a campaign's file stands for, and what it may not say."""

from pathlib import Path

import msgspec
import pytest

from backbay.campaign.plan import read
from backbay.errors import InputError
from backbay.race import Limits

SMALL = """
arms = ["eager", "inductor"]
device = "cpu"
[[workload]]
name = "decoder"
"""


@pytest.fixture
def plan(tmp_path, registry):
    def planned(text):
        path = tmp_path / "nightly.toml"
        path.write_text(text)
        return read(path, registry)

    return planned


def test_what_stands_at_the_top_holds_where_a_workload_says_nothing(plan):
    found = plan(
        """
        arms = ["inductor@reduce-overhead", "backbay{parameter_hoist: true}"]
        dtype = "bfloat16"
        device = "cpu"
        seconds = 5
        seed = 3
        [[workload]]
        name = "decoder"
        [[workload]]
        name = "decoder"
        size = "small"
        dtype = "float32"
        arms = "eager"
        seconds = 7.5
        objective = "total"
        calls = 100
        jobs = 2
        """
    )
    first, second = found.units
    assert found.name == "nightly"
    assert first.arms == ("inductor@reduce-overhead", "backbay{parameter_hoist: true}")
    assert (first.dtype, first.seed, first.limits) == ("bfloat16", 3, Limits(timing_s=5))
    assert (second.size, second.dtype, second.arms) == ("small", "float32", ("eager",))
    assert second.limits.timing_s == 7.5
    assert (second.objective.kind, second.objective.calls) == ("total", 100)
    assert (second.limits.at_once, first.limits.at_once) == (2, None)
    assert found.arms == (*first.arms, "eager")


def test_lists_are_all_combinations_in_order_and_none_twice(plan):
    found = plan(
        SMALL + 'mode = ["infer", "train"]\nbatch = [1, 8]\nsize = ["tiny", "small"]\n'
        '[[workload]]\nname = "decoder"\nsize = "tiny"\nbatch = 8\n'
    )
    ways = [(x.size, x.mode, x.batch) for x in found.units]
    assert ways == [
        (size, mode, batch)
        for size in ("tiny", "small")
        for mode in ("infer", "train")
        for batch in (1, 8)
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "missing required field `workload`"),
        ("workload = []", "names no workload"),
        ("[[workload]]\nname = 'decoder'", "workload 1 (decoder): it has no arms"),
        (SMALL + "bach = 3", "unknown field `bach`"),
        (SMALL + "batch = 0", "a batch has at least one row"),
        (SMALL + "size = 'huge'", "no size 'huge'"),
        (SMALL + "dtype = 'float8'", "no dtype 'float8'"),
        (SMALL + "mode = []", "mode is an empty list"),
        (SMALL + "mode = 'both'", "Invalid enum value 'both'"),
        (SMALL + "device = 'cuda'", "this PyTorch is built without CUDA"),
        (SMALL + "seconds = 0", "seconds is 0"),
        (SMALL + "seed = -1", "seed -1"),
        (SMALL + "jobs = 0", "jobs is 0"),
        (SMALL + "arms = ['inductor{a']", "not closed"),
        (SMALL + "objective = 'total'", "give calls"),
        (SMALL + "[[workload]]\nname = 'hf:lama'", "workload 2 (hf:lama): no workload named"),
        (SMALL + "[[workload]]\nname = 'absent.py:f'", "workload 2 (absent.py:f)"),
        ("arms = [", "is no campaign"),
    ],
)
def test_every_mistake_is_found_before_anything_is_raced(plan, text, why):
    with pytest.raises(InputError) as raised:
        plan(text)
    assert "nightly.toml" in str(raised.value)
    assert why in str(raised.value)


def test_a_file_that_is_not_there_is_told(registry):
    with pytest.raises(InputError, match=r"absent.toml is no campaign: .*No such file"):
        read(Path("absent.toml"), registry)


def test_the_digest_is_of_all_that_a_race_depends_on(plan, tmp_path):
    model = tmp_path / "mine.py"
    model.write_text("def model(): ...\n")
    (unit,) = plan(SMALL.replace("decoder", f"{model}:model")).units
    digest = unit.digest
    assert digest == msgspec.structs.replace(unit).digest
    changes = {"seed": 1, "batch": 2, "mode": "train", "arms": ("eager",), "device": "cuda"}
    for name, value in changes.items():
        assert msgspec.structs.replace(unit, **{name: value}).digest != digest, name
    model.write_text("def model(): return 1\n")
    assert unit.digest != digest


def test_a_list_within_a_list_of_batches_is_a_mix(plan):
    found = plan(SMALL + "batch = [4, [1, 8]]")
    assert [x.batch for x in found.units] == [4, (1, 8)]
