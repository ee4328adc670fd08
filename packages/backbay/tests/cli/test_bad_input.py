"""Whatever a command is given: a line that says what is wrong, exit code 2, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main

COMMAND = [sys.executable, "-m", "backbay"]
FULL = Path("/dev/full")
STATE = {"version": 1, "layers": [], "backends": {}}
ENTRY = 'name = "a"\ndistribution = "d"\nversion = "1"\ntarget = "t:f"\nmanifest = "0"\n'


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def backbay(*arguments, **options):
    return CliRunner(**options).invoke(main, [str(x) for x in arguments])


def assert_refused(done, *said):
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    assert all(x in done.stderr for x in said), done.stderr


# -- options


@pytest.mark.parametrize(
    "arguments",
    [
        ("race", "--timeout", "-1"),
        ("race", "--timeout", "nan"),
        ("race", "--timeout", "inf"),
        ("race", "--seconds", "0"),
        ("race", "--seconds", "1e300"),
        ("race", "--seed", "-99999999999999999999"),
        ("race", "--seed", "99999999999999999999"),
        ("race", "--device", "cpu:77:8"),
        ("race", "--device", "cuda:0x"),
        ("race", "--device", ""),
        ("race", "--device", "cuda:-1"),
        ("race", "--device", "cuda:01"),
        ("race", "--device", "CPU\n"),
        ("verify", "--timeout", "0"),
        ("verify", "--blame", "-1"),
        ("verify", "--blame", "nan"),
        ("verify", "--seed", "-1"),
        ("verify", "--steps", "9" * 30),
        ("verify", "--batches", "٣"),
        ("verify", "--batches", "9" * 5_000),
        ("verify", "--device", "cpu:77:8"),
        ("explain", "--seed", "9" * 30),
        ("explain", "--device", "cpu:77:8"),
        ("doctor", "--probe", "--seconds", "-5"),
        ("doctor", "--probe", "--seconds", "nan"),
        ("doctor", "--device", "cpu:0"),
        ("list", "--device", "\x1b[31m"),
        ("info", "eager", "--device", "c p u"),
        ("conform", "eager", "--seed", "-1"),
        ("conform", "eager", "--device", "cpu:77:8"),
        ("conform", "eager", "--fuzz", "nan"),
        ("conform", "eager", "--workers", "9" * 12),
    ],
)
def test_an_option_out_of_its_range_is_named(arguments):
    option = next(x for x in reversed(arguments) if x.startswith("--"))
    done = backbay(*arguments)
    assert_refused(done, option)
    assert "\x1b" not in done.stderr


def test_an_argument_that_is_not_unicode_is_refused():
    assert_refused(backbay("race", "w\udcff.py:model"), r"'w\udcff.py:model' is not Unicode")
    assert_refused(backbay("info", "\ud800"), r"'\ud800' is not Unicode")


# -- lock files


@pytest.mark.parametrize(
    "text",
    [
        'version = 1\ntorch = "garbage"',
        'version = 1\n[[backend]]\nname = "only a name"',
        f"version = 1\nbackend = {'[' * 5_000}{']' * 5_000}",
        f"version = 1\n{'a.' * 50_000}a = 1",
        f"version = {'9' * 5_000}",
        "version = true",
        "version = 1\nbackend = 3",
        "version = 1\nbackend = [[]]",
        f"version = 1\n[[backend]]\n{ENTRY}extra = 1",
        f"version = 1\n[[backend]]\n{ENTRY}".replace('"0"', "0"),
        f"version = 1\n[[backend]]\n{ENTRY}".replace('"a"', r'"\ud83d\ude00"'),
        "\0",
        "version = 1\nversion = 1",
        "[[version]]",
        "",
    ],
)
def test_what_is_no_lock_file_is_said_on_one_line(text):
    Path("backbay.lock").write_text(text)
    done = backbay("lock", "--check")
    assert_refused(done, "backbay.lock is no lock file of version 1", "write it anew")
    assert done.stderr.count("\n") == 1


def test_a_lock_file_that_cannot_be_read_is_named():
    os.mkfifo("pipe")
    Path("binary").write_bytes(b"\xff\xfe\0")
    Path("large").write_bytes(b"#" * (2 << 20))
    Path("loop").symlink_to("loop")
    said = {"pipe": "is no file", "binary": "is not UTF-8", "large": "larger", "loop": "cannot be"}
    for name, why in said.items():
        assert_refused(backbay("lock", "--check", "--file", name), name, why)


READERS = {
    "lock": ("lock", "--check", "--file"),
    "decisions": ("decisions", "import"),
    "history": ("history",),
    "against": ("race", "--against"),
    "expectations": ("conform", "eager", "--expectations"),
    "statement": ("conform", "eager", "--beside"),
}


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_a_message_names_the_file_twice(command):
    os.mkfifo("made-pipe")
    Path("made-binary").write_bytes(b"\xff\xfe\0")
    Path("made-folder").mkdir()
    Path("made-loop").symlink_to("made-loop")
    for name in ("made-absent", "made-pipe", "made-binary", "made-folder", "made-loop"):
        done = backbay(*command, name)
        assert_refused(done, name)
        assert done.stderr.count(name) == 1, done.stderr


def test_a_message_names_the_configuration_twice():
    environment = os.environ | {"BACKBAY_CONFIG": "made-absent"}
    done = subprocess.run(
        [*COMMAND, "list"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == "backbay: made-absent cannot be read: No such file or directory\n"


def test_a_lock_file_with_a_byte_order_mark_is_read():
    assert backbay("lock").exit_code == 0
    Path("backbay.lock").write_bytes(b"\xef\xbb\xbf" + Path("backbay.lock").read_bytes())
    assert backbay("lock", "--check").exit_code == 0


def test_a_lock_that_cannot_be_written_is_said():
    Path("file").touch()
    for path in ("absent/backbay.lock", "file/backbay.lock", "n" * 300):
        assert_refused(backbay("lock", "--file", path), path)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_a_lock_onto_a_full_disk_is_said():
    assert_refused(backbay("lock", "--file", FULL), "No space left")


def test_terminal_codes_of_a_lock_file_are_shown_not_obeyed(monkeypatch, registry):
    monkeypatch.setattr("backbay.cli.elsewhere.default_registry", registry)
    entry = ENTRY.replace('"a"', r'"\u001b[31ma\u202e"').replace('"d"', r'"\u001b]0;d\u0007"')
    torch = 'torch = ">=2.13,<2.14"'
    Path("backbay.lock").write_text(f"version = 1\n{torch}\n[[backend]]\n{entry}")
    shown = backbay("lock", "--check").stdout
    assert r"\x1b[31ma\u202e is locked to \x1b]0;d\x07" in shown


# -- manifests and expectations


def test_a_manifest_that_cannot_be_read_is_a_problem_of_it():
    Path("deep.toml").write_text(f"a = {'[' * 5_000}")
    Path("binary.toml").write_bytes(b"\xff")
    os.mkfifo("pipe.toml")
    for name in ("deep.toml", "binary.toml", "pipe.toml"):
        done = backbay("check-manifest", name)
        assert (done.exit_code, name in done.stdout) == (1, True)
        assert "Traceback" not in done.output


def test_expectations_and_statements_that_cannot_be_read_are_named():
    Path("binary").write_bytes(b"\xff\xfe\0")
    Path("deep").write_text(f"a = {'[' * 5_000}")
    Path("json").write_text('{"a":' * 5_000)
    os.mkfifo("pipe")
    for name in ("binary", "deep", "pipe", "absent"):
        assert_refused(backbay("conform", "eager", "--expectations", name), name)
    for name in ("binary", "json", "pipe", "absent"):
        assert_refused(backbay("conform", "--beside", name, "--html", "page.html"), name)


# -- what the environment says


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "5",
        "{",
        "{}",
        '{"version": 1}',
        '{"version": [1]}',
        json.dumps({**STATE, "layers": 5}),
        json.dumps({**STATE, "layers": [5]}),
        json.dumps({**STATE, "layers": [{"source": [], "block": 5}]}),
        json.dumps({**STATE, "layers": [{"source": "x", "pin": {"a": 5}}]}),
        json.dumps({**STATE, "backends": []}),
        json.dumps({**STATE, "backends": {"a": [5, []]}}),
        json.dumps({**STATE, "backends": {"a": ["x:y", [5]]}}),
        json.dumps({**STATE, "backends": {"a": "xy"}}),
        json.dumps({**STATE, "backends": {"inductor": ["x:y", []]}}),
        json.dumps({**STATE, "backends": {"\x1b[31ma\u202e": ["x:y", []]}}),
        '{"version": 1, "layers": ' + "[" * 50_000,
    ],
)
def test_a_state_of_another_type_is_a_policy_error(text, monkeypatch):
    from backbay.errors import InputError
    from backbay.registry import Registry

    monkeypatch.setenv("BACKBAY_STATE", text)
    with pytest.raises(InputError) as raised:
        Registry(shared_with_torch=True).list_backends()
    assert str(raised.value).isprintable()


# -- outputs


def ran(*arguments, **options):
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(
        [*COMMAND, *arguments],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [("list",), ("info", "eager", "--json"), ("--help",)])
def test_a_full_disk_is_one_line(arguments):
    with FULL.open("w") as full:
        done = ran(*arguments, stdout=full)
    assert (done.returncode, done.stderr) == (2, "backbay: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are another thing there")
@pytest.mark.parametrize("arguments", [("list", "--json"), ("info", "eager"), ("list", "--help")])
def test_a_reader_who_is_gone_is_one_line(arguments):
    read, write = os.pipe()
    os.close(read)
    done = ran(*arguments, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (2, "backbay: Broken pipe\n")


def test_an_output_that_is_closed_is_no_fault():
    command = ["sh", "-c", 'exec "$0" -m backbay list >&-', sys.executable]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_that_knows_ascii_alone_gets_every_line(install, tmp_path):
    install("plug-in", "3.1", "[torch_dynamo_backends]\nplüg😀 = plug_in:fn\n")
    options = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(tmp_path)}
    for arguments in (("list",), ("info", "plüg😀")):
        done = ran(*arguments, stdout=subprocess.PIPE, env=options)
        assert done.returncode == 0, done.stderr
        assert r"pl\xfcg\U0001f600" in done.stdout
