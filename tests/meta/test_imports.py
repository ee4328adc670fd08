"""What an import costs, and that the test of it can fail."""

import pytest

TORCH_FREE = [
    "import backbay",
    "import backbay.registry, backbay.race, backbay.cli",
    "import backbay; backbay.list_backends()",
    "from backbay.cli import main; main(['list', '--json'], standalone_mode=False)",
    "from backbay.cli import main; main(['info', 'inductor'], standalone_mode=False)",
    "from backbay.cli import main; main(['info', 'backbay_fold'], standalone_mode=False)",
    "import backbay.race.table, backbay.race.page, backbay.cli.race",
    "from backbay.cli import main; main(['explain', '--help'], standalone_mode=False)",
    "import backbay.explain, backbay.explain.text, backbay.explain.page",
]


def heavy_modules_after(run_python, statement: str) -> set[str]:
    program = f"""
import sys
{statement}
print("LOADED", *{{"torch", "triton", "matplotlib"}} & set(sys.modules))
"""
    last = run_python(program).stdout.splitlines()[-1]
    assert last.startswith("LOADED")
    return set(last.split()[1:])


@pytest.mark.parametrize("statement", TORCH_FREE)
def test_torch_is_not_imported(run_python, statement):
    assert heavy_modules_after(run_python, statement) == set()


def test_a_package_is_written_without_torch(run_python, tmp_path):
    arguments = ["new", "q", "--directory", str(tmp_path / "q")]
    statement = f"from backbay.cli import main; main({arguments}, standalone_mode=False)"
    assert heavy_modules_after(run_python, statement) == set()
    assert (tmp_path / "q" / "pyproject.toml").exists()


def test_the_test_above_can_fail(run_python):
    assert "torch" in heavy_modules_after(run_python, "import backbay; backbay.compare")


def test_every_public_name_exists():
    import backbay

    for name in backbay.__all__:
        assert getattr(backbay, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = backbay.absent


def test_import_backbay_loads_more_modules(run_python):
    program = """
import sys
before = set(sys.modules)
import backbay
print(len(set(sys.modules) - before), *sorted(x for x in sys.modules if x.startswith("backbay")))
"""
    count, *ours = run_python(program).stdout.split()
    assert "backbay" in ours
    assert len(ours) <= 1, ours
    assert int(count) <= 40
