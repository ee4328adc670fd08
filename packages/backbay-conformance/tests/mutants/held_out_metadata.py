"""Set aside: faults that nobody who writes levels looks at, of the kind in ``metadata``."""

import torch

from mutants.harness import (
    Backend,
    Plan,
    dynamo,
    on_outputs,
)
from mutants.mutant import Mutant
from mutants.numerics import once

FAULTS = [
    Mutant(
        name="scalar_has_a_dimension",
        family="metadata",
        fault="A result without dimensions comes back with one, of size 1.",
        level="contract",
        compiler=Backend(
            "scalar_has_a_dimension",
            dynamo(Plan(around=on_outputs(lambda x: x if x.dim() else x.unsqueeze(0)))),
        ),
        shown_by=once(torch.sum, torch.ones(3)),
    ),
]
