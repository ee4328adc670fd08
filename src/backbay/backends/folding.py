"""``backend="backbay_fold"``: fold scalars and constants, share and drop, then Inductor.

The second exercise of PyTorch's tutorials on custom backends, made right: nothing is folded that
would change a dtype, hide a NaN, or round otherwise, unless it is allowed to.
"""

from backbay.kit.backend import Backend
from backbay.passes import (
    common_subexpressions,
    fold_constants,
    fold_scalar_chain,
    remove_dead_code,
)
from backbay.registry import Option


class Fold(Backend):
    """Folds what is known when a graph is compiled."""

    name = "backbay_fold"
    passes = (fold_scalar_chain, fold_constants, common_subexpressions, remove_dead_code)
    options = (
        Option(
            name="allow_reassociation",
            type="bool",
            default=False,
            help="fold chains of numbers also where that rounds otherwise",
        ),
    )


backbay_fold = Fold()
