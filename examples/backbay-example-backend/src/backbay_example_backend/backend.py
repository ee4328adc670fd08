"""The backend: squared ReLUs by one operator, then Inductor."""

from backbay.kit.backend import Backend

from backbay_example_backend.passes import rewrite_relu_squared


class ReluSquared(Backend):
    """Rewrites Dynamo's graph, and hands all of it to Inductor."""

    name = "backbay-example-backend"
    passes = (rewrite_relu_squared,)
    codegen = "inductor"


backend = ReluSquared()
"""What the entry point names. One object for the process: Dynamo guards on it."""
