"""What `backbay.workloads` promises about the models that it builds."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from torch.utils import _pytree as pytree

from backbay.errors import InputError, WorkloadInvalid, WorkloadNotFound
from backbay.workloads import check, known, libraries, load, parse
from backbay.workloads.decoder import Decoder, DecoderConfig
from backbay.workloads.randomise import randomise
from backbay.workloads.reference import PACKAGES

CPU = torch.device("cpu")
HF = [name for name in known() if name.startswith("hf:")]
DIFFUSERS = [name for name in known() if name.startswith("diffusers:")]


def need_models(reference):
    """Skip where the library is absent; its import must come after torchvision's repair."""
    for package in PACKAGES.get(reference.partition(":")[0], ())[:1]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")


def build(reference, *, dtype=torch.float32, train=False, seed=0):
    need_models(reference)
    return load(reference, seed=seed, dtype=dtype, device=CPU, train=train)


def run(workload):
    return workload.model(*workload.args, **workload.kwargs)


def inputs_of(workload):
    leaves = pytree.tree_leaves((workload.args, dict(workload.kwargs)))
    return [x for x in leaves if torch.is_tensor(x)]


def tensors(tree):
    """Transformers' outputs are dicts that pytree knows; keep the floating-point tensors."""
    leaves = pytree.tree_leaves(dict(tree) if isinstance(tree, dict) else tree)
    return [leaf for leaf in leaves if torch.is_tensor(leaf) and leaf.is_floating_point()]


def assert_runs(reference):
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            workload = build(reference, dtype=dtype)
            outputs = tensors(run(workload))
            assert outputs, reference
            assert outputs[0].dtype == dtype
            assert all(output.isfinite().all() for output in outputs)
            assert {p.dtype for p in workload.model.parameters()} == {dtype}


def assert_trains(reference):
    workload = build(reference, train=True)
    assert workload.model.training
    loss = workload.loss(run(workload))
    assert loss.shape == ()
    loss.backward()
    for name, parameter in workload.model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("reference", ["decoder", *HF])
def test_every_model_answers_in_float32_and_bfloat16(reference):
    assert_runs(reference)


@pytest.mark.parametrize("reference", ["decoder", *HF])
def test_every_model_gives_each_parameter_a_finite_gradient(reference):
    assert_trains(reference)


@pytest.mark.parametrize("reference", ["timm:resnet18", "timm:test_vit", "timm:convnext_atto"])
def test_timm_models_answer_and_train(reference):
    assert_runs(reference)
    assert_trains(reference)


@pytest.mark.parametrize("reference", DIFFUSERS)
def test_parts_of_diffusion_pipelines_answer_and_train(reference):
    assert_runs(reference)
    workload = build(reference, train=True)
    (output,) = tensors(run(workload))
    output.backward(torch.randn_like(output))
    for name, parameter in workload.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("reference", ["diffusers:unet", "diffusers:flux"])
def test_what_a_diffusion_model_is_given_decides_nothing(reference):
    workload = build(reference)
    (before,) = tensors(run(workload))
    for given in (workload.args, workload.kwargs.values()):
        for tensor in (x for x in given if torch.is_tensor(x) and x.any()):
            saved = tensor.clone()
            tensor.copy_(tensor.flip(0) if tensor.unique().numel() > 1 else tensor * 2)
            (after,) = tensors(run(workload))
            tensor.copy_(saved)
            assert not torch.equal(before, after)


def test_timm_model_that_needs_larger_images_gets_them():
    workload = build("timm:test_vit")
    assert workload.args[0].shape[-1] == 160  # its position embedding is of this size
    assert build("timm:resnet18").args[0].shape == (2, 3, 64, 64)


@pytest.mark.parametrize("train", [False, True])
def test_decoder_is_one_graph_without_breaks(train):
    workload = build("decoder", train=train)
    graphs = []

    def record(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    torch.compiler.reset()
    compiled = torch.compile(workload.model, backend=record, fullgraph=True)
    torch.testing.assert_close(compiled(*workload.args), run(workload))
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["decoder", *HF, "timm:resnet18"])
def test_every_model_is_captured_whole_in_inference(reference):
    workload = build(reference)
    torch.compiler.reset()
    compiled = torch.compile(workload.model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        answers = tensors(compiled(*workload.args, **workload.kwargs))
        for answer, expected in zip(answers, tensors(run(workload)), strict=True):
            torch.testing.assert_close(answer, expected)


FINGERPRINT = """
import hashlib, sys, torch
from backbay.workloads import load
w = load(sys.argv[1], seed=3, dtype=torch.bfloat16, device=torch.device("cpu"), train=True)
digest = hashlib.sha256()
for tensor in [*w.model.state_dict().values(), *w.args, *w.kwargs.values()]:
    digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
print(digest.hexdigest())
"""


def python(code, *arguments, path=None):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("reference", ["decoder", "hf:llama"])
def test_two_processes_build_the_same_bits(reference):
    need_models(reference)
    first, second = (python(FINGERPRINT, reference) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout


def test_another_seed_gives_other_weights_and_inputs():
    one, other = build("decoder"), build("decoder", seed=1)
    assert not torch.equal(one.args[0], other.args[0])
    assert not torch.equal(one.model.embedding.weight, other.model.embedding.weight)


def test_casting_the_decoder_does_not_damage_rotary_angles():
    workload = build("decoder")
    with torch.no_grad():
        expected = run(workload)
        answer = workload.model.to(torch.bfloat16).to(torch.float64)(*workload.args)
    # Angles cast to bfloat16 would be off by whole turns at the last positions.
    assert torch.nn.functional.cosine_similarity(answer.float(), expected, dim=-1).min() > 0.99


def test_decoder_does_not_look_ahead():
    workload = build("decoder")
    tokens = workload.args[0]
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 2048
    with torch.no_grad():
        before, after = workload.model(tokens), workload.model(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_untied_decoder_has_a_head_of_its_own():
    shape = {"vocabulary": 32, "width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 32}
    tied, untied = (Decoder(DecoderConfig(**shape, tied=tied)) for tied in (True, False))
    assert tied.head.weight is tied.embedding.weight
    assert untied.head.weight is not untied.embedding.weight


def test_float32_parts_of_a_transformers_model_stay_float32():
    workload = build("hf:llama", dtype=torch.bfloat16)
    frequencies = [b for name, b in workload.model.named_buffers() if "inv_freq" in name]
    assert frequencies
    assert all(buffer.dtype == torch.float32 for buffer in frequencies)


@pytest.mark.parametrize("reference", ["hf:llama", "hf:bert", "timm:resnet18"])
def test_no_parameter_is_left_where_a_dropped_branch_would_not_show(reference):
    for name, parameter in build(reference).model.named_parameters():
        assert parameter.numel() == 1 or parameter.flatten()[0] != parameter.flatten()[1:].min(), (
            name
        )
        assert parameter.abs().max() > 1e-3, name


def test_closed_residual_branches_are_opened():
    norm = torch.nn.BatchNorm2d(64)
    torch.nn.init.zeros_(norm.weight)
    scale = torch.nn.Module()
    scale.gamma = torch.nn.Parameter(torch.full((64,), 1e-6))
    randomise(torch.nn.ModuleList([norm, scale]))
    assert 0.2 < norm.weight.mean() < 0.3
    assert 0.2 < scale.gamma.mean() < 0.3
    assert norm.bias.std() > 0.01
    assert norm.running_mean.std() > 0.01
    assert 0.5 <= norm.running_var.min() < norm.running_var.max() <= 1.5


def test_random_weights_are_not_randomised_again():
    linear = torch.nn.Linear(8, 8)
    before = linear.weight.clone()
    randomise(linear)
    assert torch.equal(linear.weight, before)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "reference", ["decoder", "hf:t5", "hf:whisper", "hf:vit", "timm:resnet18", *DIFFUSERS]
)
def test_reduced_form_runs_the_same_model_on_less(reference, train):
    workload = build(reference, train=train)
    reduced = workload.reduced()
    assert reduced.model is workload.model
    assert reduced.name == workload.name
    size, full = (sum(t.numel() for t in inputs_of(x)) for x in (reduced, workload))
    assert size < full or reference.startswith("timm:")  # two images cannot be fewer
    output = run(reduced)
    if train and reduced.loss is not None:
        reduced.loss(output).backward()


@pytest.mark.parametrize("reference", ["decoder", "hf:bert", "timm:resnet18"])
def test_another_batch_can_be_trained_on(reference):
    need_models(reference)
    workload = load(reference, seed=0, dtype=torch.float32, device=CPU, train=True, batch=5)
    assert {len(x) for x in inputs_of(workload)} == {5}
    workload.loss(run(workload)).backward()
    assert workload.name == f"{reference}@tiny, batch 5"


def test_nothing_may_reach_the_hub_and_the_setting_is_left_as_found():
    constants = pytest.importorskip("huggingface_hub").constants
    found = constants.HF_HUB_OFFLINE
    build("hf:bert")
    assert found == constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("reference", ["hf:llama", "timm:resnet18", "decoder"])
def test_name_says_which_size_ran(reference):
    assert build(reference).name == f"{reference}@tiny"


def test_size_written_in_the_reference_wins():
    assert parse("decoder@small", "base").canonical("cpu") == "decoder@small"
    assert parse("decoder", "base").canonical("cpu") == "decoder@base"
    assert parse("hf:llama").canonical("cuda") == "hf:llama@base"


def test_checking_a_name_imports_no_torch(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('the parent ran my code')\n")
    code = (
        "import sys\n"
        "from backbay.workloads.reference import check, known\n"
        "for name in [*known(), 'mine:build', sys.argv[1]]: check(name)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules, 'mine' in sys.modules)\n"
    )
    finished = python(code, f"{tmp_path / 'mine.py'}:build", path=tmp_path)
    assert finished.stdout.split() == ["False"] * 3, finished.stderr


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("decodr", "no workload named 'decodr'. Did you mean 'decoder'? Built in: decoder, hf:"),
        ("hf:lama", "Did you mean 'hf:llama'?"),
        ("llama", "Did you mean 'hf:llama'?"),
        ("hf:llama@bas", "hf:llama@bas: no size 'bas'. Did you mean 'base'? Sizes: tiny, small,"),
        ("nosuchmodule_:build", "there is no module 'nosuchmodule_', installed or in "),
        ("nosuch/file.py:build", "workload nosuch/file.py:build: there is no file nosuch/file.py"),
        ("timm:", "no workload named 'timm:'"),
    ],
)
def test_unknown_names_say_what_is_known(reference, expected):
    with pytest.raises(WorkloadNotFound) as caught:
        check(reference)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_without_function_names_the_functions_in_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def build(): ...\ndef _private(): ...\n")
    with pytest.raises(WorkloadNotFound, match=r"mine\.py:FUNCTION; it defines build\.$"):
        check(str(path))


def test_misspelt_file_names_its_neighbour(tmp_path):
    (tmp_path / "model.py").write_text("")
    with pytest.raises(WorkloadNotFound, match=r"Did you mean .*/model\.py\?"):
        check(f"{tmp_path}/modle.py:build")


def test_size_for_a_workload_that_has_none_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(WorkloadInvalid, match="decides itself how large it is"):
        check(f"{tmp_path}/mine.py:build", "base")


def test_unknown_timm_name_gives_the_nearest():
    with pytest.raises(
        WorkloadNotFound, match=r"has no model 'resnet500'\. Did you mean 'timm:res"
    ):
        build("timm:resnet500")


def test_timm_name_that_would_download_is_refused():
    with pytest.raises(WorkloadNotFound, match="has no model 'hf-hub:someone/model'"):
        build("timm:hf-hub:someone/model")


def test_missing_package_gives_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        check("hf:llama")
    assert str(caught.value) == (
        "hf:llama needs transformers, which is not installed: pip install 'backbay[models]'"
    )


def test_package_that_does_not_import_is_not_called_missing(tmp_path):
    broken = tmp_path / "timm"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('libmissing.so')")
    code = (
        "from backbay.workloads.libraries import require\n"
        "try: require('timm', 'timm:resnet18')\n"
        "except Exception as error: print(error)\n"
    )
    finished = python(code, path=tmp_path)
    assert "timm, which is installed and does not import (OSError: libmissing.so)" in (
        finished.stdout
    ), finished.stderr


TORCHVISION = """
import json, sys, torch
from backbay.workloads import libraries
try: libraries.ensure_torchvision_imports(); failure = None
except Exception as error: failure = str(error)
print(json.dumps([failure, len(libraries._defined), "torchvision.part" in sys.modules]))
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", [None, 0, True]),
        (
            "import torch\n@torch.library.register_fake('torchvision::nms')\ndef nms(dets): ...\n",
            [None, 1, True],
        ),
        ("raise RuntimeError('something else')", ["something else", 0, True]),
    ],
    ids=["works", "operators missing", "broken otherwise"],
)
def test_torchvision_is_touched_only_when_its_operators_are_missing(tmp_path, body, expected):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(f"import torchvision.part\n{body}")
    (package / "part.py").write_text("")
    finished = python(TORCHVISION, path=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == expected
