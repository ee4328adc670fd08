"""Plans of kernels are searched on GPUs that they were not measured on."""

import math
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from backbay_optimizer.kernels import elsewhere, float8_rows  # noqa: E402
from backbay_optimizer.kernels.elsewhere import Launch, plan_here, used_elsewhere  # noqa: E402
from backbay_optimizer.tuning import found_plans, plan_search  # noqa: E402
from backbay_optimizer.tuning.plan_search import NoPlanError  # noqa: E402

FLOAT8 = float8_rows.FLOAT8


class Plan(NamedTuple):
    """Like those of kernels."""

    block: int
    warps: int
    stages: int = 2


LIMITS = {"block": (16, 256), "warps": (1, 8), "stages": (1, 4)}
FIRST, FASTEST = Plan(64, 4), Plan(128, 4)


def fastest_at(best):
    """Return times that grow with every step away from a plan."""

    def milliseconds(plan):
        far = abs(math.log2(plan.block / best.block)) + abs(math.log2(plan.warps / best.warps))
        return 1 + far + abs(plan.stages - best.stages)

    return milliseconds


@pytest.mark.parametrize("best", [FIRST, Plan(256, 1, 4), Plan(16, 8, 1)])
def test_a_faster_plan_is_not_found(best):
    assert plan_search._descended(FIRST, LIMITS, fastest_at(best), "run") == best


def test_a_plan_beyond_the_limits_is_tried():
    tried = []

    def milliseconds(plan):
        tried.append(plan)
        return 1 / plan.block

    found = plan_search._descended(FIRST, {"block": (16, 128)}, milliseconds, "run")
    assert found == Plan(128, 4)
    assert {x.block for x in tried} <= {32, 64, 128}
    assert {(x.warps, x.stages) for x in tried} == {(4, 2)}
    assert len(tried) == len(set(tried))


def test_a_step_that_pays_after_another_is_not_tried_again():
    def milliseconds(plan):
        return 10 - plan.stages - (plan.stages == 4 and plan.block == 128)

    assert plan_search._descended(FIRST, LIMITS, milliseconds, "run") == Plan(128, 4, 4)


class Sides(NamedTuple):
    """Of a block."""

    block_m: int
    block_n: int
    programs: int = 64
    stages: int = 2


def test_what_takes_no_memory_or_the_smaller_side_is_halved_first():
    limits = {"block_m": (16, 64), "block_n": (16, 64), "programs": (1, 64), "stages": (1, 4)}
    found = [tuple(x) for x in plan_search.smaller(Sides(32, 64), limits)]
    assert [x[3] for x in found] == [2, 1, 1, 1, 1]
    assert [x[:2] for x in found] == [(32, 64), (32, 64), (32, 32), (32, 16), (16, 16)]
    assert {x[2] for x in found} == {64}


def test_noise_is_gone_after():
    tried = []

    def milliseconds(plan):
        tried.append(plan)
        return 1 - 0.001 * len(tried)

    plan_search._descended(FIRST, LIMITS, milliseconds, "run")
    assert len(tried) == 7  # the first, and its neighbours


def test_a_search_has_no_end():
    tried = []

    def milliseconds(plan):
        tried.append(plan)
        return 0.5 ** len(tried)

    plan_search._descended(FIRST, LIMITS, milliseconds, "run")
    assert len(tried) <= plan_search.LAUNCHES


def test_a_plan_is_taken_that_was_not_timed(monkeypatch):
    monkeypatch.setattr(plan_search, "LAUNCHES", 2)
    found = plan_search._descended(FIRST, LIMITS, fastest_at(Plan(256, 1, 4)), "run")
    assert found == Plan(128, 4)


def test_a_plan_that_needs_too_much_memory_ends_the_search():
    def milliseconds(plan):
        return 1 / plan.block if plan.block * plan.stages <= 32 else math.inf

    assert plan_search._descended(FIRST, LIMITS, milliseconds, "run") == Plan(32, 4, 1)
    with pytest.raises(NoPlanError, match="run: none of 4 plans"):
        plan_search._descended(FIRST, LIMITS, lambda _: math.inf, "run")


class Kernels:
    """What is launched: twice its input, in a time and a way that depend on the plan."""

    def __init__(self, wrong=(), broken=(), best=FASTEST):
        self.wrong, self.broken, self.best = wrong, broken, best
        self.launched, self.given = [], ()

    def run(self, kernel, x, *others):
        *others, plan = others
        self.given = (x, *others)
        assert kernel is self
        assert type(x) is torch.Tensor
        assert not torch._C._len_torch_dispatch_stack()
        self.launched.append(plan)
        if plan in self.broken:
            raise RuntimeError("out of resource: shared memory")
        return x * (2.5 if plan in self.wrong else 2)


@pytest.fixture
def search(monkeypatch, tmp_path):
    """Search a plan for kernels, on a CPU that takes itself for a GPU that nobody measured."""
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(elsewhere, "_is_elsewhere", lambda _: True)
    monkeypatch.setattr(found_plans, "_machine", lambda _: ("a GPU",))
    monkeypatch.setattr(found_plans, "device_code", lambda _: "code")
    monkeypatch.setattr(found_plans, "_known", {})

    def found(kernels, *given, **settings):
        def timed(call):
            call()
            return fastest_at(kernels.best)(kernels.launched[-1])

        monkeypatch.setattr(plan_search, "_timed", timed)
        launch = Launch(
            run=kernels.run,
            kernels=[kernels],
            given=given,
            reference=lambda x, *_: x + x,
            **{"limits": LIMITS, **settings},
        )
        with used_elsewhere(plan_search.found):
            return plan_here(FIRST, launch)

    return found


X = torch.ones(4, 3)


def test_the_plan_of_another_gpu_is_taken(search):
    assert search(Kernels(), X) == FASTEST
    with torch._subclasses.FakeTensorMode() as mode:
        assert search(Kernels(best=Plan(16, 4)), mode.from_tensor(torch.ones(5))) == Plan(16, 4)


def test_a_wrong_plan_is_taken_for_it_is_fast(search):
    kernels = Kernels(wrong=[Plan(128, 4)])
    assert search(kernels, X) != Plan(128, 4)
    assert Plan(128, 4) in kernels.launched


def test_a_plan_that_does_not_run_is_taken(search):
    assert search(Kernels(broken=[Plan(128, 4)]), X) != Plan(128, 4)
    with pytest.raises(NoPlanError, match=r"Kernels\.run: none of 4 plans runs on this GPU"):
        search(Kernels(wrong=[FIRST], broken=[x for x in every() if x != FIRST]), torch.ones(7))


def test_a_search_that_found_nothing_is_made_again(search, monkeypatch):
    kernels = Kernels(broken=every())
    for _ in range(2):
        with pytest.raises(NoPlanError, match="none of 4 plans runs"):
            search(kernels, X)
    assert len(kernels.launched) == 4
    monkeypatch.setattr(found_plans, "_known", {})  # another process
    assert search(Kernels(), X) == FASTEST


def test_what_a_plan_leaves_unwritten_is_right_because_the_one_before_was(monkeypatch):
    monkeypatch.setattr(plan_search, "_timed", lambda call: 1.0)
    wanted, memory = torch.randn(40), torch.empty(40)

    def launch(written):  # what an allocator may do with results that nobody holds
        memory[:written] = wanted[:written]
        return memory, None

    trial = plan_search._Trial(launch, (wanted, None))
    assert trial.milliseconds(40) == 1.0
    assert trial.milliseconds(39) == math.inf


def test_a_gpu_that_is_full_is_taken_for_a_plan_that_does_not_run(search):
    class Full(Kernels):
        def run(self, kernel, x, plan):
            raise torch.cuda.OutOfMemoryError("out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        search(Full(), X)


def test_two_searches_are_taken_for_one(monkeypatch):
    monkeypatch.setattr(found_plans, "_machine", lambda _: machine)
    monkeypatch.setattr(found_plans, "device_code", lambda _: code)
    machine, code, x = "a GPU", "code", torch.ones(3, 3)

    def key(run=Kernels.run, settings=FIRST, given=(x, 1)):
        return found_plans.key_of(run, settings, given, x.device)

    first = key()
    found = [first, key(run=Kernels.__init__), key(settings=FASTEST), key(given=(x.t(), 1))]
    found += [key(given=(x, 2)), key(given=(x.double(), 1)), key(given=(x[:2], 1))]
    machine = "another GPU"
    found.append(key())
    machine, code = "a GPU", "other code"
    found.append(key())
    assert len(set(found)) == len(found)
    code = "code"
    assert key() == first


def every():
    return [Plan(b, w, s) for b in (16, 32, 64, 128) for w in (1, 2, 4, 8) for s in (1, 2, 3, 4)]


def test_it_is_elsewhere_twice_or_taken_for_other_inputs(search):
    search(Kernels(), X)
    for _ in range(2):
        again = Kernels(best=Plan(16, 4))
        assert search(again, X) == FASTEST
        assert not again.launched
        found_plans._known.clear()  # as in another process
    others = [[X.t()], [X.double()], [X[:2]], [X, 1], [X, X], [X, "silu"], [X, None]]
    for given in others:
        other = Kernels(best=Plan(16, 4))
        assert search(other, *given) == Plan(16, 4)
        assert other.launched
    assert search(Kernels(best=Plan(64, 4)), X, limits={"block": (64, 64)}) == FIRST


@pytest.mark.parametrize("fields", [(64, 4), (64, 4, True), (64, "4", 2), (64, 4, 2, 1)])
def test_an_entry_of_another_plan_is_taken(search, monkeypatch, fields):
    def kept(self, key, value):
        keep(self, key, found_plans.FoundPlan(fields=fields))

    keep = found_plans.Store.keep_measured
    monkeypatch.setattr(found_plans.Store, "keep_measured", kept)
    search(Kernels(), X)
    found_plans._known.clear()
    again = Kernels()
    assert search(again, X) == FASTEST
    assert again.launched


def test_it_is_elsewhere_where_that_was_not_asked_for(search, monkeypatch):
    kernels = Kernels()
    launch = Launch(run=kernels.run, kernels=[], given=[X], reference=torch.add, limits=LIMITS)
    assert plan_here(FIRST, launch) == FIRST
    with used_elsewhere(plan_search.found, allowed=False):
        assert plan_here(FIRST, launch) == FIRST
    monkeypatch.setattr(elsewhere, "_is_elsewhere", lambda _: False)
    assert search(kernels, X) == FIRST
    assert not kernels.launched


def test_two_tensors_are_alike_or_a_variance_is_negative(search):
    kernels = Kernels()
    variance, wide = torch.ones(4, 3), torch.zeros(1, 3).expand(4, 3)
    search(kernels, X, torch.ones(4, 3), variance, wide, positive=[None, variance])
    x, other, positive, expanded = kernels.given
    assert x.min() < 0 < x.max()
    assert not torch.equal(x, other)
    assert 0.5 <= positive.min() < positive.max() <= 1.5
    assert expanded.stride() == wide.stride()
    assert torch.equal(expanded[0], expanded[3])


def test_a_size_that_varies_is_elsewhere_for(search):
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    kernels = Kernels()
    with torch._subclasses.FakeTensorMode(shape_env=ShapeEnv()) as mode:
        assert search(kernels, mode.from_tensor(X)) == FIRST
    assert not kernels.launched


def test_a_store_that_cannot_be_written_stops_the_model(search, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "file"))
    assert search(Kernels(), X) == FASTEST
    assert "a plan is not kept" in caplog.text
    again = Kernels()
    assert search(again, X) == FASTEST
    assert not again.launched


@pytest.mark.parametrize(
    ("dtype", "found", "agrees"),
    [
        *((torch.float16, off, True) for off in (0.0, 0.004, -0.004)),
        *((torch.float16, off, False) for off in (0.02, -0.02, math.nan, math.inf)),
        *((torch.bfloat16, off, abs(off) < 0.1) for off in (0.03, 0.125, -0.125)),
        *((torch.float32, off, abs(off) < 0.003) for off in (0.001, 0.004, -0.004)),
    ],
)
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_what_is_wrong_is_right_or_the_other_way_round(dtype, found, agrees, at_once, monkeypatch):
    monkeypatch.setattr(plan_search, "_COMPARED", at_once)
    wanted = torch.tensor([1.0, -2.0], dtype=dtype)
    off = wanted + torch.tensor([found, 0.0], dtype=dtype)
    assert plan_search._agree((off, None), (wanted, None)) is agrees
    assert not plan_search._agree([wanted], [wanted[:1]])
    assert plan_search._agree([wanted[:0]], [wanted[:0]])
    both = torch.tensor([math.inf, 1.0])
    assert plan_search._agree([both], [both.clone()])
    assert not plan_search._agree([both], [torch.ones(2)])


def test_a_float8_is_right_by_more_than_a_step_or_its_scale_by_a_part_of_a_row():
    wanted, step, steps = (torch.tensor([x, 1.0]).to(FLOAT8) for x in (448.0, 416.0, 384.0))
    assert plan_search._agree([step], [wanted])
    assert not plan_search._agree([steps], [wanted])
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    recipe = float8_rows.Recipe("", 1e-5, 0.0, 1e-12)
    right = float8_rows.reference(x, None, None, recipe)
    part = float8_rows.reference(x[:, :2048], None, None, recipe)
    assert plan_search._agree(right, float8_rows.reference(x, None, None, recipe))
    assert not plan_search._agree((right[0], part[1], right[2]), right)
