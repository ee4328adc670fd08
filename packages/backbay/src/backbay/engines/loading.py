"""``python -m backbay.engines.loading SECONDS NAME...``: try backends, in the environment of this.

It is how an engine that is catalogued as broken is tried, too: its error must be the one quoted.
"""

import sys

import msgspec

from backbay.engines.record import Loaded
from backbay.registry import Registry, default_registry
from backbay.registry.availability import matching, of_resolution
from backbay.registry.probe import try_out
from backbay.reporting.machine import versions


def loaded(registry: Registry, name: str, seconds: float) -> Loaded:
    """Try one backend in a child process, whatever the catalogue says of it."""
    resolution = registry.resolution(name)
    spec, here = resolution.spec, registry.environment
    availability = of_resolution(resolution, here)
    found = Loaded(
        backend=name,
        state=availability.state,
        reason=availability.reason,
        remedy=availability.remedy,
        versions=versions(here, [spec]),
    )
    if spec.origin.kind == "catalogue":
        return found  # pip installed something else
    tried = try_out(registry, spec, fresh=True, seconds=seconds)
    if tried is None:
        return found
    faults = matching((*spec.broken, *spec.limits), spec, here)
    quoted = any(text in tried.reason or text in tried.output for x in faults for text in x.errors)
    as_catalogued = tried.passed if availability.ready else quoted and not tried.passed
    return msgspec.structs.replace(
        found,
        works=tried.passed,
        error="" if tried.passed else tried.reason,
        as_catalogued=as_catalogued or (quoted and not tried.passed),
    )


if __name__ == "__main__":
    found = [loaded(default_registry, name, float(sys.argv[1])) for name in sys.argv[2:]]
    print(msgspec.json.encode(found).decode())  # noqa: T201 (who started it reads it)
