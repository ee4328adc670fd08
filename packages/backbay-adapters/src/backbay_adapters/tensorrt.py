"""TensorRT on NVIDIA GPUs, through its reader of ONNX models.

It was written from TensorRT's documentation, and tried without its libraries: see docs/adapters.md.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from backbay.errors import BackbayError
from backbay.kit.program import Program
from backbay_adapters.onnx import OnnxEngine, exported


class TensorRT(OnnxEngine):
    """TensorRT in float32, for inference and training."""

    name = "backbay_tensorrt"
    engine = "tensorrt"
    devices = ("cuda",)
    dense_inputs = True

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Export a program, have TensorRT plan it, and return what runs the plan."""
        import tensorrt  # noqa: PLC0415 (when something is compiled)

        device = program.results[0].device
        model = exported(program)
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        known_by = f"{torch.cuda.get_device_name(device)} {tf32}"  # a plan is for one kind of GPU
        serialized = program.kept(lambda: plan(model.serialized, tf32=tf32), known_by)
        loaded = tensorrt.Runtime(_logger()).deserialize_cuda_engine(serialized)
        context = loaded.create_execution_context()
        read = {loaded.get_tensor_name(x) for x in range(loaded.num_io_tensors)}
        layouts = [(x.shape, x.dtype) for x in program.results]
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # one for one context

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            results = [torch.empty(size, dtype=x, device=device) for size, x in layouts]
            names = (*model.inputs, *model.outputs)
            for name, tensor in zip(names, (*tensors, *results), strict=True):
                if name in read:
                    context.set_tensor_address(name, tensor.data_ptr())
            current = torch.cuda.current_stream(device)
            stream.wait_stream(current)
            if not context.execute_async_v3(stream.cuda_stream):
                raise BackbayError("TensorRT could not run its plan: its log says why")
            current.wait_stream(stream)
            return results

        return run


def plan(model: bytes, *, tf32: bool) -> bytes:
    """Return TensorRT's plan of an ONNX model, which may use TF32 or may not."""
    import tensorrt  # noqa: PLC0415 (likewise)

    builder = tensorrt.Builder(_logger())
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, _logger())
    if not parser.parse(model):
        raise RuntimeError("; ".join(parser.get_error(x).desc() for x in range(parser.num_errors)))
    settings = builder.create_builder_config()
    (settings.set_flag if tf32 else settings.clear_flag)(tensorrt.BuilderFlag.TF32)
    made = builder.build_serialized_network(network, settings)
    if made is None:
        raise RuntimeError("TensorRT has no plan for this graph: its log says why")
    return bytes(made)


@functools.cache
def _logger() -> Any:
    import tensorrt  # noqa: PLC0415 (likewise)

    return tensorrt.Logger(tensorrt.Logger.ERROR)


backbay_tensorrt = TensorRT()
