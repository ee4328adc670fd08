"""Another interpreter's environment is read as it would see it itself, and nothing is run."""

import json
import os
import stat
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest
from other_environment import TORCH, Other

from backbay.errors import InputError
from backbay.registry import BackendSpec, Environment, Origin, Requirements, torchvision
from backbay.registry.availability import check
from backbay.registry.bridge import TORCH_REGISTRY
from backbay.registry.other_interpreter import other_interpreter

posix = pytest.mark.skipif(sys.platform == "win32", reason="scripts and links are others there")


@pytest.fixture
def other(tmp_path) -> Other:
    return Other(tmp_path / "other")


def sys_path(python: Path) -> list[str]:
    """Return what an interpreter has, in its own words; without its own start's folder."""
    kept = {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}
    program = "import json, sys; print(json.dumps(sys.path[1:]))"
    done = subprocess.run([python, "-c", program], env=kept, capture_output=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


# -- where it looks


def test_a_virtual_environment_is_searched_in_the_order_in_which_its_python_does(other, tmp_path):
    for name in ("added", "twice", "nested"):
        (tmp_path / name).mkdir()
    (tmp_path / "nested" / "deeper.pth").write_text(f"{tmp_path}\n")
    root = str(tmp_path)
    other.write(
        {
            "b.pth": f"# words\n\n{root}/added  \n{root}/gone\n{root}/twice\n",
            "a.pth": f"{root}/nested\nimport sys; sys.path.append('/by/code')\nbeside\n",
            "c.pth": f"{root}/twice\n",
            "beside/x.py": "",
            "# words/x.py": "",
            "words.txt": root,
        }
    )
    found = list(other.read().interpreter.path)
    expected = sys_path(other.python)
    assert "/by/code" in expected  # what no file says
    assert found == [x for x in expected if x != "/by/code"]
    assert str(other.site / "beside") in found


@pytest.mark.parametrize("shared", [False, True])
def test_packages_of_the_user_and_the_system_count_where_they_do_there(
    tmp_path, monkeypatch, shared
):
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    other = Other(tmp_path / "other", shared=shared)
    base = other_interpreter(Path(sys._base_executable))
    user = next(Path(x) for x in _user_folders(other.python))
    user.mkdir(parents=True)
    assert list(other.read().interpreter.path) == sys_path(other.python)
    assert (str(user) in other.read().interpreter.path) == shared
    assert (Path(base.packages) in map(Path, other.read().interpreter.path)) == shared
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    assert list(other.read().interpreter.path) == sys_path(other.python)


def _user_folders(python: Path) -> list[str]:
    program = "import site; print(site.getusersitepackages())"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_an_environment_that_does_not_say_so_shares_the_system_s_packages(other):
    configuration = other.folder / "pyvenv.cfg"
    lines = configuration.read_text().splitlines(keepends=True)
    configuration.write_text("".join(x for x in lines if "site-packages" not in x))
    found = list(other.read().interpreter.path)
    assert found == sys_path(other.python)
    assert other_interpreter(Path(sys._base_executable)).packages in found


def test_an_interpreter_without_a_virtual_environment_is_read_too():
    base = Path(sys._base_executable)
    found = other_interpreter(base)
    assert list(found.path) == sys_path(base)
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_a_shell_s_pythonpath_is_not_part_of_it(other, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert str(tmp_path) not in other.read().interpreter.path


def test_hidden_files_name_no_folders(other, tmp_path):
    other.write({".hidden.pth": f"{tmp_path}\n"})
    assert str(tmp_path) not in other.read().interpreter.path


# -- nothing is run


def test_no_code_of_the_environment_is_run(other, tmp_path):
    mark = tmp_path / "imported"
    code = f"open({str(mark)!r}, 'a').write(__file__ if '__file__' in globals() else 'a line')\n"
    other.write(
        {
            "evil/__init__.py": code,
            "evil/backends.toml": 'schema = 1\n[[backend]]\nname = "evil"\nsummary = "Evil"\n',
            "evil.pth": "import evil\n",
            "sitecustomize.py": code,
            "usercustomize.py": code,
            "torch/__init__.py": code,
            "torch/version.py": TORCH + code,
            "torchvision/__init__.py": code,
            "torchvision/version.py": "__version__ = '0.28.0'\n" + code,
        }
    )
    other.publish(
        "evil",
        entry_points_txt="[torch_dynamo_backends]\nevil = evil:fn\n"
        "[backbay.backends]\nevil = evil:backends.toml\n",
    )
    known = other.known()
    spec = known.spec("evil")
    assert (spec.summary, known.availability("evil").state) == ("Evil", "ready")
    assert torchvision.problem(known.environment) is None
    assert not mark.exists()
    assert "evil" not in sys.modules
    subprocess.run([other.python, "-c", "pass"], check=True)  # what would have left a mark
    assert mark.exists()


# -- what is read of it


def test_torch_and_torchvision_are_those_of_the_environment(other):
    other.write(
        {
            "torch/__init__.py": "",
            "torch/version.py": TORCH,
            "torchvision/__init__.py": "",
            "torchvision/version.py": "__version__ = '0.20.0'\n",
        }
    )
    other.publish("torch", "2.13.0+cu126")
    needs = "Name: torchvision\nRequires-Dist: torch==2.5\n"
    other.publish("torchvision", "0.20.0", METADATA=needs)
    environment = other.read()
    assert environment.torch_build["__version__"] == "2.13.0+cu126"
    assert environment.torch_build["cuda"] == "12.6"
    assert "does not fit torch 2.13.0+cu126" in str(torchvision.problem(environment))


def test_without_torch_there_none_of_it_is_taken_from_here(other):
    assert other.read().torch_build == {}
    assert other.known().availability("inductor").reason == "PyTorch is not installed"


def test_modules_of_this_process_are_not_taken_for_the_other_s(other):
    other.publish("mine", entry_points_txt="[torch_dynamo_backends]\nmine = backbay.cli:fn\n")
    other.write({"torch/__init__.py": "", "torch/version.py": TORCH})
    found = other.known().availability("mine")
    assert (found.state, "the package 'backbay' is not there" in found.reason) == ("broken", True)


def test_what_this_process_registered_is_not_there(other, registry, monkeypatch):
    held = types.SimpleNamespace(_COMPILER_FNS={"held_by_torch": print})
    monkeypatch.setitem(sys.modules, TORCH_REGISTRY, held)
    assert "held_by_torch" in registry.resolutions()
    assert "held_by_torch" not in other.known().resolutions()


def test_extension_modules_of_another_python_are_found(other, tmp_path):
    suffix = ".cpython-399-x86_64-linux-gnu.so"
    python = pretending(tmp_path / "python", other, suffixes=[".py", suffix])
    other.write({f"compiled{suffix}": "", "of_ours.cpython-311-x86_64-linux-gnu.so": ""})
    environment = Environment.of(other_interpreter(python))
    assert environment.has_module("compiled") is True
    assert environment.has_module("of_ours") is False
    assert environment.has_module("sys") is True


def test_modules_in_a_zip_file_are_found(other):
    with zipfile.ZipFile(other.site / "library.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
    (other.site / "words.txt").write_text("no zip file")
    other.write({"library.pth": "library.zip\nwords.txt\n"})
    environment = other.read()
    assert environment.has_module("zipped") is True
    assert environment.has_module("words") is False


def test_dotted_modules_and_namespaces_are_looked_for_as_an_import_would(other):
    other.write({"space/inner/module.py": "", "whole/__init__.py": "", "whole/part.py": ""})
    environment = other.read()
    there = ("space", "space.inner", "space.inner.module", "whole.part", "json.decoder")
    assert [x for x in there if not environment.has_module(x)] == []
    absent = ("space.other", "whole.inner", "nobody", "whole.part.x")
    assert [x for x in absent if environment.has_module(x) is not False] == []


# -- which Python it is


def pretending(path: Path, other: Other, **changed: object) -> Path:
    """Write an interpreter that says other things of itself than it is."""
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, subprocess, sys\n"
        f"done = subprocess.run([{str(other.python)!r}, *sys.argv[1:]], capture_output=True)\n"
        f"facts, changed = json.loads(done.stdout), {changed!r}\n"
        "changed['markers'] = {**facts['markers'], **changed.get('markers', {})}\n"
        "print(json.dumps({**facts, **changed}))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@posix
@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("old-engine<2; python_version < '3.9'", "wrong_version"),
        ("old-engine<2; python_version >= '3.9'", "ready"),
        ("nobody; platform_machine == 'riscv64'", "not_installed"),
        ("nobody; platform_machine != 'riscv64'", "ready"),
    ],
)
def test_markers_are_about_the_other_python(other, tmp_path, line, state):
    markers = {"python_version": "3.8", "platform_machine": "riscv64"}
    python = pretending(tmp_path / "python", other, markers=markers)
    other.publish("old-engine", "2.5")
    other.write({"torch/__init__.py": "", "torch/version.py": TORCH})
    spec = BackendSpec(
        name="some",
        origin=Origin(kind="torch", distribution="torch", version="2.13.0"),
        requires=Requirements(distributions=(line,)),
    )
    assert check(spec, Environment.of(other_interpreter(python))).state == state


@posix
def test_required_pythons_and_platforms_are_compared_with_the_other_s(other, tmp_path):
    python = pretending(
        tmp_path / "python", other, version="3.8.1", system="win32", machine="AMD64"
    )
    environment = Environment.of(other_interpreter(python))
    environment = Environment(
        installed=environment.installed,
        torch_build={"__version__": "2.13.0"},
        interpreter=environment.interpreter,
    )
    torch = Origin(kind="torch", distribution="torch", version="2.13.0")
    new = BackendSpec(name="new", origin=torch, requires=Requirements(python=">=3.10"))
    found = check(new, environment)
    assert (found.state, "Python 3.8.1 is installed" in found.reason) == ("wrong_version", True)
    for platforms, state in ((("win32-x86_64",), "ready"), (("linux",), "no_device")):
        one = BackendSpec(name="one", origin=torch, requires=Requirements(platforms=platforms))
        assert check(one, environment).state == state


# -- how it is named


def test_a_folder_a_relative_path_and_a_link_lead_to_the_environment(other, monkeypatch, tmp_path):
    monkeypatch.chdir(other.folder)
    link = tmp_path / "linked"
    link.symlink_to(other.folder)
    for given in ("bin/python", ".", "bin/../bin/python3", str(link)):
        found = other_interpreter(Path(given))
        assert str(other.site.relative_to(other.folder)) in found.path[-1]
        assert Path(found.executable).is_absolute()
        assert Path(found.path[-1]).samefile(other.site)


@posix
def test_a_windows_environment_has_its_python_elsewhere(tmp_path, other):
    folder = tmp_path / "windows"
    (folder / "Scripts").mkdir(parents=True)
    (folder / "Scripts" / "python.exe").symlink_to(Path(sys._base_executable))
    (folder / "pyvenv.cfg").write_text((other.folder / "pyvenv.cfg").read_text())
    found = other_interpreter(folder)
    assert found.executable == str(folder / "Scripts" / "python.exe")
    assert found.packages is not None
    assert found.packages.startswith(str(folder))


@posix
def test_a_name_is_a_program_on_the_path(other, monkeypatch):
    monkeypatch.setenv("PATH", str(other.python.parent))
    assert other_interpreter(Path("python3")).executable == str(other.folder / "bin" / "python3")


def gone(other: Other) -> Path:
    other.python.unlink()
    other.python.symlink_to("/gone/bin/python3.11")
    return other.python


def emptied(other: Other) -> Path:
    for path in other.python.parent.iterdir():
        path.unlink()
    return other.folder


def dangling_folder(other: Other) -> Path:
    for path in other.python.parent.glob("python3*"):
        path.unlink()
    gone(other)
    return other.folder


def homeless(other: Other) -> Path:
    (other.folder / "pyvenv.cfg").write_text("home = /gone/bin\n")
    return script(other, "echo 'Fatal Python error: no encodings' >&2; exit 1")


def script(other: Other, text: str) -> Path:
    other.python.unlink()
    other.python.write_text(f"#!/bin/sh\n{text}\n")
    other.python.chmod(0o755)
    return other.python


def not_executable(other: Other) -> Path:
    script(other, "").chmod(0o644)
    return other.python


@posix
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda other: other.folder / "bin" / "absent", "there is no interpreter "),
        (lambda _: Path("no-such-python"), "there is no interpreter no-such-python: name "),
        (gone, "is a link to /gone/bin/python3.11, which leads nowhere: the Python of that "),
        (dangling_folder, "is a link to /gone/bin/python3.11, which leads nowhere"),
        (emptied, "is a virtual environment without a Python: make it anew"),
        (lambda other: other.site, "has no Python (bin/python, "),
        (lambda other: other.folder / "pyvenv.cfg", "can't be run: Permission denied"),
        (not_executable, "can't be run: Permission denied"),
        (homeless, "can't be started: /gone/bin, the Python that its environment was made from"),
        (lambda other: script(other, "exit 0"), "(exit code 0: it printed nothing)"),
        (
            lambda other: script(other, "echo Unknown option: -I >&2; echo usage >&2; exit 2"),
            "does not answer as a Python 3 (exit code 2: Unknown option: -I)",
        ),
        (lambda other: script(other, "echo '{}'"), "does not answer as a Python 3 (exit code 0"),
    ],
)
def test_what_is_no_interpreter_is_one_line_that_says_what_to_do(other, made, said):
    given = made(other)
    with pytest.raises(InputError) as error:
        other_interpreter(given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert given.name in str(error.value)


@posix
def test_who_this_process_is_on_a_mac_is_not_handed_on(other, monkeypatch):
    monkeypatch.setenv("__PYVENV_LAUNCHER__", "/ours")
    with pytest.raises(InputError, match=r"launched by\)"):
        other_interpreter(script(other, 'echo "launched by $__PYVENV_LAUNCHER__" >&2'))


@posix
def test_one_that_hangs_is_given_up(other, monkeypatch):
    monkeypatch.setattr("backbay.registry.other_interpreter._ANSWER_S", 0.2)
    with pytest.raises(InputError, match="did not answer in 0 s"):
        other_interpreter(script(other, "exec sleep 60"))
