"""Which of Inductor's kernels only copy: those for a GPU, on a machine without."""

import pytest
import torch

pytest.importorskip("triton")

TO_LAST = {"memory_format": torch.channels_last}


@pytest.mark.parametrize(
    ("program", "only"),
    [
        (lambda x: torch.ops.aten.clone(x, **TO_LAST), True),
        (lambda x: x.transpose(1, 2).reshape(2, -1), True),
        (lambda x: x.float(), True),
        (lambda x: torch.ops.aten.clone(x + 1, **TO_LAST), False),
        (lambda x: torch.ops.aten.clone(x.relu(), **TO_LAST), False),
        (lambda x: x.sum(1), False),
    ],
)
def test_work_is_taken_for_a_copy_or_a_copy_for_work(speed, program, only):
    copying, cuda_code, codes = speed("layout_copies"), speed("speed.cuda_code"), []

    def compile_(graph_module, inputs):
        codes.append(cuda_code.code_for_cuda(graph_module, inputs))
        return lambda *_: (torch.empty(0),)

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(program, backend=compile_)(torch.empty(2, 8, 4, 6, dtype=torch.bfloat16))
    (kernel,) = copying.kernels_in(codes[0])
    name, code = kernel
    assert name.startswith("triton_")
    assert copying.copies(name, {name: [code]}) is only


def test_one_name_of_a_copy_and_of_work_counts_as_either(speed):
    copying = speed("layout_copies")
    loaded = "def triton_(in_ptr0, out_ptr0):\n    tmp0 = tl.load(in_ptr0 + (x0), None)\n"
    copy = f"{loaded}    tl.store(out_ptr0 + (x0), tmp0, None)\n"
    work = f"{loaded}    tmp1 = tmp0 + 1\n    tl.store(out_ptr0 + (x0), tmp1, None)\n"
    with pytest.raises(ValueError, match="two kernels"):
        copying.copies("triton_", {"triton_": [copy, work]})
    assert copying.copies("triton_", {"triton_": [copy, copy]})
    gathered = copy.replace("(x0), None)\n    tl.store", "(x1 + 8 * tmp3), None)\n    tl.store")
    assert gathered != copy
    assert not copying.copies("triton_", {"triton_": [gathered]})
    upsampling = "triton_poi_fused__unsafe_index_1"
    assert not copying.copies(upsampling, {upsampling: [copy]})
    assert copying.copies("Memcpy DtoD (Device -> Device)", {})
    assert not copying.copies("ampere_bf16_gemm", {})
