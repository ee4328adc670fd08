"""A graph as a plain function, and the program around it."""

import re
from collections.abc import Sequence

import torch

from backbay_conformance.record import Status
from backbay_conformance.repro.checking import run_text, wrong_text
from backbay_conformance.repro.minimising import values

_FREED = re.compile(r"; +[\w, =]+ = None")
_ANNOTATED = re.compile(r"^(\s*\w+) : [^=]+ = ")
_CASTS = {
    "device": "from torch import device",
    "inf": "from math import inf",
    "nan": "from math import nan",
}
"""Names that torch.fx writes without their module, and where they are imported from."""

_RAISED = """\
run(f, ARGS)  # eager takes it
try:
    run(torch.compile(f, backend=BACKEND), ARGS)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
print("it raises nothing")
"""
_COMPARED = """\
got = run(torch.compile(f, backend=BACKEND), ARGS)
bad = [n for n, x in eager.items() if x is not None and wrong(got.get(n), x, true[n])]
for name in bad:
    print(f"{name} is wrong: {got.get(name)}, eager {eager[name]}, float64 {true[name]}")
sys.exit(bool(bad))
"""
_LOST = """\
if "HERE" not in os.environ:
    done = subprocess.run([sys.executable, *sys.argv], env={**os.environ, "HERE": "1"}%s)
    print("the process ended with", done.returncode)
    sys.exit(done.returncode not in (0, 1))  # 1: Python raised, and that is no crash
run(torch.compile(f, backend=BACKEND), ARGS)
"""


def function(graph_module: torch.fx.GraphModule) -> tuple[list[str], str] | None:
    """Return the lines that it must import, and a graph as a function; None where it has parts."""
    if any(x.op in {"get_attr", "call_module"} for x in graph_module.graph.nodes):
        return None
    code = graph_module.graph.python_code("self")
    placeholders = [x for x in graph_module.graph.nodes if x.op == "placeholder"]
    names = [str(x.target) if str(x.target).isidentifier() else x.name for x in placeholders]
    source = code.src[code.src.index("def forward") :]
    lines = [_FREED.sub("", x) for x in source.splitlines()[1:]]
    lines = [_ANNOTATED.sub(r"\1 = ", x.split("  #")[0]).rstrip() for x in lines]
    body = [x for x in lines if x.strip() and not x.strip().startswith("#")]
    text = "\n".join([f"def f({', '.join(names)}):", *body])
    used = [x for x in code.globals if x != "torch" and re.search(rf"\b{x}\b", text)]
    if not _CASTS.keys() >= set(used):
        return None
    return [_CASTS[x] for x in used], text


def program(
    text: str, inputs: Sequence[str], status: Status, *, train: bool, has_truth: bool
) -> str:
    """Return what stands below the imports: the function, its inputs, and the check."""
    args = f"torch.manual_seed(0)\nARGS = [{', '.join(inputs)}]\n"
    run = f"{text}\n\n{run_text(status, train=train)}"
    if status in {"crash", "hang"}:
        return f"{run}\n{args}{_LOST % (', timeout=60' if status == 'hang' else '')}"
    if status == "fail_error":
        return f"{run}\n{args}{_RAISED}"
    reference = "eager = true = run(f, ARGS)  # a dtype is named inside, so it takes no float64\n"
    if has_truth:
        doubles = ", ".join(_doubled(i, x) for i, x in enumerate(inputs))
        reference = f"DOUBLES = [{doubles}]\neager, true = run(f, ARGS), run(f, DOUBLES)\n"
    return f"{run}\n{wrong_text(status)}\n{args}{reference}{_COMPARED}"


def _doubled(position: int, expression: str) -> str:
    """Spell an input in float64 out."""
    name, value = f"ARGS[{position}]", values([expression])[0]
    if not torch.is_tensor(value) or not value.is_floating_point():
        return name
    return f"{name}.detach().double(){'.requires_grad_()' if value.requires_grad else ''}"
