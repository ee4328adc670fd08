"""A program as Python source: the function or module, and what makes its inputs. No torch here."""

from backbay_conformance.fuzz.program import Program

INDENT = "    "


def source(program: Program) -> str:
    """Render a program: ``program``, a function or a module, and ``inputs(n, put)``.

    ``put`` takes every tensor that is made to its device.
    """
    return "\n".join([*body(program), "", *making(program)]) + "\n"


def body(program: Program) -> list[str]:
    """Render the function, or the module with its buffers and parameters."""
    if not program.owned:
        return [f"def program({_names(program)}):", *_lines(program, INDENT)]
    lines = ["class Program(torch.nn.Module):", INDENT + "def __init__(self):"]
    lines.append(2 * INDENT + "super().__init__()")
    if any("rand" in x.expr for x in program.owned):
        lines.append(2 * INDENT + f"torch.manual_seed({program.seed})")
    for item in program.owned:
        name = item.name.removeprefix("self.")
        if item.role == "buffer":
            lines.append(2 * INDENT + f'self.register_buffer("{name}", {item.expr})')
        else:
            asks = ", requires_grad=False" if item.role == "frozen" else ""
            lines.append(2 * INDENT + f"{item.name} = torch.nn.Parameter({item.expr}{asks})")
    arguments = _names(program)
    lines.append(INDENT + f"def forward(self{', ' if arguments else ''}{arguments}):")
    return [*lines, *_lines(program, 2 * INDENT)]


def making(program: Program) -> list[str]:
    """Render what makes the inputs; the same seed gives the same numbers."""
    lines = ["def inputs(n, put):", INDENT + f"torch.manual_seed({program.seed})"]
    for item in program.arguments:
        made = item.expr if item.role == "alias" else f"put({item.expr})"
        lines.append(INDENT + f"{item.name} = {made}")
    names = "".join(f"{x.name}, " for x in program.arguments)
    return [*lines, INDENT + f"return ({names})"]


def _lines(program: Program, indent: str) -> list[str]:
    if program.checkpointed:
        names = _names(program)
        how = f"checkpoint(body, {names}, use_reentrant=False)"
        inner = _statements(program, indent + INDENT)
        return [
            f"{indent}def body({names}):",
            *inner,
            f"{indent}return torch.utils.checkpoint.{how}",
        ]
    return _statements(program, indent)


def _statements(program: Program, indent: str) -> list[str]:
    lines, inner = [], indent
    if program.under and program.statements:
        lines, inner = [f"{indent}with {program.under}:"], indent + INDENT
    lines += [inner + x.text for x in program.statements]
    return [*lines, indent + f"return ({''.join(f'{x}, ' for x in program.outputs)})"]


def _names(program: Program) -> str:
    return ", ".join(x.name for x in program.arguments)
