"""The page on findings is true: every code has a section, whose model has it, and loses it."""

import re
from pathlib import Path

import pytest
import torch

import backbay
from backbay import diagnose
from backbay.explain.codes import CODES

PAGE = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
SECTIONS = dict(re.findall(r"^### (BB\d{3})\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


MEASURED = [x for x in CODES if x.startswith("BB7")]
"""Only a diagnosis finds these."""


def found(block: str, path: Path, code: str) -> set[str]:
    """Return the codes that the model of a block has; it is a file, as a user's is."""
    path.write_text(block)
    names: dict = {}
    before = torch._dynamo.config.get_config_copy()
    precision = torch.get_float32_matmul_precision()
    try:
        exec(compile(block, str(path), "exec"), names)
        workload = backbay.Workload(names["model"], names["args"])
        if code in MEASURED:
            limits = diagnose.Limits(budget_s=0, timing_s=0.2)
            return {x.code for x in diagnose.run(workload, limits=limits).findings}
        told = backbay.explain.run(
            workload,
            backend=names.get("backend"),
            further_args=names.get("further_args", ()),
        )
    finally:
        torch._dynamo.config.load_config(before)  # what a block sets is its own
        torch.set_float32_matmul_precision(precision)
    return {x.code for x in told.findings}


def test_every_code_has_a_section_and_every_section_a_code():
    assert list(SECTIONS) == list(CODES)
    for code, text in SECTIONS.items():
        plain, known = " ".join(text.split()), CODES[code]
        for said in (known.what, known.why, known.fix, f"({known.severity})"):
            assert said in plain, (code, said)
        assert known.title.lower() in plain.lower(), code
        assert known.page == f"docs/findings.md#{code.lower()}"


@pytest.mark.parametrize(
    "code", [pytest.param(x, marks=pytest.mark.slow) if x in MEASURED else x for x in CODES]
)
def test_the_model_of_a_section_has_its_code_and_the_changed_one_has_not(code, tmp_path):
    before, after = re.findall(r"```python\n(.*?)```", SECTIONS[code], re.DOTALL)
    if "It needs a GPU" in SECTIONS[code] and not torch.cuda.is_available():
        pytest.skip("it is found on a GPU alone")
    assert code in found(before, tmp_path / "before.py", code)
    assert code not in found(after, tmp_path / "after.py", code)
