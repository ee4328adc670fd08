"""What is known of a measured value."""

Interval = tuple[float, float]
"""Lower and upper end of a 95 % bootstrap confidence interval."""
