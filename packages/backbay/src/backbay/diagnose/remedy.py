"""One remedy, as it is carried out. No torch here: it travels to the process that compiles."""

from typing import Any

import msgspec


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What is changed to try it."""

    name: str
    settings: dict[str, Any] = {}
    """Of torch._dynamo.config; functions by their names."""
    dynamic_sources: str = ""
    """Of torch.compiler.config: what is dynamic from the beginning, by torch's names."""
    mark: bool = False
    """Whether the batch is marked as dynamic."""
    through: bool = False
    """Whether torch gave a function of the model up: it is compiled through another that calls it,
    since torch never tries that function again."""
    channels_last: bool = False
    matmul_precision: str = ""
    """For torch.set_float32_matmul_precision."""
    arm: dict[str, Any] = {}
    """What of the arm is changed: backend, mode, options, scope."""
    dynamic: bool | None = None
    calls_again: bool = False
    """Whether it is about what is compiled again: all calls of the explanation are made."""
    unfit: str = ""
    """Why it can't be tried here."""
