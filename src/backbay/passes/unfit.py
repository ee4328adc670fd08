"""Why a rewrite leaves a place alone."""


class UnfitError(Exception):
    """A rewrite does not fit a place; the message says why."""
