"""ONNX Runtime on CPUs: sessions read and write torch's own memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from backbay.kit.exchange import shared_array
from backbay.kit.program import Program
from backbay_adapters.onnx import OnnxEngine, exported


class OnnxRuntime(OnnxEngine):
    """ONNX Runtime on CPUs, for inference and training."""

    name = "backbay_onnxruntime"
    engine = "onnxruntime"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Export a program, and return what runs it in a session."""
        import onnxruntime  # noqa: PLC0415 (when something is compiled)

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        model = exported(program)
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(model.serialized, options, providers)
        read = {x.name for x in session.get_inputs()}

        def run(*tensors: torch.Tensor) -> list[Any]:
            named = zip(model.inputs, tensors, strict=True)
            feeds = {name: shared_array(x) for name, x in named if name in read}
            results: list[Any] = session.run(model.outputs, feeds)
            return results

        return run


backbay_onnxruntime = OnnxRuntime()
