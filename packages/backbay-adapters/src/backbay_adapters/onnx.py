"""Graphs as ONNX models, by torch's own exporter, for the engines that read them."""

import contextlib
import functools
import io
import logging
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from backbay.kit.engine import Engine
from backbay.kit.program import Program


@dataclass(frozen=True)
class Model:
    """An ONNX model of a program."""

    inputs: list[str]
    """Names of the program's inputs, in order; the exporter drops what nobody reads."""
    outputs: list[str]
    """Names of its results, in order."""
    serialized: bytes


class OnnxEngine(Engine):
    """An engine that takes the operators that torch's exporter has a translation for."""

    libraries = ("onnxscript", "onnx-ir")

    def supports(self, node: Node) -> bool | str:
        """Return whether torch's exporter knows the operator."""
        return _registry().is_registered(node.target) or "torch.onnx has no translation for it"


def exported(program: Program) -> Model:
    """Return a program as an ONNX model, which is kept on disk."""
    inputs = [f"input_{number}" for number in range(len(program.inputs))]
    outputs = [f"output_{number}" for number in range(len(program.results))]
    return Model(inputs, outputs, program.kept(lambda: _export(program, inputs, outputs), "onnx"))


def _export(program: Program, inputs: list[str], outputs: list[str]) -> bytes:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program.exported,
            input_names=inputs,
            output_names=outputs,
            dynamo=True,
            verbose=False,
            optimize=False,
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
