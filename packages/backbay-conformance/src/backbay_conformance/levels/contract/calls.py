"""More than one call: nothing of an earlier one may show in a later one, or the reverse."""

import copy
from collections.abc import Iterator

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("contract", "calls")


def _program(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + x


@theme.case()
def result_is_overwritten_by_the_next_call(subject: Subject) -> None:
    call = subject.compile(_program)
    inputs = [normal(subject, 6, 7) for _ in range(4)]
    results = [call(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        subject.near(result, _program(x))


@theme.case()
def result_of_the_first_call_is_given_again(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 6, 7)
    for _ in range(3):
        subject.near(call(x), _program(x))
        x.add_(1)


@theme.case()
def what_the_caller_writes_to_a_result_comes_back(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ones = torch.ones(4, device=x.device)
        return x * 2, ones, ones + torch.arange(4, device=x.device)

    call, x = subject.compile(program), normal(subject, 4)
    for _ in range(3):
        results = call(x)
        subject.near(results, program(x))
        for result in results:
            result.fill_(-7.0)


@theme.case()
def results_of_two_programs_are_exchanged(subject: Subject) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 3 - x

    calls, x = (subject.compile(_program), subject.compile(other)), normal(subject, 5, 3)
    for _ in range(2):
        results = [call(x) for call in calls]
        subject.near(results, [_program(x), other(x)])


@theme.case()
def two_modules_of_one_class_share_weights(subject: Subject) -> None:
    models = [torch.nn.Linear(5, 3).to(subject.device) for _ in range(3)]
    calls, x = [subject.compile(model) for model in models], normal(subject, 4, 5)
    for _ in range(2):
        subject.near([call(x) for call in calls], [model(x) for model in models])


def _steps(model: torch.nn.Linear) -> Iterator[None]:
    with torch.no_grad():
        model.weight.mul_(2.0)
        yield
        model.load_state_dict({k: v * 0.5 + 1 for k, v in model.state_dict().items()})
        yield
        model.weight.copy_(torch.ones_like(model.weight))
        yield
        model.bias.data = torch.full_like(model.bias, 3.0)
        yield


@theme.case()
def parameters_are_frozen_at_the_first_call(subject: Subject) -> None:
    model, x = torch.nn.Linear(5, 3).to(subject.device), normal(subject, 4, 5)
    call = subject.compile(model)
    subject.near(call(x), model(x))
    for _ in _steps(model):
        subject.near(call(x), model(x))


@theme.case()
def parameters_are_frozen_in_inference(subject: Subject) -> None:
    model, x = torch.nn.Linear(5, 3).to(subject.device).eval(), normal(subject, 4, 5)
    call = subject.compile(model)
    with torch.no_grad():
        subject.near(call(x), model(x))
        for _ in _steps(model):
            subject.near(call(x), model(x))


@theme.case(needs={"training"})
def step_of_an_optimizer_is_not_seen(subject: Subject) -> None:
    model, x = torch.nn.Linear(5, 3).to(subject.device), normal(subject, 4, 5)
    optimizer, call = torch.optim.SGD(model.parameters(), lr=0.5), subject.compile(model)
    for _ in range(3):
        subject.near(call(x), model(x))
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()


@theme.case()
def parameter_that_was_replaced_is_still_used(subject: Subject) -> None:
    model, x = torch.nn.Linear(5, 3).to(subject.device), normal(subject, 4, 5)
    call = subject.compile(model)
    subject.near(call(x), model(x))
    model.weight = torch.nn.Parameter(torch.ones_like(model.weight))
    subject.near(call(x), model(x), what="result with another parameter")
    model.bias = None  # type: ignore[assignment] # torch's own way to have none
    subject.near(call(x), model(x), what="result without the bias")


@theme.case()
def buffer_or_constant_is_frozen_at_the_first_call(subject: Subject) -> None:
    constant, model = numbered(subject, 5), torch.nn.Module()
    model.register_buffer("shift", torch.ones(5, device=subject.device))

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * constant + model.get_buffer("shift")

    call, x = subject.compile(program), normal(subject, 5)
    for _ in range(3):
        subject.near(call(x), program(x))
        constant.add_(1)
        model.get_buffer("shift").mul_(3)


@theme.case()
def attribute_of_a_module_is_frozen(subject: Subject) -> None:
    class Scaled(torch.nn.Module):
        scale = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    model, x = Scaled(), normal(subject, 5)
    call = subject.compile(model)
    for scale in (2.0, 3.0, -1.0, 2.0):
        model.scale = scale
        subject.near(call(x), model(x))


@theme.case()
def variable_of_a_closure_is_frozen(subject: Subject) -> None:
    factor, call = 1, None

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * factor + 1

    call, x = subject.compile(program), normal(subject, 5)
    for factor in (1, 2, 5):  # noqa: B007 (the program reads it)
        subject.near(call(x), program(x))


@theme.case()
def switch_to_evaluation_is_not_seen(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)).to(subject.device)
    wanted, x = copy.deepcopy(model), normal(subject, 6, 4)
    call = subject.compile(model)
    call(x)
    wanted(x)
    for training in (False, True, False):
        model.train(training)
        wanted.train(training)
        got, expected = call(x), wanted(x)
        if not training:
            subject.near(got, expected, what="result in evaluation")
            continue
        with subject.must("fail_value", "dropout does nothing in training"):
            assert bool((got == 0).any())


@theme.case(needs={"training"})
def saved_tensors_of_two_calls_are_exchanged(subject: Subject) -> None:
    call = subject.compile(_program)
    inputs = [normal(subject, 6, 5, requires_grad=True) for _ in range(3)]
    results = [call(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        result.sum().backward()
        subject.near(x.grad, x.detach().cos() * 2 + 1, what="gradient")


@theme.case(needs={"training"})
def gradient_is_overwritten_by_the_next_backward(subject: Subject) -> None:
    call, found, wanted = subject.compile(_program), list[torch.Tensor](), list[torch.Tensor]()
    for _ in range(3):
        x = normal(subject, 6, 5, requires_grad=True)
        found += torch.autograd.grad(call(x).sum(), x)
        wanted.append(x.detach().cos() * 2 + 1)
    subject.near(found, wanted, what="gradients")


@theme.case()
def many_calls_drift(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).softmax(-1).cumsum(0)

    call, x = subject.compile(program), normal(subject, 9, 9)
    wanted = program(x)
    for _ in range(40):
        subject.near(call(x), wanted)


@theme.case()
def copy_of_a_compiled_module_is_not_apart(subject: Subject) -> None:
    model, x = torch.nn.Linear(4, 2).to(subject.device), normal(subject, 3, 4)
    compiled = subject.compile(model)
    compiled(x)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        model.weight.zero_()
    subject.near(compiled(x), model(x))
    with subject.must("fail_value", "a deep copy follows what it was copied from"):
        assert not torch.allclose(twin(x), model(x))


@theme.case()
def state_of_a_compiled_module_cannot_be_saved(subject: Subject) -> None:
    model, x = torch.nn.Linear(4, 2).to(subject.device), normal(subject, 3, 4)
    compiled = subject.compile(model)
    compiled(x)
    state = compiled.state_dict()  # type: ignore[attr-defined] # it is a module
    names = {name.removeprefix("_orig_mod.") for name in state}
    with subject.must("fail_metadata", "the state of a compiled module has other names"):
        assert names == model.state_dict().keys()
    compiled.load_state_dict({k: v + 1 for k, v in state.items()})  # type: ignore[attr-defined]
    subject.near(compiled(x), model(x))


@theme.case()
def input_that_nobody_holds_is_reused_too_early(subject: Subject) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y.sum(0), x.view(-1), x

    call, x = subject.compile(program), normal(subject, 4, 3)
    for _ in range(3):
        subject.near(call(x + 1), program(x + 1))
        junk = torch.full((4, 3), -1.0, device=subject.device)
        del junk
