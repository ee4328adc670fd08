"""OpenVINO: its own reader of FX graphs makes a model of each, which its CPU plugin compiles."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node

from backbay.kit.decompositions import NORMS, WRAPPED_INDICES, core_aten
from backbay.kit.engine import Engine
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program
from backbay_adapters.conditions import corrects_by_more, gathers_some

aten = torch.ops.aten
_CORRECTS = corrects_by_more, "OpenVINO corrects a variance by 0 or 1 only"


class OpenVINO(Engine):
    """Intel's OpenVINO on CPUs, for inference and training."""

    name = "backbay_openvino"
    engine = "openvino"
    # Some norms it can't convert; of several negative indices it takes other elements.
    decompositions: ClassVar = {**core_aten(*NORMS, aten.linalg_vector_norm), **WRAPPED_INDICES}
    refuses: ClassVar = {
        aten.arange: "OpenVINO counts in integers where torch counts in floats",
        aten.avg_pool2d: (lambda x: True in x.args[4:5], "OpenVINO divides overhangs otherwise"),
        aten.gather: (gathers_some, "OpenVINO gathers all elements along a dimension or none"),
        **dict.fromkeys((aten.var, aten.var_mean), _CORRECTS),
    }

    def supports(self, node: Node) -> bool | str:
        """Return whether OpenVINO has the operator, and means by it what torch does."""
        return str(node.target) in _known() or "not in OpenVINO's list of operators"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Convert and compile a program, and return what runs it."""
        from openvino import Core  # noqa: PLC0415 (when something is compiled)
        from openvino.frontend import FrontEndManager  # noqa: PLC0415 (likewise)
        from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder  # noqa: PLC0415

        core = Core()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # by default it computes in bfloat16 where it can
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }

        def compiled() -> bytes:
            dtypes = [x.dtype for x in program.inputs]
            decoder = TorchFXPythonDecoder(program.graph_module, input_types=dtypes)
            frontend = FrontEndManager().load_by_framework("pytorch")
            converted = frontend.convert(frontend.load(decoder))  # it calls the decoder
            model = core.compile_model(converted, "CPU", settings)
            return bytes(model.export_model().getvalue())

        model = core.import_model(program.kept(compiled), "CPU", settings)
        request = model.create_infer_request()

        def run(*tensors: torch.Tensor) -> list[Any]:
            arrays = dict(enumerate(map(shared_array, tensors)))
            results = request.infer(arrays, share_inputs=True, share_outputs=False)
            return list(results.to_tuple())

        return run


@functools.cache
def _known() -> frozenset[str]:
    from openvino.frontend.pytorch.torchdynamo import op_support  # noqa: PLC0415 (likewise)

    listed = op_support.OperatorSupport({})._support_dict  # noqa: SLF001 (has no public name)
    # Its list lacks what its frontend has.
    return frozenset(x.removeprefix("torch.ops.") for x in listed) | {"aten.logical_and.default"}


backbay_openvino = OpenVINO()
