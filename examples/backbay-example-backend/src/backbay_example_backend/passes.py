"""A squared ReLU, as people write it, becomes one operator.

::

    before:  torch.relu(x) ** 2    F.relu(x).square()    y = x.relu(); y * y
    after:   torch.ops.backbay_example_backend.relu_squared(x)

Methods, operators, functions and modules are the same to a pattern. A match is left alone where the
ReLU is used elsewhere too, and where something between the two writes to what they read.
"""

import torch
from backbay.graph.match import Pattern, is_floating_point
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


rewrite_relu_squared = rewrite_pass(
    *(
        Pattern(
            match=spelling,
            replacement=_operator,
            conditions=(is_floating_point(),),
            tolerance=0.0,  # 2.0 is 2
            name=f"relu_squared{spelling.__name__}",
        )
        for spelling in (_power, _square, _product)
    ),
    name="rewrite_relu_squared",
    sources=(kernel,),  # when it changes, caches must not serve what was compiled with it
)
"""A pass of Dynamo's graph: forward and backward follow from it."""
