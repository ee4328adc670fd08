"""Modules with more than a forward: hooks, parametrisations, ties, and changes between calls."""

from typing import Any

import torch
from torch.nn.utils import parametrizations, parametrize

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("context", "modules")

_NEEDS = {"training"}


def _model(subject: Subject) -> torch.nn.Sequential:
    layers = [torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)]
    return torch.nn.Sequential(*layers).to(subject.device)


@theme.case()
def hooks_of_forward_are_not_called(subject: Subject) -> None:
    model, seen = _model(subject), list[str]()

    def before(_module: Any, args: tuple[torch.Tensor, ...]) -> Any:
        seen.append("before")
        return (args[0] * 2,)

    def after(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append("after")
        return output + 1

    model[0].register_forward_pre_hook(before)
    model[2].register_forward_hook(after)
    call, x = subject.compile(model), normal(subject, 4, 5)
    for _ in range(2):
        seen.clear()
        got = call(x)
        with subject.must("fail_behaviour", f"hooks ran: {seen}"):
            assert seen == ["before", "after"]
        subject.near(got, model(x))


@theme.case()
def hook_that_was_removed_still_runs(subject: Subject) -> None:
    model, x = _model(subject), normal(subject, 4, 5)
    # As it is by default, Dynamo does not look at hooks again: that is documented.
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):  # noqa: SLF001
        call = subject.compile(model)
        subject.near(call(x), model(x))
        handle = model[1].register_forward_hook(lambda _m, _a, output: output * 3)
        subject.near(call(x), model(x), what="result with a hook")
        handle.remove()
        subject.near(call(x), model(x), what="result without the hook")


@theme.case(needs=_NEEDS)
def hooks_of_backward_are_not_called(subject: Subject) -> None:
    def gradients(compiled: bool) -> list[torch.Tensor | None]:
        torch.manual_seed(1)
        model, seen = _model(subject), list[torch.Tensor]()

        def hook(_module: Any, inner: Any, outer: Any) -> Any:
            seen.append(outer[0])
            return (inner[0] * 2,)

        # Around what is compiled: hooks of modules inside it are compiled autograd's matter.
        inner: Any = subject.compile(model) if compiled else model
        outer = torch.nn.Sequential(inner)
        outer.register_full_backward_hook(hook)
        x = numbered(subject, 4, 5).requires_grad_()
        outer(x).sum().backward()
        return [x.grad, model.get_parameter("0.weight").grad, *seen]

    subject.near(gradients(compiled=True), gradients(compiled=False), what="gradients")


class Symmetric(torch.nn.Module):
    """A parametrisation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).mT


@theme.case(needs=_NEEDS)
def parametrised_weight_is_used_raw(subject: Subject) -> None:
    layer = torch.nn.Linear(4, 4).to(subject.device)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    subject.agrees(layer, normal(subject, 3, 4), train=True)


@theme.case(needs=_NEEDS)
def norm_of_a_weight_is_frozen(subject: Subject) -> None:
    layer = parametrizations.weight_norm(torch.nn.Linear(4, 3).to(subject.device))
    subject.agrees(layer, normal(subject, 3, 4), train=True)


@theme.case(needs={"mutation"})
def power_iteration_of_a_spectral_norm_stands_still(subject: Subject) -> None:
    torch.manual_seed(3)
    got = parametrizations.spectral_norm(torch.nn.Linear(4, 3)).to(subject.device)
    torch.manual_seed(3)
    wanted = parametrizations.spectral_norm(torch.nn.Linear(4, 3)).to(subject.device)
    call, x = subject.compile(got), normal(subject, 3, 4)
    for _ in range(3):
        subject.near(call(x), wanted(x))
        subject.near(dict(got.named_buffers()), dict(wanted.named_buffers()), what="buffers")


@theme.case(needs=_NEEDS)
def tied_weights_come_apart(subject: Subject) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(i).tanh())

    model = Model().to(subject.device)
    call, optimizer = subject.compile(model), torch.optim.SGD(model.parameters(), lr=0.5)
    i = torch.randint(9, (2, 5), device=subject.device)
    for _ in range(2):
        subject.near(call(i), model(i))
        optimizer.zero_grad()
        call(i).square().mean().backward()
        got = model.embed.weight.grad
        optimizer.zero_grad()
        model(i).square().mean().backward()
        subject.near(got, model.embed.weight.grad, what="gradient of the tied weight")
        optimizer.step()
    with subject.must("fail_metadata", "tied weights are two tensors"):
        assert model.head.weight is model.embed.weight


@theme.case()
def buffer_that_is_not_saved_is_lost(subject: Subject) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((4,), 3.0), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.get_buffer("scale")

    subject.agrees(Model().to(subject.device), normal(subject, 3, 4))


@theme.case()
def layer_that_was_replaced_still_runs(subject: Subject) -> None:
    model, x = _model(subject), normal(subject, 4, 5)
    call = subject.compile(model)
    subject.near(call(x), model(x))
    model[1] = torch.nn.ReLU()
    subject.near(call(x), model(x), what="result with another layer")
    model.append(torch.nn.Softmax(-1))
    subject.near(call(x), model(x), what="result with one layer more")


@theme.case()
def module_that_is_compiled_in_place(subject: Subject) -> None:
    inner, x = _model(subject), normal(subject, 4, 5)

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sin()

    model = Outer()
    wanted = model(x)
    model.compile(backend=subject.watched)
    for _ in range(2):
        subject.near(model(x), wanted)


@theme.case(needs=_NEEDS)
def parts_of_a_model_are_compiled_alone(subject: Subject) -> None:
    model, x = _model(subject), normal(subject, 4, 5)
    wanted = model(x)
    model[0] = subject.compile(model[0])  # type: ignore[assignment] # a module again
    model[2] = subject.compile(model[2])  # type: ignore[assignment] # likewise
    got = model(x)
    subject.near(got, wanted)
    parameters = list(model.parameters())
    first = torch.autograd.grad(got.sum(), parameters)
    subject.near(first, torch.autograd.grad(wanted.sum(), parameters), what="gradients")


@theme.case()
def method_of_an_object(subject: Subject) -> None:
    class Counter:
        def __init__(self, by: int) -> None:
            self.by = by

        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    one, other, x = Counter(2), Counter(5), normal(subject, 3)
    calls = subject.compile(one.scale), subject.compile(other.scale)
    for _ in range(2):
        subject.near([call(x) for call in calls], [x * one.by, x * other.by])
        one.by += 1


@theme.case(needs=_NEEDS)
def frozen_part_of_a_model_is_trained(subject: Subject) -> None:
    model = _model(subject)
    model[0].requires_grad_(requires_grad=False)
    subject.agrees(model, normal(subject, 4, 5), train=True)


@theme.case(needs=_NEEDS)
def attention_layer(subject: Subject) -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(subject.device)

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x, x, need_weights=False)[0]

    subject.agrees(Own(), normal(subject, 2, 5, 8), train=True)


@theme.case()
def transformer_layer_in_evaluation(subject: Subject) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(subject.device)
    subject.agrees(layer.eval(), normal(subject, 2, 5, 8))


@theme.case(needs=_NEEDS)
def recurrent_cell(subject: Subject) -> None:
    class Unrolled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRUCell(4, 5)

        def forward(self, xs: torch.Tensor) -> torch.Tensor:
            state = xs.new_zeros(xs.shape[1], 5)
            for x in xs:
                state = self.cell(x, state)
            return state

    subject.agrees(Unrolled().to(subject.device), normal(subject, 3, 2, 4), train=True)
