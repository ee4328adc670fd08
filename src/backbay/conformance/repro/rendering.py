"""A graph as a plain function, and the program around it."""

import re
from collections.abc import Sequence

import torch

from backbay.conformance.record import Status
from backbay.conformance.repro.checking import DOUBLES, run_text, wrong_text

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
_TRUE = "eager, true = run(f, ARGS), run(f, [doubled(x) for x in ARGS])\n"
_NO_TRUTH = "eager = true = run(f, ARGS)  # names a dtype inside, so that it takes no float64\n"
_COMPARED = """\
got = run(torch.compile(f, backend=BACKEND), ARGS)
bad = [name for name, x in eager.items() if wrong(got.get(name), x, true.get(name, x))]
for name in bad:
    print(f"{name} is wrong: {got.get(name)}, eager {eager[name]}, float64 {true.get(name)}")
sys.exit(bool(bad))
"""
_LOST = """\
if sys.argv[-1] != "here":
    code = subprocess.run([sys.executable, *sys.argv, "here"]{limit}).returncode
    print("the process ended with", code)
    sys.exit(code != 0)
run(torch.compile(f, backend=BACKEND), ARGS)
"""


def function(graph_module: torch.fx.GraphModule) -> tuple[list[str], str] | None:
    """Give the lines that it must import, and a graph as a function; None where it has parts."""
    if any(x.op in {"get_attr", "call_module"} for x in graph_module.graph.nodes):
        return None
    code = graph_module.graph.python_code("self")
    unknown = {x for x in code.globals if x not in _CASTS and x != "torch"}
    if unknown - {"fx_pytree", "pytree"}:
        return None
    names = [x.name for x in graph_module.graph.nodes if x.op == "placeholder"]
    source = code.src[code.src.index("def forward") :]
    lines = [_FREED.sub("", x) for x in source.splitlines()[1:]]
    lines = [_ANNOTATED.sub(r"\1 = ", x.split("  #")[0]).rstrip() for x in lines]
    body = [x for x in lines if x.strip() and not x.strip().startswith("#")]
    text = "\n".join([f"def f({', '.join(_parameters(graph_module, names))}):", *body])
    used = [_CASTS[x] for x in code.globals if x in _CASTS and re.search(rf"\b{x}\b", text)]
    return used, text


def _parameters(graph_module: torch.fx.GraphModule, names: Sequence[str]) -> list[str]:
    targets = [str(x.target) for x in graph_module.graph.nodes if x.op == "placeholder"]
    return [x if x.isidentifier() else y for x, y in zip(targets, names, strict=True)]


def program(
    text: str, inputs: Sequence[str], status: Status, *, train: bool, has_truth: bool
) -> str:
    """Give what stands below the imports: the function, its inputs, and what is held against it."""
    args = f"torch.manual_seed(0)\nARGS = [{', '.join(inputs)}]\n"
    run = f"\n{text}\n{run_text(status, train=train)}"
    if status in {"crash", "hang"}:
        limit = ", timeout=60" if status == "hang" else ""
        return f"{run}\n{args}{_LOST.format(limit=limit)}"
    if status == "fail_error":
        return f"{run}\n{args}{_RAISED}"
    doubles, true = (DOUBLES, _TRUE) if has_truth else ("", _NO_TRUTH)
    return f"{run}{wrong_text(status)}{doubles}\n{args}{true}{_COMPARED}"
