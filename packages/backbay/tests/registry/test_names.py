"""A typo in a backend's name is an error for type checkers, and no name that works is."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

import backbay
from backbay.errors import InputError
from backbay.registry._catalog import SPECS
from backbay.registry.names import BuiltinName, PluginName
from backbay.registry.stubs import names_here, stub_text, write_stubs

SOURCES = Path(backbay.__file__).parents[1]

# One line a case: a checker's report is a set of line numbers.
PROGRAM = """
from collections.abc import Callable

import backbay
from backbay import explain, race, verify
from backbay.compiling import compile as compile_
from backbay.registry import Registry
from backbay.registry.names import PluginName

compile_(abs, backend="inductor")  # right
compile_(abs, backend="backbay.default")  # right
compile_(abs, backend=PluginName("of_another_machine"))  # right
compile_(abs, backend=lambda graph_module, example_inputs: graph_module.forward)  # right
compile_(abs, backend="plugged")  # plugin
compile_(abs, backend="it's")  # plugin
compile_(abs, backend="indcutor")  # wrong
compile_(abs, backend="pluged")  # wrong
compile_(abs, backend=str())  # wrong
count: int = Registry().list_backends()  # wrong

backbay.lookup_backend("inductor")  # right
backbay.lookup_backend(PluginName("my_backend.py:fn"))  # right
backbay.lookup_backend("plugged")  # plugin
backbay.lookup_backend("inducter")  # wrong
backbay.get_backend("inductor", mode="default")  # right
backbay.get_backend("inducter", mode="default")  # wrong
backbay.set_default_backend(None)  # right
backbay.set_default_backend("inducter")  # wrong
Registry().lookup_backend(str())  # right
race.run(backends=["inductor", "eager"])  # right
race.run(backends=["inductor", "plugged"])  # plugin
race.run(backends=["inducter"])  # wrong
race.run(backends="inductor")  # right
race.run(backends="all")  # right
race.run(backends="inducter")  # wrong
verify.run(backends="inductor")  # right
verify.run(backends=["inducter"])  # wrong
verify.run(backends="inducter")  # wrong
explain.run(backend="inductor")  # right
explain.run(backend="inducter")  # wrong


def gives_int(graph_module: object, example_inputs: object) -> int:
    raise NotImplementedError


def gives_nothing(graph_module: object, example_inputs: object) -> None:
    raise NotImplementedError


def gives_callable(graph_module: object, example_inputs: object) -> Callable[..., object]:
    raise NotImplementedError


def says_nothing(graph_module, example_inputs):
    raise NotImplementedError


class Called:
    def __init__(self, graph_module: object, example_inputs: object) -> None:
        pass

    def __call__(self, *inputs: object) -> object:
        raise NotImplementedError


backbay.register_backend(gives_int)  # wrong
backbay.register_backend(gives_nothing, "name")  # wrong
backbay.register_backend(name="name")(gives_int)  # wrong
backbay.register_debug_backend(gives_int)  # wrong
backbay.register_backend(3)  # wrong
backbay.register_backend(gives_callable)  # right
backbay.register_backend(says_nothing, "name", tags=["debug"])  # right
backbay.register_backend(name="name")(gives_callable)  # right
backbay.register_backend(Called)  # right
kept: Callable[[object, object], object] = backbay.register_backend(gives_callable)  # right
compile_(abs, backend=gives_callable)  # right
compile_(abs, backend=gives_int)  # wrong
"""


def lines(*marks: str) -> set[int]:
    numbered = enumerate(PROGRAM.splitlines(), start=1)
    return {number for number, line in numbered if line.endswith(tuple(f"# {x}" for x in marks))}


OURS = {"backbay", "backbay-optimizer"}


def test_no_name_of_torchs_or_backbays_own_is_missing_from_the_type():
    own = {x.name for x in SPECS if x.loading == "torch" or x.origin.distribution in OURS}
    assert set(get_args(BuiltinName)) == own
    assert list(get_args(BuiltinName)) == sorted(get_args(BuiltinName))


def test_a_plugins_name_is_a_str_at_run_time():
    assert type(PluginName("openvino")) is str


def test_stubs_name_what_resolves_here_and_nothing_that_is_absent_or_contended(install, registry):
    install("plug-in", "1.0", "[torch_dynamo_backends]\nplugged = plug:fn\nboth = plug:fn\n")
    install("other", "1.0", "[torch_dynamo_backends]\nboth = other:fn\n")
    assert set(names_here(registry)) == {*get_args(BuiltinName), "plugged"}
    with backbay.policy(pin={"both": "other"}, block=["plug-in"]):
        assert set(names_here(registry)) == {*get_args(BuiltinName), "both"}


def test_a_published_name_cannot_write_code_into_the_stub():
    evil = '"]\nimport os  # \\'
    (name,) = [
        node.value
        for node in ast.walk(ast.parse(stub_text([evil])))
        if isinstance(node, ast.Constant) and node.value != "PluginName"
    ]
    assert name == evil


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path, registry):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^no stubs: .*Choose another folder: --out DIR$"):
        write_stubs(registry, tmp_path / "file")


def test_the_command_says_where_and_which(monkeypatch, tmp_path, install, registry):
    from backbay.cli.stubs import command

    install("plug-in", "1.0", "[torch_dynamo_backends]\nplugged = plug:fn\n")
    monkeypatch.setattr("backbay.cli.elsewhere.default_registry", registry)
    done = CliRunner().invoke(command, ["--out", str(tmp_path / "typings"), "--json"])
    document = json.loads(done.stdout)
    assert document["schema"] == "backbay.stubs/1"
    assert document["path"] == str(tmp_path / "typings" / "backbay-stubs")
    assert "plugged" in document["names"]
    stub = Path(document["path"], "registry", "names.pyi").read_text()
    assert all(repr(name) in stub for name in document["names"])
    plain = CliRunner().invoke(command, ["--out", str(tmp_path / "typings")]).stdout
    assert plain == f"{document['path']}: {len(document['names'])} names\n"


# -- the checkers


class Checked:
    """A program, and an environment in which Backbay is installed as editable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=False)
        (self.python,) = (folder / "env").glob("*/python")
        (self.site,) = (folder / "env").glob("lib/*/site-packages")
        (self.site / "backbay.pth").write_text(f"{SOURCES}\n")
        (folder / "program.py").write_text(PROGRAM)

    def stubs(self, place: Path, registry) -> None:
        assert write_stubs(registry, place) == place / "backbay-stubs"

    def mypy(self) -> set[int]:
        options = ("--python-executable", str(self.python), "--config-file=", "--no-pretty")
        out = self._run("mypy", *options, "--cache-dir", str(self.folder / "cache"), "program.py")
        return {int(x) for x in re.findall(r"^program\.py:(\d+): error", out, re.MULTILINE)}

    def pyright(self) -> set[int]:
        config = {"typeCheckingMode": "standard", "include": ["program.py"]}
        (self.folder / "pyrightconfig.json").write_text(json.dumps(config))
        out = self._run("basedpyright", "--pythonpath", str(self.python), "--outputjson")
        found = json.loads(out)["generalDiagnostics"]
        return {x["range"]["start"]["line"] + 1 for x in found if x["severity"] == "error"}

    def _run(self, checker: str, *arguments: str) -> str:
        if importlib.util.find_spec(checker) is None:
            pytest.skip(f"{checker} is not installed")
        command = [sys.executable, "-m", checker, *arguments]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False
        ).stdout


@pytest.fixture
def checked(tmp_path_factory) -> Checked:
    return Checked(tmp_path_factory.mktemp("checked"))


@pytest.fixture
def with_plugin(install, registry):
    install("plug-in", "1.0", "[torch_dynamo_backends]\nplugged = plug:fn\nit's = plug:fn\n")
    return registry


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_typo_passes_the_checker_or_an_installed_plugin_does_not(checked, with_plugin, checker):
    check = getattr(checked, checker)
    assert check() == lines("plugin", "wrong")
    checked.stubs(checked.site, with_plugin)
    assert check() == lines("wrong")


def test_pyright_does_not_find_the_stubs_in_the_projects_typings(checked, with_plugin):
    checked.stubs(checked.folder / "typings", with_plugin)
    assert checked.pyright() == lines("wrong")
