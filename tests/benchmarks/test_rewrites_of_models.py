"""How often each rewrite fires on the models that are timed, at full size, without a GPU.

Tensors are fake, and pass for a GPU's: passes see shapes, layouts and dtypes, and nothing runs.
Only on these sizes do conditions decide as they do where speed is measured: a rewrite that is lost
changes no result, and a model of test size takes it up all the same.

Not seen here: masks that a model is given, whose values would have to be read, and caches.
"""

import dataclasses
import importlib
import pkgutil
from collections import Counter
from importlib.util import find_spec

import pytest
import torch
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensorMode

from backbay.kit.passes import PassContext
from backbay.workloads.loading import load
from backbay_optimizer import kernels
from backbay_optimizer.backend import Optimizing
from backbay_optimizer.kernels import conditions

LIBRARIES = ("triton", "diffusers", "transformers", "timm")
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, LIBRARIES)), reason=f"needs {', '.join(LIBRARIES)}"
)

UNET = "diffusers:unet@base"
BATCH = 8
FIRED = {
    UNET: {"group_norm_silu": 45, "few_row_linears": 1},
    "vae_decoder_nchw.infer": {"group_norm_silu": 29},
    "vae_decoder_nhwc.train": {"group_norm_silu": 29, "horizontal_fusion": 2},
    "vae_block_nchw.train": {},
    "resnet50.infer": {"space_to_depth": 1, "fused_convolutions": 44, "product_epilogues": 1},
    "resnet50.train": {
        "space_to_depth": 1,
        "batch_norms": 53,
        "fused_counters": 53,
        "max_pools": 1,
    },
    "convnext_t.infer": {
        "depthwise_convolutions": 18,
        "space_to_depth": 1,
        "product_epilogues": 22,
    },
    "convnext_t.train": {"depthwise_convolutions": 18, "space_to_depth": 1, "row_norms": 15},
    "efficientnet_b0.infer": {"product_epilogues": 31},
    "efficientnet_b0.train": {
        "depthwise_convolutions": 16,
        "space_to_depth": 1,
        "pooled_convolutions": 32,
        "batch_norms": 49,
        "fused_counters": 49,
    },
    "mobilenetv3_l.infer": {"fused_convolutions": 5, "product_epilogues": 24},
    "vit_b.infer": {"slice_pushdown": 1, "space_to_depth": 1, "product_epilogues": 11},
    # With its mask, which is given, constant_masks fires, too.
    "bert.train": {"embeddings": 1, "softmaxes": 1, "horizontal_fusion": 24, "row_norms": 26},
    "llama_1b_4l.train_1x4k": {
        "constant_masks": 4,
        "embeddings": 1,
        "softmaxes": 1,
        "row_norms": 9,
    },
    "llama_1b_4l.prefill_4x2k": {
        "constant_masks": 4,
        "slice_pushdown": 1,
        "few_row_linears": 1,
    },
    "qwen3_8l.prefill_1x8k": {
        "constant_masks": 8,
        "slice_pushdown": 1,
        "rotated_heads": 8,
        "one_row_linears": 4,
    },
    "gemma3_1b_12l.prefill_2x4k": {
        "constant_masks": 2,
        "windowed_attention": 10,
        "rotated_heads": 12,
    },
    "t5_base.infer": {"constant_masks": 12, "linear_epilogues": 24},
    "dlrm.train": {"embeddings": 1},
}


@pytest.fixture
def as_on_a_gpu(speed, monkeypatch):
    """Have passes and kernels take a CPU's tensors for an H200's, and build without values."""
    h200 = speed("speed.cuda_code").H200
    for one in Optimizing.passes:
        kind = type(one)
        devices = tuple("cpu" if x == "cuda" else x for x in kind.requires.devices)
        requires = dataclasses.replace(kind.requires, devices=devices)
        monkeypatch.setattr(kind, "requires", requires)
    names = [x.name for x in pkgutil.iter_modules(kernels.__path__)]
    for name in [x for x in names if not x.endswith("_device")]:
        module = importlib.import_module(f"{kernels.__name__}.{name}")
        for condition, answer in (("unfit", no_kernel), ("unmeasured", lambda *_, **__: None)):
            if hasattr(module, condition):
                monkeypatch.setattr(module, condition, answer)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (h200.major, h200.minor))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: h200.name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: h200)
    places = (f"speed.model_cases.{x}" for x in ("blocks", "language", "vision"))
    for place in (*places, "backbay.workloads.diffusers_models"):
        monkeypatch.setattr(speed(place), "randomise", lambda model: model)


def no_kernel(*tensors):
    dtypes = {x.dtype for x in tensors}
    fit = len(dtypes) == 1 and dtypes <= set(conditions.DTYPES)
    return None if fit else f"no kernel for {dtypes}"


def faked(workload, mode):
    """Return a workload of the device "meta" with fake tensors of a CPU: layouts are a device's."""
    known = {}

    def fake(value):
        if not isinstance(value, torch.Tensor) or value.device.type != "meta":
            return value
        if value not in known:
            size, stride = value.shape, value.stride()
            with mode:
                new = torch.empty_strided(size, stride, dtype=value.dtype, device="cpu")
            is_parameter = isinstance(value, torch.nn.Parameter)
            new = torch.nn.Parameter(new, value.requires_grad) if is_parameter else new
            known[value] = new.requires_grad_(value.requires_grad)
        return known[value]

    for module in workload.model.modules():
        for held in (module._parameters, module._buffers, vars(module)):
            held |= {name: fake(value) for name, value in held.items()}
    args, kwargs = pytree.tree_map(fake, (workload.args, workload.kwargs))
    return dataclasses.replace(workload, args=args, kwargs=kwargs)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", FIRED)
def test_a_model_is_rewritten_otherwise_than_where_it_was_measured(speed, name):
    fired, seen = Counter(), []

    def count(graph_module, _):
        seen.append(graph_module)
        for one in Optimizing.passes:
            if one.enabled:
                fired[one.name] += one.run(graph_module, PassContext())
        return graph_module.forward

    cases, meta = speed("speed.model_cases"), torch.device("meta")
    case = None if name == UNET else cases.case(name)
    if case is None:
        built = load(name, seed=0, dtype=cases.DTYPE, device=meta, train=False, batch=BATCH)
    else:
        built = cases.built(case, "full", device=meta, seed=0)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    workload = faked(built, mode)
    torch.compiler.reset()
    with mode, torch.set_grad_enabled(case is not None and case.train):
        torch.compile(workload.model, backend=count)(*workload.args, **workload.kwargs)
    assert seen
    assert +fired == FIRED[name]
