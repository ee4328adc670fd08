"""Plain functions as models: their parameters are known, moved, copied and trained."""

import copy
import functools

import pytest
import torch

from backbay.proof import Workload, digest
from backbay.workloads.function_model import FunctionModel, name_of

SHARED = torch.nn.Linear(4, 4)


def by_global(x):
    return SHARED(x)


def by_closure():
    inner, scale = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.ones(4))

    def closing(x):
        return inner(x) * scale

    return closing


def in_a_comprehension(x):
    return sum([SHARED(y) for y in x.split(1)])


def around(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def by_default(x, model=SHARED, *, other=torch.nn.Linear(4, 4)):  # noqa: B008 (one for all calls)
    return other(model(x))


def recursive():
    module = torch.nn.Linear(4, 4)

    def again(x, times=2):
        return again(module(x), times - 1) if times else x

    return again


class Pipeline:
    def __init__(self):
        self.decoder = torch.nn.Linear(4, 4)
        self.function = torch.nn.Linear(4, 4)

    def __call__(self, x):
        return self.function(self.decoder(x))

    def decode(self, x):
        return self(x)


def several():
    module = torch.nn.Linear(4, 4)
    bound = functools.partial(lambda model, x, bias: model(x) + bias, module, bias=SHARED.bias)
    return {
        "global": (by_global, 2),
        "closure": (by_closure(), 3),
        "method of a module": (module.forward, 2),
        "method of an object": (Pipeline().decode, 4),
        "object": (Pipeline(), 4),
        "partial": (bound, 3),
        "comprehension": (in_a_comprehension, 2),
        "decorated": (around(by_closure()), 3),
        "decorated by torch": (torch.enable_grad()(by_global), 2),
        "default": (by_default, 4),
        "recursive": (recursive(), 2),
        "nothing": (torch.relu, 0),
    }


@pytest.mark.parametrize("what", several())
def test_a_functions_parameters_are_unknown_or_a_copy_uses_the_originals(what):
    function, count = several()[what]
    model, x = FunctionModel(function), torch.randn(2, 4)
    assert len(list(model.parameters())) == count
    assert torch.equal(model(x), function(x))
    other, before = copy.deepcopy(model), model(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert torch.equal(model(x), before)
    assert not count or not torch.equal(other(x), before)


def test_a_workload_of_a_function_has_no_digest_or_no_name():
    workload = Workload(by_global, (torch.ones(2, 4),))
    assert isinstance(workload.model, torch.nn.Module)
    assert digest(workload) == digest(Workload(by_global, (torch.ones(2, 4),)))
    assert digest(workload) != digest(Workload(by_closure(), (torch.ones(2, 4),)))
    assert name_of(workload.model) == "by_global"
    assert name_of(SHARED) == "Linear"


def test_what_is_no_function_is_taken_for_one():
    assert Workload(torch.nn.Linear, ()).model is torch.nn.Linear
    assert Workload(3, ()).model == 3
