"""Explains one workload: checks what is asked for, then watches it being compiled."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from backbay.decisions import Arm
from backbay.dependencies import check_installed
from backbay.errors import InputError
from backbay.explain.record import Explanation, Settings
from backbay.registry import BackendSpec, CompilerFn, Registry, default_registry
from backbay.registry.names import BackendName
from backbay.registry.requested import Requested
from backbay.registry.target import parse
from backbay.reporting.machine import versions
from backbay.workloads.reference import DEFAULT
from backbay.workloads.setup import checked_setup

if TYPE_CHECKING:
    from backbay.proof import Workload


def run(
    workload: "str | Workload" = DEFAULT,
    *,
    backend: BackendName | CompilerFn | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    train: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    size: str | None = None,
    seed: int = 0,
    again: bool = True,
    further_args: Sequence[Sequence[Any]] | None = None,
    registry: Registry = default_registry,
) -> Explanation:
    """Compile a workload in this process, watch, and say what happened.

    The workload runs once uncompiled, then compiled: a first time, the same again, and twice with
    another batch size where it can take one, or with the further inputs that are given. Dynamo is
    reset before and after: what this process compiled before compiles anew when it is next called.
    Inputs, buffers, gradients, numbers that modules count in attributes, and the random state are
    written back. Inductor's caches are left out: what comes from a cache runs no pass.

    Args:
        workload: a reference (``decoder``, ``hf:llama``, ``timm:resnet50``, ``file.py:function``,
            ``module:function``), or a `Workload` object.
        backend: a registered name, ``module:attribute``, ``file.py:attribute`` or a compiler
            function. Default: graphs are listed and run as they are; nothing is compiled.
        mode: as in torch.compile.
        options: as in torch.compile.
        dynamic: as in torch.compile.
        fullgraph: as in torch.compile; a graph break then raises.
        train: a step is forward and backward; else forward without gradients.
        dtype: ``float32``, ``bfloat16`` or ``float16``; a `Workload` object keeps the one that it
            has.
        device: as torch spells it; default: the accelerator if there is one. A `Workload` object
            stays where it is.
        size: of built-in workloads: ``tiny``, ``small`` or ``base``.
        seed: of parameters, inputs and everything random.
        again: whether to call it more than once, to see what is compiled again.
        further_args: positional inputs of further calls, in place of other batch sizes.
        registry: where names are looked up.

    Returns:
        What was seen. What the model or the backend raised is in its ``problem``.

    Raises:
        InputError: what was asked for does not exist or cannot run here.
    """
    check_installed("explain")
    setup = checked_setup(
        workload,
        mode="train" if train else "infer",
        dtype=dtype,
        device=device,
        size=size,
        seed=seed,
        registry=registry,
    )
    specs: list[BackendSpec] = []
    if isinstance(backend, str) and parse(backend) is None:
        specs = [registry.require(backend, setup.device.partition(":")[0])]
    # What JSON has: of another value, such as a pass, its repr.
    plain = msgspec.to_builtins(dict(options or {}), enc_hook=repr)
    Arm(backend="", options=plain)  # an option's name that can't be written is refused
    compiler_fn = _compiler_fn(backend, mode, options, registry)
    from backbay.explain.assembling import assembled  # noqa: PLC0415 (as late as can be: torch)
    from backbay.explain.functions import Function  # noqa: PLC0415 (likewise)
    from backbay.explain.running import WatchedRun  # noqa: PLC0415 (likewise)
    from backbay.kit.backend import Backend  # noqa: PLC0415 (likewise)
    from backbay.workloads.function_model import FunctionModel  # noqa: PLC0415 (likewise)
    from backbay.workloads.loading import build  # noqa: PLC0415 (likewise)

    built = build(setup) if isinstance(workload, str) else workload
    made_by = registry.lookup_backend(backend) if backend is not None else None
    watched = WatchedRun(
        workload=built,
        compiler_fn=compiler_fn,
        dynamic=dynamic,
        fullgraph=fullgraph,
        train=train,
        seed=seed,
    )
    watched.run(again=again, further_args=further_args)
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", None)
    settings = Settings(
        workload=built.name or setup.workload,
        backend=None if backend is None else str(name or type(backend).__name__),
        mode=setup.mode,
        dtype=setup.dtype,
        device=setup.device,
        seed=seed,
        compile_mode=mode,
        options=plain,
        dynamic=dynamic,
        fullgraph=fullgraph,
    )
    model = built.model
    return assembled(
        watched,
        function=Function.of(model.function) if isinstance(model, FunctionModel) else None,
        settings=settings,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        versions=versions(registry.environment, specs),
        kit=made_by if isinstance(made_by, Backend) else None,
        options=options or {},
    )


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
        asked = Requested(
            backend=backend, name=backend, mode=mode, options=options or {}, registry=registry
        )
        problems = asked.problems() if mode or options else ()
        if problems:
            raise InputError("; ".join(problems))
        return registry.get_backend(backend, mode=mode, options=options)
    if mode is None and options is None:
        return backend
    raise InputError("mode and options go with a backend's name: register the function first")
