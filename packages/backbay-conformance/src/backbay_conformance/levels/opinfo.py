"""Torch's own data bases of operators, modules and optimizers: the one file that reads them.

They stand in ``torch.testing._internal``, which is private and changes. So nothing else here
imports it, ``tests/test_opinfo.py`` holds their sizes to what was counted for each
version of torch, and where they cannot be read the suite's own few operators (`floor`) stand in.
"""

import functools
import importlib
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from backbay.errors import InputError
from backbay.proof import Workload
from backbay_conformance.case import NotRunnable
from backbay_conformance.subject import as_module

Source = Literal["operators", "higher_order", "custom_operators", "autograd_functions"]

_WHERE: Mapping[Source, tuple[str, str]] = {
    "operators": ("common_methods_invocations", "op_db"),
    "higher_order": ("hop_db", "hop_db"),
    "custom_operators": ("custom_op_db", "custom_op_db"),
    "autograd_functions": ("autograd_function_db", "autograd_function_db"),
}

_UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators whose results hold whatever was in memory: they are filled before they are compared."""
_OUT_OF_REACH: Mapping[str, str] = {
    "jiterator": "a jiterator kernel is compiled by CUDA's run time, and no compiler sees it",
    "torch.ops.aten._flash_attention_forward": "it returns the state of a random generator",
    "torch.ops.aten._efficient_attention_forward": "it returns the state of a random generator",
}
"""Operators that say nothing of a backend, by the beginning of their name, and why."""

_SEEDING = "wrapper_set_seed"
"""Torch's helper that seeds around a call; looked up by name in the data base's functions."""


class DriftError(Exception):
    """The private data bases are not where they were, or not as they were."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One call of an operator: the function, and inputs that it takes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def workload(self) -> Workload:
        """Return it as what is proven; only the inputs that require grad are given one."""
        module = as_module(self.function)
        return Workload(module, self.args, self.kwargs, grad_as_given=True)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator, with inputs for it. Of torch's data base unless `floor` made it."""

    name: str
    """With its variant, such as ``linalg.pinv.hermitian``."""
    info: Any
    """Torch's OpInfo, or what has as much of its interface as is used here."""

    def dtypes(self, device: str) -> list[str]:
        """Return the names of the dtypes that it takes on a device type."""
        return sorted(_name(x) for x in self.info.supported_dtypes(device))

    def trains(self, device: str, dtype: str) -> bool:
        """Whether it has a gradient in a dtype on a device type."""
        if not self.info.supports_autograd:
            return False
        return dtype in {_name(x) for x in self.info.supported_backward_dtypes(device)}

    def trains_twice(self, device: str, dtype: str) -> bool:
        """Whether its gradient has one."""
        return self.trains(device, dtype) and bool(self.info.supports_gradgrad)

    @property
    def works_in_place(self) -> bool:
        """Whether there is a form that writes to its first argument."""
        return self.info.inplace_variant is not None

    @property
    def is_method(self) -> bool:
        """Whether there is a form that is a method of its first argument."""
        return self.info.method_variant is not None

    @property
    def out_of_reach(self) -> str | None:
        """Why it says nothing of a backend, if so."""
        found = (why for name, why in _OUT_OF_REACH.items() if self.name.startswith(name))
        return next(found, None)

    def samples(
        self, device: torch.device, dtype: str, *, requires_grad: bool = False
    ) -> Iterator[Sample]:
        """Make its sample inputs, one after the other, from the global random state.

        Raises:
            NotRunnable: the operator is out of reach, or its inputs cannot be made here.
        """
        for sample in self._made(device, dtype, requires_grad=requires_grad):
            yield self._sample(self.info.op, sample)

    def in_place_samples(self, device: torch.device, dtype: str) -> Iterator[Sample]:
        """Make the sample inputs of the form that writes to its first argument."""
        for sample in self._made(device, dtype):
            if not sample.broadcasts_input:
                yield self._sample(self.info.inplace_variant, sample)

    def method_samples(self, device: torch.device, dtype: str) -> Iterator[Sample]:
        """Make the sample inputs of the form that is a method."""
        for sample in self._made(device, dtype):
            yield self._sample(self.info.method_variant, sample)

    def noncontiguous_samples(
        self, device: torch.device, dtype: str, *, requires_grad: bool = False
    ) -> Iterator[Sample]:
        """Make the sample inputs with every tensor laid out with gaps."""
        for sample in self._made(device, dtype, requires_grad=requires_grad):
            yield self._sample(self.info.op, _laid_out_with_gaps(sample))

    def mistakes(self, device: torch.device) -> list[Sample]:
        """Make the inputs that it must refuse."""
        if self.info.error_inputs_func is None or self.out_of_reach:
            return []
        found = self.info.error_inputs_func(self.info, str(device))
        return [self._sample(self.info.op, x.sample_input) for x in found]

    def _made(
        self, device: torch.device, dtype: str, *, requires_grad: bool = False
    ) -> Iterator[Any]:
        if self.out_of_reach is not None:
            raise NotRunnable(self.out_of_reach)
        function = self.info.sample_inputs_func
        try:
            yield from function(self.info, str(device), getattr(torch, dtype), requires_grad)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise NotRunnable(f"its inputs cannot be made here: {said}") from error

    def _sample(self, function: Callable[..., Any], sample: Any) -> Sample:
        function, finish = _unseeded(function), sample.output_process_fn_grad
        if self.name in _UNDEFINED:
            function = _then(torch.Tensor.zero_, function)
        elif not _is_identity(finish):
            # What has no unique answer, an eigenvector's sign, is brought into a form that has.
            function = _then(finish, function)
        return Sample(
            function=function, args=(sample.input, *sample.args), kwargs=dict(sample.kwargs)
        )


def _then(finish: Callable[[Any], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        return finish(function(*args, **kwargs))

    return both


def _unseeded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the data base without the seeding that torch's tests put around it.

    Dynamo captures nothing of a function that seeds, and the suite repeats random draws itself.
    """
    if not isinstance(function, types.FunctionType) or _SEEDING not in function.__code__.co_names:
        return function
    free = {**function.__globals__, _SEEDING: lambda f, *args, **kwargs: f(*args, **kwargs)}
    copied = types.FunctionType(
        function.__code__, free, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _laid_out_with_gaps(sample: Any) -> Any:
    try:
        return sample.noncontiguous()
    except RuntimeError as error:  # a sparse tensor has no strides
        raise NotRunnable(f"its inputs cannot be laid out with gaps: {error}") from error


def _is_identity(finish: Callable[[Any], Any]) -> bool:
    return finish.__qualname__.startswith("SampleInput.__init__.")


@functools.cache
def operators(source: Source = "operators") -> Mapping[str, Operator]:
    """Return the operators of one of torch's data bases by name, in its order.

    Raises:
        InputError: a package that torch's data bases need is not installed.
        DriftError: the data base is not what this file was written for.
    """
    module, name = _WHERE[source]
    found: Sequence[Any] = _read(module, name)
    _check_interface(found, ("full_name", "sample_inputs_func", "supported_dtypes"), name)
    return {x.full_name: Operator(name=x.full_name, info=x) for x in found}


def modules() -> Sequence["ModuleEntry"]:
    """Return torch's modules; raises as `operators` does."""
    found = _read("common_modules", "module_db")
    _check_interface(found, ("module_inputs_func", "module_cls", "dtypes"), "module_db")
    return [ModuleEntry(name=x.name, info=x) for x in found]


def optimizers() -> Sequence["OptimizerEntry"]:
    """Return torch's optimizers; raises as `operators` does."""
    found = _read("common_optimizers", "optim_db")
    _check_interface(found, ("optim_cls", "optim_inputs_func", "supported_impls"), "optim_db")
    return [OptimizerEntry(name=x.optim_cls.__name__, info=x) for x in found]


@dataclass(frozen=True, kw_only=True)
class ModuleEntry:
    """One module class, with ways to make it and call it."""

    name: str
    info: Any

    @property
    def short(self) -> str:
        """The name without the package that nearly all share."""
        return self.name.removeprefix("nn.")

    def made(self, device: torch.device, dtype: torch.dtype, *, training: bool) -> Iterator[Sample]:
        """Make modules in the asked mode, each with a call of it."""
        inputs = self.info.module_inputs_func(
            self.info, device=device, dtype=dtype, requires_grad=True, training=training
        )
        for one in inputs:
            if one.forward_input is None:
                continue
            given, kwargs = one.constructor_input.args, one.constructor_input.kwargs
            module = self.info.module_cls(*given, **kwargs).to(device, dtype).train(training)
            call = one.forward_input
            if self.info.is_lazy:  # its parameters come into being with the first call
                module(*call.args, **call.kwargs)
            yield Sample(function=module, args=tuple(call.args), kwargs=dict(call.kwargs))


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry:
    """One optimizer class, with settings to make it with."""

    name: str
    info: Any

    @property
    def needs_closure(self) -> bool:
        """Whether a step is given a function that computes the loss."""
        return bool(self.info.step_requires_closure)

    @property
    def wants_sparse(self) -> bool:
        """Whether it takes sparse gradients only."""
        return bool(self.info.only_supports_sparse_grads)

    @property
    def takes_lists(self) -> bool:
        """Whether it can step all parameters at once, by operators on lists of tensors."""
        return "foreach" in self.info.supported_impls

    def settings(self, device: str) -> dict[str, dict[str, Any]]:
        """Return keyword arguments to make it with on a device type, by a name for them."""
        found = self.info.optim_inputs_func(device=torch.device(device))
        return {re.sub(r"[^A-Za-z0-9._]+", "-", x.desc) or "default": x.kwargs for x in found}

    def make(self, parameters: Any, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Make one."""
        made: torch.optim.Optimizer = self.info.optim_cls(parameters, **settings)
        return made


@functools.cache
def _read(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"torch.testing._internal.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is not None and not error.name.startswith("torch"):
            raise InputError(
                f"torch's operator data base needs the package {error.name!r}, which is not "
                "installed: run pip install expecttest, or run the levels load and contract only"
            ) from error
        raise DriftError(f"torch.testing._internal.{module} is not there: {error}") from error
    except (ImportError, AttributeError) as error:
        raise DriftError(f"torch.testing._internal.{module} is not as it was: {error}") from error


def _check_interface(found: Any, needed: Sequence[str], name: str) -> None:
    if not found:
        raise DriftError(f"{name} is empty")
    lacking = [x for x in needed if not hasattr(found[0], x)]
    if lacking:
        raise DriftError(f"entries of {name} have no {', '.join(lacking)}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
