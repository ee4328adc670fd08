"""Tensors come out of a file as they went in, whatever their layout; forged files end nothing."""

import pytest
import torch
from safetensors.torch import save_file

from backbay.proof import evidence

DENSE = torch.eye(4)[:3]


def there_and_back(value, tmp_path):
    evidence.write_tensors({"x": value}, tmp_path / "given")
    return evidence.read_tensors(tmp_path / "given")["x"]


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4).t(),
        torch.randn(6, 8)[:, ::2],
        torch.randn(3, 1).expand(3, 4),
        torch.randn(8)[::2].unsqueeze(0).expand(3, 4),
        torch.arange(4)[::2][:1],  # one element: any stride is contiguous
        torch.randn(0, 3),
        torch.tensor(3.0),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3).to(torch.float8_e5m2),
        torch.tensor([True, False]),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}{x.stride()}",
)
def test_a_layout_is_lost(value, tmp_path):
    got = there_and_back(value, tmp_path)
    assert (got.shape, got.stride(), got.dtype) == (value.shape, value.stride(), value.dtype)
    wide = torch.complex64 if value.is_complex() else torch.float32
    assert torch.equal(got.to(wide), value.to(wide))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", sorted(evidence.SPARSE_LAYOUTS, key=str), ids=str)
def test_a_sparse_tensor_is_lost(layout, tmp_path):
    blocks = {"blocksize": (1, 2)} if "bs" in str(layout) else {}
    value = DENSE.to_sparse(layout=layout, **blocks)
    got = there_and_back(value, tmp_path)
    assert got.layout == layout
    assert torch.equal(got.to_dense(), DENSE)


def test_gaps_take_all_memory(tmp_path):
    """A file may claim any strides."""
    value = torch.empty(1).as_strided((2, 1), (0, 1))
    evidence.write_tensors({"x": value}, tmp_path / "given")
    raw = (tmp_path / "given").read_bytes()
    assert b"[0,1]" in raw
    (tmp_path / "given").write_bytes(raw.replace(b"[0,1]", b"[9,1]"))
    assert there_and_back(value, tmp_path).shape == (2, 1)
    strides = (1 << 40, 1)
    assert evidence._with_gaps(torch.ones(2, 1), strides).stride() == (1, 1)


def test_parts_that_are_no_sparse_tensor_are_read(tmp_path):
    value = DENSE.to_sparse()
    evidence.write_tensors({"x": value}, tmp_path / "given")
    raw = (tmp_path / "given").read_bytes()
    (tmp_path / "given").write_bytes(raw.replace(b"[3,4]", b"[1,1]"))
    with pytest.raises(evidence.InvalidEvidence):
        evidence.read_tensors(tmp_path / "given")
    save_file({"x": torch.ones(1)}, tmp_path / "given")
    with pytest.raises(evidence.InvalidEvidence):
        evidence.read_tensors(tmp_path / "given")
