"""Kernels on GPUs that they were not measured on are left alone, unless they are asked for."""

import pytest

torch = pytest.importorskip("torch")

from backbay_optimizer.kernels import elsewhere  # noqa: E402
from backbay_optimizer.kernels.elsewhere import used_elsewhere  # noqa: E402

X = torch.ones(4, 3)


def test_kernels_take_a_place_where_nobody_measured_them(monkeypatch):
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: False)
    assert 'options={"tune": "full"} measures it' in (elsewhere.unmeasured(X) or "")
    with used_elsewhere(lambda plan, _: plan) as now:
        assert not now.asked
        assert elsewhere.unmeasured(X) is None
        assert now.asked
    assert elsewhere.unmeasured(X) is not None
    monkeypatch.setattr(elsewhere, "_is_measured", lambda _: True)
    assert elsewhere.unmeasured(X) is None


@pytest.mark.parametrize(
    ("capability", "searched"), [((9, 0), False), ((8, 0), True), ((10, 0), True)]
)
def test_a_measured_gpu_or_a_cpu_is_elsewhere_for(capability, searched, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    with torch._subclasses.FakeTensorMode():
        assert elsewhere._is_elsewhere(torch.empty(2, device="cuda")) is (capability != (9, 0))
    assert not elsewhere._is_elsewhere(X)


def test_a_number_that_varies_is_taken_for_one():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with torch._subclasses.FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(X)
        assert elsewhere._is_symbolic(x)
        assert elsewhere._is_symbolic(x.shape[0])
    assert not any(map(elsewhere._is_symbolic, (X, X.shape[0], 0.5, "silu", None)))
