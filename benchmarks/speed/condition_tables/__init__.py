"""Where rewrites pay: a module for each table of ``conditions.py``."""
