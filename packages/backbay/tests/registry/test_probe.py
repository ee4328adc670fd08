"""Probes of plugins that each do one thing that a plugin must not do."""

import dataclasses
import json
import os
import signal
import sys
import textwrap
import time
import types

import psutil
import pytest

from backbay.errors import InputError
from backbay.registry import BackendSpec, Origin, Requirements
from backbay.registry import probe as probing
from backbay.registry.probe import ProbeRequest, ProbeResult, probe, probe_key
from backbay.session import Lost, Service

HONEST = """
def backend(gm, inputs):
    return gm.forward
"""


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a plugin's module, which only this process's `sys.path` leads to."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def write(source, name="planted"):
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        return ProbeRequest(name="planted", load=f"target:{name}:backend", key=("1.0",))

    return write


@pytest.fixture
def try_plugin(plugin, cache):
    def run(source, **arguments):
        return probe(plugin(source), cache=cache, **arguments)

    return run


def assert_gone(pid):
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    psutil.Process(pid).kill()
    pytest.fail(f"process {pid} outlived its probe")


@pytest.mark.slow
def test_one_that_works_is_tried_once_and_then_read_from_disk(plugin, cache):
    request = plugin("""
        import wave  # a module that torch does not import

        BALLAST = b"x" * (64 << 20)

        def make():
            def backend(gm, inputs, *, options):
                assert options == {"level": 3}
                return gm.forward
            return backend
    """)
    request = dataclasses.replace(request, load="factory:planted:make", options={"level": 3})
    first = probe(request, cache=cache)
    assert (first.passed, first.stage, first.cached) == (True, "done", False), first
    assert first.reason == "it compiled a small function and ran it on cpu"
    assert first.import_ms > 0
    assert 2 <= first.modules < 20
    assert 60 < first.rss_mb < 80
    assert first.initialised_cuda is False

    plugin("raise ValueError('broken since\\nthen')")
    assert probe(request, cache=cache) == dataclasses.replace(first, cached=True)

    second = probe(request, cache=cache, fresh=True)
    assert (second.passed, second.stage, second.cached) == (False, "import", False)
    assert second.reason == "ValueError: broken since"
    assert second.import_ms is second.modules is second.rss_mb is second.initialised_cuda is None
    assert probe(request, cache=cache) == dataclasses.replace(second, cached=True)


@pytest.mark.slow
def test_one_that_torch_finds_by_its_entry_point(plugin, cache, install, tmp_path, monkeypatch):
    plugin(HONEST)
    plugin("", name="imported_first")
    install("planted", entry_points="[torch_dynamo_backends]\nplanted-name = planted:backend")
    monkeypatch.syspath_prepend(tmp_path)
    request = ProbeRequest(name="planted-name", load="import:imported_first:planted-name")
    result = probe(request, cache=cache)
    assert result.passed, result
    assert result.modules == 2  # what torch's own list of names takes is not this backend's


@pytest.mark.slow
def test_one_that_crashes_while_it_compiles(try_plugin, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    result = try_plugin("""
        import os, signal

        def backend(gm, inputs):
            print("calling the driver", end="")
            os.kill(os.getpid(), signal.SIGSEGV)
    """)
    assert (result.passed, result.stage) == (False, "compile")
    assert result.reason == "its process was killed by SIGSEGV"
    assert result.import_ms is not None  # what was found out before is not lost
    assert result.output.endswith("calling the driver")


@pytest.mark.slow
def test_one_that_hangs_dies_with_all_that_it_started_and_is_not_remembered(
    try_plugin, tmp_path, cache, monkeypatch
):
    def monotonic():  # jumps once the plugin hangs, so that a slow machine changes nothing
        return time.monotonic() + 600 * (tmp_path / "hangs").exists()

    clock = types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr("backbay.session.client.time", clock)
    result = try_plugin(
        f"""
        import os, subprocess, sys, time

        daemonise = "import os, time; os.fork() and os._exit(0); os.setsid(); "
        tell = "open({str(tmp_path / "daemon")!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        subprocess.run([sys.executable, "-c", daemonise + tell], check=True)
        while not os.path.exists({str(tmp_path / "daemon")!r}):
            time.sleep(0.01)
        open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
        os.mkdir({str(tmp_path / "hangs")!r})
        time.sleep(600)
        """,
        seconds=500,
    )
    assert (result.passed, result.stage) == (False, "import")
    assert result.reason == "no answer within 500 s"
    for name in ("child", "daemon"):
        assert_gone(int((tmp_path / name).read_text()))
    assert list(cache.glob("*")) == []


@pytest.mark.slow
def test_one_that_prints_a_megabyte_with_a_false_answer_and_ends_its_process(try_plugin):
    result = try_plugin("""
        import os, sys

        os.write(1, b"\\xff\\x00" * 500_000)
        print('\\n{"stage": "done", "reason": "forged", "ended": true}')
        print("the end", file=sys.stderr)
        sys.exit(3)
    """)
    assert (result.passed, result.stage, result.reason) == (False, "import", "SystemExit: 3")
    assert len(result.output) == 2000
    assert result.output.endswith("the end\n")
    assert "\ufffd" in result.output


@pytest.mark.slow
def test_one_that_never_stops_printing_is_stopped(try_plugin, monkeypatch):
    monkeypatch.setattr(probing, "_MOST_OUTPUT", 2**20)
    result = try_plugin("""
        while True:
            print("x" * 1000)
    """)
    assert (result.passed, result.stage) == (False, "import")
    assert result.reason == "it printed more than 1 MiB"


@pytest.mark.slow
def test_one_that_publishes_no_function(try_plugin):
    result = try_plugin("backend = 7")
    assert (result.passed, result.stage) == (False, "call")
    assert result.reason == (
        "planted:backend is not a backend: it is of type int, which can't be called"
    )


@pytest.mark.slow
def test_one_that_raises_while_it_compiles_is_reported_with_the_real_cause(try_plugin, monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_SUPPRESS_ERRORS", "1")
    result = try_plugin("""
        def backend(gm, inputs):
            try:
                raise OSError("libmissing.so: cannot open\\nshared object")
            except OSError as error:
                raise ImportError("\\nplease install it \\x1b[31m" + "x" * 500) from error
    """)
    assert (result.passed, result.stage) == (False, "compile")
    cause = "OSError: libmissing.so: cannot open (raised as ImportError: please install it xxx"
    assert result.reason.startswith(cause)
    assert len(result.reason) <= 300


@pytest.mark.slow
def test_one_whose_code_raises_at_run_time_failed_there(try_plugin):
    result = try_plugin("""
        def backend(gm, inputs):
            def compiled(*arguments):
                raise KeyboardInterrupt
            return compiled
    """)
    assert (result.passed, result.stage, result.reason) == (False, "run", "KeyboardInterrupt")


@pytest.mark.slow
def test_one_that_is_right_only_once(try_plugin):
    result = try_plugin("""
        def backend(gm, inputs):
            calls = []
            def compiled(*arguments):
                calls.append(1)
                return tuple(output * (1 if len(calls) == 1 else 1.05) for output in gm(*arguments))
            return compiled
    """)
    assert (result.passed, result.stage) == (False, "compare")
    assert result.reason == "its result is off by 0.05 of the largest value"


@pytest.mark.slow
def test_one_that_torch_silently_does_without(try_plugin):
    result = try_plugin("""
        from torch._dynamo.exc import SkipFrame

        def backend(gm, inputs):
            raise SkipFrame("not for me")
    """)
    assert (result.passed, result.stage) == (False, "compile")


@pytest.mark.slow
def test_one_that_switches_torch_compile_off(try_plugin):
    result = try_plugin("import os; os.environ['TORCHDYNAMO_DISABLE'] = '1'" + HONEST)
    assert (result.passed, result.stage) == (False, "compile")
    assert result.reason == "torch.compile ran the function without compiling it"


@pytest.mark.slow
def test_one_that_closes_every_descriptor(try_plugin):
    result = try_plugin("import os; os.closerange(0, 64)" + HONEST)
    assert (result.passed, result.stage) == (True, "done"), result


@pytest.mark.parametrize("switch", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_nothing_is_tried_where_torch_compile_is_switched_off(try_plugin, monkeypatch, switch):
    monkeypatch.setenv(switch, "1")
    result = try_plugin(HONEST)
    assert (result.passed, result.stage) == (False, "start")
    assert result.reason == f"torch.compile is switched off: the environment has {switch}=1"


def test_a_process_that_can_not_be_started_is_not_remembered(try_plugin, monkeypatch, cache):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    result = try_plugin(HONEST)
    assert (result.passed, result.stage) == (False, "start")
    assert "/nowhere/python" in result.reason
    assert list(cache.glob("*")) == []


def test_a_child_that_can_not_even_read_its_request_says_why(try_plugin, monkeypatch, cache):
    monkeypatch.setattr(
        probing, "SERVICE", Service("backbay.absent:Handler", {probing.Probe: probing.Probed})
    )
    result = try_plugin(HONEST)
    assert (result.passed, result.stage) == (False, "start")
    assert result.reason.startswith("its process ended with exit code 1; it last printed: ")
    assert result.reason.endswith("No module named 'backbay.absent'")
    assert list(cache.glob("*")) == []


def test_a_child_whose_parent_is_gone_ends_by_itself(run_python):
    program = """
    import time
    from backbay.registry import probe_handler
    probe_handler._guard(-9.0)
    time.sleep(60)
    """
    assert run_python(program, check=False).returncode == -signal.SIGALRM


@pytest.mark.parametrize(
    ("number", "reason", "lasting"),
    [
        (signal.SIGABRT, "its process was killed by SIGABRT", True),
        (signal.SIGKILL, "its process was killed by SIGKILL (out of memory?)", False),
        (signal.SIGTERM, "its process was killed by SIGTERM", False),
        (63, "its process was killed by signal 63", False),
    ],
)
def test_only_a_crash_of_its_own_is_expected_again(number, reason, lasting):
    lost = Lost("", exit_code=-number)
    assert probing._loss(lost) == (reason, lasting)


@pytest.fixture
def tries(monkeypatch):
    """Replace the child process; each try appends to this list."""
    made = []

    def fake(request, seconds):
        made.append(request)
        result = ProbeResult(
            passed=True,
            stage="done",
            reason=f"try {len(made)}",
            import_ms=1.5,
            modules=2,
            rss_mb=0.0,
            initialised_cuda=False,
            output="",
            when="2026-01-01T00:00:00+00:00",
        )
        return result, seconds > 1

    monkeypatch.setattr(probing, "_try", fake)
    return made


REQUEST = ProbeRequest(name="mine", load="target:mine:backend", key=("mine", "1.0"))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"load": "factory:mine:backend"},
        {"device": "cuda"},
        {"options": {"level": 1}},
        {"key": ("mine", "1.1")},
    ],
)
def test_a_changed_request_is_tried_again(tries, cache, change):
    probe(REQUEST, cache=cache)
    assert probe(REQUEST, cache=cache).cached
    assert not probe(dataclasses.replace(REQUEST, **change), cache=cache).cached
    assert len(tries) == 2


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "PYTHONPATH"])
def test_the_environment_is_part_of_the_key(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    unset = probe_key(REQUEST)
    monkeypatch.setenv(name, "")
    assert probe_key(REQUEST) != unset


def test_another_version_of_what_a_backend_requires_is_taken_for_the_same(install, registry):
    spec = BackendSpec(
        name="mine",
        origin=Origin(kind="process"),
        requires=Requirements(distributions=("engine>=1.0",)),
    )
    install("engine", "1.5")
    assert "engine 1.5" in probing._key(registry, spec)


def test_the_key_does_not_depend_on_the_order_of_options():
    one = dataclasses.replace(REQUEST, options={"a": 1, "b": 2})
    other = dataclasses.replace(REQUEST, options={"b": 2, "a": 1})
    assert probe_key(one) == probe_key(other)
    assert len(probe_key(one)) == 64


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"passed": true}', b"\xff\xfe"])
def test_a_damaged_file_is_ignored_and_written_again(tries, cache, damage):
    probe(REQUEST, cache=cache)
    (path,) = cache.iterdir()
    path.write_bytes(damage)
    assert probe(REQUEST, cache=cache).reason == "try 2"
    assert probe(REQUEST, cache=cache).reason == "try 2"
    assert json.loads(path.read_bytes())["cached"] is False


def test_a_time_out_forgets_what_was_known(tries, cache):
    probe(REQUEST, cache=cache)
    probe(REQUEST, cache=cache, seconds=1, fresh=True)
    assert list(cache.iterdir()) == []


def test_a_cache_that_can_not_be_written_costs_only_the_cache(tries, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    assert probe(REQUEST, cache=tmp_path / "file" / "below").passed
    assert probe(REQUEST, cache=tmp_path / "file" / "below", seconds=1).passed


def test_the_cache_is_where_the_environment_says(tries, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "here"))
    probe(REQUEST)
    assert [path.name for path in (tmp_path / "here" / "probes").iterdir()] == [
        f"{probe_key(REQUEST)}.json"
    ]


def spoilt(cache, path, how):
    """Let others have written a kept result, or be able to."""
    if how == "a file of anybody's":
        path.chmod(0o666)
    elif how == "a file of the group's":
        path.chmod(0o660)
    elif how == "a folder of anybody's":
        path.parent.chmod(0o777)
    elif how == "a cache folder of anybody's":
        cache.chmod(0o777)
    elif how == "a file of another's":
        os.chown(path, 4321, 4321)
    elif how == "a folder of another's":
        os.chown(path.parent, 4321, 4321)


SPOILT = {
    "a file of anybody's": "mode 0666",
    "a file of the group's": "mode 0660",
    "a folder of anybody's": "mode 0777",
    "a cache folder of anybody's": "mode 0777",
    "a file of another's": "belongs to user 4321",
    "a folder of another's": "belongs to user 4321",
}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners")
@pytest.mark.parametrize("how", SPOILT)
def test_a_result_that_others_may_have_written_is_believed(tries, tmp_path, monkeypatch, how):
    if "another's" in how and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    assert probe(REQUEST).refused == ""
    (path,) = (tmp_path / "cache" / "probes").iterdir()
    path.write_bytes(path.read_bytes().replace(b"try 1", b"forged"))
    assert probe(REQUEST).reason == "forged"  # what it is for
    spoilt(tmp_path / "cache", path, how)
    again = probe(REQUEST)
    assert (again.reason, again.cached) == ("try 2", False)
    assert SPOILT[how] in again.refused
    assert str(tmp_path) in again.refused
    if how.startswith("a file"):  # it was replaced by a file of ours
        assert probe(REQUEST).cached
        assert path.stat().st_mode & 0o777 == 0o600
    else:  # nothing is kept there
        assert not probe(REQUEST).cached


def test_the_cache_folder_is_made_for_its_owner_alone(tries, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "a" / "cache"))
    before = os.umask(0)
    try:
        probe(REQUEST)
    finally:
        os.umask(before)
    assert probe(REQUEST).cached
    folders = [tmp_path / "a" / "cache", tmp_path / "a" / "cache" / "probes"]
    assert [x.stat().st_mode & 0o777 for x in folders] == [0o700] * 2


@pytest.mark.parametrize("load", ["inductor", "torch:", "import:only", "target:a:b:c", "what:a:b"])
def test_a_load_of_no_known_form_is_the_callers_mistake(tries, load):
    with pytest.raises(InputError, match="is none of torch:NAME"):
        probe(dataclasses.replace(REQUEST, load=load))
    assert tries == []


def test_options_that_json_can_not_carry_are_the_callers_mistake(tries):
    with pytest.raises(InputError, match="can't be passed to another process"):
        probe(dataclasses.replace(REQUEST, options={"hook": print}))
    assert tries == []
