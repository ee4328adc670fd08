"""Plugins that break, lie or attack: listing goes on, the others work, and the guilty one is named.

Every test has an honest plugin beside the hostile one. A plugin that crashes or hangs the process
when it is loaded can't be tested here: `test_probe.py` has those. To be listed, none is loaded.
"""

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

import backbay
from backbay.errors import (
    BackendConflict,
    BackendLoadError,
    BackendNotFound,
    BackendUnavailable,
    InputError,
    PolicyError,
)
from backbay.registry import Environment, Requirements
from backbay.registry.distributions import scan
from backbay.registry.policy import standing_policy

GROUP = "[torch_dynamo_backends]\n"


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    """A folder of installed distributions, which leaves no module behind."""
    for name in [x for x in os.environ if x.startswith("BACKBAY_")]:
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def plugin(install, site):
    """Write a plugin's module and its distribution, of one name."""

    def write(name, source="def fn(gm, inputs):\n    return gm.forward\n", entry_points=None):
        (site / f"{name}_plugin.py").write_text(textwrap.dedent(source))
        published = f"{GROUP}{name} = {name}_plugin:fn\n" if entry_points is None else entry_points
        return install(name, "1.0", published)

    return write


@pytest.fixture
def honest(plugin):
    plugin("honest")


def assert_unharmed(registry):
    assert "honest" in registry.list_backends()
    assert "honest" in registry.list_backends(available=True)
    assert registry.lookup_backend("honest").__module__ == "honest_plugin"


# -- code that misbehaves when it is loaded


WHEN_IMPORTED = {
    "raises": "raise RuntimeError('no licence')",
    "raises what can't be shown": """
        class Silent(Exception):
            def __str__(self):
                raise ValueError("no text either")
        raise Silent
    """,
    "raises a novel": "raise RuntimeError('x' * 10_000_000)",
    "exits": "import sys; sys.exit(3)",
    "exits with a text": "raise SystemExit('you need a licence')",
    "raises what is no Exception": "class Own(BaseException): pass\nraise Own('mine')",
    "closes its caller": "raise GeneratorExit",
    "interrupts": "raise KeyboardInterrupt",
    "interrupts in place of another": """
        try:
            {}["absent"]
        except KeyError:
            raise KeyboardInterrupt
    """,
    "exits when asked for its text": """
        class Own(Exception):
            def __str__(self):
                raise SystemExit(3)
        raise Own
    """,
    "interrupts when asked for its text": """
        class Own(BaseException):
            def __str__(self):
                raise KeyboardInterrupt
        raise Own
    """,
    "cancels": "import asyncio; raise asyncio.CancelledError",
    "interrupts from an attribute": "def __getattr__(name):\n    raise KeyboardInterrupt",
    "recurses": "def deeper():\n    deeper()\ndeeper()",
    "is no Python": "def fn(:",
    "needs what is absent": "import a_module_that_is_absent",
    "gives a number": "fn = 3",
    "gives nothing": "",
    "gives an attribute that raises": "def __getattr__(name):\n    raise ZeroDivisionError(name)",
}


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("fault", WHEN_IMPORTED)
def test_a_plugin_that_fails_to_load_spoils_no_list_and_is_named_each_time(fault, plugin, registry):
    plugin("evil", WHEN_IMPORTED[fault])
    listed = registry.list_backends()
    assert "evil" in listed
    assert "evil_plugin" not in sys.modules
    for _ in range(2):  # torch's second look-up answers differently from its first
        with pytest.raises(BackendLoadError, match=r"backend 'evil' of evil 1\.0") as caught:
            registry.lookup_backend("evil")
        assert len(str(caught.value)) < 2_000
        assert len(str(caught.value).splitlines()) == 1
    assert registry.list_backends() == listed
    assert_unharmed(registry)


def test_a_plugin_that_is_mended_works_without_a_new_process(plugin, registry, site):
    plugin("evil", "raise RuntimeError('no licence')\n")
    with pytest.raises(BackendLoadError, match="no licence"):
        registry.lookup_backend("evil")
    (site / "evil_plugin.py").write_text("def fn(gm, inputs):\n    return 'mended'\n")
    assert registry.lookup_backend("evil")(None, []) == "mended"


WHEN_INTERRUPTED = {
    "at once": "signal.raise_signal(signal.SIGINT)",
    "while it waits": """
        interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.1, interrupt).start()
        time.sleep(20)
    """,
    "and leaves by itself": """
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemExit(3)
    """,
    "and says so itself": """
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("cleaned up") from error
    """,
}


@pytest.mark.parametrize("how", WHEN_INTERRUPTED)
def test_an_interrupt_while_it_loads_is_no_load_error_and_can_be_repeated(how, plugin, registry):
    source = textwrap.indent(textwrap.dedent(WHEN_INTERRUPTED[how]), "    ")
    plugin(
        "slow",
        f"import os, signal, threading, time\nif 'FIRST' in os.environ:\n{source}\nfn = print\n",
    )
    os.environ["FIRST"] = "1"
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            registry.lookup_backend("slow")
    finally:
        del os.environ["FIRST"]
    assert registry.lookup_backend("slow") is print


class TimeLimit(BaseException):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no SIGALRM")
def test_a_time_limit_of_the_application_is_no_load_error(plugin, registry):
    def give_up(signum, frame):
        raise TimeLimit

    plugin("slow", "import time\ntime.sleep(20)\nfn = print\n")
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeLimit):
            registry.lookup_backend("slow")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_that_was_handled_before_lets_no_exit_of_a_plugin_through(plugin, registry):
    plugin("evil", "raise SystemExit(3)\n")
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        with pytest.raises(BackendLoadError, match="ends the process"):
            registry.lookup_backend("evil")


@pytest.mark.parametrize("name", ["evil", "evil_plugin:fn", "file"])
def test_a_plugin_that_enters_a_policy_changes_nobody_elses(name, plugin, registry, site):
    plugin(
        "evil",
        """
        import backbay
        entered = backbay.policy(block=["honest"], pin={"honest": "evil"})
        entered.__enter__()
        def fn(gm, inputs):
            return gm.forward
        """,
    )
    plugin("honest")
    given = f"{site / 'evil_plugin.py'}:fn" if name == "file" else name
    before = registry.policy
    assert callable(registry.lookup_backend(given))
    assert registry.policy == before
    assert_unharmed(registry)
    entered = next(x.entered for x in list(sys.modules.values()) if "entered" in vars(x))
    with pytest.raises(ValueError, match="different Context"):
        entered.__exit__(None, None, None)


REFUSING = {
    "slots": """
        class Slots:
            __slots__ = ()
            def __call__(self, gm, inputs):
                pass
        fn = Slots()
    """,
    "method": """
        class Has:
            def method(self, gm, inputs):
                pass
        fn = Has().method
    """,
    "frozen": """
        from dataclasses import dataclass
        @dataclass(frozen=True)
        class Frozen:
            def __call__(self, gm, inputs):
                pass
        fn = Frozen()
    """,
    "builtin": "fn = len",
    "unhashable": """
        class Unhashable:
            __hash__ = None
            def __call__(self, gm, inputs):
                pass
        fn = Unhashable()
    """,
    "any attribute": """
        class Greedy:
            def __getattr__(self, name):
                return 3
            def __call__(self, gm, inputs):
                pass
        fn = Greedy()
    """,
}


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("kind", REFUSING)
def test_a_backend_that_takes_no_attributes_works_and_stays_the_same(kind, plugin, registry):
    plugin("odd", REFUSING[kind])
    assert registry.lookup_backend("odd") is registry.lookup_backend("odd")
    registry.refresh()
    assert registry.lookup_backend("odd") is sys.modules["odd_plugin"].fn
    registry.register_backend(registry.lookup_backend("odd"), "own", replace=True)
    registry.unregister_backend("own")
    assert_unharmed(registry)


def test_a_plugin_that_prints_prints_nothing_into_a_list(plugin, registry, capfd):
    plugin("loud", "print('bought a licence?')\ndef fn(gm, inputs):\n    return gm.forward\n")
    registry.resolutions()
    registry.availability("loud")
    assert capfd.readouterr().out == ""
    registry.lookup_backend("loud")
    assert "licence" in capfd.readouterr().out


def test_a_look_up_does_not_make_the_current_directory_importable(plugin, registry, site):
    plugin("evil", entry_points=f"{GROUP}evil = only_in_the_current_directory:fn\n")
    (site / "work" / "only_in_the_current_directory.py").write_text("fn = print\n")
    before = list(sys.path)
    with pytest.raises(BackendLoadError, match="there is no module 'only_in"):
        registry.lookup_backend("evil")
    assert sys.path == before


def test_a_module_that_was_written_since_python_last_looked_is_found(plugin, registry, site):
    plugin("first")
    registry.lookup_backend("first")  # now Python knows what the folder holds
    before = site.stat()
    plugin("second")
    os.utime(site, ns=(before.st_atime_ns, before.st_mtime_ns))  # in the same instant, as it were
    registry.refresh()
    assert registry.lookup_backend("second").__module__ == "second_plugin"


# -- metadata that is damaged, or made to do harm


def _replaced(folder: Path) -> Path:
    path = folder / "entry_points.txt"
    path.unlink()
    return path


def _loop(folder: Path) -> None:
    path = _replaced(folder)
    path.symlink_to(path)


DAMAGES = {
    "binary": lambda folder: (folder / "entry_points.txt").write_bytes(bytes(range(256)) * 9),
    "UTF-16": lambda folder: (folder / "entry_points.txt").write_text(GROUP, encoding="utf-16"),
    "larger than it may be": lambda folder: (folder / "entry_points.txt").write_bytes(
        GROUP.encode() + b"x = y:z\n" * 200_000
    ),
    "a folder": lambda folder: _replaced(folder).mkdir(),
    "a pipe": lambda folder: os.mkfifo(_replaced(folder)),
    "a device without an end": lambda folder: _replaced(folder).symlink_to("/dev/zero"),
    "a link to itself": _loop,
}


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("damage", DAMAGES)
def test_entry_points_that_can_t_be_read_are_named_once_and_hide_no_other(damage, plugin, registry):
    DAMAGES[damage](plugin("evil"))
    assert "evil" not in registry.list_backends()
    registry.resolutions()
    registry.refresh()
    assert [x for x in registry.problems if x.startswith("evil 1.0: ")] == list(registry.problems)
    assert len(registry.problems) == 1
    assert_unharmed(registry)


@pytest.mark.usefixtures("honest")
def test_entry_points_that_may_not_be_read_are_named(plugin, registry, monkeypatch):
    folder, opened = plugin("evil"), os.open

    def refusing(path, *flags, **options):  # what mode 0 does, for root too
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *flags, **options)

    monkeypatch.setattr("os.open", refusing)
    assert "evil" not in registry.list_backends()
    (problem,) = registry.problems
    assert problem.startswith("evil 1.0: ")
    assert "Permission denied" in problem
    assert_unharmed(registry)


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize(
    "name",
    [
        b"~vil-1.0.dist-info",  # what an interrupted pip leaves
        b"-1.0.dist-info",
        b"e v i l-1.0.dist-info",
        b"evil\n-1.0.dist-info",
        b"\x1b[31mevil-1.0.dist-info",
        b"evil-1.0 and more.dist-info",
        b"caf\xe9-1.0.dist-info",
        "\u202eevil-1.0.dist-info".encode(),
        b"=,-1.0.dist-info",
    ],
)
def test_a_folder_that_no_distribution_can_have_is_left_out_and_shown_safely(name, registry, site):
    folder = site / os.fsdecode(name)
    folder.mkdir()
    (folder / "entry_points.txt").write_text(f"{GROUP}evil = honest_plugin:fn\n")
    assert "evil" not in registry.list_backends()
    (problem,) = registry.problems
    assert problem.isascii()
    assert problem.isprintable()
    assert_unharmed(registry)


@pytest.mark.usefixtures("honest")
def test_what_has_no_entry_points_is_no_problem(registry, site):
    (site / "file-1.0.dist-info").write_text("a file for the folder")
    (site / "old-1.0-py3.11.egg-info").write_text("as distutils left it")
    (site / "empty-1.0.dist-info").mkdir()
    (site / ("long" * 50 + "-1.0.dist-info")).mkdir()
    (site / "unversioned.egg-info").mkdir()
    os.mkfifo(site / "unversioned.egg-info" / "PKG-INFO")
    (site / "endless.egg-info").mkdir()
    (site / "endless.egg-info" / "PKG-INFO").symlink_to("/dev/zero")
    assert_unharmed(registry)
    assert registry.problems == ()
    assert registry.environment.installed.find("endless").version == ""


@pytest.mark.usefixtures("honest")
def test_a_distribution_without_metadata_still_publishes(plugin, registry):
    folder = plugin("bare")
    assert not (folder / "METADATA").exists()
    assert registry.lookup_backend("bare").__module__ == "bare_plugin"


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        (" = evil_plugin:fn", "'' is left out"),
        ("evil =", "is not of the form module:attribute"),
        ("evil = evil_plugin:\x07fn", r"'evil_plugin:\\x07fn' is not of the form"),
        ("ev\x1bil = evil_plugin:fn", r"'ev\\x1bil' is left out"),
        ("e v i l = evil_plugin:fn", "'e v i l' is left out"),
        ("evil_plugin:fn = evil_plugin:fn", "'evil_plugin:fn' is left out"),
        ("\u202elive = evil_plugin:fn", r"'\\u202elive' is left out"),
        ("x" * 101 + " = evil_plugin:fn", "is left out"),
        ("evil = " + "x" * 301, "is not of the form module:attribute"),
    ],
)
def test_an_entry_point_that_can_be_no_backend_is_left_out_and_said(line, why, plugin, registry):
    plugin("evil", entry_points=f"{GROUP}{line}\nfine = evil_plugin:fn\n")
    here = {name for name, x in registry.specs().items() if x.origin.distribution == "evil"}
    assert here == {"fine"}
    (problem,) = registry.problems
    assert problem.startswith("evil 1.0: [torch_dynamo_backends] ")
    assert why.replace("\\\\", "\\") in problem
    assert problem.isprintable()
    assert_unharmed(registry)


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize(
    "value",
    ["evil_plugin", "evil_plugin:", ":fn", "../evil.py:fn", "/tmp/evil.py:fn", "a b:fn", "a:b:c"],
)
def test_an_entry_point_that_names_no_attribute_of_a_module_runs_nothing(
    value, plugin, registry, site
):
    (site.parent / "evil.py").write_text("raise SystemExit('it ran')\n")
    plugin("evil", entry_points=f"{GROUP}evil = {value}\n")
    assert registry.availability("evil").state == "broken"
    with pytest.raises(BackendLoadError, match=r"'evil' of evil 1\.0 .*(form|no module)") as caught:
        registry.lookup_backend("evil")
    assert "it ran" not in str(caught.value)
    assert "evil_plugin" not in sys.modules
    assert_unharmed(registry)


def test_spaces_around_the_colon_and_extras_are_read_as_python_reads_them(plugin, registry):
    plugin("spaced", entry_points=f"{GROUP}spaced = spaced_plugin : fn [gpu, more]\n")
    assert registry.lookup_backend("spaced").__module__ == "spaced_plugin"
    assert registry.spec("spaced").origin.entry_point == "spaced_plugin:fn"


@pytest.mark.usefixtures("honest")
def test_ten_thousand_lines_are_cut_and_said(plugin, registry):
    lines = "".join(f"evil{n} = evil_plugin:fn\n" for n in range(10_000))
    plugin("evil", entry_points=GROUP + lines)
    of_evil = [x for x in registry.specs().values() if x.origin.distribution == "evil"]
    assert len(of_evil) == 1_000
    assert len(registry.problems) < 50
    assert "8980 more are left out" in registry.problems[-1]
    assert_unharmed(registry)


@pytest.mark.usefixtures("honest")
def test_one_name_many_times_in_one_distribution_is_one_claimant_the_first(plugin, registry):
    lines = "".join(f"evil = evil_plugin:fn{n}\n" for n in (1, 1, 2, 3))
    plugin("evil", entry_points=GROUP + lines)
    (spec,) = registry.candidates("evil")
    assert spec.target == "evil_plugin:fn1"
    assert [x.partition("'evil' ")[2] for x in registry.problems] == [
        "is left out: it is evil_plugin:fn1 already"
    ] * 2
    assert_unharmed(registry)


@pytest.mark.usefixtures("honest")
def test_three_distributions_of_one_name_contend_and_each_can_be_chosen(plugin, registry):
    for name in ("one", "two", "three"):
        plugin(name, entry_points=f"{GROUP}shared = {name}_plugin:fn\n")
    with pytest.raises(BackendConflict, match=r"one 1\.0 .*three 1\.0 .*two 1\.0 .*all provide"):
        registry.lookup_backend("shared")
    assert [x.standing for x in registry.resolution("shared").candidates] == ["contends"] * 3
    for name in ("one", "two", "three"):
        with backbay.policy(pin={"shared": name}):
            assert registry.lookup_backend("shared").__module__ == f"{name}_plugin"
    with backbay.policy(block=["one", "three"]):
        assert registry.lookup_backend("shared").__module__ == "two_plugin"
        standings = [x.standing for x in registry.resolution("shared").candidates]
        assert standings == ["wins", "blocked", "blocked"]
    assert_unharmed(registry)


def test_the_order_of_distributions_is_by_name_not_as_the_folder_has_them(plugin, registry):
    for name in ("zebra", "apple", "mango"):
        plugin(name, entry_points=f"{GROUP}shared = {name}_plugin:fn\n")
    found = [x.origin.distribution for x in registry.candidates("shared")]
    assert found == ["apple", "mango", "zebra"]


# -- where distributions are looked for


@pytest.mark.usefixtures("honest")
def test_strange_entries_on_the_path_are_passed_over(site):
    strange = [str(site), Path("/"), b"/tmp", None, 3, "\0", "/dev/null", "x" * 5_000]
    assert scan(strange).find("honest") is not None


def test_a_current_directory_that_is_gone_stops_no_list(run_python):
    program = """
        import os, tempfile
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
        import backbay
        print("inductor" in backbay.list_backends())
    """
    assert run_python(program).stdout.strip() == "True"


# -- manifests


VALID = """
schema = 1
[[backend]]
name = "evil"
summary = "all is well"
"""

MANIFESTS = {
    "empty": "",
    "no TOML": "this is no TOML",
    "binary": "\0\1\2",
    "another schema": VALID.replace("schema = 1", "schema = 2"),
    "a schema that is true": VALID.replace("schema = 1", "schema = true"),
    "arrays in arrays": "schema = 1\nbackend = " + "[" * 5_000 + "]" * 5_000,
    "tables in tables": "schema = 1\nx = " + "{a = " * 3_000 + "1" + "}" * 3_000,
    "an integer of 5000 digits": f"schema = {'9' * 5_000}",
    "a hexadecimal integer of 100,000 digits": f"schema = 0x{'f' * 100_000}",
    "a dotted key of 30,000 parts": f"schema = 1\n{'a.' * 30_000}b = 1",
    "a quoted dotted key": 'schema = 1\n"=".' + "a." * 30_000 + "b = 1",
    "large": "schema = 1\n#" + "x" * 200_000,
    "many keys": "schema = 1\n[[backend]]\n" + "".join(f"k{n} = 1\n" for n in range(10_000)),
    "many backends": "schema = 1\n" + "[[backend]]\nname = 'x'\n" * 1_001,
}


@pytest.fixture
def manifest(plugin, site):
    """Write the distribution `evil` with a manifest."""

    def write(text, value="evil_package:backends.toml"):
        published = f"{GROUP}evil = evil_plugin:fn\n[backbay.backends]\nmanifest = {value}\n"
        plugin("evil", entry_points=published)
        package = site / "evil_package"
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('the package was imported')\n")
        path = package / "backends.toml"
        if text is not None:
            path.write_text(text)
        return path

    return write


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("fault", MANIFESTS)
def test_a_manifest_that_can_t_be_understood_is_named_and_the_entry_point_stays(
    fault, manifest, registry
):
    manifest(MANIFESTS[fault])
    assert registry.spec("evil").summary == ""
    assert registry.problems
    assert all(x.startswith("evil 1.0: ") and len(x) < 600 for x in registry.problems)
    assert all("backends.toml" in x for x in registry.problems)
    assert len(registry.problems) <= 100
    if "dotted" in fault:  # the parser would take minutes, and all memory
        assert "more than 64 dots" in registry.problems[0]
    assert registry.lookup_backend("evil").__module__ == "evil_plugin"
    assert "evil_package" not in sys.modules
    assert_unharmed(registry)


def test_the_manifest_of_those_tests_is_read_when_it_is_right(manifest, registry):
    manifest(VALID)
    assert registry.spec("evil").summary == "all is well"
    assert registry.problems == ()
    assert "evil_package" not in sys.modules


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize(
    "value",
    [
        "evil_package:absent.toml",
        "absent_package:backends.toml",
        "evil_package:../backends.toml",
        "evil_package:..\\backends.toml",
        "..:backends.toml",
        "../..:backends.toml",
        "/etc:passwd.toml",
        "evil_package:/etc/hosts.toml",
        "evil_package:__init__.py",
        "evil_package",
        "evil_package:.toml",
        "evil package:backends.toml",
    ],
)
def test_a_manifest_outside_the_distribution_is_not_read(value, manifest, registry, site):
    manifest(VALID, value)
    (site / "backends.toml").write_text(VALID)
    (site.parent / "backends.toml").write_text(VALID)
    assert registry.spec("evil").summary == ""
    (problem,) = registry.problems
    assert problem.startswith("evil 1.0: ")
    assert_unharmed(registry)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("what", ["link to itself", "folder", "pipe", "device without an end"])
def test_a_manifest_that_is_no_file_is_named(what, manifest, registry):
    path = manifest(None)
    if what == "link to itself":
        path.symlink_to(path)
    if what == "folder":
        path.mkdir()
    if what == "pipe":
        os.mkfifo(path)
    if what == "device without an end":
        path.symlink_to("/dev/zero")
    assert registry.spec("evil").summary == ""
    assert [x.startswith("evil 1.0: ") for x in registry.problems] == [True]
    assert_unharmed(registry)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("honest")
def test_a_thousand_manifests_are_not_all_read(plugin, registry, site):
    lines = "".join(f"m{n} = evil_package:backends.toml\n" for n in range(1_000))
    plugin("evil", entry_points=f"[backbay.backends]\n{lines}")
    (site / "evil_package").mkdir()
    (site / "evil_package" / "backends.toml").write_text("schema = 1\n" + "a.b = 1\n" * 10)
    assert_unharmed(registry)
    assert "m8' is left out: there are more than 8" in "\n".join(registry.problems)
    assert len(registry.problems) < 50


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("registers", ["torch", "removed", "import", "callable", "entry_point"])
def test_a_manifest_can_t_take_a_name_of_torch_s(registers, manifest, registry):
    manifest(f"""
        schema = 1
        [[backend]]
        name = "inductor"
        aliases = ["eager"]
        registers = "{registers}"
        module = "evil_plugin"
        target = "evil_plugin:fn"
        tags = ["debug"]
    """)
    for name in ("inductor", "eager"):
        assert registry.spec(name).origin.kind == "torch"
    assert "inductor" in registry.list_backends()
    assert registry.lookup_backend("eager").__module__.startswith("torch.")
    assert "evil_plugin" not in sys.modules
    if registers in {"torch", "removed"}:
        assert "only torch's own are" in registry.problems[0]
    assert_unharmed(registry)


@pytest.fixture
def pythons_own_recursion_limit():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Dynamo raises it, for every later test
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("honest", "pythons_own_recursion_limit")
@pytest.mark.parametrize(
    "requirement",
    [
        "honest; " + "(" * 900 + "python_version > '3'" + ")" * 900,
        "honest >=> 2",
        "honest; extra ~= 'x'; or",
        "; python_version > '3'",
        "honest @@ nothing",
    ],
)
def test_a_requirement_that_is_made_to_break_the_reader_is_broken(requirement, manifest, registry):
    manifest(f'{VALID}requires.distributions = ["{requirement}"]\n')
    assert registry.availability("evil").state == "broken"
    assert "cannot be read" in registry.availability("evil").reason
    assert "evil" not in registry.list_backends(available=True)
    assert_unharmed(registry)


@pytest.mark.usefixtures("honest")
def test_a_requirement_whose_marker_does_not_hold_here_is_none(manifest, registry):
    text = "absent-package>=2; python_version < '3'"
    manifest(f'{VALID}requires.distributions = ["{text}"]\n')
    assert registry.availability("evil").ready


# -- what is blocked runs no code


WAYS = ["file", "environment", "context", "allow list", "all off"]


@pytest.fixture
def blocked(request, monkeypatch, plugin, site):
    """A plugin that leaves a trace when it is imported, and a way of blocking it."""
    source = """
        from pathlib import Path
        Path(__file__).with_name("trace").touch()
        def fn(gm, inputs):
            return gm.forward
    """
    entry_points = f"{GROUP}evil = evil_plugin:fn\n[backbay.backends]\nm = evil_plugin:m.toml\n"
    plugin("evil", source, entry_points)
    way, inside = request.param, {}
    if way == "file":
        (site / "work" / "backbay.toml").write_text("block = ['Evil']\n")
    if way == "environment":
        monkeypatch.setenv("BACKBAY_BLOCK", "other, EVIL")
    if way == "context":
        inside = {"block": ["evil"]}
    if way == "allow list":
        monkeypatch.setenv("BACKBAY_ALLOW", "honest")
    if way == "all off":
        monkeypatch.setenv("BACKBAY_PLUGINS", "Off")
    with backbay.policy(**inside):
        yield way


@pytest.mark.parametrize("blocked", WAYS, indirect=True)
def test_no_code_of_what_is_blocked_is_run(blocked, registry, site):
    assert "evil" not in registry.list_backends(exclude_tags=())
    registry.list_backends(available=True)
    assert registry.resolutions()["evil"].candidates[0].standing == "blocked"
    assert registry.availability("evil").state == "blocked"
    assert registry.candidates("evil")[0].origin.distribution == "evil"
    registry.collect("devices")
    for look_up in (registry.lookup_backend, registry.require, registry.resolve):
        with pytest.raises(BackendUnavailable, match=r"evil is (blocked by|not among)"):
            look_up("evil")
    with pytest.raises(BackendUnavailable, match=r"evil is (blocked by|not among)"):
        registry.get_backend("evil")
    with pytest.raises(BackendUnavailable):
        registry.set_default_backend("evil")
    registry.refresh()
    with pytest.raises(BackendUnavailable):
        registry.lookup_backend("evil")
    assert "evil_plugin" not in sys.modules
    assert not (site / "trace").exists()


@pytest.mark.parametrize("blocked", ["context"], indirect=True)
def test_the_trace_of_those_tests_is_left_when_it_is_not_blocked(blocked, registry, site):
    with backbay.policy(allow=["evil"]):
        registry.lookup_backend("evil")
    assert (site / "trace").exists()


def test_a_block_holds_for_what_is_loaded_already(plugin, registry):
    plugin("evil")
    registry.lookup_backend("evil")
    with backbay.policy(block=["evil"]), pytest.raises(BackendUnavailable):
        registry.lookup_backend("evil")
    assert registry.lookup_backend("evil").__module__ == "evil_plugin"


def test_blocking_what_torch_bridges_to_blocks_the_bridge_and_leaves_the_name_torch_s(
    plugin, registry
):
    plugin("thief", entry_points=f"{GROUP}tvm = thief_plugin:fn\n")
    with backbay.policy(block=["apache_TVM"]):
        assert registry.availability("tvm").state == "blocked"
        assert registry.spec("tvm").origin.kind == "torch"
        assert "tvm" not in registry.list_backends()
        with pytest.raises(BackendUnavailable, match=r"apache-tvm is blocked by backbay\.policy"):
            registry.lookup_backend("tvm")
    assert registry.availability("tvm").state == "not_installed"
    assert "thief_plugin" not in sys.modules


def test_a_blocked_thief_of_torch_s_name_leaves_torch_s_ready(plugin, registry):
    plugin("thief", entry_points=f"{GROUP}eager = thief_plugin:fn\n")
    with backbay.policy(block=["thief"]):
        assert registry.availability("eager").ready
        standings = [x.standing for x in registry.resolution("eager").candidates]
        assert standings == ["wins", "blocked"]


def test_the_name_of_a_blocked_distribution_is_free_to_register(plugin, registry):
    plugin("evil")
    with pytest.raises(BackendConflict, match=r"'evil' is taken by evil 1\.0"):
        registry.register_backend(print, "evil")
    with backbay.policy(block=["evil"]):
        registry.register_backend(print, "evil")
        assert registry.candidates("evil")[0].origin.kind == "process"


@pytest.mark.parametrize("first", ["inside", "outside"])
def test_what_a_context_blocks_is_back_when_it_ends(first, manifest, registry):
    manifest(VALID)
    if first == "outside":
        assert registry.spec("evil").summary == "all is well"
    with backbay.policy(block=["evil"]):
        assert registry.resolution("evil").spec.summary == ""  # its manifest is not read
    assert registry.spec("evil").summary == "all is well"


def test_a_context_can_allow_what_the_environment_blocks(manifest, registry, monkeypatch):
    manifest(VALID)
    monkeypatch.setenv("BACKBAY_BLOCK", "evil")
    assert registry.resolution("evil").spec.summary == ""
    with backbay.policy(allow=["evil"]):
        assert registry.spec("evil").summary == "all is well"


@pytest.mark.parametrize(
    "settings",
    [
        {"BACKBAY_BLOCK": "evil", "BACKBAY_ALLOW": "evil"},
        {"BACKBAY_PLUGINS": "0", "BACKBAY_ALLOW": "evil"},
        {"BACKBAY_ALLOW": "none"},
    ],
    ids=["blocked and allowed", "all off and allowed", "none allowed"],
)
def test_variables_that_disagree_block(settings, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert standing_policy().why_blocked("evil")


@pytest.mark.parametrize("names", ["evil", ["evil>=2"], ["evil*"], [" evil"], [""]])
@pytest.mark.parametrize("key", ["block", "allow"])
def test_a_policy_that_would_match_nothing_is_an_error(key, names):
    with pytest.raises(PolicyError, match=key), backbay.policy(**{key: names}):
        pass


@pytest.mark.parametrize("text", ["[tool]\nbackbay = 3\n#[tool.backbay", "[[tool.backbay]]\n"])
def test_a_policy_that_is_no_table_is_an_error_not_a_crash(text, site):
    (site / "work" / "pyproject.toml").write_text(text)
    with pytest.raises(PolicyError, match="is a table"):
        standing_policy()


# -- what this process registers


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": 3}, "name must be a text"),
        ({"name": "a:b"}, "cannot be a backend's name"),
        ({"name": "\x1b[31m"}, "cannot be a backend's name"),
        ({"name": " "}, "cannot be a backend's name"),
        ({"name": "x" * 101}, "cannot be a backend's name"),
        ({"tags": "debug"}, "tags must be a list of names"),
        ({"tags": [["debug"]]}, "tags must be a list of names"),
        ({"requires": {"torch": ">=2"}}, "requires of a backend must be a Requirements"),
        ({"options": [3]}, "options of a backend must be a tuple"),
        ({"summery": "x"}, "takes no 'summery'"),
    ],
)
def test_what_would_break_every_list_is_refused(arguments, said, registry):
    before = registry.list_backends(exclude_tags=())
    with pytest.raises(InputError, match=said):
        registry.register_backend(lambda gm, inputs: None, **{"name": "mine", **arguments})
    with (
        pytest.raises(InputError, match=said),
        registry.registered(lambda gm, inputs: None, **{"name": "mine", **arguments}),
    ):
        pass
    assert registry.list_backends(exclude_tags=()) == before


def test_a_requirement_of_this_process_that_can_t_be_read_stops_no_list(registry):
    requires = Requirements(distributions=("torch; " + "(" * 2_000,), torch=">>2")
    registry.register_backend(lambda gm, inputs: None, "mine", requires=requires)
    assert "cudagraphs" not in registry.list_backends(available=True)
    assert registry.availability("mine").state == "broken"


def test_an_unknown_name_is_not_found_however_strange(registry):
    for name in ("", " ", "\0", "\ud800", "x" * 100_000, "a:", ":b", "../x"):
        with pytest.raises((BackendNotFound, BackendLoadError)):
            registry.lookup_backend(name)


def test_an_environment_without_torch_lists_the_plugins(site, plugin):
    plugin("honest")
    registry = backbay.Registry(Environment(installed=scan([str(site)])))
    assert "honest" in registry.list_backends()
    assert registry.availability("inductor").state == "not_installed"
