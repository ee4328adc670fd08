"""What the user allows, and which source of it wins."""

import sys
import threading

import pytest

import backbay
from backbay.errors import BackendConflict, BackendUnavailable, PolicyError
from backbay.registry import Registry
from backbay.registry.policy import Layer, Policy, standing_policy


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch, tmp_path):
    for name in ("BLOCK", "ALLOW", "PIN", "DEFAULT", "REQUIRE", "PLUGINS", "CONFIG", "STATE"):
        monkeypatch.delenv(f"BACKBAY_{name}", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def two(install, tmp_path):
    """Two distributions that publish one name."""
    for name in ("one", "two"):
        install(name, "1.0", f"[torch_dynamo_backends]\nshared = {name}_backend:fn\n")
        (tmp_path / f"{name}_backend.py").write_text(
            f"def fn(gm, inputs):\n    return gm.forward\nfn.who = '{name}'\n"
        )


@pytest.fixture
def importable(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("one_backend", "two_backend"):
        sys.modules.pop(name, None)


def make(registry):
    return type(registry)()


def test_two_distributions_of_one_name_contend_and_the_error_says_how_to_choose(two, registry):
    with pytest.raises(BackendConflict, match=r"one 1\.0 .*and two 1\.0 .*BACKBAY_PIN=shared="):
        registry.lookup_backend("shared")
    assert registry.availability("shared").state == "blocked"
    assert "[pin] shared" in registry.availability("shared").remedy
    assert [x.standing for x in registry.resolution("shared").candidates] == ["contends"] * 2


def test_reason_and_remedy_are_told_apart_whatever_the_settings_source_is_called(two, registry):
    layer = Layer(source="C: work/backbay.toml", pin={"shared": "three"})
    found = Registry(registry.environment, standing=Policy((layer,))).availability("shared")
    assert found.reason.startswith("C: work/backbay.toml pins 'shared' to three, which does not")
    assert found.remedy == "install three, allow it, or change the pin"


@pytest.mark.usefixtures("two", "importable")
@pytest.mark.parametrize("source", ["backbay.toml", "pyproject.toml", "environment", "context"])
def test_a_pin_decides_whoever_sets_it(registry, monkeypatch, source, tmp_path):
    if source == "backbay.toml":
        (tmp_path / source).write_text("[pin]\nshared = 'Two'\n")
    if source == "pyproject.toml":
        (tmp_path / source).write_text("[tool.backbay.pin]\nshared = 'two'\n")
    if source == "environment":
        monkeypatch.setenv("BACKBAY_PIN", "shared=two")
    pin = {"shared": "two"} if source == "context" else {}
    with backbay.policy(pin=pin):
        assert registry.lookup_backend("shared").who == "two"
        wins, shadowed = registry.resolution("shared").candidates
        assert (wins.standing, shadowed.standing) == ("wins", "shadowed")
        assert "pins it to" in wins.why


def test_the_context_lies_above_the_environment_and_that_above_the_file(
    two, importable, registry, monkeypatch, tmp_path
):
    (tmp_path / "backbay.toml").write_text("[pin]\nshared = 'nobody'\n")
    monkeypatch.setenv("BACKBAY_PIN", "shared=one")
    assert registry.lookup_backend("shared").who == "one"
    with backbay.policy(pin={"shared": "two"}):
        assert registry.lookup_backend("shared").who == "two"
    assert registry.lookup_backend("shared").who == "one"


def test_a_pin_that_nobody_meets_fails_loudly(two, registry, monkeypatch):
    monkeypatch.setenv("BACKBAY_PIN", "shared=three")
    with pytest.raises(BackendConflict, match="pins 'shared' to three, which does not provide it"):
        registry.lookup_backend("shared")


def test_torchs_names_cannot_be_pinned_away(install, registry):
    install("thief", "1.0", "[torch_dynamo_backends]\ninductor = thief:steal\n")
    refused = pytest.raises(BackendConflict, match="torch's own, which nobody can take")
    with backbay.policy(pin={"inductor": "thief"}), refused:
        registry.spec("inductor")
    assert registry.spec("inductor").origin.kind == "torch"


def test_blocking_one_of_two_leaves_the_other(two, importable, registry):
    with backbay.policy(block=["ONE"]):
        assert registry.lookup_backend("shared").who == "two"
        assert "one_backend" not in sys.modules
        assert [x.standing for x in registry.resolution("shared").candidates] == ["wins", "blocked"]


def test_a_blocked_backend_says_which_setting_blocks_it(two, registry, monkeypatch, tmp_path):
    monkeypatch.setenv("BACKBAY_BLOCK", "one, two")
    with pytest.raises(BackendUnavailable, match="blocked by BACKBAY_BLOCK=one, two"):
        registry.lookup_backend("shared")
    assert "shared" not in registry.list_backends()
    (tmp_path / "backbay.toml").write_text('allow = ["other"]\n')
    monkeypatch.delenv("BACKBAY_BLOCK")
    assert "backbay.toml allows" in make(registry).availability("shared").reason


def test_an_allow_list_lets_torch_and_backbay_itself_through(two, registry):
    with backbay.policy(allow=[]):
        assert "inductor" in registry.list_backends()
        assert "shared" not in registry.list_backends()
        assert registry.policy.why_blocked("backbay") is None
    with backbay.policy(block=["backbay"]):
        assert registry.policy.why_blocked("backbay")


@pytest.mark.parametrize("off", ["0", "false", "OFF", " no "])
def test_plugins_can_be_switched_off_whole(two, registry, monkeypatch, off):
    monkeypatch.setenv("BACKBAY_PLUGINS", off)
    assert registry.availability("shared").state == "blocked"


@pytest.mark.parametrize("off", ["0", "false", "off", ""])
def test_a_variable_that_is_off_says_nothing(two, registry, monkeypatch, off):
    monkeypatch.setenv("BACKBAY_BLOCK", off)
    monkeypatch.setenv("BACKBAY_PLUGINS", "1")
    assert registry.availability("shared").reason.startswith("one 1.0")


def test_a_context_does_not_reach_other_threads(registry):
    seen = []
    with backbay.policy(block=["one"]):
        thread = threading.Thread(target=lambda: seen.append(registry.policy.why_blocked("one")))
        thread.start()
        thread.join()
        assert registry.policy.why_blocked("one")
    assert seen == [None]
    assert registry.policy.why_blocked("one") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blok = ['one']", "unknown key 'blok'"),
        ("block = 'one'", "block must be a list"),
        ("pin = ['x']", "pin must map"),
        ("[default]\ncpu = 3", "default must map"),
        ("block = [", "cannot be read"),
    ],
)
def test_a_policy_that_is_half_understood_is_an_error(tmp_path, text, said):
    (tmp_path / "backbay.toml").write_text(text)
    with pytest.raises(PolicyError, match=said):
        standing_policy()


def test_a_malformed_variable_is_an_error(monkeypatch):
    monkeypatch.setenv("BACKBAY_PIN", "shared")
    with pytest.raises(PolicyError, match="BACKBAY_PIN=shared is not of the form"):
        standing_policy()
    monkeypatch.delenv("BACKBAY_PIN")
    monkeypatch.setenv("BACKBAY_PLUGINS", "perhaps")
    with pytest.raises(PolicyError, match="neither on nor off"):
        standing_policy()


def test_the_configuration_file_can_be_named_or_switched_off(monkeypatch, tmp_path):
    (tmp_path / "backbay.toml").write_text("block = ['one']")
    (tmp_path / "other.toml").write_text("block = ['two']")
    assert standing_policy().why_blocked("one")
    monkeypatch.setenv("BACKBAY_CONFIG", str(tmp_path / "other.toml"))
    assert not standing_policy().why_blocked("one")
    assert standing_policy().why_blocked("two")
    monkeypatch.setenv("BACKBAY_CONFIG", "off")
    assert not standing_policy().layers


def test_refresh_reads_the_policy_again(two, monkeypatch, registry):
    assert registry.policy.why_blocked("one") is None
    monkeypatch.setenv("BACKBAY_BLOCK", "one")
    assert registry.policy.why_blocked("one") is None
    registry.refresh()
    assert registry.policy.why_blocked("one")


def test_a_default_for_every_device_or_for_one():
    with backbay.policy(default="aot_eager"):
        assert Registry().policy.default_for("cuda") == ("aot_eager", "backbay.policy()")
    with backbay.policy(default={"cpu": "eager"}):
        assert Registry().policy.default_for("cuda") is None
        assert Registry().policy.default_for("cpu") == ("eager", "backbay.policy()")
