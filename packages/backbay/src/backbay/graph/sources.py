"""Where the inputs of a graph are from: what Dynamo tells AOTAutograd, beside the graph.

Nothing that copies a graph copies it. Without it a graph is taken for an exported one, of which no
input stays where it is: CUDA graphs then copy every parameter in every call.
"""

from torch.fx import GraphModule

_OF_PARAMETERS = "_param_name_to_source"


def say_sources(old: GraphModule, new: GraphModule) -> None:
    """Tell of a copy what Dynamo told of its graph; inputs that are new have no source."""
    new.meta = dict(old.meta)
    if not hasattr(old, _OF_PARAMETERS):
        return
    setattr(new, _OF_PARAMETERS, getattr(old, _OF_PARAMETERS))
    known = {n.target: n for n in old.graph.nodes if n.op == "placeholder"}
    for node in new.graph.nodes:
        if node.op == "placeholder":
            node._dynamo_source = getattr(known.get(node.target), "_dynamo_source", None)  # noqa: SLF001 (torch's own)
