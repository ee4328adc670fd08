"""What the two benchmarks of ``backend="backbay"`` share: ``models.py`` and ``patterns.py``."""
