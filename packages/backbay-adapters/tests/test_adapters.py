"""Each adapter, where its engine is installed: right in inference and training, at every batch."""

import importlib
import importlib.util
from importlib import metadata, resources

import pytest
import torch
import torch._dynamo.exc
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay import compile_log
from backbay.proof import Workload, make_golden, observe
from backbay.registry import default_registry
from backbay.registry.toml import parse_toml

ENGINES = {
    "executorch": "executorch.runtime",
    "iree": "iree.compiler",
    "onnxruntime": "onnxruntime",
    "onnxruntime_cuda": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "tensorrt",
    "tvm": "tvm",
}
"""Adapter to a module that its engine brings."""
MANIFEST = parse_toml((resources.files("backbay_adapters") / "backends.toml").read_text())


ON_CUDA = ("onnxruntime_cuda", "tensorrt")


def extra(name):
    return name.replace("_", "-")


def adapter(name):
    return getattr(importlib.import_module(f"backbay_adapters.{name}"), f"backbay_{name}")


def is_installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


@pytest.fixture(params=ENGINES)
def backend(request):
    made = adapter(request.param)
    if not (is_installed(ENGINES[request.param]) and has_distribution(made.engine)):
        pytest.skip(f"{made.engine} is not installed: backbay-adapters[{extra(request.param)}]")
    if request.param in ON_CUDA and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return made


def has_distribution(name):
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


@pytest.fixture
def device(backend):
    return backend.devices[0]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("BACKBAY_CACHE", str(tmp_path / "cache"))
    torch.compiler.reset()
    compile_log.clear()
    torch.manual_seed(0)


class Attending(torch.nn.Module):
    """Grouped heads, a causal mask, a norm, an embedding, and a size among the results."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.query, self.both = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.out = torch.nn.Linear(16, 11)

    def forward(self, tokens):
        rows, length = tokens.shape
        x = self.embed(tokens)
        h = self.norm(x)
        q = self.query(h).view(rows, length, 4, 4).transpose(1, 2)
        k, v = self.both(h).view(rows, length, 2, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.silu(mixed.transpose(1, 2).reshape(rows, length, 16))
        return {"logits": self.out(x), "rows": rows}


class Convolving(torch.nn.Module):
    """A strided convolution, batch norm, pooling, and a buffer that training changes."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(F.adaptive_avg_pool2d(F.gelu(h), 1).flatten(1))


MODELS = {
    "attention": (Attending, lambda rows: torch.randint(0, 11, (rows, 6))),
    "convolution": (Convolving, lambda rows: torch.randn(rows, 3, 16, 16)),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_batches_of_4_7_and_1_are_right_and_the_engine_runs_most(backend, device, name, train):
    made, given = MODELS[name]
    model = made().train(train).to(device)
    call = torch.compile(model, backend=backend)
    for rows in (4, 7, 1):
        workload = Workload(model=model, args=(given(rows).to(device),))
        golden = make_golden(workload, train=train)
        with golden.context():
            proof = golden.judge(observe(call, golden.at(workload), train=train))
        assert proof.passed, (rows, proof.worst)
    records = compile_log.records()
    kinds = {"forward", "backward"} if train else {"inference"}
    if not kinds <= set(backend.graph_kinds):
        assert {x.why for x in records} == {f"{x} graph: {backend.name} takes none" for x in kinds}
        assert all(x.fell_back and x.ran == "eager" for x in records)
        return
    assert not [x for x in records if x.fell_back]
    for record in records:
        assert record.owned >= (0.5 if train else 0.8) * record.nodes, record.why
    assert {x.why.partition(" ")[0] for x in records} == kinds


def test_frozen_weights_are_right(backend, device):
    model, x = Convolving().eval().to(device), torch.randn(2, 3, 16, 16, device=device)
    with torch.no_grad():
        made = torch.compile(model, backend=backend, options={"freeze": True})(x)
    torch.testing.assert_close(made, model(x), rtol=1e-4, atol=1e-5)


def test_bfloat16_is_refused_in_one_line(backend, device):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(lambda x: x * 2, backend=backend)(torch.ones(3, device=device).bfloat16())
    said = f"{backend.__name__} computes in float32, and this graph in bfloat16"
    assert said in str(caught.value)


def test_what_is_returned_is_kept(backend, device):
    call = torch.compile(lambda x: x * 2, backend=backend)
    first = call(torch.ones(64, device=device))
    call(torch.zeros(64, device=device))
    assert first.eq(2).all()
    first.add_(1)
    assert call(torch.ones(64, device=device)).eq(2).all()


SMALL = {
    "booleans": lambda x: ((x > 0).cumsum(1), (x > 0) * (x < 1), x.any(1)),
    "integers": lambda x: x.long() ** 2,
    "elu": F.selu,
    "copies": lambda x: (x.clone(), x.clone() * 1),
    "part": lambda x: x.flatten()[3:].sum() + x,
    "pooling": lambda x: F.avg_pool1d(x, 4, 3, ceil_mode=True),
    "largest": lambda x: F.max_pool1d(x, 4, 3, ceil_mode=True),
    "padding": lambda x: F.pad(x, (-1, 2)),
    "no padding": lambda x: F.pad(x, ()) + 1,
    "three dimensions": lambda x: F.conv3d(x.view(1, 1, 4, 2, 7), x.new_ones(1, 1, 2, 2, 2)),
    "roll": lambda x: x.roll(2, 0) + F.gelu(x, approximate="tanh"),
    "variance": lambda x: (x.var(), x.std(), *torch.var_mean(x), x.var(1, correction=2)),
    "counting": lambda x: (torch.arange(3.0, device=x.device), x * 2),
    "powers": lambda x: (x.round() ** x.round(), (-2.0) ** x.round(), torch.zeros_like(x) ** -1),
    "source": lambda x: scattered(x, torch.arange(1, 3, device=x.device)[:, None].expand(-1, 9)),
}


def scattered(x, rows):
    """Scatter of a source that is larger than its index, in each of torch's ways."""
    return (
        x.exp().scatter(0, rows, -x),
        x.exp().scatter_add(0, rows, x),
        x.exp().scatter_reduce(0, rows, x, "amax"),
    )


@pytest.mark.parametrize("name", SMALL)
def test_small_functions_that_an_engine_had_wrong_are_right(backend, device, name):
    x = torch.randn(4, 14, device=device)
    kept = x.clone()
    made = torch.compile(SMALL[name], backend=backend)(x)
    torch.testing.assert_close(made, SMALL[name](x))
    for one in made if isinstance(made, tuple) else ():
        one.zero_()
    assert torch.equal(x, kept)


def test_sums_at_many_repeated_indices_are_right(backend, device):
    rows = torch.randint(0, 100, (4096,), device=device)
    added = torch.randn(4096, 64, device=device)

    def summed(added):
        zeros = added.new_zeros(100, 64)
        return zeros.index_put((rows,), added, accumulate=True), zeros.index_add(0, rows, added)

    made = torch.compile(summed, backend=backend)(added)
    torch.testing.assert_close(made, summed(added), rtol=1e-4, atol=1e-4)


def written_from_the_end(x, i):
    y = x * 2
    y[:, -1] = x[:, 0].sin()
    y[-1, -5:-2] = x[0, :3].sin()
    y[:, i] = x[:, :3].cos()
    return y + 1


FROM_THE_END = {
    "numbers": lambda x, _: (x[-1] * 2, x[:, -1] + 1, x.sin()[-2] + 1, x[:, -3:-1] + 1),
    "rows": lambda x, i: (x[i] * 1.5, x[:, i] * 1.5, x.sin().take(i) + 1),
    "elements": lambda x, i: (x[i, i] * 1.5, x.view(4, 7, 2)[i, :, i - 1] * 1.5),
    "narrow": lambda x, i: x.sin()[i.int()] * 1.5,
    "written": written_from_the_end,
    "put": lambda x, i: x.exp().index_put((i,), x[:3].sin()) * 2,
    "added": lambda x, i: x.exp().index_put((i, i), x[0, :3].sin(), accumulate=True) * 2,
}


@pytest.mark.parametrize("name", FROM_THE_END)
def test_indices_that_count_from_the_end_are_right(backend, device, name):
    if (backend.name, name) == ("backbay_onnxruntime", "narrow"):
        pytest.skip("ONNX has no such indices, and says so")
    x = torch.randn(4, 14, device=device)
    indices = torch.tensor([1, -1, 0], device=device)
    made = torch.compile(FROM_THE_END[name], backend=backend)(x, indices)
    torch.testing.assert_close(made, FROM_THE_END[name](x, indices))


def test_gradients_of_what_is_read_from_the_end_are_right(backend, device):
    def read(x, i):
        return (x[i, i] * x[i, 0]).sum() + (x[-1] * x[0]).sum() + x[:, -1].sin().sum()

    x = torch.randn(4, 14, device=device, requires_grad=True)
    indices = torch.tensor([1, -1, 0], device=device)
    made = torch.compile(read, backend=backend)(x, indices)
    (wanted,) = torch.autograd.grad(read(x, indices), x)
    torch.testing.assert_close(torch.autograd.grad(made, x)[0], wanted)


def test_the_last_of_rows_whose_number_changes_is_read(backend, device):
    def last(x, i):
        return x[-1] * 2, x[i] * 1.5

    call = torch.compile(last, backend=backend, dynamic=True)
    indices = torch.tensor([1, -1, 0], device=device)
    for rows in (4, 7):
        x = torch.randn(rows, 14, device=device)
        torch.testing.assert_close(call(x, indices), last(x, indices))


@pytest.mark.parametrize("more", [0, -6])
def test_padding_by_a_size_that_changes_is_right(backend, device, more):
    def padded(x):
        return F.pad(x, (0, x.shape[0] + more)) * 2

    call = torch.compile(padded, backend=backend, dynamic=True)
    for rows in (4, 7):
        x = torch.randn(rows, 6, device=device)
        torch.testing.assert_close(call(x), padded(x))


@pytest.mark.parametrize("name", ENGINES)
def test_the_manifest_says_what_the_class_does_and_importing_imports_no_engine(name):
    (listed,) = [x for x in MANIFEST["backend"] if x["name"] == f"backbay_{name}"]
    made = adapter(name)
    assert made.__name__ == listed["name"]
    declared = made.__backbay_details__()
    options = {x.name: (x.type, x.default, x.help) for x in declared["options"]}
    stated = {k: (v["type"], v["default"], v["help"]) for k, v in listed["options"].items()}
    assert options == stated
    spec = default_registry.spec(f"backbay_{name}")  # the rest is in the core's catalogue
    assert {x.name for x in spec.options} == set(options)
    assert spec.traits.mode is declared["traits"].mode
    assert spec.traits.devices == tuple(made.devices)
    assert list(spec.traits.dtypes) == [str(x).removeprefix("torch.") for x in made.dtypes]
    assert made.engine in spec.requires.distributions
    assert f"[{extra(name)}]" in spec.install


def test_every_engine_has_an_extra_an_entry_point_and_a_test():
    here = metadata.distribution("backbay-adapters")
    extras = set(here.metadata.get_all("Provides-Extra")) - {"all"}
    names = {x.name for x in here.entry_points.select(group="torch_dynamo_backends")}
    assert names == {f"backbay_{x}" for x in ENGINES}
    assert extras == {extra(x) for x in ENGINES}
    assert {x["name"] for x in MANIFEST["backend"]} == names
