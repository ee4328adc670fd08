"""One engine's virtual environment: what is run in it, and what each step left, kept in its folder.

A step's result is a file. What is there is not done again, so that a run that was interrupted goes
on where it was.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from backbay.errors import InputError

_KILLED_S = 5.0
_ENVIRONMENT = {"BACKBAY_CONFIG": "off", "PYTHONNOUSERSITE": "1", "PIP_NO_INPUT": "1"}


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one line of installation."""

    line: str
    why_not: str = ""
    """What pip says, on one line; empty where it was installed."""


@dataclass(frozen=True, kw_only=True)
class EngineEnvironment:
    """A folder with a virtual environment, logs, and a JSON file for each step that is done."""

    folder: Path
    torch: str
    """The version of torch beside which engines are installed."""
    constraints: Path | None

    @property
    def python(self) -> Path:
        """Its interpreter."""
        windows = sys.platform == "win32"
        return self.folder / "venv" / ("Scripts/python.exe" if windows else "bin/python")

    def result(self, step: str) -> Path:
        """Return the file that holds what a step found."""
        return self.folder / f"{step}.json"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs out of the folder.

        Raises:
            InputError: another run has it.
        """
        if sys.platform == "win32":
            yield
            return
        import fcntl  # noqa: PLC0415 (absent on Windows)

        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = self.folder.parent / f"{self.folder.name}.lock"  # beside it: `remove` takes it away
        with lock.open("a") as file:  # child processes don't inherit it
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another run is trying {self.folder.name} in {self.folder}: wait until it is "
                    "done, or name another folder with --where"
                ) from None
            yield

    def make(self) -> bool:
        """Make the environment, if it is not there; whether it is."""
        if self.python.exists():
            return True
        command = [sys.executable, "-m", "venv", str(self.folder / "venv")]
        return self._run("venv", command, timeout_s=300.0) == 0

    def remove(self) -> None:
        """Remove all that is kept."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def install(self, step: str, line: str, requirements: Sequence[str], timeout_s: float) -> None:
        """Install beside torch, and keep what pip says; what failed before is tried again."""
        before = self.installed(step)
        if before is not None and not before.why_not:
            return
        pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        if self.constraints is not None:
            pip += ["-c", str(self.constraints)]
        code = self._run(step, [*pip, f"torch=={self.torch}", *requirements], timeout_s=timeout_s)
        installed = Installed(line=line, why_not="" if code == 0 else self._pips_reason(step))
        self.result(step).write_bytes(msgspec.json.encode(installed))

    def installed(self, step: str) -> Installed | None:
        """Return what became of an installation; nothing where it was not tried."""
        found: Installed | None = self.found(step, Installed)
        return found

    def found(self, step: str, kind: Any) -> Any:
        """Return what a step found; nothing where it was not done, or is no answer."""
        try:
            return msgspec.json.decode(self.result(step).read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def ask(self, step: str, module: Sequence[str], timeout_s: float) -> None:
        """Run ``python -m MODULE ARGUMENT...``; what it prints to standard output is the result.

        Exit code 1 is an answer, too. What ends otherwise leaves no result, but its log: it is
        tried again the next time, as is what was asked otherwise then.
        """
        asked = self.folder / f"{step}.command"
        if self.result(step).exists() and asked.exists():
            if asked.read_text("utf-8") == shlex.join(module):
                return
            self.result(step).unlink()
        made = self.result(step).with_suffix(".part")
        command = [str(self.python), "-m", *module]
        code = self._run(step, command, timeout_s=timeout_s, stdout=made)
        if code in {0, 1} and made.stat().st_size:
            asked.write_text(shlex.join(module), "utf-8")
            made.replace(self.result(step))

    def _run(
        self, step: str, command: Sequence[str], *, timeout_s: float, stdout: Path | None = None
    ) -> int | None:
        """Run a command, its output in a log; it dies with everything that it started.

        Returns:
            Its exit code; nothing where it took too long.

        Raises:
            KeyboardInterrupt: the command was ended.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{step}.log"
        with log.open("wb") as errors, contextlib.ExitStack() as files:
            errors.write(f"$ {shlex.join(command)}\n".encode())
            errors.flush()
            out = files.enter_context(stdout.open("wb")) if stdout is not None else errors
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=self.folder,
                env=self._variables(),
                start_new_session=True,
            )
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                errors.write(f"\nended after {timeout_s:g} s\n".encode())
                return None
            finally:
                _end(process)

    def _variables(self) -> dict[str, str]:
        kept = {key: x for key, x in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
        return {**kept, **_ENVIRONMENT, "BACKBAY_CACHE": str(self.folder / "cache")}

    def _pips_reason(self, step: str) -> str:
        log = (self.folder / f"{step}.log").read_text("utf-8", "replace")
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error:")]
        return (errors or lines[-1:])[0].removeprefix("ERROR: ")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command that still runs, and its group; it may say its last words first."""
    if process.poll() is not None:
        return
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_S)
    _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    process.kill()
    process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
    else:
        process.terminate()
