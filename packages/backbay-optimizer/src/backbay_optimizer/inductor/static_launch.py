"""Backbay's Triton kernels are launched statically, and cached with their graph, as Inductor's are.

Torch launches kernels of Inductor's own from C, and its caches hold them ready for that. For those
that a user wrote, as ours are, each process asks Triton for each, and Triton up to 3.6 has a C
compiler build what launches them. A setting of torch's treats them alike, but is off by default,
does not reach the processes that kernels are compiled in, and fails for arguments that torch's
launcher does not know (``docs/upstream.md``).
"""

import ast
import contextlib
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from backbay_optimizer.inductor.patches import Patch

SETTING = "static_launch_user_defined_triton_kernels"
_LAUNCHER = "use_static_triton_launcher"
"""Another setting, which Inductor hands to the processes that kernels are compiled in."""
_USERS = "@triton_heuristics.user_autotune("
_SIGNATURE = re.compile(r"'signature': (\{.*?\})")
_OURS = re.compile(r"backbay_optimizer\.kernels\.\w+_device")
_KEYED = "unsafe_marked_cacheable_functions"
"""A setting that is part of the keys of Inductor's caches; nothing is called what is put in."""
_MARK = "static launch of Backbay's kernels"
_lock = threading.RLock()
"""Held while the setting is another one. Before 2.13 it is then, for all threads."""


def is_off(patches: Mapping[str, Any]) -> bool:
    """Return whether the caller turned it off, or this torch can't do it.

    Args:
        patches: Inductor's settings for a graph.
    """
    from torch._inductor import config  # noqa: PLC0415 (as late as Inductor)

    known = hasattr(config, SETTING) and hasattr(config, _LAUNCHER)
    # Not on AMD's, where nobody has tried it.
    if not known or patches.get(SETTING) is False or torch.version.hip is not None:
        return True
    with _lock, config.patch({SETTING: True}):
        return not getattr(config, SETTING)  # an environment variable has the last word


def marked(patches: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by which caches tell a graph apart from one without static launch."""
    from torch._inductor import config  # noqa: PLC0415 (as late as Inductor)

    return {**patches, _KEYED: {**(patches.get(_KEYED) or getattr(config, _KEYED)), _MARK: "1"}}


@contextlib.contextmanager
def static_launch() -> Iterator[None]:
    """Have our kernels launched statically whose code Inductor loads in the context."""
    from torch._inductor.async_compile import AsyncCompile  # noqa: PLC0415 (as late as Inductor)

    with _patch.held(AsyncCompile, "triton"):
        yield


def _selective(own: Any) -> Any:
    def triton(compiler: Any, name: str, source: str, *more: Any, **named: Any) -> Any:
        from torch._inductor import config  # noqa: PLC0415 (as late as Inductor)

        if _USERS not in source:
            return own(compiler, name, source, *more, **named)
        # In this process kernels of others are compiled here, too, and must not see the setting.
        with _lock:
            if not is_statically_launchable(source):
                return own(compiler, name, source, *more, **named)
            with config.patch({SETTING: True}):
                return own(_Compiler(compiler), name, source, *more, **named)

    return triton


_patch = Patch(_selective)


class _Compiler:
    """What Inductor compiles kernels with; other processes get the setting, too."""

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiler, name)

    def process_pool(self) -> "_Pool":
        return _Pool(self._compiler.process_pool())


class _Pool:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def submit(self, job: Any, *given: Any) -> Any:
        *_, settings = (None, *given)
        if isinstance(settings, dict) and _LAUNCHER in settings:
            given = (*given[:-1], {**settings, SETTING: True})
        return self._pool.submit(job, *given)


def is_statically_launchable(source: str) -> bool:
    """Return whether a kernel is one of Backbay's, and torch's launcher knows what it takes.

    Args:
        source: what Inductor writes for it.
    """
    found = _SIGNATURE.search(source)
    if found is None or not _is_ours(source):
        return False
    from torch._inductor.runtime import static_triton_launcher  # noqa: PLC0415 (as above)

    known = {*static_triton_launcher.StaticallyLaunchedTritonKernel.type_mappings(), "constexpr"}
    try:
        types = ast.literal_eval(found[1]).values()
    except (SyntaxError, ValueError):
        return False
    return all(isinstance(x, str) and (x in known or x.startswith("*")) for x in types)


def _is_ours(source: str) -> bool:
    from triton.runtime.jit import JITFunction  # noqa: PLC0415 (there is a kernel: it is here)

    modules = [module for name, module in sys.modules.items() if _OURS.fullmatch(name)]
    kernels = (x for y in modules for x in vars(y).values() if isinstance(x, JITFunction))
    # Inductor may give a kernel another name.
    return any(x.src.partition("(")[2].strip() in source for x in kernels)
