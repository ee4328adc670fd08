"""Many threads at once: each backend is loaded once, nothing deadlocks, no error is a wrong one."""

import collections
import functools
import itertools
import os
import select
import sys
import textwrap
import threading
import time

import pytest

import backbay
from backbay.errors import BackendConflict, BackendLoadError, BackendNotFound
from backbay.registry import Registry, bridge

pytestmark = pytest.mark.timeout(60)

THREADS, LOOK_UPS = 32, 200

COUNTED = """
import backbay, threading, time
from counting import count, registry
count(__name__)
"""
FN = "def fn(gm, inputs):\n    return gm.forward\n"


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch, registry):
    """A folder of plugins that count how often they are run, and know the registry under test."""
    for name in [x for x in os.environ if x.startswith("BACKBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    counting = type(sys)("counting")
    counting.runs = collections.Counter()
    counting.count = lambda name: counting.runs.update([name])
    counting.registry = registry
    sys.modules["counting"] = counting
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")) or name == "counting":
            del sys.modules[name]


@pytest.fixture
def plugin(install, site):
    def write(name, source, published=None):
        (site / f"{name}_plugin.py").write_text(COUNTED + textwrap.dedent(source))
        lines = published or f"{name} = {name}_plugin:fn\n"
        install(name, "1.0", f"[torch_dynamo_backends]\n{lines}")

    return write


def runs(name):
    return sys.modules["counting"].runs[f"{name}_plugin"]


def at_once(*tasks):
    """Run each task in a thread; give what they returned, or raised, in their order."""
    results, start = [None] * len(tasks), threading.Barrier(len(tasks))

    def run(number, task):
        start.wait()
        try:
            results[number] = task()
        except Exception as error:  # noqa: BLE001 (the test says which it may be)
            results[number] = error

    threads = [threading.Thread(target=run, args=x, daemon=True) for x in enumerate(tasks)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    assert not [x for x in threads if x.is_alive()], "deadlock"
    return results


def look_up_in_threads(registry, *names):
    """Look names up from all threads, each many times; give every answer."""

    def task(offset):
        answers = []
        for number in range(LOOK_UPS):
            name = names[(offset + number) % len(names)]
            try:
                answers.append((name, registry.lookup_backend(name)))
            except Exception as error:  # noqa: BLE001 (as above)
                answers.append((name, error))
        return answers

    results = at_once(*[lambda n=n: task(n) for n in range(THREADS)])
    answers = collections.defaultdict(list)
    for name, answer in itertools.chain.from_iterable(results):
        answers[name].append(answer)
    return answers


def assert_one(answers):
    assert len({id(x) for x in answers}) == 1, collections.Counter(map(str, answers))
    assert callable(answers[0])


def test_slow_plugins_are_each_loaded_once(plugin, registry):
    for name in ("a", "b", "c"):
        plugin(name, "time.sleep(0.05)\n" + FN)
    found = look_up_in_threads(registry, "a", "b", "c")
    for name in ("a", "b", "c"):
        assert_one(found[name])
        assert runs(name) == 1


def test_a_factory_is_called_once(plugin, registry, site, install):
    manifest = 'schema = 1\n[[backend]]\nname = "made"\nregisters = "callable"\nfactory = true\n'
    (site / "made_plugin.py").write_text(
        f"{COUNTED}\ndef make():\n    count('call_plugin')\n    time.sleep(0.05)\n"
        "    return lambda gm, inputs: gm.forward\n"
    )
    (site / "made_data").mkdir()
    (site / "made_data" / "m.toml").write_text(
        f'{manifest}target = "made_plugin:make"\naliases = ["also"]\n'
    )
    install("made", "1.0", "[backbay.backends]\nm = made_data:m.toml\n")
    found = look_up_in_threads(registry, "made", "also")
    assert_one([*found["made"], *found["also"]])  # another name of it, not another object
    assert runs("call") == 1


def test_a_plugin_that_fails_fails_alike_in_each_thread_and_can_be_mended(plugin, registry, site):
    plugin("bad", "time.sleep(0.002)\nraise RuntimeError('no licence')\n")
    plugin("good", FN)
    found = look_up_in_threads(registry, "bad", "good")
    assert_one(found["good"])
    assert {type(x) for x in found["bad"]} == {BackendLoadError}
    assert all("backend 'bad' of bad 1.0" in str(x) for x in found["bad"])
    assert all("no licence" in str(x) for x in found["bad"])
    assert runs("bad") > 1  # each round tried again
    (site / "bad_plugin.py").write_text(f"{COUNTED}\n# mended\n{FN}")
    tried = runs("bad")
    assert_one(look_up_in_threads(registry, "bad")["bad"])
    assert runs("bad") == tried + 1


def test_plugins_that_register_themselves_are_loaded_once(plugin, registry):
    plugin("ours", f"@registry.register_backend(name='ours')\n{FN}")
    plugin(
        "more", f"@registry.register_backend(name='more')\n{FN}\nregistry.register_backend(fn, 'x')"
    )
    found = look_up_in_threads(registry, "ours", "more")
    for name in ("ours", "more"):
        assert_one(found[name])
        assert found[name][0] is sys.modules[f"{name}_plugin"].fn
        assert runs(name) == 1
        assert [x.origin.kind for x in registry.candidates(name)] == ["distribution"]
    assert registry.lookup_backend("x") is found["more"][0]


def test_plugins_that_register_themselves_with_torch_are_loaded_once(plugin):
    import torch._dynamo.backends.registry as torchs

    decorator = "from torch._dynamo import register_backend\n@register_backend(name='{}')\n"
    for name in ("decorated", "as_well"):
        plugin(name, f"{decorator.format(name)}{FN}")
    registry = sys.modules["counting"].registry
    try:
        found = look_up_in_threads(registry, "decorated", "as_well")
        for name in ("decorated", "as_well"):
            assert_one(found[name])
            assert runs(name) == 1
            assert torchs.lookup_backend(name) is found[name][0]
    finally:
        for name in ("decorated", "as_well"):
            for table in ("_COMPILER_FNS", "_BACKENDS", "_BACKEND_TAGS"):
                getattr(torchs, table, {}).pop(name, None)


def test_a_plugin_that_registers_with_torch_and_then_raises_can_be_mended(plugin, registry, site):
    import torch._dynamo.backends.registry as torchs

    before = set(torchs._COMPILER_FNS)
    decorated = f"from torch._dynamo import register_backend\n@register_backend(name='late')\n{FN}"
    plugin("late", f"{decorated}\nraise RuntimeError('no licence')\n")
    try:
        for _ in range(2):
            with pytest.raises(BackendLoadError, match="no licence"):
                registry.lookup_backend("late")
            assert set(torchs._COMPILER_FNS) == before
        (site / "late_plugin.py").write_text(f"{COUNTED}\n# mended\n{decorated}")
        assert registry.lookup_backend("late") is torchs.lookup_backend("late")
    finally:
        for table in ("_COMPILER_FNS", "_BACKENDS", "_BACKEND_TAGS"):
            getattr(torchs, table, {}).pop("late", None)


def test_a_plugin_that_needs_another_is_no_deadlock(plugin, registry):
    plugin("base", "time.sleep(0.02)\n" + FN)
    plugin("left", f"base = registry.lookup_backend('base')\n{FN}")
    plugin("right", f"base = registry.lookup_backend('base')\n{FN}")
    found = look_up_in_threads(registry, "left", "right", "base")
    for name in ("left", "right", "base"):
        assert_one(found[name])
        assert runs(name) == 1


def test_plugins_that_need_each_other_later_are_both_loaded_once(plugin, registry):
    for name, other in (("left", "right"), ("right", "left")):
        plugin(
            name,
            f"""
            time.sleep(0.02)
            def fn(gm, inputs):
                return registry.lookup_backend({other!r})
            """,
        )
    found = look_up_in_threads(registry, "left", "right")
    for name, other in (("left", "right"), ("right", "left")):
        assert_one(found[name])
        assert found[name][0](None, []) is found[other][0]
        assert runs(name) == 1


def test_plugins_that_need_each_other_at_import_are_told_so_and_don_t_hang(plugin, registry):
    for name, other in (("left", "right"), ("right", "left")):
        plugin(name, f"time.sleep(0.001)\nregistry.lookup_backend({other!r})\n{FN}")
    found = look_up_in_threads(registry, "left", "right")
    for name in ("left", "right"):
        assert {type(x) for x in found[name]} == {BackendLoadError}
    assert any("is looked up while it is being loaded" in str(x) for x in found["left"])
    with pytest.raises(BackendLoadError, match="is looked up while it is being loaded"):
        registry.lookup_backend("left")


def test_factories_that_need_each_other_are_told_so_and_don_t_hang(registry, site, install):
    entries = ""
    for name, other in (("left", "right"), ("right", "left")):
        (site / f"{name}_plugin.py").write_text(
            f"{COUNTED}\ndef make():\n    time.sleep(0.1)\n    registry.lookup_backend({other!r})\n"
        )
        entries += f'[[backend]]\nname = "{name}"\nregisters = "callable"\nfactory = true\n'
        entries += f'target = "{name}_plugin:make"\n'
    (site / "made_data").mkdir()
    (site / "made_data" / "m.toml").write_text(f"schema = 1\n{entries}")
    install("made", "1.0", "[backbay.backends]\nm = made_data:m.toml\n")
    names = ("left", "right")
    found = at_once(*[lambda name=name: registry.lookup_backend(name) for name in names])
    assert [type(x) for x in found] == [BackendLoadError] * 2
    assert any("is looked up while it is being loaded" in str(x) for x in found)


def test_a_plugin_that_needs_itself_at_import_is_told_so(plugin, registry):
    plugin("self", f"registry.lookup_backend('self')\n{FN}")
    with pytest.raises(BackendLoadError, match="looked up while it is being loaded"):
        registry.lookup_backend("self")


@pytest.mark.parametrize("through", ["lookup", "import"])
def test_a_module_lock_and_a_load_that_wait_for_each_other_are_no_deadlock(
    through, plugin, registry, site
):
    # One thread imports `user`, and so holds its lock, and looks `y` up; another thread loads `y`,
    # whose import needs `user`. Python knows of its own locks only.
    (site / "user_plugin.py").write_text(
        f"{COUNTED}\ntime.sleep(0.1)\ny = registry.lookup_backend('y')\n{FN}"
    )
    if through == "lookup":
        plugin("user", f"time.sleep(0.1)\ny = registry.lookup_backend('y')\n{FN}")
    plugin("y", f"time.sleep(0.05)\n{FN}\ntime.sleep(0.1)\nimport user_plugin\n")

    def first():
        if through == "lookup":
            return registry.lookup_backend("user")
        import user_plugin

        return user_plugin.fn

    def second():
        return registry.lookup_backend("y")

    user, y = at_once(first, second)
    assert y is sys.modules["y_plugin"].fn
    assert user is sys.modules["user_plugin"].fn
    assert registry.lookup_backend("y") is y
    assert runs("y") == 1


def test_two_threads_whose_plugins_look_each_other_s_base_up_are_no_deadlock(plugin, registry):
    # No lock of ours may be held while foreign code runs: not the one for files either.
    plugin("x", f"time.sleep(0.05)\n{FN}")
    plugin("y", f"time.sleep(0.05)\n{FN}")
    plugin("needs_y", f"registry.lookup_backend('y')\n{FN}")
    plugin("needs_x", f"registry.lookup_backend('x')\n{FN}")
    names = ["needs_y", "x", "needs_x", "y"] * 4
    found = at_once(*[lambda name=name: registry.lookup_backend(name) for name in names])
    assert all(callable(x) for x in found), found
    assert [runs(x) for x in ("x", "y", "needs_x", "needs_y")] == [1] * 4


def test_a_plugin_that_loads_in_a_thread_of_its_own_is_no_deadlock(plugin, registry):
    plugin("y", FN)
    plugin(
        "starts",
        f"""
        {FN.splitlines()[0]}
            return gm.forward
        found = []
        thread = threading.Thread(target=lambda: found.append(registry.lookup_backend("y")))
        thread.start()
        thread.join(20)
        assert found, "the thread waited for the one that waits for it"
        """,
    )
    assert callable(registry.lookup_backend("starts"))


WAITING = {
    "joins it": "thread.join(20)",
    "waits for what it sets": "done.wait(20)",
    "joins what only calls Backbay": """
        thread.join(20)
        thread = threading.Thread(target=registry.lookup_backend, args=("self",))
        threading.excepthook = lambda _: None
        thread.start()
        thread.join(20)
    """,
}


POOLS = {
    "asks for the result": "errors.append(pool.submit(look_up, 'self').exception(20))",
    "waits for several": """
        asked = [pool.submit(look_up, "self") for _ in range(3)]
        errors += [x.exception() for x in concurrent.futures.wait(asked, 20).done]
    """,
    "takes them as they come": """
        asked = [pool.submit(look_up, "self") for _ in range(2)]
        errors += [x.exception() for x in concurrent.futures.as_completed(asked, 20)]
    """,
    "maps": """
        try:
            list(pool.map(look_up, ["self", "self"], timeout=20))
        except Exception as error:
            errors.append(error)
    """,
    "leaves the pool": """
        with pool:
            asked = pool.submit(look_up, "self")
        errors.append(asked.exception())
    """,
}


@pytest.mark.parametrize("how", POOLS)
def test_a_plugin_whose_pool_needs_the_plugin_is_told_so(how, plugin, registry):
    plugin(
        "self",
        f"""
        import concurrent.futures
        {FN.splitlines()[0]}
            return gm.forward
        errors, look_up = [], registry.lookup_backend
        pool = concurrent.futures.ThreadPoolExecutor(2)
        {textwrap.indent(textwrap.dedent(POOLS[how]), "        ").strip()}
        for error in errors:
            assert "looked up while it is being loaded" in str(error), error
        assert errors
        """,
    )
    began = time.monotonic()
    assert callable(registry.lookup_backend("self"))
    assert time.monotonic() - began < 15, "the pool waited for the one that waits for it"


def test_who_waits_for_a_load_that_stands_still_gives_up(plugin, registry, monkeypatch):
    monkeypatch.setattr("backbay.registry.loading._PATIENCE_S", 0.5)
    plugin(
        "self",
        f"""
        {FN.splitlines()[0]}
            return gm.forward
        from multiprocessing.pool import ThreadPool
        pool = ThreadPool(1)
        try:
            pool.apply_async(registry.lookup_backend, ("self",)).get(20)
        except backbay.BackbayError as error:
            told = str(error)
        """,
    )
    began = time.monotonic()
    assert callable(registry.lookup_backend("self"))
    assert time.monotonic() - began < 15
    assert "looked up while it is being loaded" in sys.modules["self_plugin"].told


@pytest.mark.parametrize("how", WAITING)
def test_a_plugin_that_awaits_a_thread_that_needs_the_plugin_is_told_so(how, plugin, registry):
    plugin(
        "self",
        f"""
        {FN.splitlines()[0]}
            return gm.forward
        errors, done = [], threading.Event()
        def run():
            try:
                registry.lookup_backend("self")
            except backbay.BackbayError as error:
                errors.append(str(error))
            done.set()
        thread = threading.Thread(target=run)
        thread.start()
        hook = threading.excepthook
        {textwrap.indent(textwrap.dedent(WAITING[how]), "        ").strip()}
        threading.excepthook = hook
        assert "looked up while it is being loaded" in errors[0]
        """,
    )
    began = time.monotonic()
    assert callable(registry.lookup_backend("self"))
    assert time.monotonic() - began < 15, "the thread waited for the one that waits for it"


def test_a_plugin_s_thread_that_nobody_awaits_gets_the_plugin(plugin, registry):
    plugin(
        "self",
        f"""
        {FN.splitlines()[0]}
            return gm.forward
        found = []
        def run():
            found.append(registry.lookup_backend("self"))
        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        """,
    )
    fn = registry.lookup_backend("self")
    sys.modules["self_plugin"].thread.join(20)
    assert sys.modules["self_plugin"].found == [fn]


def in_child(task):
    """Fork, and return what the child says; or that it says nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(task())
        except BaseException as error:  # noqa: BLE001 (it is what the test asks for)
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], 20)
        return os.read(reading, 10_000).decode() if ready else "it waits"
    finally:
        os.close(reading)
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_during_a_load_leaves_the_child_an_error_and_no_wait(plugin, registry, site):
    gates = {"reached": threading.Event(), "go": threading.Event()}
    sys.modules["counting"].gates = gates
    wait = "from counting import gates\ngates['reached'].set()\ngates['go'].wait(30)\n"
    plugin("slow", wait + FN)
    plugin("other", FN)
    (site / "file.py").write_text(
        f"{FN}import threading\nif threading.active_count() > 1:\n{textwrap.indent(wait, '    ')}"
    )
    file = f"{site / 'file.py'}:fn"
    for name, expected in (("slow", "when this process was forked"), (file, "<function fn")):
        gates["reached"].clear()
        gates["go"].clear()
        thread = threading.Thread(target=registry.lookup_backend, args=(name,))
        thread.start()
        assert gates["reached"].wait(20)
        try:
            said = [in_child(lambda name=name: registry.lookup_backend(name)) for _ in range(2)]
            assert all(expected in x for x in said), said
            assert "<function fn" in in_child(lambda: registry.lookup_backend("other"))
        finally:
            gates["go"].set()
            thread.join(20)
        assert callable(registry.lookup_backend(name))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_plugin_that_forks_while_it_loads_is_loaded_in_both(plugin, registry):
    sys.modules["counting"].in_child = in_child
    plugin("forks", f"from counting import in_child\nsaid = in_child(lambda: 'here')\n{FN}")
    assert callable(registry.lookup_backend("forks"))
    assert sys.modules["forks_plugin"].said == "here"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_lock_that_another_thread_holds_at_a_fork_keeps_no_child_waiting(registry, plugin):
    plugin("y", FN)
    registry.register_backend(print, "printing")
    held, go = threading.Event(), threading.Event()

    def hold():
        with registry._lock, registry._loader._lock, registry._registrations._lock, bridge._lock:
            held.set()
            go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    try:
        assert "<function fn" in in_child(lambda: registry.lookup_backend("y"))
        assert in_child(lambda: registry.register_backend(len, "counting")) == str(len)
    finally:
        go.set()
        thread.join(20)


def churn(registry, number, stop):
    """Register and take back, until told to stop."""

    def mine(gm, inputs):
        return number

    while not stop.is_set():
        registry.register_backend(mine, f"mine{number}")
        with registry.registered(lambda gm, inputs: None, "shared", replace=True):
            pass
        registry.unregister_backend(f"mine{number}")


def refresh(registry, stop):
    while not stop.is_set():
        registry.refresh()
        registry.list_backends(available=True)


def strange_answers(registry, name, allowed):
    """Look a name up many times; give every answer that is neither a backend nor allowed."""
    strange = []
    for _ in range(LOOK_UPS):
        try:
            found = registry.lookup_backend(name)
        except allowed:
            continue
        except Exception as error:  # noqa: BLE001 (as above)
            strange.append(error)
        else:
            strange += [] if callable(found) else [found]
    return strange


def test_everything_at_once_gives_no_wrong_error(plugin, registry):
    plugin("slow", f"time.sleep(0.05)\n{FN}")
    plugin("bad", "raise RuntimeError('no licence')\n")
    stop = threading.Event()
    timer = threading.Timer(1.5, stop.set)
    timer.start()
    allowed = {"slow": (), "bad": BackendLoadError, "shared": BackendNotFound}
    allowed |= {f"mine{number}": BackendNotFound for number in range(4)}
    looking = [x for x in allowed for _ in range(4)]
    tasks = [functools.partial(churn, registry, number, stop) for number in range(4)]
    tasks += [functools.partial(refresh, registry, stop)]
    tasks += [functools.partial(strange_answers, registry, x, allowed[x]) for x in looking]
    try:
        results = at_once(*tasks)
    finally:
        stop.set()
        timer.cancel()
    assert [x for x in results if x] == []
    assert runs("slow") == 1
    assert not [x for x in registry.list_backends() if x.startswith(("mine", "shared"))]


def test_threads_that_register_one_name_give_one_winner_and_conflicts(registry):
    functions = [eval(f"lambda gm, inputs: {n}") for n in range(THREADS)]  # each a place of its own
    tasks = [lambda f=f: registry.register_backend(f, "one") for f in functions]
    results = at_once(*tasks)
    (winner,) = [x for x in results if not isinstance(x, Exception)]
    assert registry.lookup_backend("one") is winner
    assert {type(x) for x in results if x is not winner} == {BackendConflict}


def test_a_refresh_in_the_middle_of_a_load_loses_nothing(plugin, registry):
    plugin("slow", f"time.sleep(0.1)\n{FN}")

    def refresh():
        time.sleep(0.05)
        registry.refresh()

    first, _ = at_once(lambda: registry.lookup_backend("slow"), refresh)
    assert registry.lookup_backend("slow") is first
    assert runs("slow") == 1


# -- a load that fails leaves no trace


def trace(registry):
    return registry.list_backends(exclude_tags=()), len(registry.registered_specs())


def test_what_a_failing_import_registers_is_taken_back(plugin, registry, site):
    source = f"""
{FN}
registry.register_backend(fn, "extra")
registry.register_backend(fn, "before", replace=True)
registry.unregister_backend("before")
registry.register_backend(len, "another")
"""
    plugin("bad", f"{source}\nraise RuntimeError('no licence')\n")
    registry.register_backend(print, "before")
    before, printing = trace(registry), registry.lookup_backend("before")
    for _ in range(2):
        with pytest.raises(BackendLoadError, match="no licence"):
            registry.lookup_backend("bad")
        assert trace(registry) == before
        assert registry.lookup_backend("before") is printing
    (site / "bad_plugin.py").write_text(f"{COUNTED}\n# mended\n{source}")
    module = registry.lookup_backend("bad").__module__
    assert registry.lookup_backend("extra").__module__ == module == "bad_plugin"
    assert "before" not in registry.list_backends()


def test_what_a_failing_file_registers_is_taken_back(registry, site):
    (site / "mine.py").write_text(
        f"{COUNTED}{FN}registry.register_backend(fn, 'extra')\nraise RuntimeError('no licence')\n"
    )
    before = trace(registry)
    with pytest.raises(BackendLoadError, match="no licence"):
        registry.lookup_backend("mine.py:fn")
    assert trace(registry) == before


@pytest.mark.parametrize("fault", ["raises", "is gone"])
def test_what_a_module_registered_that_was_imported_stays_as_it_will_not_run_again(
    fault, plugin, registry, site
):
    # Only the package fails: the next attempt finds its part imported, and does not run it again.
    package = site / "package_plugin"
    package.mkdir()
    (package / "part.py").write_text(f"{COUNTED}{FN}registry.register_backend(fn, 'extra')\n")
    failing = "raise RuntimeError('no licence')\n" if fault == "raises" else ""
    (package / "__init__.py").write_text(f"from package_plugin.part import fn as part\n{failing}")
    plugin("unused", FN, published="whole = package_plugin:fn\n")
    for _ in range(2):
        with pytest.raises(BackendLoadError):
            registry.lookup_backend("whole")
        assert registry.lookup_backend("extra").__module__ == "package_plugin.part"
    assert sys.modules["counting"].runs["package_plugin.part"] == 1


def test_what_a_failing_factory_registers_is_taken_back(registry, site, install):
    manifest = 'schema = 1\n[[backend]]\nname = "made"\nregisters = "callable"\nfactory = true\n'
    (site / "made_plugin.py").write_text(
        f"{COUNTED}\ndef make():\n    registry.register_backend(lambda gm, x: None, 'extra')\n"
        "    raise RuntimeError('no licence')\n"
    )
    (site / "made_data").mkdir()
    (site / "made_data" / "m.toml").write_text(f'{manifest}target = "made_plugin:make"\n')
    install("made", "1.0", "[backbay.backends]\nm = made_data:m.toml\n")
    before = trace(registry)
    for _ in range(2):  # twice: the factory registers a new object each time
        with pytest.raises(BackendLoadError, match="RuntimeError: no licence"):
            registry.lookup_backend("made")
        assert trace(registry) == before


def test_taking_back_spares_what_another_thread_has_put_in_its_place(plugin, registry):
    plugin(
        "bad",
        f"{FN}\nregistry.register_backend(fn, 'extra')\ntime.sleep(0.2)\nraise RuntimeError('x')\n",
    )

    def replace():
        time.sleep(0.1)
        return registry.register_backend(print, "extra", replace=True)

    error, _ = at_once(lambda: registry.lookup_backend("bad"), replace)
    assert isinstance(error, BackendLoadError)
    assert registry.lookup_backend("extra").__wrapped__ is print
    assert [x.name for x in registry.registered_specs()] == ["extra"]


def test_what_a_dependency_registered_stays_when_only_the_dependent_fails(plugin, registry):
    plugin("base", f"{FN}\nregistry.register_backend(fn, 'extra')\n")
    plugin("bad", "registry.lookup_backend('base')\nraise RuntimeError('no licence')\n")
    with pytest.raises(BackendLoadError, match="no licence"):
        registry.lookup_backend("bad")
    assert registry.lookup_backend("extra") is registry.lookup_backend("base")


# -- a plugin and its own name


def test_a_plugin_that_registers_another_object_under_its_own_name_is_told_so(plugin, registry):
    plugin("two", f"{FN}\nregistry.register_backend(lambda gm, inputs: None, 'two')\n")
    with pytest.raises(BackendLoadError, match=r"'two' is taken by two 1\.0 \(two_plugin:fn\)"):
        registry.lookup_backend("two")


def test_a_plugin_that_takes_its_own_name_over_gives_one_object_from_the_first_look_up(
    plugin, registry
):
    plugin(
        "two",
        f"{FN}\ndef other(gm, inputs):\n    pass\n"
        "registry.register_backend(other, 'two', replace=True)\n",
    )
    first = registry.lookup_backend("two")
    assert first is registry.lookup_backend("two") is sys.modules["two_plugin"].other


def test_another_function_of_a_plugin_can_take_its_name_over_later(plugin, registry):
    plugin("two", f"{FN}\ndef other(gm, inputs):\n    pass\n")
    registry.lookup_backend("two")
    module = sys.modules["two_plugin"]
    with pytest.raises(BackendConflict, match=r"'two' is taken by two 1\.0"):
        registry.register_backend(module.other, "two")
    registry.register_backend(module.other, "two", replace=True)
    assert registry.lookup_backend("two") is module.other
    registry.register_backend(module.fn, "two")  # as when the module is run again: it is published
    assert registry.lookup_backend("two") is module.other
    registry.register_backend(module.fn, "two", replace=True)
    assert registry.lookup_backend("two") is module.fn


def test_a_module_that_is_run_again_registers_its_function_again(plugin, registry):
    import importlib

    plugin("again", f"@registry.register_backend(name='again')\n{FN}")
    registry.lookup_backend("again")
    importlib.reload(sys.modules["again_plugin"])
    assert [x.origin.kind for x in registry.candidates("again")] == ["distribution"]


def test_each_registry_loads_for_itself(plugin, registry):
    plugin("a", FN)
    other = type(registry)()
    assert isinstance(other, Registry)
    assert registry.lookup_backend("a") is other.lookup_backend("a")
    with registry.registered(print, "own"), pytest.raises(BackendNotFound):
        other.lookup_backend("own")
    with backbay.policy(block=["a"]):
        assert "a" not in other.list_backends()
