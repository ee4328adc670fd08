"""A drift of what provides a backend is seen."""

import shutil
import tomllib

import pytest

from backbay.errors import InputError
from backbay.registry import Environment, Registry
from backbay.registry.distributions import scan
from backbay.registry.lock import drift, lock_text

PUBLISHES = "[torch_dynamo_backends]\nplugged = plug_in:fn\n"


@pytest.fixture
def see(tmp_path):
    """Look at what is installed, now, with some version of torch."""

    def look(torch="2.13.0+cpu") -> Registry:
        build = {} if torch is None else {"__version__": torch}
        return Registry(Environment(installed=scan([str(tmp_path)]), torch_build=build))

    return look


@pytest.fixture
def lock(tmp_path, install, see):
    install("plug-in", "3.1", PUBLISHES)
    path = tmp_path / "backbay.lock"
    path.write_text(lock_text(see()))
    return path


def test_a_lock_holds_while_nothing_changes_whatever_the_order_of_the_path(lock, see):
    assert drift(see(), lock) == []
    (entry,) = tomllib.loads(lock.read_text())["backend"]
    assert (entry["name"], entry["distribution"], entry["version"]) == ("plugged", "plug-in", "3.1")
    assert entry["target"] == "plug_in:fn"


def test_another_version_is_a_drift(lock, see, install, tmp_path):
    shutil.rmtree(tmp_path / "plug_in-3.1.dist-info")
    install("plug-in", "3.2", PUBLISHES)
    assert drift(see(), lock) == ["plugged: version is 3.2, and the lock says 3.1"]


def test_another_target_is_a_drift(lock, see, install, tmp_path):
    shutil.rmtree(tmp_path / "plug_in-3.1.dist-info")
    install("plug-in", "3.1", PUBLISHES.replace(":fn", ":other"))
    assert any("target is plug_in:other" in line for line in drift(see(), lock))


def test_another_provider_of_the_name_is_a_drift(lock, see, install, tmp_path):
    shutil.rmtree(tmp_path / "plug_in-3.1.dist-info")
    install("thief", "3.1", PUBLISHES)
    assert "plugged: distribution is thief, and the lock says plug-in" in drift(see(), lock)


def test_a_backend_that_is_gone_or_new_is_a_drift(lock, see, install, tmp_path):
    shutil.rmtree(tmp_path / "plug_in-3.1.dist-info")
    install("new", "1.0", "[torch_dynamo_backends]\nfresh = new:fn\n")
    gone, new = drift(see(), lock)
    assert gone == "plugged is locked to plug-in, which does not provide it here"
    assert new == "fresh is provided by new and is not in the lock"


def test_torch_outside_its_range_is_a_drift_a_patch_release_is_not(lock, see):
    assert drift(see("2.13.4"), lock) == []
    (line,) = drift(see("2.14.0"), lock)
    assert line == "torch 2.14.0 is installed, and the lock says torch>=2.13,<2.14"


def test_a_changed_manifest_is_a_drift(tmp_path, see, install):
    both = PUBLISHES + "[backbay.backends]\nmanifest = plug_in:backends.toml\n"
    install("plug-in", "3.1", both)
    (tmp_path / "plug_in").mkdir()
    manifest = tmp_path / "plug_in" / "backends.toml"
    manifest.write_text('schema = 1\n[[backend]]\nname = "plugged"\nsummary = "one"\n')
    path = tmp_path / "backbay.lock"
    path.write_text(lock_text(see()))
    assert drift(see(), path) == []
    manifest.write_text('schema = 1\n[[backend]]\nname = "plugged"\nsummary = "two"\n')
    assert [line.partition(" is ")[0] for line in drift(see(), path)] == ["plugged: manifest"]


def test_without_torch_the_backends_are_locked_and_torch_coming_or_going_is_a_drift(
    lock, see, tmp_path
):
    assert drift(see(None), lock) == ["torch is not installed, and the lock says torch>=2.13,<2.14"]
    bare = tmp_path / "bare.lock"
    bare.write_text(lock_text(see(None)))
    assert drift(see(None), bare) == []
    assert drift(see(), bare) == ["torch 2.13.0+cpu is installed, and is not in the lock"]


def test_two_that_contend_cannot_be_locked(see, install):
    install("one", "1.0", PUBLISHES)
    install("two", "1.0", PUBLISHES)
    with pytest.raises(InputError, match="choose one"):
        lock_text(see())


@pytest.mark.parametrize(
    "text", ["version = 2\ntorch = '>=2'", "torch = 3\nversion = 1", "version = [", "backend = 3"]
)
def test_what_is_no_lock_file_is_said_so(see, tmp_path, text):
    path = tmp_path / "backbay.lock"
    path.write_text(text)
    with pytest.raises(InputError, match=r"backbay\.lock"):
        drift(see(), path)
    with pytest.raises(InputError, match="write it with `backbay lock`"):
        drift(see(), tmp_path / "absent.lock")


def test_a_name_of_any_character_that_can_be_published_is_locked_and_found_again(
    tmp_path, install, see
):
    names = ("\U0001f600", "日本語", '"quoted"', "a'b", "back\\slash", "x[y]", "{}", "é", "b#c")
    lines = "".join(f"{name} = plug_in:fn\n" for name in names)
    install("plug-in", "3.1", f"[torch_dynamo_backends]\n{lines}")
    path = tmp_path / "backbay.lock"
    path.write_text(lock_text(see()), "utf-8")
    assert {x["name"] for x in tomllib.loads(path.read_text("utf-8"))["backend"]} == set(names)
    assert drift(see(), path) == []
