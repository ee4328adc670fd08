"""What the class of a backend declares must fit together: said where the class is written."""

from collections.abc import Iterator
from typing import Any

from backbay.errors import InputError
from backbay.kit.passes import Pass

INDUCTOR = "inductor"
LEVELS = ("torch", "aten")
PARTITIONERS = ("min_cut", "default")


def check_declared(cls: type) -> None:
    """Check what a subclass of ``Backend`` declares.

    Raises:
        InputError: it can't work; the first reason is said.
    """
    problem = next(_problems(cls), None)
    if problem is not None:
        raise InputError(f"{cls.__name__}: {problem}")


def _problems(cls: Any) -> Iterator[str]:
    if cls.level not in LEVELS:
        yield f"level is 'torch' or 'aten', not {cls.level!r}"
    if cls.partitioner not in PARTITIONERS:
        yield f"partitioner is 'min_cut' or 'default', not {cls.partitioner!r}"
    for strange in (x for x in cls.passes if not isinstance(x, Pass)):
        yield f"{strange!r} is no pass: decorate it with @graph_pass"
    for one in (x for x in cls.passes if x.level.startswith("inductor.")):
        if cls.codegen != INDUCTOR:
            yield f"{one.name} runs inside Inductor, and codegen is not it"
    if cls.compile is not None and cls.level == "torch":
        for one in (x for x in cls.passes if x.level != "torch"):
            yield (
                f"{one.name} runs after AOTAutograd, and compile() is to get Dynamo's graph, which "
                "is before it: set level = 'aten'"
            )
    if cls.supports is not None and (cls.compile is None or cls.level != "aten"):
        yield (
            "supports says which regions of a functional graph compile() gets: define "
            "compile(self, graph_module, example_inputs), and set level = 'aten'"
        )
