"""Random options that must not change results beyond rounding."""

import random
from collections.abc import Mapping
from typing import Any

from backbay.registry import BackendSpec

INDUCTORS: Mapping[str, tuple[Any, ...]] = {
    "epilogue_fusion": (False, True),
    "prologue_fusion": (False, True),
    "pattern_matcher": (False, True),
    "shape_padding": (False, True),
    "split_reductions": (False, True),
    "reorder_for_locality": (False, True),
    "fallback_random": (True,),
    "permute_fusion": (False, True),
    "split_cat_fx_passes": (False, True),
    "efficient_conv_bn_eval_fx_passes": (False, True),
    "joint_graph_constant_folding": (False, True),
    "allow_buffer_reuse": (False, True),
    "inplace_buffers": (False, True),
    "layout_optimization": (False, True),
    "dce": (False, True),
    "comment_origin": (True,),
    "size_asserts": (False, True),
    "realize_reads_threshold": (1, 4, 16),
    "realize_opcount_threshold": (4, 30, 200),
    "max_fusion_size": (1, 2, 64),
    "aggressive_fusion": (False, True),
    "unroll_reductions_threshold": (1, 8),
    "combo_kernels": (False,),
}
"""Options of Inductor, read one by one: each says how the code is made, none what it computes.

Left out are those that change what is computed (``emulate_precision_casts``, ``force_disable``...),
what is looked up or tuned, and what needs other hardware."""
ON_CPU: Mapping[str, tuple[Any, ...]] = {
    "cpp.simdlen": (0, 1, None),
    "cpp.threads": (1, 2),
    "cpp.min_chunk_size": (1, 512),
    "cpp.fallback_scatter_reduce_sum": (False, True),
    "cpp.enable_loop_tail_vec": (False, True),
    "cpp.enable_grouped_gemm_template": (False,),
}
ON_CUDA: Mapping[str, tuple[Any, ...]] = {
    "triton.multi_kernel": (0, 1),
    "triton.persistent_reductions": (False, True),
    "triton.cooperative_reductions": (False, True),
    "triton.unique_kernel_names": (False, True),
    "triton.dense_indexing": (False, True),
    "triton.prefer_nd_tiling": (False, True),
    "triton.use_block_ptr": (False, True),
    "triton.codegen_upcast_to_fp32": (True,),
    "coordinate_descent_tuning": (False,),
}
OURS: Mapping[str, tuple[Any, ...]] = {"allow_reassociation": (False, True)}
"""Options of backends that ship with Backbay."""
_SOME = range(1, 6)


def choices(spec: BackendSpec | None, device: str) -> dict[str, tuple[Any, ...]]:
    """Return the options that may be drawn for a backend, with their values.

    Of what somebody else's options do to results nothing is known, except that their defaults,
    given by name, must change nothing.
    """
    if spec is None:
        return {}
    found = dict[str, tuple[Any, ...]]()
    if "inductor" in {spec.options, spec.further_options}:
        found |= _known_to_torch({**INDUCTORS, **(ON_CUDA if device == "cuda" else ON_CPU)})
    if isinstance(spec.options, tuple):
        for option in spec.options:
            if option.name in OURS:
                found[option.name] = OURS[option.name]
            elif option.default is not None:
                found[option.name] = (option.default,)
    return found


def drawn(seed: int, choices: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Draw some options with values; the same for one seed and one set of choices."""
    rng = random.Random(f"options {seed}")  # noqa: S311 (nothing secret)
    count = min(rng.choice(_SOME), len(choices))
    return {name: rng.choice(choices[name]) for name in sorted(rng.sample(sorted(choices), count))}


def _known_to_torch(choices: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Leave out what this version of torch does not have."""
    import torch._inductor.config as inductor  # noqa: PLC0415 (a second; only where it is asked)

    known = inductor.get_config_copy()
    return {name: values for name, values in choices.items() if name in known}
