"""How large torch's data bases were when the levels were last looked at, by version of torch.

A test holds them to it. Where it says that they differ, look at what came or went, run the levels
on ``aot_eager``, and write the new line: ``python -m backbay_conformance.levels.counts``.
"""

import torch

from backbay_conformance.levels import opinfo

Counts = dict[str, int]

_NAMES = (
    "operators",
    "operator and dtype",
    "operator and dtype, with gradient",
    "operators in place",
    "operators with mistakes",
    "higher-order operators",
    "custom operators",
    "autograd functions",
    "modules",
    "optimizers",
)
COUNTS: dict[str, Counts] = {
    "2.11": dict(zip(_NAMES, (697, 6094, 2698, 163, 223, 14, 11, 14, 113, 15), strict=True)),
    "2.13": dict(zip(_NAMES, (702, 6121, 2731, 163, 226, 17, 11, 14, 114, 15), strict=True)),
    "2.15": dict(zip(_NAMES, (703, 6156, 2769, 163, 226, 19, 11, 14, 114, 15), strict=True)),
}
"""By ``major.minor`` of torch, on a CPU."""


def counted(device: str = "cpu") -> Counts:
    """Count what is in torch's data bases now."""
    operators = list(opinfo.operators().values())
    sizes = (
        len(operators),
        sum(len(x.dtypes(device)) for x in operators),
        sum(x.trains(device, dtype) for x in operators for dtype in x.dtypes(device)),
        sum(x.works_in_place for x in operators),
        sum(x.info.error_inputs_func is not None for x in operators),
        len(opinfo.operators("higher_order")),
        len(opinfo.operators("custom_operators")),
        len(opinfo.operators("autograd_functions")),
        len(opinfo.modules()),
        len(opinfo.optimizers()),
    )
    return dict(zip(_NAMES, sizes, strict=True))


def drift() -> str | None:
    """How torch's data bases differ from what was counted, if they do, or were not counted."""
    version = minor(torch.__version__)
    if version not in COUNTS:
        return f"nobody has counted what torch {version} has: add {counted()}"
    found, known = counted(), COUNTS[version]
    wrong = [f"{found[x]} {x}, and not {known[x]}" for x in known if found[x] != known[x]]
    return f"torch {torch.__version__} has {'; '.join(wrong)}" if wrong else None


def minor(version: str) -> str:
    """Return ``2.13`` of ``2.13.0+cpu``."""
    return ".".join(version.split(".")[:2])


if __name__ == "__main__":
    row = tuple(counted().values())
    print(f'    "{minor(torch.__version__)}": dict(zip(_NAMES, {row}, strict=True)),')  # noqa: T201 (that is what it is for)
