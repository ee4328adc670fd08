"""ONNX Runtime: graphs become ONNX models, by torch's own exporter, and sessions run them."""

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from backbay.kit.engine import Engine
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program


class OnnxRuntime(Engine):
    """ONNX Runtime on CPUs, for inference and training."""

    name = "backbay_onnxruntime"
    engine = "onnxruntime"

    def supports(self, node: Node) -> bool | str:
        """Return whether torch's exporter knows the operator."""
        return _registry().is_registered(node.target) or "torch.onnx has no translation for it"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Export a program, and return what runs it in a session."""
        import onnxruntime  # noqa: PLC0415 (when something is compiled)

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        names = [f"input_{number}" for number in range(len(program.inputs))]
        model = program.kept(lambda: _exported(program, names))
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        read = {x.name for x in session.get_inputs()}  # the exporter drops what nobody reads

        def run(*tensors: torch.Tensor) -> list[Any]:
            feeds = {n: shared_array(x) for n, x in zip(names, tensors, strict=True) if n in read}
            results: list[Any] = session.run(None, feeds)
            return results

        return run


def _exported(program: Program, names: list[str]) -> bytes:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program.exported, input_names=names, dynamo=True, verbose=False, optimize=False
        )
        assert made is not None
        model: bytes = made.model_proto.SerializeToString()
    return model


@functools.cache
def _registry() -> Any:
    from torch.onnx._internal.exporter._registration import (  # noqa: PLC0415 (has no public name)
        ONNXRegistry,
    )

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    return ONNXRegistry.from_torchlib()


backbay_onnxruntime = OnnxRuntime()
