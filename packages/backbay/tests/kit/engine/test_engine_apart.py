"""A program that is compiled in another process, where torch.compile is not at work."""

import os
import textwrap

import pytest
import torch

from backbay.errors import InputError
from backbay.kit import apart
from backbay.kit.apart import compiled_apart
from backbay.kit.engine import Engine
from backbay.session import Lost, Refused

LOWERING = """
    import io, os
    import torch

    def lower(program):
        # Inside of torch.compile this raises, or resets what is being compiled.
        torch._dynamo.reset()
        torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        file = io.BytesIO()
        torch.export.save(program, file)
        return file.getvalue() + os.getpid().to_bytes(8, "big")

    def refuse(program):
        raise ValueError("it has no such operator")

    def die(program):
        os._exit(3)
"""


@pytest.fixture(autouse=True)
def lowering(monkeypatch, tmp_path):
    """Return a module that both processes can import."""
    (tmp_path / "lowering_apart.py").write_text(textwrap.dedent(LOWERING))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    apart._session.cache_clear()
    yield __import__("lowering_apart")
    apart._session().end()
    apart._session.cache_clear()


class Apart(Engine):
    """Compiles nothing here."""

    name = "apart"

    def __init__(self, lower):
        super().__init__()
        self.lower, self.processes = lower, []

    def build(self, program):
        compiled = compiled_apart(program, self.lower)
        self.processes.append(int.from_bytes(compiled[-8:], "big"))
        return program.exported.module()


def compile_and_call(backend):
    def f(x, y):
        return torch.relu(x @ y)

    given = (torch.randn(3, 4), torch.randn(4, 4))
    got = torch.compile(f, backend=backend)(*given)
    torch.testing.assert_close(got, f(*given))
    torch.compiler.reset()


def test_one_other_process_compiles_what_dynamo_would_not_allow_here(lowering):
    backend = Apart(lowering.lower)
    compile_and_call(backend)
    compile_and_call(backend)
    first, second = backend.processes
    assert first == second != os.getpid()


@pytest.mark.parametrize(("function", "error"), [("refuse", Refused), ("die", Lost)])
def test_what_happens_there_is_told_and_the_next_program_is_compiled(lowering, function, error):
    with pytest.raises(Exception, match=r"no such operator|exit code 3") as raised:
        compile_and_call(Apart(getattr(lowering, function)))
    causes = []
    one = raised.value
    while one is not None:
        causes.append(type(one))
        one = one.__cause__ or one.__context__
    assert error in causes
    torch.compiler.reset()
    compile_and_call(Apart(lowering.lower))


def test_a_function_that_nobody_else_finds_is_refused_at_once():
    def own(program):
        return b""

    with pytest.raises(InputError, match="at the top of a module"):
        compiled_apart(None, own)
