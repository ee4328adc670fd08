"""The user's own workloads: what they may return, and what they are told when it goes wrong."""

import pickle
import sys

import pytest
import torch

from backbay.errors import WorkloadInvalid, WorkloadNotFound
from backbay.workloads import load

HEADER = "import torch\nfrom torch import nn\n"


@pytest.fixture
def write(tmp_path):
    def write(body, name="mine.py"):
        path = tmp_path / name
        path.write_text(HEADER + body)
        return f"{path}:build"

    return write


def build(reference, *, dtype=torch.float32, train=False):
    return load(reference, seed=0, dtype=dtype, device=torch.device("cpu"), train=train)


def invalid(reference):
    with pytest.raises(WorkloadInvalid) as caught:
        build(reference)
    assert "\n" not in str(caught.value)
    return caught.value


def test_floating_inputs_follow_the_dtype_and_others_do_not(write):
    reference = write(
        "def build():\n"
        "    x = torch.ones(2, 3)\n"
        "    return nn.Linear(3, 3), [x, {'same': x}], {'ids': torch.ones(2, dtype=torch.int64)}\n"
    )
    workload = build(reference, dtype=torch.bfloat16, train=True)
    assert workload.args[0].dtype == torch.bfloat16
    assert workload.args[1]["same"] is workload.args[0]
    assert workload.kwargs["ids"].dtype == torch.int64
    assert workload.model.weight.dtype == torch.bfloat16
    assert workload.model.training
    assert workload.name == reference


def test_a_complex_model_loses_its_imaginary_part(write):
    reference = write(
        "class Both(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(3, 3, dtype=torch.complex64)\n"
        "        self.scale = nn.Parameter(torch.ones(3))\n"
        "    def forward(self, x): return self.linear(x)\n"
        "def build(): return Both(), (torch.ones(2, 3, dtype=torch.complex64),)\n"
    )
    workload = build(reference, dtype=torch.bfloat16, train=True)
    model = workload.model
    assert model.linear.weight.dtype == model(*workload.args).dtype == torch.complex64
    assert model.linear.weight.imag.any()
    assert model.scale.dtype == torch.bfloat16
    assert model.training


def test_a_lazy_layer_without_parameters_is_told_how_it_gets_them(write):
    error = invalid(write("def build(): return nn.LazyLinear(4), (torch.ones(2, 3),)\n"))
    assert "call it once, model(*args), before it is returned" in str(error)


def test_evaluation_turns_dropout_off(write):
    workload = build(write("def build(): return nn.Dropout(), (torch.ones(4),)\n"))
    assert torch.equal(workload.model(*workload.args), workload.args[0])


def test_inputs_that_need_gradients_still_do(write):
    reference = write("def build(): return nn.Identity(), (torch.ones(2, requires_grad=True),)\n")
    leaf = build(reference, dtype=torch.float64).args[0]
    assert leaf.requires_grad
    assert leaf.is_leaf


def test_whole_workload_keeps_its_loss_and_its_reduced_form(write):
    reference = write(
        "from backbay.workloads.workload import Workload\n"
        "def build():\n"
        "    def reduced(): return Workload(model, (torch.ones(1, 3),))\n"
        "    model = nn.Linear(3, 3)\n"
        "    return Workload(model, (torch.ones(4, 3),), loss=torch.sum, reduced=reduced)\n"
    )
    workload = build(reference, dtype=torch.float64)
    assert workload.loss is torch.sum
    assert workload.reduced().args[0].shape == (1, 3)
    assert workload.reduced().args[0].dtype == torch.float64
    assert workload.reduced().name == reference


def test_seed_governs_the_users_draws(write):
    reference = write("def build(): return nn.Linear(3, 3), (torch.randn(2, 3),)\n")
    first, second = build(reference), build(reference)
    assert torch.equal(first.args[0], second.args[0])
    assert torch.equal(first.model.weight, second.model.weight)


def test_users_weights_are_left_as_they_are(write):
    workload = build(write("def build(): return nn.LayerNorm(3), (torch.ones(2, 3),)\n"))
    assert torch.equal(workload.model.weight, torch.ones(3))


def test_file_finds_its_neighbours_even_when_called_later(write, tmp_path):
    (tmp_path / "neighbour_a.py").write_text("WIDTH = 3\n")
    (tmp_path / "neighbour_b.py").write_text("ROWS = 2\n")
    reference = write(
        "import neighbour_a\n"
        "def build():\n"
        "    import neighbour_b\n"
        "    return nn.Linear(neighbour_a.WIDTH, 1), (torch.ones(neighbour_b.ROWS, 3),)\n"
    )
    assert build(reference).args[0].shape == (2, 3)


def test_module_in_the_current_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "workload_in_cwd.py").write_text(
        HEADER + "def build(): return nn.Identity(), (torch.ones(1),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert build("workload_in_cwd:build").name == "workload_in_cwd:build"


def test_models_of_a_file_can_be_pickled(write):
    reference = write(
        "class Net(nn.Module):\n"
        "    def forward(self, x): return x + 1\n"
        "def build(): return Net(), (torch.ones(1),)\n"
    )
    model = build(reference).model
    assert type(pickle.loads(pickle.dumps(model))) is type(model)
    assert type(build(reference).model) is type(model)


def test_file_that_failed_is_read_anew(write):
    with pytest.raises(WorkloadInvalid):
        build(write("raise ValueError('first try')\n"))
    assert build(write("def build(): return nn.Identity(), (torch.ones(1),)\n"))


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("nn.Identity()", "returned a Identity: return (model, args), (model, args, kwargs) or a"),
        ("None", "returned None: return (model, args)"),
        ("(1, 2, 3, 4)", "returned a tuple of 4: return (model, args)"),
        ("3, (torch.ones(1),)", "gave a int as the model: it must be a torch.nn.Module or a"),
        ("nn.Identity(), torch.ones(1)", "gave a Tensor as the positional inputs: they must be"),
        ("nn.Identity(), (), [1]", "gave a list as the keyword inputs: they must be a dict"),
        ("nn.Identity(), (), {1: 2}", "gave a dict as the keyword inputs: they must be a dict"),
    ],
)
def test_wrong_return_says_what_came_and_what_is_wanted(write, returned, expected):
    assert expected in str(invalid(write(f"def build(): return {returned}\n")))


def test_attribute_that_is_no_function_is_named(write):
    assert ":build is a int, not a function:" in str(invalid(write("build = 3\n")))


def test_misspelt_function_gives_the_nearest(write):
    with pytest.raises(WorkloadNotFound, match=r"no attribute 'build'\. Did you mean .*:buildd\?"):
        build(write("def buildd(): ...\n"))


def test_exception_in_the_users_code_keeps_their_traceback_and_cuts_ours(write):
    reference = write("def helper(): raise KeyError('weights')\ndef build(): return helper()\n")
    error = invalid(reference)
    assert str(error).endswith("mine.py:3: 'weights'")
    assert f"{reference} raised KeyError at " in str(error)
    assert isinstance(error.__cause__, KeyError)
    (note,) = error.__notes__
    assert note.splitlines()[0] == "Traceback (most recent call last):"
    assert "mine.py" in note.splitlines()[1]
    assert "backbay/race" not in note


def test_exception_in_a_library_points_at_the_line_that_called_it(write):
    error = invalid(write("def build():\n    return nn.Linear(2, 2)(torch.ones(3)), ()\n"))
    assert "mine.py:4: " in str(error)


def test_exception_while_the_file_is_imported_is_the_users_too(write):
    error = invalid(write("import nosuchpackage_\n"))
    assert isinstance(error.__cause__, ModuleNotFoundError)
    assert "raised ModuleNotFoundError at " in str(error)
    assert "importlib" not in error.__notes__[0]


def test_syntax_error_shows_the_line(write):
    error = invalid(write("def build(:\n"))
    assert "raised SyntaxError" in str(error)
    assert "def build(:" in error.__notes__[0]


def test_script_that_exits_does_not_end_the_race(write):
    assert "raised SystemExit" in str(invalid(write("raise SystemExit(3)\n")))


def test_function_that_wants_arguments_is_reported(write):
    assert "missing 1 required positional argument" in str(
        invalid(write("def build(width): return nn.Linear(width, 1), ()\n"))
    )
