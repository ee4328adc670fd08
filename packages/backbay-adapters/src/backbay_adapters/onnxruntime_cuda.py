"""ONNX Runtime on NVIDIA GPUs: sessions read and write torch's own memory there."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from backbay.errors import BackendUnavailable
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program
from backbay_adapters.onnx import OnnxEngine, exported

_PROVIDER = "CUDAExecutionProvider"


class OnnxRuntimeCuda(OnnxEngine):
    """ONNX Runtime's CUDA provider, for inference and training."""

    name = "backbay_onnxruntime_cuda"
    engine = "onnxruntime-gpu"
    devices = ("cuda",)
    dense_inputs = True

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Export a program, and return what runs it in a session on its device."""
        import onnxruntime  # noqa: PLC0415 (when something is compiled)

        device = program.results[0].device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch has no stub
        model = exported(program)
        session = _session(model.serialized, stream)
        read = {x.name for x in session.get_inputs()}
        layouts = [(x.shape, x.dtype) for x in program.results]
        options = onnxruntime.RunOptions()
        # Torch's stream waits for the session's, and the host for neither.
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            results = [torch.empty(size, dtype=x, device=device) for size, x in layouts]
            binding = session.io_binding()
            for name, tensor in zip(model.inputs, tensors, strict=True):
                if name in read:
                    binding.bind_input(name, *_memory(tensor))
            for name, tensor in zip(model.outputs, results, strict=True):
                binding.bind_output(name, *_memory(tensor))
            current = torch.cuda.current_stream(device)
            stream.wait_stream(current)
            session.run_with_iobinding(binding, options)
            current.wait_stream(stream)
            return results

        return run


def _session(model: bytes, stream: torch.cuda.Stream) -> Any:
    import onnxruntime  # noqa: PLC0415 (likewise)

    settings = {
        "device_id": str(stream.device.index),
        "user_compute_stream": str(stream.cuda_stream),
        "use_tf32": str(int(torch.backends.cuda.matmul.fp32_precision == "tf32")),
    }
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, [(_PROVIDER, settings)])
    if _PROVIDER not in session.get_providers():  # it says so on standard error, and goes on
        raise BackendUnavailable(
            f"onnxruntime can't load its {_PROVIDER}: it is for another CUDA than torch's "
            f"{torch.version.cuda}, or onnxruntime was installed over onnxruntime-gpu: remove both"
        )
    return session


def _memory(tensor: torch.Tensor) -> tuple[str, int, Any, Sequence[int], int]:
    """Return a tensor as ONNX Runtime binds it: device, dtype, shape and address."""
    kind = shared_array(torch.empty(0, dtype=tensor.dtype)).dtype.type
    return "cuda", tensor.device.index, kind, tuple(tensor.shape), tensor.data_ptr()


backbay_onnxruntime_cuda = OnnxRuntimeCuda()
