"""How one workload is measured: what becomes of an arm, and of the others."""

import contextlib

import pytest

from backbay.session import Refused
from backbay.timing.measure import Timed
from backbay.timing.rounds import Plan
from speed import requests
from speed.conduct import Conduct, Patience
from speed.record import Run


class Process:
    """Answers as a child process does; one arm costs it the device."""

    def __init__(self, reason):
        self.reason = reason
        self.refuses = False

    def ask(self, request, timeout_s):
        match request:
            case requests.Prepare():
                return requests.Prepared(device_name="one", bytes_moved=1, flops=1)
            case requests.Ready():
                self.refuses |= request.arm == "bad" and self.reason.startswith("AcceleratorError")
                if self.refuses or request.arm == "bad":
                    raise Refused(self.reason)
                return requests.Readied(status="ok")
            case requests.Settle() if not self.refuses:
                return requests.Settled(step_s=1.0)
            case _ if not self.refuses:
                return Timed(seconds=1.0)
        raise Refused(self.reason)


class Processes:
    """Makes one anew where the last one is of no use."""

    def __init__(self, reason):
        self.reason = reason
        self.made = []

    def take(self):
        self.made = self.made or [Process(self.reason)]
        return self.made[-1]

    def alone(self):
        return contextlib.nullcontext()

    def done(self, *, lost):
        if lost:
            self.made.append(Process(self.reason))


@pytest.mark.parametrize(
    ("reason", "status"),
    [("AcceleratorError: CUDA error: a launch failed", "crashed"), ("ValueError: no", "failed")],
)
def test_an_arm_that_costs_the_device_fails_those_behind_it(reason, status):
    clients = Processes(reason)
    run, _ = Conduct(
        clients=clients,
        prepare=requests.Prepare(kind="pattern", name="one", size="tiny", device="cuda"),
        planned=lambda step_s: Plan(rounds=2, calls=dict.fromkeys(step_s, 1)),
        extend=lambda _: False,
        patience=Patience(),
        tell=lambda _: None,
        keep=lambda _: None,
    ).run(["first", "bad", "last"])
    assert isinstance(run, Run)
    assert {name: x.status for name, x in run.arms.items()} == {
        "first": "ok",
        "bad": status,
        "last": "ok",
    }
    assert all(run.arms[x].samples_ms for x in ("first", "last"))
    assert run.arms["bad"].reason == reason
    assert len(clients.made) == (2 if status == "crashed" else 1)
