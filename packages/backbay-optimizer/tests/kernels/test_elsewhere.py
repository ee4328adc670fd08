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


@pytest.mark.parametrize(("capability", "searched"), [((9, 0), False), ((8, 0), True)])
def test_a_measured_gpu_or_a_cpu_is_elsewhere_for(capability, searched, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    with torch._subclasses.FakeTensorMode():
        assert elsewhere._is_elsewhere(torch.empty(2, device="cuda")) is searched
    assert not elsewhere._is_elsewhere(X)
