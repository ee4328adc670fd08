"""Install each extra of backbay-adapters from built wheels where nothing is installed, and train.

    python tools/extras_in_fresh_venvs.py [EXTRA ...] [--find-links DIR] [--log FILE]

Wheels of the core and of the adapters are built from this checkout. For each extra there is a new
environment, into which ``pip install 'backbay-adapters[EXTRA]'`` alone installs, at the versions
of ``constraints.txt``; then ``pip check``, ``backbay info``, and inference and a step of training
by the backend's name, held against eager. Exit code 1 if anything fails. About 1 GB is downloaded.
Extras for a GPU are tried when they are named, on a machine that has one.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOR_A_GPU = ("onnxruntime-cuda", "tensorrt")
STEP = """
import sys, torch
from backbay import compile_log

torch.manual_seed(0)
device = sys.argv[2]
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU()).to(device)
x, compiled = torch.randn(4, 8, device=device), torch.compile(model, backend=sys.argv[1])
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
grads = []
for call in (model, compiled):
    model.zero_grad()
    call(x).square().sum().backward()
    grads.append(model[0].weight.grad.clone())
torch.testing.assert_close(*grads)
records = compile_log.records()
assert any(x.owned == x.nodes for x in records), records
assert all(x.owned == x.nodes or x.why.endswith("takes none") for x in records), records
print(*(x.why for x in records), sep="; ")
"""


def main() -> int:
    """Try every extra, and return the exit code."""
    known = tomllib.loads((ROOT / "packages/backbay-adapters/pyproject.toml").read_text("utf-8"))
    extras = [x for x in known["project"]["optional-dependencies"] if x not in ("all", *FOR_A_GPU)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="default: each of them")
    parser.add_argument("--find-links", metavar="DIR", help="where pip looks for wheels, too")
    parser.add_argument("--log", type=Path, metavar="FILE", help="written as well as printed")
    arguments = parser.parse_args()
    further = ["--find-links", arguments.find_links] if arguments.find_links else []
    failed = []
    with tempfile.TemporaryDirectory(prefix="backbay-extras-") as folder:
        wheels = Path(folder) / "wheels"
        packages = [str(ROOT / "packages" / x) for x in ("backbay", "backbay-adapters")]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        constraints = ["-c", str(ROOT / "constraints.txt")]
        command = [*pip, "wheel", "--no-deps", "-w", str(wheels), *packages]
        subprocess.run(command, check=True)
        for extra in arguments.extras or extras:
            passed = True
            for said, command in commands(extra, Path(folder), [*constraints, *further]):
                ended = subprocess.run(
                    command, capture_output=True, text=True, check=False, cwd=folder
                )
                passed = passed and ended.returncode == 0
                tail = (ended.stdout if passed else ended.stdout + ended.stderr).strip()
                _say(arguments.log, f"$ {said}\n{tail}".rstrip().replace(folder, "$WORK"))
                if not passed:
                    failed.append(extra)
                    break
        _say(arguments.log, f"failed: {', '.join(failed)}" if failed else "all of it works")
    return 1 if failed else 0


def commands(extra: str, folder: Path, options: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield what is run for an extra, in words and as a command, in a new environment."""
    home = folder / extra
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    wanted, name = f"backbay-adapters[{extra}]", f"backbay_{extra.replace('-', '_')}"
    device = "cuda" if extra in FOR_A_GPU else "cpu"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
    links = ["--find-links", str(folder / "wheels"), "--pre"]
    yield f"pip install '{wanted}'", [*pip, "install", *links, *options, wanted]
    yield "pip check", [*pip, "check"]
    yield f"backbay info {name}", [python, "-m", "backbay", "info", name]
    yield f"inference and training with {name}", [python, "-c", STEP, name, device]


def _say(log: Path | None, text: str) -> None:
    print(text, flush=True)
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
