"""Another interpreter, by its file or its environment's folder: where its packages are, and which.

It is asked once, with ``-I -S``, so that it imports nothing but the standard library: no ``.pth``
file and no ``sitecustomize`` is run. Files alone would not do. Which folders an interpreter without
a ``pyvenv.cfg`` searches was decided when it was built (Debian's has ``dist-packages``), and no
file names its version and processor, by which markers are evaluated. All else is read from files.

As when it is started from here, ``pip install --user`` counts where it does for that interpreter.
``PYTHONPATH`` doesn't: it is part of a shell, not of an environment.
"""

import json
import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import msgspec

from backbay.errors import InputError
from backbay.registry.environment import Interpreter, platform
from backbay.registry.site_packages import ModuleFiles, search_path

_ANSWER_S = 60.0
_IN_FOLDERS = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe")
"""Where an environment has its interpreter; conda's on Windows at the top."""
_LAUNCHER = "__PYVENV_LAUNCHER__"
"""On macOS a virtual environment's Python tells itself by it who it is; ours is nobody else's."""


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What `interpreter_facts` returns there."""

    version: str
    system: str
    machine: str
    path: tuple[str, ...]
    site_folders: tuple[str, ...]
    packages: str
    suffixes: tuple[str, ...]
    built_in: frozenset[str]
    markers: dict[str, str]


def other_interpreter(given: Path) -> Interpreter:
    """Return an interpreter that is a file, a program on ``PATH``, or in an environment's folder.

    Raises:
        InputError: there is none, or it can't be started; one line says what to do.
    """
    python = _executable(given)
    facts = _asked(python)
    path = [*facts.path, *search_path(facts.site_folders)]
    return Interpreter(
        executable=str(python),
        version=facts.version,
        platform=platform(facts.system, facts.machine),
        path=path,
        find_spec=ModuleFiles(path, facts.suffixes).find_spec,
        loaded=facts.built_in,
        markers=facts.markers,
        packages=facts.packages,
    )


def _executable(given: Path) -> Path:
    """Return an interpreter's absolute path; links stay, since an environment's is one."""
    place = Path(os.path.abspath(given.expanduser()))  # noqa: PTH100 (resolve() follows links)
    if place.is_dir():
        return _in_environment(place)
    if place.exists():
        return place
    if place.is_symlink():
        raise InputError(_gone(place))
    found = shutil.which(str(given)) if given.name == str(given) else None
    if found is None:
        raise InputError(
            f"there is no interpreter {given}: name the file of a Python, a program on PATH, or "
            "the folder of a virtual environment"
        )
    return Path(found).absolute()


def _in_environment(folder: Path) -> Path:
    places = [folder / x for x in _IN_FOLDERS]
    found = next((x for x in places if x.exists()), None)
    if found is not None:
        return found
    broken = next((x for x in places if x.is_symlink()), None)
    if broken is not None:
        raise InputError(_gone(broken))
    if (folder / "pyvenv.cfg").is_file():
        raise InputError(f"{folder} is a virtual environment without a Python: make it anew")
    raise InputError(
        f"{folder} has no Python ({', '.join(_IN_FOLDERS)}): name the folder of a virtual "
        "environment, or an interpreter"
    )


def _gone(link: Path) -> str:
    return (
        f"{link} is a link to {link.readlink()}, which leads nowhere: the Python of that "
        "environment was removed; install it again, or make the environment anew"
    )


def _asked(python: Path) -> _Facts:
    program = resources.files("backbay.registry").joinpath("interpreter_facts.py")
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-B", "-c", program.read_text("utf-8")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
            env={key: x for key, x in os.environ.items() if key != _LAUNCHER},
        )
    except OSError as error:
        raise InputError(f"{python} can't be run: {error.strerror}: name a Python 3") from error
    except subprocess.TimeoutExpired as error:
        why = f"it did not answer in {_ANSWER_S:.0f} s"
        raise InputError(f"{python} is no Python, or hangs: {why}") from error
    try:
        return msgspec.convert(json.loads(done.stdout), _Facts)
    except (ValueError, msgspec.ValidationError) as error:
        raise InputError(_no_answer(python, done)) from error


def _no_answer(python: Path, done: "subprocess.CompletedProcess[str]") -> str:
    home = _home(python)
    if home is not None and not home.is_dir():
        return (
            f"{python} can't be started: {home}, the Python that its environment was made from, is "
            "gone; install it again, or make the environment anew"
        )
    said = [x.strip() for x in done.stderr.splitlines() if x.strip()]
    first = said[0] if said else "it printed nothing"
    why = next((x for x in said if "error" in x.lower()), first)
    return f"{python} does not answer as a Python 3 (exit code {done.returncode}: {why})"


def _home(python: Path) -> Path | None:
    """Return the folder of the Python that a virtual environment was made from."""
    try:
        text = (python.parent.parent / "pyvenv.cfg").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    pairs = (line.partition("=") for line in text.splitlines())
    homes = (value.strip() for key, _, value in pairs if key.strip() == "home")
    return next((Path(x) for x in homes if x), None)
