"""Explains one workload: checks what is asked for, then watches it being compiled."""

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backbay.dependencies import check_installed
from backbay.errors import InputError
from backbay.explain.record import Explanation, Settings
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.registry.target import parse
from backbay.reporting.machine import versions
from backbay.workloads.reference import DEFAULT, check
from backbay.workloads.setup import check_device, check_dtype, placed

if TYPE_CHECKING:
    from backbay.proof import Workload


def run(
    workload: "str | Workload" = DEFAULT,
    *,
    backend: str | CompilerFn | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    train: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    size: str | None = None,
    seed: int = 0,
    again: bool = True,
    registry: Registry = default_registry,
) -> Explanation:
    """Compile a workload in this process, watch, and say what happened.

    The workload runs once uncompiled, then compiled: a first time, the same again, and twice with
    another batch size where it can take one. Dynamo is reset before and after: what this process
    compiled before compiles anew when it is next called. Inputs, buffers, gradients, numbers that
    modules count in attributes, and the random state are written back. Inductor's caches are left
    out: what comes from a cache runs no pass.

    Args:
        workload: a reference (``decoder``, ``hf:llama``, ``timm:resnet50``, ``file.py:function``,
            ``module:function``), or a `Workload` object.
        backend: a registered name, ``module:attribute``, ``file.py:attribute`` or a compiler
            function. Default: graphs are listed and run as they are; nothing is compiled.
        mode: as in torch.compile.
        options: as in torch.compile.
        train: a step is forward and backward; else forward without gradients.
        dtype: ``float32``, ``bfloat16`` or ``float16``; a `Workload` object keeps the one that it
            has.
        device: as torch spells it; default: the accelerator if there is one. A `Workload` object
            stays where it is.
        size: of built-in workloads: ``tiny``, ``small`` or ``base``.
        seed: of parameters, inputs and everything random.
        again: whether to call it more than once, to see what is compiled again.
        registry: where names are looked up.

    Returns:
        What was seen. What the model or the backend raised is in its ``problem``.

    Raises:
        InputError: what was asked for does not exist or cannot run here.
    """
    check_installed("explain")
    if not isinstance(workload, str):
        device, dtype = placed(workload)
    device = device or registry.environment.default_device
    check_device(device, registry)
    if isinstance(workload, str):
        check(workload, size)
        check_dtype(dtype)
    spec = _spec(backend, device, registry)

    import torch  # noqa: PLC0415 (every mistake in the request has been found)

    from backbay.explain.running import WatchedRun  # noqa: PLC0415 (likewise)

    compiler_fn = _compiler_fn(backend, mode, options, registry)
    if isinstance(workload, str):
        from backbay.workloads import load  # noqa: PLC0415 (likewise)

        workload = load(
            workload,
            seed=seed,
            dtype=getattr(torch, dtype),
            device=torch.device(device),
            train=train,
            size=size,
        )
    made_by = registry.lookup_backend(backend) if backend is not None else None
    watched = WatchedRun(workload, compiler_fn, made_by, train=train, seed=seed)
    watched.run(again=again)
    settings = Settings(
        workload=workload.name or type(workload.model).__name__,
        backend=_name(backend),
        mode="train" if train else "infer",
        dtype=dtype,
        device=device,
        seed=seed,
    )
    return watched.explanation(
        settings,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        versions=versions(registry.environment, [spec] if spec is not None else []),
    )


def _spec(backend: str | CompilerFn | None, device: str, registry: Registry) -> BackendSpec | None:
    """Check that a named backend runs here, before anything is imported for it."""
    if not isinstance(backend, str) or parse(backend) is not None:
        return None
    return registry.require(backend, device.partition(":")[0])


def _compiler_fn(
    backend: str | CompilerFn | None,
    mode: str | None,
    options: Mapping[str, Any] | None,
    registry: Registry,
) -> CompilerFn | None:
    if backend is None:
        if mode is not None or options is not None:
            raise InputError("mode and options are a backend's: name one")
        return None
    if isinstance(backend, str):
        return registry.get_backend(backend, mode=mode, options=options)
    if mode is None and options is None:
        return backend
    raise InputError("mode and options go with a backend's name: register the function first")


def _name(backend: str | CompilerFn | None) -> str | None:
    if backend is None or isinstance(backend, str):
        return backend
    return str(getattr(backend, "__name__", type(backend).__name__))
