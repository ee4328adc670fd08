"""OpenVINO: its own reader of FX graphs makes a model of each, which its CPU plugin compiles."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch._decomp import get_decompositions
from torch.fx import Node

from backbay.kit.engine import Engine, core_aten
from backbay.kit.exchange import shared_array
from backbay.kit.program import Program

aten = torch.ops.aten


class OpenVINO(Engine):
    """Intel's OpenVINO on CPUs, for inference and training."""

    name = "backbay_openvino"
    engine = "openvino"
    # OpenVINO's own norms give the first of their results only; training reads the others too. Some
    # norms of vectors it can't convert.
    decompositions: ClassVar = {
        **core_aten(),
        **get_decompositions(
            [aten.native_layer_norm, aten.native_group_norm, aten.linalg_vector_norm]
        ),
    }

    def supports(self, node: Node) -> bool | str:
        """Return whether OpenVINO has the operator, and means by it what torch does."""
        if node.target is aten.avg_pool2d.default and True in node.args[4:5]:
            return "OpenVINO divides windows that overhang otherwise"
        if node.target is aten.gather.default and not _covers(*node.args[:3]):
            return "OpenVINO gathers all elements along a dimension or none"
        if node.target is aten.abs.default and not node.meta["val"].is_floating_point():
            return "OpenVINO leaves integers their sign"
        return str(node.target) in _known() or "not in OpenVINO's list of operators"

    def build(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Convert and compile a program, and return what runs it."""
        import openvino  # noqa: PLC0415 (when something is compiled)

        core = openvino.Core()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # by default it computes in bfloat16 where it can
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }

        def compiled() -> bytes:
            made = core.compile_model(_converted(program), "CPU", settings)
            blob: bytes = made.export_model().getvalue()
            return blob

        model = core.import_model(program.kept(compiled), "CPU", settings)
        request = model.create_infer_request()

        def run(*tensors: torch.Tensor) -> list[Any]:
            arrays = dict(enumerate(map(shared_array, tensors)))
            results = request.infer(arrays, share_inputs=True, share_outputs=False)
            return [results[x] for x in range(len(results))]

        return run


def _converted(program: Program) -> Any:
    from openvino import PartialShape, Type  # noqa: PLC0415 (likewise)
    from openvino.frontend import FrontEndManager  # noqa: PLC0415 (likewise)
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder  # noqa: PLC0415

    frontend = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchFXPythonDecoder(program.graph_module)  # convert() calls it
    model = frontend.convert(frontend.load(decoder))
    for given, value in zip(model.inputs, program.inputs, strict=True):
        given.get_node().set_element_type(
            Type(shared_array(torch.empty(0, dtype=value.dtype)).dtype)
        )
        given.get_node().set_partial_shape(PartialShape(list(value.shape)))
    model.validate_nodes_and_infer_types()
    return model


def _covers(source: Any, dim: Any, index: Any) -> bool:
    """Whether the indices of a gather have the sizes of what it reads, but for its dimension."""
    shapes = [list(x.meta["val"].shape) for x in (source, index)]
    for shape in shapes:
        del shape[dim]
    return shapes[0] == shapes[1]


@functools.cache
def _known() -> frozenset[str]:
    from openvino.frontend.pytorch.torchdynamo.op_support import (  # noqa: PLC0415 (likewise)
        OperatorSupport,
    )

    listed = OperatorSupport({})._support_dict  # noqa: SLF001 (has no public name)
    # Its list lacks what its frontend has.
    return frozenset(x.removeprefix("torch.ops.") for x in listed) | {"aten.logical_and.default"}


backbay_openvino = OpenVINO()
