"""What this process decided reaches the processes that it starts."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap

import pytest

import backbay
from backbay.errors import PolicyError
from backbay.registry import Registry, default_registry
from backbay.registry.policy import STATE

CHILD = """
    import backbay
    from backbay.registry import default_registry
    import torch
    print("inherited" in backbay.list_backends())
    print(torch.compile(lambda x: x + 1, backend="inherited")(torch.ones(1)).item())
    from torch._dynamo.backends.registry import lookup_backend
    print(lookup_backend("inherited").__wrapped__ is backbay.lookup_backend("inherited"))
    print(default_registry.policy.why_blocked("thief"))
    print(default_registry.policy.default_for("cpu")[0])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a module that a child can import too, as one that is on PYTHONPATH."""
    (tmp_path / "handed_down.py").write_text(
        "def compiler(gm, inputs):\n    return gm.forward\n\ndef ask(queue):\n"
        "    import backbay\n    queue.put('inherited' in backbay.list_backends())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import handed_down

    yield handed_down
    del sys.modules["handed_down"]


def run_child(program: str) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
def test_registrations_and_policy_reach_a_new_process(module):
    with (
        backbay.registered(module.compiler, "inherited"),
        backbay.policy(block=["thief"], default={"cpu": "inherited"}),
        backbay.exported(),
    ):
        said = run_child(CHILD)
    assert said[:3] == ["True", "2.0", "True"]
    assert said[3] == "thief is blocked by backbay.policy(), of the parent process (BACKBAY_STATE)"
    assert said[4] == "inherited"
    assert STATE not in os.environ


def test_a_spawned_process_of_multiprocessing_has_it_too(module):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with backbay.registered(module.compiler, "inherited"), backbay.exported():
        process = context.Process(target=module.ask, args=(queue,))
        process.start()
    assert queue.get(timeout=60) is True
    process.join()


def test_without_it_a_new_process_knows_nothing(module):
    with backbay.registered(module.compiler, "inherited"):
        assert run_child("import backbay; print('inherited' in backbay.list_backends())") == [
            "False"
        ]


def test_what_another_process_cannot_import_is_left_out_with_a_warning():
    left_out = pytest.warns(UserWarning, match="'local' .* can't be imported by another process")
    with backbay.registered(lambda gm, inputs: gm.forward, "local"), left_out, backbay.exported():
        pass


def test_a_pickled_backend_brings_its_registration_along(module):
    with backbay.registered(module.compiler, "inherited", ["debug"]):
        data = pickle.dumps(backbay.get_backend("inherited", options={"a": 1}))
    said = run_child(f"""
        import pickle
        backend = pickle.loads({data!r})
        import backbay
        print(backend.options, backbay.get_backend("inherited", options={{"a": 1}}) is backend)
        print(backbay.registry.default_registry.spec("inherited").tags)
    """)
    assert said == ["{'a': 1} True", "('debug',)"]


@pytest.mark.parametrize(
    "text",
    [
        "junk",
        "{}",
        '{"version": 2}',
        "3",
        '{"version": 1}',
        '{"version": 1, "layers": [3], "backends": {}}',
    ],
)
def test_a_variable_that_holds_something_else_is_an_error(monkeypatch, text):
    monkeypatch.setenv(STATE, text)
    with pytest.raises(PolicyError, match=STATE):
        _ = Registry().policy


def test_it_ends_with_the_block_also_when_nested():
    with default_registry.exported():
        outer = os.environ[STATE]
        with backbay.policy(block=["x"]), default_registry.exported():
            assert os.environ[STATE] != outer
        assert os.environ[STATE] == outer
    assert STATE not in os.environ
