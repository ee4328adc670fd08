"""Tests here read modules beside them, and the device that the optimizer's tests make up."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "packages/backbay-optimizer/tests/cuda_graphs")]
