"""``backend="backbay_fold"``: fold scalars and constants, share and drop, then Inductor.

The second exercise of PyTorch's tutorials on custom backends, made right: nothing is folded that
would change a dtype, hide a NaN, or round otherwise, unless it is allowed to.
"""

from backbay.kit.backend import Backend
from backbay.kit.rewrites import (
    common_subexpressions,
    fold_constants,
    fold_scalar_chain,
    remove_dead_code,
)


class Fold(Backend):
    """Folds what is known when a graph is compiled."""

    name = "backbay_fold"
    passes = (fold_scalar_chain, fold_constants, common_subexpressions, remove_dead_code)


backbay_fold = Fold()
