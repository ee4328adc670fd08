"""A squared ReLU, as people write it, becomes one operator.

::

    before:  torch.relu(x) ** 2    F.relu(x).square()    y = x.relu(); y * y
    after:   torch.ops.backbay_example_backend.relu_squared(x)

Methods, operators, functions and modules are the same to a pattern. A match is left alone where the
ReLU is used elsewhere too, where something between the two writes to what they read, and where the
kernel refuses the input.
"""

import torch
from backbay.graph.match import Match, Pattern, is_floating_point
from backbay.graph.values import value_of
from backbay.kit.passes import rewrite_pass
from torch import Tensor

from backbay_example_backend import kernel


def _power(x: Tensor) -> Tensor:
    return torch.relu(x) ** 2


def _square(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def _product(x: Tensor) -> Tensor:
    y = torch.relu(x)
    return y * y


def _operator(x: Tensor) -> Tensor:
    return kernel.relu_squared(x)


def _refusal(match: Match) -> str | None:
    """Return why the kernels can't take the input, where the operator would be its reference."""
    x = value_of(match.inputs[0])  # a fake tensor: it has a shape, and no values
    # On a CPU the operator is its reference, too: there the pass fires to be tested without a GPU.
    return kernel.refusal(x, devices=("cuda", "cpu"))


rewrite_relu_squared = rewrite_pass(
    *(
        Pattern(
            match=spelling,
            replacement=_operator,
            conditions=(is_floating_point(), _refusal),
            tolerance=0.0,  # 2.0 is 2
            name=f"relu_squared{spelling.__name__}",
        )
        for spelling in (_power, _square, _product)
    ),
    name="rewrite_relu_squared",
    # When one of these changes, caches must not serve what was compiled with it. A module that it
    # imports does not count: name each.
    sources=(kernel,),
)
"""A pass of Dynamo's graph: forward and backward follow from it."""
