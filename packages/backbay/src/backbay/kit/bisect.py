"""Which pass is the bad one: torch's compiler bisector, told of the kit's passes.

Torch's bisector knows only its own backends and what is in them, and has no way to add one. What
it has is a setting that keeps a custom backend in Inductor's place while it bisects "inductor". So
each pass of the kit asks, before it runs, as one of Inductor's own at the same place would, and is
counted and named among them, whatever code generator comes after.
"""

from collections.abc import Callable
from typing import Any

SUBSYSTEMS: dict[str, str] = {
    "torch": "pre_grad_passes",
    "inductor.pre_grad": "pre_grad_passes",
    "inductor.joint_pre": "joint_graph_passes",
    "inductor.joint_post": "joint_graph_passes",
    "aten": "post_grad_passes",
    "inductor.post_grad_pre": "post_grad_passes",
    "inductor.post_grad": "post_grad_passes",
}
"""Level to the part of Inductor that the bisector counts it in."""

KEEP = "test_configs.bisect_keep_custom_backend_for_inductor"
"""Torch's setting, since 2.11: a backend that is an object stays while "inductor" is bisected."""


def left_out(name: str, level: str) -> bool:
    """Whether a bisection that is going on wants a pass left out, this time."""
    from torch._inductor.compiler_bisector import (  # noqa: PLC0415 (few compilations are bisected)
        CompilerBisector,
    )

    return CompilerBisector.disable_subsystem(
        "inductor", SUBSYSTEMS[level], lambda: f"pass {name} at level {level}"
    )


def bisect(works: Callable[[], bool]) -> Any:
    """Find what makes a compiled function wrong: a pass of the kit's, one of Inductor's, or else.

    ::

        def works():
            compiled = backbay.compile(f, backend="my_backend")
            return torch.allclose(compiled(x), f(x))

        print(bisect(works).debug_info)  # pass my_pass at level torch

    Args:
        works: compiles and says whether the result is right. It is called again and again, each
            time after ``torch.compiler.reset()``. The backend must be given to torch.compile as an
            object, as `backbay.compile` does: torch replaces one that is given by name.

    Returns:
        Torch's ``BisectionResult``: ``subsystem``, ``bisect_number`` and ``debug_info``, which
        names the pass; ``None`` if nothing was wrong. It prints how it goes, as torch's bisector.
    """
    import torch  # noqa: PLC0415 (as above)
    from torch._inductor import config  # noqa: PLC0415 (as above)
    from torch._inductor.compiler_bisector import CompilerBisector  # noqa: PLC0415 (as above)

    def run() -> bool:
        torch.compiler.reset()
        return works()

    with config.patch({KEEP: True}):
        return CompilerBisector.do_bisect(run)
