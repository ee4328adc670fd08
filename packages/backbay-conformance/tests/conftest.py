"""The seeded faults are backends for child processes too, which find them by name."""

import os
from pathlib import Path

_HERE = str(Path(__file__).parent)
_PATH = os.environ.get("PYTHONPATH", "")

os.environ["PYTHONPATH"] = os.pathsep.join(x for x in (_HERE, _PATH) if x)
