"""A script that is looked at runs as Python runs it: what it prints, sees and ends with."""

import subprocess
import sys

import msgspec
import pytest

from backbay import diagnose

PLAIN = """
import sys

print(__name__, __file__, sys.argv, sys.path[0], __spec__, "torch" in sys.modules)
sys.exit(3)
"""
RAISING = """
def deep():
    raise ValueError("of mine")

deep()
"""
TRAINING = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(8, 8)
model = torch.compile(net, backend="eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(4, 8)
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a script, by Python alone or looked at."""
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))

    def ran(text, *arguments, options=None):
        script = tmp_path / "scripts" / "script.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        module = [] if options is None else ["-m", "backbay.diagnose", *options]
        return subprocess.run(
            [sys.executable, *module, str(script), *arguments],
            capture_output=True, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip

    return ran


def test_a_script_sees_what_it_would_see_and_ends_as_it_would(run):
    alone = run(PLAIN, "--json", "x")
    watched = run(PLAIN, "--json", "x", options=[])
    assert "__main__" in alone.stdout
    assert watched.stdout == alone.stdout
    assert (alone.returncode, watched.returncode) == (3, 3)
    assert watched.stderr == (
        "backbay: nothing was compiled: the script never called torch.compile\n"
    )


def test_what_a_script_raises_is_printed_as_python_prints_it(run):
    alone, watched = run(RAISING), run(RAISING, options=[])
    assert "ValueError: of mine" in alone.stderr
    assert watched.stderr.startswith(alone.stderr)
    assert (alone.returncode, watched.returncode) == (1, 1)


def test_a_script_that_trains_prints_the_same_and_its_report_is_apart(run, tmp_path):
    path, page = tmp_path / "report.json", tmp_path / "report.html"
    alone = run(TRAINING)
    options = ["--steps", "2", "--json", str(path), "--html", str(page)]
    watched = run(TRAINING, options=options)
    assert alone.returncode == watched.returncode == 0, watched.stderr
    assert watched.stdout == alone.stdout
    assert watched.stderr.startswith("script.py  train  eager\n")
    assert "Where a step goes" in watched.stderr
    told = msgspec.json.decode(path.read_bytes(), type=diagnose.Diagnosis)
    assert (told.settings.workload, told.settings.mode) == ("script.py", "train")
    assert told.inside.step.outside_ms > 0
    assert "uncompiled operators" in page.read_text()
    assert f"page: {page}" in watched.stderr.replace("\n", "")


def test_standard_output_is_not_taken_from_a_script(run):
    refused = run(PLAIN, options=["--json", "-"])
    assert refused.returncode == 2
    assert refused.stderr == (
        "backbay: standard output is the script's own: name a file for --json\n"
    )
    assert refused.stdout == ""


def test_a_script_that_compiled_nothing_though_torch_could_says_so(run):
    watched = run("import torch._dynamo", options=[])
    assert watched.returncode == 0
    assert watched.stderr.startswith("backbay: nothing was compiled")
