"""How a workload is built, and where: what travels in a model's place. No torch here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from backbay.errors import InputError
from backbay.registry import Registry
from backbay.workloads.reference import check

if TYPE_CHECKING:
    from backbay.workloads.workload import Workload

Mode = Literal["infer", "train"]

DTYPES = ("float32", "bfloat16", "float16")


class WorkloadSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How to build a workload: the same setup gives bitwise the same model and inputs."""

    workload: str
    """The reference that the user gave."""
    size: str | None
    mode: Mode
    dtype: str
    """``float32``, ``bfloat16`` or ``float16``."""
    device: str
    seed: int
    batch: int | tuple[int, ...] | None = None
    """Rows of its inputs, where they are others than its own; several are called in turn."""

    @property
    def train(self) -> bool:
        """Whether a step is forward and backward."""
        return self.mode == "train"


def not_alike(workload: str) -> InputError:
    """Return the error of a workload that was built twice, and not alike."""
    return InputError(
        f"workload {workload!r} was not built alike twice: its parameters or inputs differ "
        "between processes. Draw all random numbers from torch's default generator."
    )


def model_name(workload: "Workload") -> str:
    """Return what a workload without a name is called: the class of its model, or the function."""
    from backbay.workloads.function_model import name_of  # noqa: PLC0415 (torch: a model is given)

    return name_of(workload.model)


def placed(workload: "Workload") -> tuple[str, str]:
    """Return the device and the dtype that a workload object has."""
    tensors = [*workload.model.parameters(), *workload.model.buffers()]
    tensors += [value for value in workload.args if hasattr(value, "is_floating_point")]
    if not tensors:
        return "cpu", DTYPES[0]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return str(tensors[0].device), str((floating or tensors)[0].dtype).removeprefix("torch.")


def checked_setup(
    workload: "str | Workload",
    *,
    mode: Mode,
    dtype: str,
    device: str | None,
    size: str | None,
    seed: int,
    registry: Registry,
) -> WorkloadSetup:
    """Return how a workload is built, checked as far as that goes without importing torch.

    Args:
        workload: a reference; or an object, which keeps its device and dtype.
        mode: what a step is.
        dtype: of parameters and inputs.
        device: as torch spells it; ``None``: the accelerator, if there is one.
        size: of built-in workloads.
        seed: of everything random.
        registry: knows which devices are here.

    Raises:
        InputError: there is no such workload, dtype or device.
    """
    given = not isinstance(workload, str)
    if not isinstance(workload, str):
        device, dtype = placed(workload)
        workload = workload.name or model_name(workload)
    device = device or registry.environment.default_device
    check_device(device, registry)
    if not given:
        check(workload, size)
        check_dtype(dtype)
    return WorkloadSetup(
        workload=workload, size=size, mode=mode, dtype=dtype, device=device, seed=seed
    )


def sizes(batch: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """Return a batch, or several, as a setup has it.

    Raises:
        InputError: one has no row, or there is none.
    """
    if batch is None:
        return None
    found = (batch,) if isinstance(batch, int) else tuple(dict.fromkeys(batch))
    wrong = [x for x in found if x < 1]
    if wrong or not found:
        raise InputError(f"a batch has at least one row, not {wrong[0] if wrong else 'none'}")
    return found if len(found) > 1 else found[0]


def batch_words(batch: int | tuple[int, ...]) -> str:
    """Return what a workload with another batch is called by, behind its name."""
    return f"batch {batch if isinstance(batch, int) else ', '.join(map(str, batch))}"


def check_dtype(dtype: str) -> None:
    """Check that workloads are built in a dtype.

    Raises:
        InputError: they are not.
    """
    if dtype not in DTYPES:
        raise InputError(f"no dtype {dtype!r}: choose one of {', '.join(DTYPES)}")


def check_device(device: str, registry: Registry) -> None:
    """Check that a device is here.

    Raises:
        InputError: it is not, or nobody knows it.
    """
    kind = device.partition(":")[0]
    reason = registry.environment.devices.get(kind)
    if reason is None:
        known = ", ".join(registry.environment.devices)
        raise InputError(f"no device {device!r}: choose one of {known}")
    if reason:
        raise InputError(f"device {device!r} can't be used: {reason}")
