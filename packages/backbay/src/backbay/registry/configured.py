"""A backend with its mode and options, as one object: the same one for the same request.

Dynamo guards on the backend's identity: a new object for every call to torch.compile means a new
compilation each, and after eight of them eager.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from backbay.causes import one_line
from backbay.errors import BackbayError, CompilationFailed
from backbay.registry.availability import shown
from backbay.registry.bridge import CONTRACT
from backbay.registry.returned import checked
from backbay.registry.spec import BackendSpec, CompilerFn
from backbay.registry.target import reference_of

if TYPE_CHECKING:
    from backbay.registry.registry import Registry


class ConfiguredBackend:
    """A compiler function with its mode and options; what ``get_backend`` returns.

    Equal to another of the same compiler function, mode and options, also after pickling.
    """

    def __init__(
        self,
        spec: BackendSpec,
        compiler_fn: CompilerFn,
        mode: str | None,
        options: dict[str, Any],
        *,
        restore: Callable[..., "ConfiguredBackend"],
        registry: "Registry",
    ) -> None:
        """Make one.

        Args:
            spec: the backend.
            compiler_fn: its compiler function.
            mode: as in torch.compile.
            options: likewise.
            restore: the function of a module that unpickling calls, in another process.
            registry: where a backend that compiles with it looks up its code generator.
        """
        self.spec = spec
        self.mode = mode
        self.options = options
        self._compiler_fn = compiler_fn
        self._restore = restore
        self._call: CompilerFn | None = None
        self._registry = registry

    @property
    def __name__(self) -> str:
        """What Dynamo shows in its errors."""
        return self.spec.name

    @property
    def compiler_name(self) -> str:
        """What Dynamo takes a wrapper's backend to be."""
        return self.spec.name

    @property
    def digest(self) -> str:
        """SHA-256 over the name, what provides it in which version, mode and options: for caches.

        It is the same in every process of the same installation.
        """
        origin = self.spec.origin
        parts = [
            *(self.spec.name, origin.kind, origin.distribution, origin.version, self.spec.target),
            *(origin.location, self.mode, self.options),
        ]
        text = json.dumps(parts, sort_keys=True, default=_stable)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def key(self) -> tuple[str, str | None, str]:
        """What it is found by again; options that JSON can't tell apart share one."""
        text = json.dumps(self.options, sort_keys=True, default=_stable)
        return self.spec.name, self.mode, text

    def __call__(self, graph_module: Any, example_inputs: Any, **given: Any) -> Any:
        """Compile a graph with the backend, as torch.compile would with this mode and options."""
        with self.explained(), self._registry.in_use():
            compiled = self._calling()(graph_module, example_inputs, **given)
        # Torch's own return tuples, and backends of the kit check what they made themselves.
        if self.spec.origin.kind == "torch" or hasattr(self._compiler_fn, "__backbay_details__"):
            return compiled
        return checked(compiled, self.spec.name)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Have errors name the backend, and what to do where the fault is a known one.

        Raises:
            CompilationFailed: something was raised in the context that Dynamo does not act on.
        """
        try:
            yield
        except Exception as error:
            if _is_dynamos(error):
                raise
            raise CompilationFailed(self._worded(error)) from error

    @property
    def __wrapped__(self) -> CompilerFn:
        """The compiler function: its signature is this one's."""
        return self._compiler_fn

    def __getattr__(self, name: str) -> Any:
        # Dynamo asks hasattr(backend, "reset") and the like: the backend's own answer counts.
        if name not in CONTRACT and name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        try:
            answering = self._calling()
        except Exception as error:
            # Dynamo asks every backend that it has seen at each reset: one that was never made
            # must not make all of them fail. A call says what is wrong with it.
            raise AttributeError(f"{self!r} has no {name!r}: {error}") from error
        return getattr(answering, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfiguredBackend):
            return NotImplemented
        same = self._compiler_fn is other._compiler_fn
        return same and (self.mode, self.options) == (other.mode, other.options)

    def __hash__(self) -> int:
        return hash((self.spec.name, self.mode))

    def __reduce__(self) -> tuple[Any, ...]:
        reference = reference_of(self._compiler_fn) if self.spec.loading == "object" else None
        return self._restore, (self.spec.name, self.mode, self.options, reference, self.spec.tags)

    def __repr__(self) -> str:
        given = {"mode": self.mode, "options": self.options}
        said = "".join(f", {key}={value!r}" for key, value in given.items() if value)
        return f"get_backend({self.spec.name!r}{said})"

    def _worded(self, error: Exception) -> str:
        """Return what a backend raised on one line, with the remedy where the fault is known."""
        said = one_line(error)
        fault = shown(said, self.spec, self._registry.environment)
        return f"{self.spec.name}: {said}" + (f"; {fault.remedy}" if fault is not None else "")

    def _calling(self) -> CompilerFn:
        if self._call is None:
            self._call = self._made()
        return self._call

    def _made(self) -> CompilerFn:
        # Another backend may take Inductor's options, and is not Inductor.
        if self.spec.options != "inductor" or self.spec.origin.kind != "torch":
            # As torch.compile: the default mode is no mode, and the backend is not told of it.
            mode = None if self.mode == "default" else self.mode
            given = {"mode": mode, "options": self.options or None}
            return _With(self._compiler_fn, {k: v for k, v in given.items() if v is not None})
        return inductor(self.mode, self.options)


def inductor(
    mode: str | None,
    options: dict[str, Any],
    *,
    dynamic: bool | None = None,
    name: str | None = None,
) -> CompilerFn:
    """Return Inductor with a mode and options, torch.compile's own way; equal for the same."""
    import torch  # noqa: PLC0415 (a backend is being compiled with)

    named = {} if name is None else {"name": name}  # from 2.13 on
    wrapper: CompilerFn = torch._TorchCompileInductorWrapper(  # type: ignore[no-untyped-call] # noqa: SLF001
        mode, options or None, dynamic, **named
    )
    return wrapper


class _With:
    """A compiler function with keywords; ``functools.partial`` would hide Dynamo's contract."""

    def __init__(self, compiler_fn: CompilerFn, keywords: dict[str, Any]) -> None:
        self._compiler_fn = compiler_fn
        self._keywords = keywords

    def __call__(self, graph_module: Any, example_inputs: Any, **given: Any) -> Any:
        return self._compiler_fn(graph_module, example_inputs, **{**self._keywords, **given})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._compiler_fn, name)


def _is_dynamos(error: Exception) -> bool:
    """Whether Dynamo acts on an error itself (a restart, a graph break), or it says all there is.

    An IndexError is passed on by Dynamo too: it may be the user's own, of an operator that ran.
    """
    from torch._dynamo import exc  # noqa: PLC0415 (a graph is being compiled)

    handled = getattr(exc, "exceptions_allowed_to_be_fallback", ())
    return isinstance(error, (BackbayError, IndexError, exc.TorchDynamoException, *handled))


def _stable(value: Any) -> str:
    uuid = getattr(value, "uuid", None)  # a custom pass of Inductor's says what it is
    if callable(uuid):
        return repr(uuid())
    return reference_of(value) or repr(value)
