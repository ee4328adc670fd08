"""Campaigns on a Ray of two workers: what is lost is tried once more; no row is there twice."""

import builtins
import os
import signal
import threading
import time

import made_up_races
import msgspec
import psutil
import pytest

import backbay
from backbay import campaign
from backbay import cluster as workers
from backbay.campaign import cluster
from backbay.campaign.cluster import Cluster, Told
from backbay.campaign.place import Raced
from backbay.cluster import Slot, Surroundings
from backbay.errors import InputError
from backbay.race.reading import read

ray = pytest.importorskip("ray")
from ray.exceptions import OutOfMemoryError  # noqa: E402 (only where there is Ray)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sigterm_as_before")]

MODELS = """
import torch

def one():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()), (torch.randn(8, 16),)

def two():
    return torch.nn.Linear(16, 4), (torch.randn(8, 16),)

def three():
    return torch.nn.Tanh(), (torch.randn(8, 16),)
"""


NOTICED = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2_000,
    "health_check_failure_threshold": 3,
}
"""When a node that is gone is noticed: by itself Ray takes 15 s."""


@pytest.fixture(scope="module")
def address():
    """Start a Ray of two nodes, each with a worker."""
    from ray.cluster_utils import Cluster as Nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1})
        nodes.add_node(num_cpus=1)
        yield nodes.address
        nodes.shutdown()


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(MODELS)

    def write(*names):
        path = tmp_path / "many.toml"
        workloads = (f'[[workload]]\nname = "{tmp_path}/mine.py:{name}"\n' for name in names)
        head = 'arms = ["aot_eager"]\ndevice = "cpu"\nseconds = 0.3\n'
        path.write_text(head + "".join(workloads))
        return path

    return write


class FakeWorker:
    """Races nothing; what is called `dies` takes the actor down, `dies_once` the first time."""

    def __init__(self, surroundings):
        surroundings.enter()

    def told(self, device):
        return Told("a processor", workers.versions())

    def race(self, unit, *, keep):
        name = unit.workload.rpartition(":")[2]
        mark = f"{unit.workload}.died".replace(".py:", "-")
        if name == "dies" or (name == "dies_once" and not os.path.exists(mark)):  # noqa: PTH110
            open(mark, "w").close()  # noqa: PTH123
            os._exit(1)
        if name == "ends_every_node" or (name == "ends_a_node" and not os.path.exists(mark)):  # noqa: PTH110
            open(mark, "w").close()  # noqa: PTH123
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        if name == "raises":
            raise ValueError("a defect of ours")
        if name == "absent":
            return Raced(unit=unit, reason="there is no function 'absent'")
        report = made_up_races.raced(unit.workload, device="cpu")
        versions = {"backbay": backbay.__version__}
        return Raced(unit=unit, report=msgspec.structs.replace(report, versions=versions))


@pytest.fixture
def fake(monkeypatch):
    import sys

    from ray import cloudpickle

    for module in (sys.modules[__name__], made_up_races):  # the workers can't import them
        cloudpickle.register_pickle_by_value(module)
    monkeypatch.setattr(cluster, "Worker", FakeWorker)


def names(rows):
    return [x.unit.workload.rpartition(":")[2] for x in rows]


def test_a_lost_race_is_tried_once_more_and_then_is_a_row(address, file, fake):
    path = file("one", "dies", "dies_once", "raises", "absent", "two")
    shown = []
    found = campaign.run(
        path, placement=Cluster(address=address), show=lambda _, row: shown.append(row.unit)
    )
    rows = dict(zip(names(found.rows), found.rows, strict=True))
    assert list(rows) == ["one", "dies", "dies_once", "raises", "absent", "two"]
    assert sorted(shown, key=str) == sorted((x.unit for x in found.rows), key=str)
    assert {x for x, row in rows.items() if row.status == "raced"} == {"one", "two", "dies_once"}
    assert "its worker was lost twice" in rows["dies"].reason
    assert "ValueError: a defect of ours" in rows["raises"].reason
    assert rows["absent"].reason == "there is no function 'absent'"
    assert {x.device_name for x in found.rows} == {"a processor"}
    again = []
    campaign.run(
        path,
        placement=Cluster(address=address),
        show=lambda _, row: again.append(row.unit.workload.rpartition(":")[2]),
    )
    assert sorted(again) == ["absent", "dies", "raises"]


def test_a_worker_that_ran_out_of_memory_is_lost_and_its_race_is_tried_again(
    address, file, fake, monkeypatch
):
    get, lost = ray.get, []

    def first_lost(asked):
        found = get(asked)
        if isinstance(found, Raced) and not lost:
            lost.append(found)
            raise OutOfMemoryError("the node was low on memory")  # no RayActorError
        return found

    monkeypatch.setattr(ray, "get", first_lost)
    found = campaign.run(file("one", "two"), placement=Cluster(address=address))
    assert lost
    assert [(x.status, x.reason) for x in found.rows] == [("raced", "")] * 2


def test_a_node_that_is_gone_costs_nothing_and_without_any_the_rest_is_lost(file, fake):
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": NOTICED})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    try:
        path = file("ends_a_node", "one", "two")
        found = campaign.run(path, placement=Cluster(address=nodes.address))
        assert [(x.status, x.reason) for x in found.rows] == [("raced", "")] * 3
        path = file("one", "ends_every_node", "three")
        found = campaign.run(path, placement=Cluster(address=nodes.address))
    finally:
        nodes.shutdown()
    assert [(x.status, x.reason) for x in found.rows] == [
        ("raced", ""),
        ("lost", "no worker is left"),
        ("lost", "no worker is left"),
    ]


def test_a_worker_that_is_killed_costs_nothing(address, file, tmp_path):
    """Three real races on two workers, one of which is killed while it races."""
    path, killed = file("one", "two", "three"), []

    def kill():
        end = time.monotonic() + 120
        while time.monotonic() < end and not killed:
            racing = [
                x
                for x in psutil.process_iter(["cmdline"])
                if (x.info["cmdline"] or [""])[0].startswith("ray::Worker.race")
            ]
            if len(racing) == 2 and all(x.children(recursive=True) for x in racing):
                killed.extend([racing[0].pid, *(x.pid for x in racing[0].children(recursive=True))])
                os.kill(racing[0].pid, signal.SIGKILL)
            time.sleep(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    shown = []
    found = campaign.run(
        path, placement=Cluster(address=address), show=lambda _, row: shown.append(row)
    )
    killer.join()
    assert len(killed) > 1
    assert names(found.rows) == ["one", "two", "three"]
    assert [x.status for x in found.rows] == ["raced"] * 3
    assert len(shown) == 3
    for row in found.rows:
        results = {x.arm: x.status for x in row.report.results}
        assert results == {"eager": "ok", "aot_eager": "ok"}
        assert row.decision is not None
    kept = list((tmp_path / "many.results").glob("*.json"))
    assert sorted(x.name for x in kept) == sorted(x.file for x in found.rows)
    assert all(read(x).decision for x in kept)
    assert not [x for x in killed if psutil.pid_exists(x)]  # nor what it had started
    skipped = []
    campaign.run(path, placement=Cluster(address=address), show=lambda *x: skipped.append(x))
    assert not skipped


def test_a_worker_that_lacks_the_folder_is_told(address, file, fake, monkeypatch):
    class Elsewhere(FakeWorker):
        def __init__(self, surroundings):
            surroundings._replace(folder="/absent").enter()

    monkeypatch.setattr(cluster, "Worker", Elsewhere)
    with pytest.raises(InputError, match=r"a worker can't be used: .*has to be there, too"):
        campaign.run(file("one"), placement=Cluster(address=address))


def test_a_worker_has_the_threads_of_who_asks_and_not_rays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cluster.Worker(Surroundings(str(tmp_path), [], None))
    assert "OMP_NUM_THREADS" not in os.environ
    cluster.Worker(Surroundings(str(tmp_path), [], "3"))
    assert os.environ["OMP_NUM_THREADS"] == "3"
    with pytest.raises(InputError, match="absent has to be there, too"):
        cluster.Worker(Surroundings(str(tmp_path / "absent"), [], None))


def test_a_cluster_leaves_print_as_it_was(address):
    before = builtins.print
    Cluster(address=address).device_names(["cpu"])
    assert builtins.print is before


def test_a_cluster_that_is_not_there_is_told(file):
    with pytest.raises(InputError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        campaign.run(file("one"), placement=Cluster(address="127.0.0.1:1"))


def test_an_accelerator_that_no_node_has_is_told(address):
    with pytest.raises(InputError, match="no node of the Ray cluster has a device 'cuda'"):
        Cluster(address=address).device_names(["cuda"])
    with pytest.raises(InputError, match="Ray chooses which"):
        Cluster(address=address).device_names(["cuda:1"])


def slots(*device_names, **versions):
    known = {**workers.versions(), **versions}
    return {
        Slot(str(n), f"10.0.0.{n}", 0, 4, 1): Told(name, known)
        for n, name in enumerate(device_names)
    }


def test_devices_of_several_names_are_refused_unless_one_is_chosen():
    mixed = slots("NVIDIA A100", "NVIDIA H100", "NVIDIA H100")
    with pytest.raises(InputError, match="NVIDIA A100 and NVIDIA H100: times of several devices"):
        cluster._chosen(mixed, "cuda", None)
    chosen, name = cluster._chosen(mixed, "cuda", "NVIDIA H100")
    assert (name, [x.node for x in chosen]) == ("NVIDIA H100", ["1", "2"])
    with pytest.raises(InputError, match="no worker has a device 'NVIDIA B200'"):
        cluster._chosen(mixed, "cuda", "NVIDIA B200")


def test_workers_with_other_versions_are_refused():
    with pytest.raises(InputError, match=r"worker 10.0.0.0 has torch 2.12.0, here .*install"):
        cluster._chosen(slots("NVIDIA H100", torch="2.12.0"), "cuda", None)


def test_a_node_has_a_slot_for_each_gpu_and_one_for_its_processors():
    node = {
        "NodeID": "a",
        "NodeManagerAddress": "10.0.0.1",
        "Alive": True,
        "Resources": {"CPU": 64.0, "GPU": 8.0},
    }
    dead = {**node, "Alive": False}

    def slots_of(node, kind, **more):
        return list(workers._slots_of(node, kind, **{"each_core": False, **more}))

    assert slots_of(node, "cuda") == [Slot("a", "10.0.0.1", n, 8, 1) for n in range(8)]
    assert slots_of(node, "cpu") == [Slot("a", "10.0.0.1", 0, 64, 0)]
    assert len(slots_of(node, "cpu", each_core=True)) == 64
    assert slots_of(dead, "cuda") == slots_of(dead, "cpu") == []
