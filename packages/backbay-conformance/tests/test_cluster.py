"""The suite on a Ray of two workers: every case has one result, whoever is lost."""

import os
import signal
import sys
from collections import Counter

import pytest

from backbay.cli.interrupts import terminable
from backbay.cluster import connect, leave
from backbay.errors import InputError
from backbay.registry import Traits
from backbay_conformance import cluster, conform, pool
from backbay_conformance.record import Result
from backbay_conformance.requests import Ready, SuiteSetup

ray = pytest.importorskip("ray")
from ray.exceptions import OutOfMemoryError  # noqa: E402 (only where there is Ray)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sigterm_as_before")]

SETUP = SuiteSetup(backend="tried", device="cpu", seed=0, levels=(1,), profile="full")
CASES = tuple((f"contract/{x}", 5.0) for x in ("a", "dies", "b", "dies_once", "c", "d"))


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster as Nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1})
        nodes.add_node(num_cpus=1)
        yield nodes.address
        nodes.shutdown()


class FakeWorker:
    """Runs nothing; what is called `dies` takes the actor down, `dies_once` the first time."""

    def __init__(self, surroundings, setup):
        surroundings.enter()

    def versions(self):
        from backbay.cluster import versions

        return versions()

    def ready(self):
        known = tuple(x for x, _ in CASES)
        return Ready(
            cases=CASES,
            reference_backends=("eager",),
            known=known,
            device_name="cpu",
            traits=Traits(),
        )

    def run(self, case_id, timeout_s):
        name = case_id.partition("/")[2]
        if name == "dies" or (name == "dies_once" and not os.path.exists("died")):  # noqa: PTH110
            open("died", "w").close()  # noqa: PTH123
            os._exit(1)
        return Result(id=case_id, level=1, status="pass")


@pytest.fixture
def fake(monkeypatch, tmp_path):
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers can't import it
    monkeypatch.setattr(cluster, "Worker", FakeWorker)
    monkeypatch.chdir(tmp_path)


def test_a_case_whose_worker_is_lost_is_run_once_more_and_then_that_is_its_result(address, fake):
    told = []
    with cluster.runners(address, SETUP) as runners:
        assert len(runners) == 2
        _, results, interruption = pool.run_all(SETUP, workers=1, tell=told.append, runners=runners)
    assert interruption is None
    found = {x.id.partition("/")[2]: x for x in results}
    assert list(found) == ["a", "dies", "b", "dies_once", "c", "d"]
    assert {x for x, result in found.items() if result.status == "pass"} == {
        *"abcd",
        "dies_once",
    }
    assert found["dies"].status == "crash"
    assert "its worker was lost twice" in found["dies"].reason
    assert set(Counter(x.id for x in told).values()) == {1}


def test_a_worker_that_ran_out_of_memory_is_lost_and_its_case_is_run_again(
    address, fake, monkeypatch
):
    get, lost = ray.get, []

    def first_lost(asked):
        found = get(asked)
        if isinstance(found, Result) and not lost:
            lost.append(found)
            raise OutOfMemoryError("the node was low on memory")  # no RayActorError
        return found

    monkeypatch.setattr(ray, "get", first_lost)
    with cluster.runners(address, SETUP) as runners:
        assert runners[0].run("contract/a", 5.0).status == "pass"
    assert lost


def test_an_interrupted_run_leaves_the_cluster_and_has_what_was_run(address, fake):
    def tell(_result):
        raise KeyboardInterrupt

    with cluster.runners(address, SETUP) as runners:
        _, _, interruption = pool.run_all(SETUP, workers=1, tell=tell, runners=runners)
    assert interruption is not None
    assert not ray.is_initialized()


def test_real_cases_are_run_and_judged(address):
    statement = conform("aot_eager", device="cpu", only=["contract/values/infinity*"], ray=address)
    assert statement.results
    assert {x.status for x in statement.results} == {"pass"}
    assert statement.notes[0].startswith("cases ran on 2 workers of a Ray cluster")
    assert len({x.id for x in statement.results}) == len(statement.results)
    assert not ray.is_initialized()


def test_a_backend_that_is_not_there_is_told(address):
    with pytest.raises(InputError, match="no_such_backend"):
        conform("no_such_backend", device="cpu", only=["contract/*"], ray=address)
    with pytest.raises(InputError, match="an object can't travel"):
        conform(lambda graph_module, _: graph_module, device="cpu", ray=address)
    with pytest.raises(InputError, match="each core or GPU has a worker"):
        conform("aot_eager", device="cpu", ray=address, workers=2)


def test_who_handles_an_end_is_asked_no_more_with_a_cluster(address):
    with terminable():
        handler = signal.getsignal(signal.SIGTERM)
        connect(address, "a test")
        try:
            assert signal.getsignal(signal.SIGTERM) is handler
        finally:
            leave(())
