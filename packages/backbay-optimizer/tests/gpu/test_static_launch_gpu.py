"""In the next process our kernels are ready to be launched, and Triton is not asked for them."""

import textwrap

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="on others the kernels are not used unasked",
    ),
]

PROGRAM = """
    from unittest import mock
    import torch
    import triton
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.triton_bundler import TritonBundler
    from backbay_optimizer.kernels import max_pool

    max_pool.PAYS_FROM = 0
    if torch._inductor.config.compile_threads > 1:
        AsyncCompile.wait_pool_ready()
    names, load = [], TritonBundler.load_autotuners

    def loaded(autotuners):
        found = load(autotuners)
        names.extend(found)
        return found

    torch.manual_seed(0)
    conv = torch.nn.Conv2d(8, 64, 3, device="cuda", dtype=torch.bfloat16)
    model = torch.nn.Sequential(conv, torch.nn.MaxPool2d(3, 2, 1)).to(
        memory_format=torch.channels_last
    )
    x = torch.randn(2, 8, 32, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(model, backend="backbay", options={options})
    with (
        mock.patch.object(TritonBundler, "load_autotuners", loaded),
        mock.patch("triton.compile", wraps=triton.compile) as asked,
    ):
        for _ in range(3):
            ours = torch.autograd.grad(compiled(x).sum(), x)[0]
    wanted = torch.autograd.grad(model(x).sum(), x)[0]
    torch.testing.assert_close(ours, wanted, rtol=2e-2, atol=2e-2)
    print(asked.call_count, *sorted(x for x in names if x.startswith("max_pool")))
"""


@pytest.fixture
def run(run_python, tmp_path, monkeypatch):
    """Return how often this process asked Triton, and the kernels of ours that it had ready."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))

    def once(threads, **options):
        monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
        program = textwrap.dedent(PROGRAM.format(options=options))
        asked, *names = run_python(program).stdout.split()
        return int(asked), [x.rsplit("_", 1)[0] for x in names]

    return once


@pytest.mark.parametrize(("threads", "graphs"), [(1, False), (1, "auto"), (4, "auto")])
def test_a_process_asks_triton_for_what_an_earlier_one_compiled(run, graphs, threads):
    asked, names = run(threads, cuda_graphs=graphs)
    assert bool(asked) == (threads == 1)  # or others were
    assert not names
    asked, names = run(threads, cuda_graphs=graphs)
    assert names == ["max_pool_backward_kernel", "max_pool_kernel"]
    assert not asked


def test_it_cannot_be_turned_off_later(run):
    for _ in range(2):
        asked, names = run(1, static_launch_user_defined_triton_kernels=False)
        assert asked
        assert not names
    run(1)
    assert run(1)[1]
    assert not run(1, static_launch_user_defined_triton_kernels=False)[1]
