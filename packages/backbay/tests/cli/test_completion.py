"""What a shell is offered when it completes a command line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from backbay.cli import main
from backbay.explain.codes import CODES


def offered(*words: str) -> list[str]:
    """Return what is offered in place of the last word, files as ``file,WORD``."""
    line = " ".join(("backbay", *words))
    environment = {
        "_BACKBAY_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }
    done = CliRunner(env=environment).invoke(main, prog_name="backbay")
    return [x.removeprefix("plain,") for x in done.stdout.splitlines()]


def test_commands_complete():
    assert offered("ve") == ["verify"]
    assert {"race", "conform", "explain"} <= set(offered(""))


def test_backends_complete_one_after_the_other():
    found = offered("explain", "--backend", "aot_eager")
    assert {"aot_eager", "aot_eager_decomp_partition"} <= set(found)
    for command, option in (("verify", "--backends"), ("race", "--backends"), ("race", "--arms")):
        assert offered(command, option, "eager,inducto") == ["eager,inductor"]
    assert offered("race", "--arms", "inductor@max-autotune,INDUCTO") == [
        "inductor@max-autotune,inductor"
    ]
    assert offered("info", "zzz") == ["file,zzz"]


@pytest.mark.parametrize("command", ["race", "verify", "explain"])
def test_workloads_complete_with_the_users_own(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def model(): ...\ndef more(): ...\ndef other(): ...\n")
    assert offered(command, "hf:ber") == ["file,hf:ber", "hf:bert"]
    assert offered(command, "dec") == ["file,dec", "decoder"]
    assert "timm:" in offered(command, "t")
    assert offered(command, "own.py:mo") == ["file,own.py:mo", "own.py:model", "own.py:more"]
    assert offered(command, "absent.py:mo") == ["file,absent.py:mo"]
    assert offered(command, "--json", "x") == ["file,x"]


def test_codes_of_findings_complete():
    codes = [x for x in CODES if x.startswith("BB10")]
    assert offered("explain", "BB10") == ["file,BB10", *codes]
    assert offered("explain", "--fail-on", "BB2,bb10") == [f"BB2,{x}" for x in codes]


def test_tags_and_levels_complete():
    assert offered("list", "--tag", "ex") == ["experimental"]
    assert offered("conform", "--level", "loa") == ["load"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_it_once_its_line_of_the_documentation_was_run(tmp_path):
    program = tmp_path / "backbay"
    run = "from backbay.cli import main; main(prog_name='backbay')"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{run}" "$@"\n')
    program.chmod(0o755)
    page = (Path(__file__).parents[4] / "docs" / "howto" / "install.md").read_text()
    (line,) = [x for x in page.splitlines() if "bash_source" in x]
    script = f"""
    {line}
    COMP_WORDS=(backbay verify hf:ber)
    COMP_CWORD=2
    _backbay_completion backbay hf:ber verify 2>/dev/null
    echo "${{COMPREPLY[*]}} ${{COMP_WORDBREAKS}}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == "hf:bert"
    assert ":" not in done.stdout.partition(" ")[2]
