"""torch.func: derivatives and batches of functions, inside a compiled program and around one."""

from collections.abc import Callable
from typing import Any

import torch
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

from backbay_conformance.case import Collection, NotRunnable
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject, message_of

theme = Collection("context", "transforms")


def _loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return ((x @ w).tanh() ** 2).sum()


def _vector(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.sum()


_PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "grad": lambda w, x: grad(_loss)(w, x),
    "grad_of_the_second": lambda w, x: grad(_loss, argnums=1)(w, x),
    "grad_and_value": lambda w, x: grad_and_value(_loss)(w, x),
    "grad_of_grad": lambda w, x: grad(lambda v: grad(_loss)(v, x).sum())(w),
    "vjp": lambda w, x: vjp(_vector, w[0])[1](x[0])[0],
    "jvp": lambda w, x: jvp(_vector, (w[0],), (x[0],)),
    "vmap": lambda w, x: vmap(torch.dot)(w, x),
    "vmap_of_other_dimensions": lambda w, x: vmap(torch.mul, (1, None), 1)(w, x[0]),
    "vmap_twice": lambda w, x: vmap(vmap(torch.mul))(w, x) + vmap(lambda r: r.cumsum(0))(x),
    "gradients_by_sample": lambda w, x: vmap(grad(_loss), (None, 0))(w, x),
    "jacrev": lambda w, x: jacrev(_vector)(w[0]) + x,
    "jacfwd": lambda w, x: jacfwd(_vector)(w[0]) + x,
    "hessian": lambda w, x: hessian(lambda v: (v**3).sum())(w[0]) + x,
}


@theme.parametrized(tuple(_PROGRAMS))
def inside(subject: Subject, name: str) -> None:
    program, w, x = _PROGRAMS[name], normal(subject, 4, 4), normal(subject, 4, 4)
    wanted = program(w, x)
    try:
        got = subject.compile(program)(w, x)
    except NotImplementedError as error:
        raise NotRunnable(f"refused clearly: {message_of(error)}") from error
    subject.near(got, wanted)


@theme.case()
def functional_call_uses_the_modules_own_parameters(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).to(subject.device)

    def program(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, state, (x,))

    call, x = subject.compile(program), normal(subject, 5, 4)
    for factor in (1.0, 0.0, 2.0):
        state = {name: p.detach() * factor for name, p in model.named_parameters()}
        subject.near(call(state, x), program(state, x))


@theme.case()
def ensemble_of_models_gives_one_models_result(subject: Subject) -> None:
    models = [torch.nn.Linear(4, 3).to(subject.device) for _ in range(3)]
    state, _ = torch.func.stack_module_state(models)
    base = models[0]

    def program(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda s: functional_call(base, s, (x,)))(state)

    x = normal(subject, 5, 4)
    got = subject.compile(program)({k: v.detach() for k, v in state.items()}, x)
    subject.near(got, torch.stack([model(x) for model in models]).detach())


@theme.parametrized(("grad", "vmap", "jvp"))
def around_a_compiled_function(subject: Subject, name: str) -> None:
    call, x = subject.compile(_vector), normal(subject, 4, 4)
    call(x[0])

    def transformed(function: Callable[..., Any]) -> Any:
        if name == "grad":
            return grad(lambda v: function(v).sum())(x[0])
        return vmap(function)(x) if name == "vmap" else jvp(function, (x[0],), (x[1],))

    try:
        got = transformed(call)
    except RuntimeError as error:
        raise NotRunnable(f"refused clearly: {message_of(error)}") from error
    subject.near(got, transformed(_vector))
