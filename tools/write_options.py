"""Write the options of ``backend="backbay"`` into its manifest, from the passes that declare them.

    python tools/write_options.py [--check]

Exit code 1 with ``--check``: the manifest says something else.
"""

import json
import re
import sys
from importlib import resources
from pathlib import Path

from backbay.kit import option_rows
from backbay_optimizer.backend import backbay

MANIFEST = Path(str(resources.files("backbay_optimizer"))) / "backends.toml"
TABLE = re.compile(r"(?<=^\[backend\.options\]\n)(?:\w+ = .*\n)*", re.MULTILINE)


def main() -> int:
    """Write the table, or compare it with what is there."""
    before = MANIFEST.read_text(encoding="utf-8")
    after = TABLE.sub(lambda _: "".join(line(dict(row)) for row in option_rows(backbay)), before)
    if "--check" in sys.argv[1:]:
        return int(before != after)
    MANIFEST.write_text(after, encoding="utf-8")
    return 0


def line(row: dict[str, object]) -> str:
    """Return one option as an inline table; JSON's values of these types are TOML's too."""
    name = row.pop("name")
    inside = ", ".join(f"{key} = {json.dumps(value)}" for key, value in row.items())
    return f"{name} = {{ {inside} }}\n"


if __name__ == "__main__":
    sys.exit(main())
