"""Whether rewrites pay here: timed with and without them, and remembered."""
