"""Probe what a name resolves to: from a spec to a request for ``probe.py``."""

from backbay.registry.probe import ProbeRequest, ProbeResult, probe
from backbay.registry.registry import Registry
from backbay.registry.spec import BackendSpec


def try_out(
    registry: Registry,
    spec: BackendSpec,
    *,
    device: str | None = None,
    fresh: bool = False,
    seconds: float = 120.0,
) -> ProbeResult | None:
    """Load a backend in a child process, compile a trial function with it, and measure.

    Args:
        registry: whose environment the result is valid for.
        spec: the backend.
        device: the device type to try; default: the accelerator that is here and that it takes,
            else ``cpu``.
        fresh: whether to try again what was tried before.
        seconds: time limit.

    Returns:
        The result; nothing for what only this process has.
    """
    load = _load(spec)
    if load is None:
        return None
    request = ProbeRequest(
        name=spec.name,
        load=load,
        device=device or _device(registry, spec),
        key=_key(registry, spec),
    )
    return probe(request, seconds=seconds, fresh=fresh)


def _load(spec: BackendSpec) -> str | None:
    if spec.loading == "torch" and spec.origin.kind == "torch":
        return f"torch:{spec.name}"
    if spec.target is None or spec.loading in {"removed", "object"}:
        return None
    if spec.loading == "import":
        return f"import:{spec.target}:{spec.alias_of or spec.name}"
    return f"{'factory' if spec.factory else 'target'}:{spec.target}"


def _device(registry: Registry, spec: BackendSpec) -> str:
    here = registry.environment.default_device
    if not spec.devices or here in spec.devices:
        return here
    usable = (x for x in spec.devices if not registry.environment.devices.get(x, "absent"))
    return next(usable, "cpu")


def _key(registry: Registry, spec: BackendSpec) -> tuple[str, ...]:
    build = registry.environment.torch_build
    origin = spec.origin
    needs = (registry.environment.installed.find(x) for x in spec.requires.distributions)
    return (
        str(origin),
        str(spec.target),
        *(f"{x.name} {x.version}" for x in needs if x is not None),
        *(f"{name} {build.get(name)}" for name in ("__version__", "cuda", "hip", "xpu")),
    )
