"""Of an error whose text is a page, one line says what happened."""

import itertools

import pytest
import torch

import backbay
from backbay import Registry
from backbay.causes import one_line
from backbay.errors import InputError, ProofImpossible
from backbay.registry import KnownFault

OPENVINO = """Exception from src/inference/src/cpp/core.cpp:104:
Exception from src/frontends/pytorch/src/frontend.cpp:160:
Check 'is_conversion_successful' failed at src/frontends/pytorch/src/frontend.cpp:171:
FrontEnd API failed with OpConversionFailure:
Model wasn't fully converted. Failed operations detailed log:
-- aten::nonzero_numpy with a message:
No conversion rule found for operations: aten::nonzero_numpy
Summary:
-- No conversion rule found for operations: aten::nonzero_numpy
"""
TVM = """Traceback (most recent call last):
  4: tvm::relax::Function::Function(tvm::ffi::Array<tvm::relax::Var>, ...)
  File "/workspace/src/relax/ir/expr.cc", line 612, in tvm::relax::Function
  0: tvm::runtime::detail::LogFatal::Entry::Finalize()
  File "/workspace/src/relax/ir/struct_info.cc", line 88, in tvm::relax::TensorStructInfo
InternalError: Check failed: (ndim >= 0) is false: Unknown rank of input
"""


class WrappedError(RuntimeError):
    def __init__(self, inner: Exception) -> None:
        super().__init__("backend='x' raised:")
        self.inner_exception = inner


def raised(*errors: Exception) -> Exception:
    """Return the last error, each raised from the one before it."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def test_the_place_in_an_engines_sources_stands_for_what_happened():
    assert one_line(RuntimeError(OPENVINO)) == (
        "RuntimeError: -- aten::nonzero_numpy with a message: "
        "No conversion rule found for operations: aten::nonzero_numpy"
    )
    said = "InternalError: Check failed: (ndim >= 0) is false: Unknown rank of input"
    assert one_line(RuntimeError(TVM)) == f"RuntimeError: {said}"
    colours = "\x1b[31mbad\x1b[0m\n"
    assert one_line(RuntimeError(colours)) == "RuntimeError: bad"


def test_a_text_of_places_alone_is_nothing():
    assert one_line(RuntimeError("Exception from core.cpp:104:")).endswith("core.cpp:104:")


def test_a_header_is_taken_for_the_cause():
    error = ValueError("2 operators can't be lowered:\n  aten.foo\n  aten.bar")
    assert one_line(error) == "ValueError: 2 operators can't be lowered: aten.foo"


def test_the_outermost_error_hides_the_cause():
    inner, middle = ValueError("no kernel for float16"), TypeError("in the middle")
    outer = raised(inner, middle, RuntimeError("JIT compilation failed. See diagnostics."))
    wanted = "ValueError: no kernel for float16 (raised as RuntimeError: JIT compilation failed."
    assert one_line(WrappedError(WrappedError(outer))).startswith(wanted)
    assert "middle" not in one_line(outer)


def test_a_cause_is_said_twice():
    outer = raised(KeyError("gone"), RuntimeError("op 3: 'gone' has no lowering"))
    assert one_line(outer) == "RuntimeError: op 3: 'gone' has no lowering"


def test_what_was_handled_meanwhile_is_called_the_cause():
    error = ValueError("x is not an option, did you mean y?")
    error.__context__ = KeyError("x")
    assert one_line(error) == "ValueError: x is not an option, did you mean y?"


def test_a_sentence_of_backbays_begins_with_a_class():
    assert one_line(ProofImpossible("eager differs")) == "eager differs"
    assert one_line(ProofImpossible()) == "ProofImpossible"
    said = one_line(raised(InputError("say y"), RuntimeError("no engine")))
    assert said == "say y (raised as RuntimeError: no engine)"


def test_backbays_own_error_loses_its_message_to_its_cause():
    assert one_line(raised(KeyError("x"), InputError("say y"))) == "say y"


def test_a_circle_of_causes_never_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert one_line(one) == "ValueError: other (raised as ValueError: one)"


def test_an_error_without_a_text_hides_the_row():
    class RudeError(Exception):
        def __str__(self) -> str:
            raise OSError

    assert one_line(RudeError()) == "RudeError"


def test_the_operator_and_the_users_line_are_lost():
    def model(x):
        return torch.sin(x) @ x

    class Lowering(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):
            raise NotImplementedError("no lowering")

    def lowers(graph_module, example_inputs):
        return Lowering(graph_module).run(*example_inputs)

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(model, backend=lowers)(torch.ones(2, 2))
    said = one_line(caught.value)
    assert said.startswith("NotImplementedError: no lowering, at torch.sin, at ")
    assert said.endswith(": return torch.sin(x) @ x")
    assert f"{__file__}:" in said


def test_the_operator_is_cut_off_a_long_text():
    error = RuntimeError("long " * 200 + "\n  target: aten.foo.default")
    assert one_line(error).endswith("…, at aten.foo.default")
    assert len(one_line(error)) <= 400


def test_a_note_of_an_adapter_is_not_read():
    error = RuntimeError("no kernel")
    error.add_note("While executing %y : [num_users=1] = call_function[target=aten.foo.default]()")
    assert one_line(error) == "RuntimeError: no kernel, at aten.foo.default"


def test_backbay_compile_hides_what_a_backend_raised_behind_thirty_lines():
    def refuses(graph_module, example_inputs):
        raise raised(ValueError("no kernel"), RuntimeError(OPENVINO))

    registry = Registry()
    fault = KnownFault(reason="it fails", remedy="pass aot_autograd", errors=("no kernel",))
    registry.register_backend(refuses, "refuses", limits=(fault,))
    torch._dynamo.reset()
    compiled = backbay.compile(lambda x: x + 1, backend="refuses", registry=registry)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(torch.ones(2))
    said = str(caught.value).splitlines()[1]
    assert said.startswith("CompilationFailed: refuses: ValueError: no kernel (raised as Runtime")
    assert said.endswith("; pass aot_autograd")
    assert isinstance(caught.value.inner_exception.__cause__, RuntimeError)


def test_a_graph_break_that_a_backend_asks_for_becomes_an_error():
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    def breaks(graph_module, example_inputs):
        raise DynamicOutputShapeException(torch.ops.aten.nonzero.default)

    registry = Registry()
    registry.register_backend(breaks, "breaks")
    torch._dynamo.reset()
    compiled = backbay.compile(lambda x: x + 1, backend="breaks", registry=registry)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
