"""A find as one file of plain PyTorch, in the form that its maintainers ask for. No torch here.

Bitwise equality is not asked for: what differs is held against float64 and eager's own error, and
the table of reference backends is the ablation (pytorch#179575).
"""

import json

from backbay_conformance.fuzz.program import Program
from backbay_conformance.fuzz.source import INDENT, body, making
from backbay_conformance.record import Result

_WIDTH = 110


def repro(program: Program, result: Result, *, backend: str, device: str, torch: str) -> str:
    """Render a find: inputs, eager, compiled and float64 runs, and what differs.

    The file raises where the fault is there, and prints that nothing differs where it is not.
    """
    lines = [*_header(program, result, backend=backend, device=device, torch=torch)]
    lines += ["import torch", *_imports(backend), *body(program), *making(program)]
    if program.owned:
        lines.append(f'program = Program().to("{device}")')
        lines.append("start = {k: v.clone() for k, v in program.state_dict().items()}")
    lines += _run(program, device)
    shown = "backend" if ":" in backend else json.dumps(backend)
    lines.append(f"compiled = torch.compile(program, backend={shown}, dynamic={program.dynamic})")
    lines += _compared(program, layout="strides are" in result.reason)
    return "\n".join(lines) + "\n"


def _header(
    program: Program, result: Result, *, backend: str, device: str, torch: str
) -> list[str]:
    table = (
        ", ".join(f"{k} {v}" for k, v in result.reference_backends.items()) or "none is below it"
    )
    where = f"torch {torch}, {device}, program {program.seed} of grammar {program.grammar}"
    return [
        f"# {result.status} of {backend}: {result.reason}"[:_WIDTH],
        f"# reference backends: {table}; {where}",
    ]


def _imports(backend: str) -> list[str]:
    module, colon, attribute = backend.rpartition(":")
    if not colon:
        return []
    if module.endswith(".py"):
        return ["import runpy", f"backend = runpy.run_path({json.dumps(module)})[{attribute!r}]"]
    return [f"from {module} import {attribute} as backend"]


def _run(program: Program, device: str) -> list[str]:
    """Render ``run(call, n, wide)``, which returns everything that can be seen of a call."""
    wide = "torch.promote_types(x.dtype, torch.float64) if wide and N(x) else x.dtype"
    lines = [
        "N = lambda x: x.is_floating_point() or x.is_complex()",
        "def run(call, n, wide=False):",
        INDENT + f'args = inputs(n, lambda x: x.to("{device}", {wide}))',
    ]
    seen = "[*outs, *args]"
    if program.owned:
        lines.append(INDENT + "program.load_state_dict(start)")
        seen = "[*outs, *args, *program.buffers()]"
    if not program.train:
        lines += [INDENT + "with torch.no_grad(): outs = call(*args)"]
        return [*lines, INDENT + f"return [x.clone() for x in {seen}], {_shared(seen)}"]
    weights = "[torch.linspace(0.5, 1.5, x.numel()).view(x.shape).to(x) for x in ends]"
    unused = "allow_unused=True, materialize_grads=True"
    sources = "[*args, *program.parameters()]" if program.owned else "args"
    leaves = f"[x for x in {sources} if x.requires_grad]"
    return [
        *lines,
        INDENT + "args = [x.detach().clone().requires_grad_(N(x)) for x in args]",
        INDENT + "outs = call(*args)",
        INDENT + "ends = [x for x in outs if x.requires_grad]",
        INDENT + f"grads = torch.autograd.grad(ends, {leaves}, {weights}, {unused})",
        INDENT + f"return [x.detach().clone() for x in [*{seen}, *grads]], {_shared(seen)}",
    ]


def _shared(seen: str) -> str:
    place = "untyped_storage().data_ptr()"
    return f"[[a.{place} == b.{place} for b in {seen} if b.numel()] for a in {seen} if a.numel()]"


def _compared(program: Program, *, layout: bool) -> list[str]:
    kinds = [f"({x}.shape, {x}.dtype{f', {x}.stride()' * layout})" for x in ("e", "g")]
    eps = 0.02 if {"bfloat16", "float16"} & set(program.dtypes) else 1e-5
    size = "x.abs().nan_to_num(posinf=0).amax().item() if x.numel() else 0"
    # What reads the bits of floats finds others in float64.
    wide = ", wide=True" if program.widens else ""
    return [
        f"largest = lambda x: {size}",
        f"for n in {program.sizes}:",
        INDENT + "(eager, alike), (got, shared) = run(program, n), run(compiled, n)",
        INDENT + f"truth = run(program, n{wide})[0]",
        INDENT + "assert shared == alike, 'other results share memory than in eager'",
        INDENT + "for e, g, t in zip(eager, got, truth):",
        2 * INDENT + f"assert {kinds[0]} == {kinds[1]}, f'eager {{e}}, compiled {{g}}'",
        2 * INDENT + "e, g, t = [x.to(torch.complex128) for x in (e, g, t)]",
        2 * INDENT + f"allowed = 16 * largest(e - t) + {eps} * (1 + largest(t))",
        2 * INDENT + "assert largest(g - t) <= allowed, f'eager {e}, compiled {g}, float64 {t}'",
        "print('nothing differs')",
    ]
