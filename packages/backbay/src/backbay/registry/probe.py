"""Does a backend really load and compile here? Tried in a process of its own, which may be lost.

A plugin that crashes, hangs, ends its process, prints, or initialises CUDA does so in a child that
has a time limit; what was found out is kept on disk. This file imports no torch.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from backbay.cache import Untrusted, cache_folder, read_cached, write_cached
from backbay.errors import InputError
from backbay.registry.distributions import required_name
from backbay.registry.registry import Registry
from backbay.registry.spec import BackendSpec
from backbay.session import Lost, ProcessClient, Service
from backbay.session.client import signal_name
from backbay.session.interrupts import uninterrupted

_KINDS = {"torch": 1, "import": 2, "target": 2, "factory": 2}
"""The first word of ``ProbeRequest.load``, and how many parts follow it."""

_FORMAT = 1  # of a kept result; a new number forgets the old ones
_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "PYTHONPATH")
_CRASHES = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP"}
"""What a process does to itself; other signals come from outside, and may not come again."""

_MOST_OUTPUT = 64 * 2**20  # bytes
_MOST_FINDINGS = 2**20  # bytes
_TAIL = 2_000  # characters
_MOST_OF_A_REASON = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What to try."""

    name: str
    """The backend's name, for messages."""

    load: str
    """How to get it: ``torch:NAME`` (torch looks the name up), ``import:MODULE:NAME`` (the module
    is imported before that), ``target:module:attribute`` (the attribute is the backend) or
    ``factory:module:attribute`` (what it returns when called without arguments is the backend)."""

    device: str = "cpu"
    """The device type that the trial function is compiled for."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Passed as ``torch.compile(options=...)`` where not empty; what JSON can carry."""

    key: tuple[str, ...] = ()
    """What else the result depends on: distribution, version, torch's version, driver, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What became of it.

    ``passed`` says that the backend loads, compiles and runs a small function here. It does not
    say that its results are right: they are only kept from being something else altogether.
    """

    passed: bool
    """Whether every stage was passed."""

    stage: str
    """The stage that failed, or ``done``: ``start`` (torch itself, or eager on the device),
    ``import``, ``call`` (of a factory), ``compile``, ``run`` (of what was compiled), ``compare``
    (with eager, at 1e-2 of the largest value)."""

    reason: str
    """The cause in one line, 300 characters at most; never empty."""

    import_ms: float | None
    """Milliseconds to load it, with torch, ``torch._dynamo`` and torch's list of backends already
    loaded; ``None``, as in the next three, where it did not load."""

    modules: int | None
    """Modules that loading it added to ``sys.modules``."""

    rss_mb: float | None
    """Resident memory that loading it added, in units of 2**20 bytes."""

    initialised_cuda: bool | None
    """Whether loading it initialised CUDA, by torch or in the driver: such a process can't fork."""

    output: str
    """The last 2,000 characters of what the child printed, standard output and error together."""

    when: str
    """When it was tried, ISO 8601, UTC."""

    cached: bool = False
    """Whether this was found out earlier, and read from disk."""

    refused: str = ""
    """Which file or folder was not believed, why, and what to do; empty where none was refused."""


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """What the process is asked, once."""

    what: ProbeRequest
    findings: str
    """Path of the file that it appends to."""
    seconds: float


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag="probed"):
    """It came to an end; what it found is in the file."""


SERVICE = Service[Probe, Probed]("backbay.registry.probe_handler:ProbeHandler", {Probe: Probed})


def probe(
    request: ProbeRequest,
    *,
    seconds: float = 120.0,
    fresh: bool = False,
    cache: Path | None = None,
) -> ProbeResult:
    """Try a backend in a child process, or return what an earlier try found out.

    Args:
        request: the backend and how to load it.
        seconds: how long the child may take, ``import torch`` included; then it is killed with
            every process that it started.
        fresh: whether to try again where a result is kept.
        cache: the folder of kept results; default: ``probes`` in ``BACKBAY_CACHE``, or in the
            user's cache folder. What may pass by itself is not kept: a time-out, a kill from
            outside, a failure of torch or of the device. What others may have written is not
            believed.

    Raises:
        InputError: ``load`` has none of the four forms, or JSON can't carry the options.
    """
    path = (cache or cache_folder() / "probes") / f"{probe_key(request)}.json"
    refused = ""
    try:
        kept = None if fresh else read_cached(path, ProbeResult)
        if kept is not None:
            return dataclasses.replace(kept, cached=True)
    except Untrusted as error:
        refused = str(error)
    result, lasting = _try(request, seconds)
    try:
        if lasting:
            write_cached(path, result)
        else:
            path.unlink(missing_ok=True)
    except Untrusted as error:
        refused = refused or str(error)
    except OSError:
        pass  # a home that can't be written is no reason to fail
    return dataclasses.replace(result, refused=refused)


def probe_key(request: ProbeRequest) -> str:
    """Return the name under which a result is kept: a SHA-256 of what it depends on.

    That is the request, this Python, and the environment variables that select a GPU or change
    the import path. What lies on that path is not looked at: ``request.key`` has to name it.

    Raises:
        InputError: ``load`` has none of the four forms, or JSON can't carry the options.
    """
    kind, *parts = request.load.split(":")
    if len(parts) != _KINDS.get(kind) or not all(parts):
        raise InputError(
            f"backend {request.name!r}: load={request.load!r} is none of torch:NAME, "
            "import:MODULE:NAME, target:module:attribute and factory:module:attribute"
        )
    environment = {name: os.environ.get(name) for name in _ENVIRONMENT}
    facts = [_FORMAT, platform.python_version(), sys.prefix, environment, request]
    try:
        text = msgspec.json.encode(facts, order="deterministic")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"backend {request.name!r}: its options can't be passed to another process: {error}"
        ) from error
    return hashlib.sha256(text).hexdigest()


def _try(request: ProbeRequest, seconds: float) -> tuple[ProbeResult, bool]:
    """Return the result, and whether it is worth keeping."""
    # What a killed process leaves behind may still be written to while it is cleaned up.
    with tempfile.TemporaryDirectory(prefix="backbay-probe-", ignore_cleanup_errors=True) as name:
        findings = Path(name) / "findings"
        findings.touch()
        lost, output = _ask(Probe(what=request, findings=str(findings), seconds=seconds))
        facts = _facts(findings)
    if facts.get("ended"):  # who closed every descriptor has no other way to say so
        lost = None
    reason, lasting = (facts.get("reason", ""), True) if lost is None else _loss(lost)
    printable = "".join(x if x.isprintable() else " " for x in reason).strip()
    result = ProbeResult(
        passed=lost is None and facts["stage"] == "done",
        stage=facts["stage"],
        reason=printable[:_MOST_OF_A_REASON] or "no reason was given",
        import_ms=facts.get("import_ms"),
        modules=facts.get("modules"),
        rss_mb=facts.get("rss_mb"),
        initialised_cuda=facts.get("initialised_cuda"),
        output=output[-_TAIL:],
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return result, facts["stage"] != "start" and lasting


def _ask(asked: Probe) -> tuple[Lost | None, str]:
    """Return how the child was lost, if it was, and the end of what it printed."""
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 ("" is the cwd)
    with contextlib.ExitStack() as ending:
        try:
            with uninterrupted():
                client = ProcessClient(SERVICE, {}, path=path, most_printed=_MOST_OUTPUT)
                ending.callback(client.end)
            client.ask(asked, timeout_s=asked.seconds)
        except Lost as lost:
            return lost, lost.printed
        client.end()
        return None, client.printed()


def _loss(lost: Lost) -> tuple[str, bool]:
    """Return why a child did not answer, and whether it would happen again, as far as one knows."""
    if lost.too_much_printed:
        return f"it printed more than {_MOST_OUTPUT >> 20} MiB", True
    code = lost.exit_code
    if code is None:
        return lost.reason, False
    if code < 0:
        name = signal_name(-code)
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{hint}", name in _CRASHES
    last = next((line for line in reversed(lost.printed.splitlines()) if line.strip()), "")
    said = f"; it last printed: {last.strip()}" if last else ""
    return f"its process ended with exit code {code}{said}", True


def _facts(findings: Path) -> dict[str, Any]:
    """Return what the child has found so far; a later fact replaces an earlier one of its name."""
    facts: dict[str, Any] = {"stage": "start"}
    with contextlib.suppress(OSError), findings.open("rb") as file:
        for line in file.read(_MOST_FINDINGS).splitlines():
            with contextlib.suppress(ValueError, TypeError):  # printed into it, or half a line
                facts.update(json.loads(line))
    return facts


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
    load = _how(spec)
    if load is None:
        return None
    request = ProbeRequest(
        name=spec.name,
        load=load,
        device=device or _device(registry, spec),
        key=_key(registry, spec),
    )
    return probe(request, seconds=seconds, fresh=fresh)


def _how(spec: BackendSpec) -> str | None:
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
    lines = spec.requires.distributions
    needs = (registry.environment.installed.find(required_name(line)) for line in lines)
    return (
        str(origin),
        str(spec.target),
        *(f"{x.name} {x.version}" for x in needs if x is not None),
        *(f"{name} {build.get(name)}" for name in ("__version__", "cuda", "hip", "xpu")),
    )
