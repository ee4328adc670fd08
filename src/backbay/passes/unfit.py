"""Why a rewrite leaves a place alone."""

from collections.abc import Sequence

from torch.fx import Node

from backbay.kit.passes import PassContext


class UnfitError(Exception):
    """A rewrite does not fit a place; the message says why."""


def must_pay(context: PassContext, rewrite: str, nodes: Sequence[Node]) -> None:
    """See to it that a rewrite of these nodes is not known to be slower.

    Raises:
        UnfitError: it is.
    """
    if not context.pays(rewrite, nodes):
        raise UnfitError("it was timed here, and is slower than what Inductor makes of it")
