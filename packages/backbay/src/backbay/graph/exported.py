"""An ExportedProgram from a graph of AOTAutograd's: where most other compilers start.

``torch.export`` would trace the model anew. Inside a backend there is a graph already, functional
and of ATen operators; what it lacks is a signature.
"""

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from backbay.graph.values import tensors_in, value_of


def exported_program(graph_module: GraphModule) -> ExportedProgram:
    """Return a functional graph as an ExportedProgram; it is not traced again.

    Inputs are the program's, in order; an integer stays one. Constants of the graph are buffers.
    Where a result is None, as a gradient that nobody wants, the program's is too. Symbols keep
    their ranges.

    Args:
        graph_module: of ATen operators, with fake values, whose results are a flat tuple or list;
            it is left as it is.
    """
    graph, buffers, copies = Graph(), dict[str, torch.Tensor](), dict[Node, Node]()
    nodes = list(graph_module.graph.nodes)
    for node in (x for x in nodes if x.op == "get_attr"):
        held = operator.attrgetter(str(node.target))(graph_module)
        copies[node] = graph.placeholder(f"b_{node.name.lstrip('_')}")
        copies[node].meta = {"val": value_of(node)}
        buffers[copies[node].name] = held
    inputs = [x for x in nodes if x.op == "placeholder"]
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta |= _saved_stack(node)
    results = copies[nodes[-1]].args[0]
    assert isinstance(results, (tuple, list))
    copies[nodes[-1]].args = (tuple(results),)
    signature = ExportGraphSignature(
        [
            *(InputSpec(InputKind.BUFFER, TensorArgument(x), x, persistent=True) for x in buffers),
            *(InputSpec(InputKind.USER_INPUT, _argument(copies[x]), None) for x in inputs),
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, _argument(x), None) for x in results],
    )
    return ExportedProgram(
        root=GraphModule(buffers, graph),
        graph=graph,
        graph_signature=signature,
        state_dict=dict(buffers),
        range_constraints=_ranges(nodes),
        module_call_graph=[_called(len(inputs), len(results))],
        example_inputs=(tuple(value_of(x) for x in inputs), {}),
    )


def _saved_stack(node: Node) -> dict[str, Any]:
    """Return the modules that a node comes from as torch.export has them, by their types' names.

    What Dynamo notes are the types themselves, and torch.export.save refuses these.
    """
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return {}
    return {"nn_module_stack": {key: (path, _type_name(of)) for key, (path, of) in stack.items()}}


def _type_name(of: Any) -> str:
    return of if isinstance(of, str) else f"{of.__module__}.{of.__qualname__}"


def _argument(value: Any) -> ArgumentSpec:
    if not isinstance(value, Node):
        return ConstantArgument("", value)
    if isinstance(value_of(value), torch.SymInt):
        return SymIntArgument(value.name)
    if isinstance(value_of(value), torch.Tensor):
        return TensorArgument(value.name)
    return ConstantArgument(value.name, value_of(value))


def _called(arguments: int, results: int) -> ModuleCallEntry:
    given = ((0,) * arguments, dict[str, Any]())
    # Without names, as torch.export leaves them for the root: decompositions would look for them.
    signature = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure(given),
        out_spec=pytree.tree_structure((0,) * results),
    )
    return ModuleCallEntry(fqn="", signature=signature)


def _ranges(nodes: list[Node]) -> dict[Any, Any]:
    from torch.fx.experimental.symbolic_shapes import (  # noqa: PLC0415 (sympy takes a second)
        free_symbols,
    )

    ranges = dict[Any, Any]()
    for value in (value_of(x) for x in nodes if x.op == "placeholder"):
        for number in [value, *(size for x in tensors_in(value) for size in x.shape)]:
            if isinstance(number, torch.SymInt):
                known = number.node.shape_env.var_to_range
                ranges |= {x: known[x] for x in free_symbols(number) if x in known}
    return ranges
