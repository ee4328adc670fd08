"""ONNX Runtime on CPUs: sessions read and write torch's own memory."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node

from backbay.kit.exchange import shared_array
from backbay.kit.program import Program
from backbay_adapters.onnx import OnnxEngine, exported


def _sums(index_put: Node) -> bool:
    """Whether an `aten.index_put` adds to what is there."""
    values = dict(enumerate(index_put.args)) | index_put.kwargs
    return bool(values.get(3) or values.get("accumulate"))


_RACES = (_sums, "its threads overwrite each other's sums where many indices are the same")


class OnnxRuntime(OnnxEngine):
    """ONNX Runtime on CPUs, for inference and training."""

    name = "backbay_onnxruntime"
    engine = "onnxruntime"
    refuses: ClassVar = {
        torch.ops.aten.index_put: _RACES,
        torch.ops.aten._unsafe_index_put: _RACES,  # noqa: SLF001 (its only name)
    }

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
