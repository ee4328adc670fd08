"""Passes of the optimizing backend; each file says what it changes, and when it does not."""
