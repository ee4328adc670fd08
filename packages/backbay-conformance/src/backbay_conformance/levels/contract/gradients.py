"""Backward: that there is a gradient, whose it is, and that it is right."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from backbay_conformance.case import Collection, Failed
from backbay_conformance.levels.making import given, normal
from backbay_conformance.subject import REFUSED, Subject

theme = Collection("contract", "gradients")

Tensors = tuple[torch.Tensor, ...]
_NEEDS = {"training"}


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).tanh()


@theme.case(needs=_NEEDS)
def gradient_is_lost(subject: Subject) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(7, 9), torch.nn.GELU(), torch.nn.LayerNorm(9), torch.nn.Linear(9, 5)
    ).to(subject.device)
    subject.agrees(model, normal(subject, 11, 7), train=True, calls=2)


@theme.agrees(lambda s: normal(s, 3, 5), needs=_NEEDS, train=True)
def result_is_detached_or_the_reverse(x: torch.Tensor) -> Tensors:
    with torch.no_grad():
        hidden = x * 3
    return x.sin(), x.detach() * 2, x > 0, x.argmax(), hidden, hidden + x, x.float().long()


@theme.agrees(lambda s: normal(s, 3, 5, requires_grad=True), needs=_NEEDS, train=True, calls=2)
def detached_copy_detaches_its_source(x: torch.Tensor) -> Tensors:
    y = x.sin() * 2
    stopped, part = y.detach(), y[1:].detach()
    return y, (y - stopped).exp(), part * 2, y[0] * part[0]


@theme.agrees(lambda s: normal(s, 4, 4, requires_grad=True), needs=_NEEDS, train=True)
def detached_self_of_a_view_is_another_one(x: torch.Tensor) -> Tensors:
    y = (x * 2).t()
    return y, y.detach()


@theme.agrees(lambda s: normal(s, 3, 5), needs=_NEEDS, train=True)
def no_grad_inside_is_ignored(x: torch.Tensor) -> Tensors:
    with torch.no_grad():
        scale = x.norm()
        with torch.enable_grad():
            again = x * 2
    return x / scale, again.exp(), x * x.detach()


@theme.case(needs=_NEEDS)
def frozen_parameter_gets_a_gradient(subject: Subject) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    model.to(subject.device)
    model[0].weight.requires_grad = False
    model[2].bias.requires_grad = False
    subject.agrees(model, normal(subject, 5, 4), train=True)


@theme.case(needs=_NEEDS)
def input_that_needs_no_gradient_gets_one(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.exp() * y + y.sin()

    x, y = normal(subject, 4), normal(subject, 4, requires_grad=True)
    subject.compile(program)(x, y).sum().backward()
    with subject.must("fail_grad", "an input that does not require grad has one"):
        assert x.grad is None
        assert not x.requires_grad
    subject.near(y.grad, x.exp() + y.detach().cos(), what="gradient")


@theme.case(needs=_NEEDS)
def need_for_a_gradient_is_that_of_the_first_call(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 5)
    with subject.must("fail_grad", "a result requires grad, and no input did"):
        assert not call(x).requires_grad
    for _ in range(2):
        leaf, wanted = (x.clone().requires_grad_() for _ in range(2))
        call(leaf).sum().backward()
        _program(wanted).sum().backward()
        subject.near(leaf.grad, wanted.grad, what="gradient")
        with torch.no_grad(), subject.must("fail_grad", "a result under no_grad requires grad"):
            assert not call(leaf).requires_grad


@theme.agrees(lambda s: (*(normal(s, 4) for _ in range(3)),), needs=_NEEDS, train=True)
def unused_input_gets_a_gradient(x: torch.Tensor, _y: torch.Tensor, z: torch.Tensor) -> Tensors:
    return x * 2, z.detach().exp()


@theme.case(needs=_NEEDS)
def gradient_of_one_of_several_inputs(subject: Subject) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu() * z

    inputs = [normal(subject, 4, 4, requires_grad=True) for _ in range(3)]
    call = subject.compile(program)
    for chosen in ([1], [2, 0], [0]):
        wanted_for = [inputs[i] for i in chosen]
        got = torch.autograd.grad(call(*inputs).sum(), wanted_for)
        subject.near(got, torch.autograd.grad(program(*inputs).sum(), wanted_for), what="gradients")


@theme.case(needs=_NEEDS)
def loss_uses_one_of_several_results(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        return x.sin(), x.exp(), x.cos().sum()

    call = subject.compile(program)
    for chosen in (0, 2, 1):
        got, wanted = (normal(subject, 5).mul(0).add(0.5).requires_grad_() for _ in range(2))
        call(got)[chosen].sum().backward()
        program(wanted)[chosen].sum().backward()
        subject.near(got.grad, wanted.grad, what=f"gradient from result {chosen}")


@theme.agrees(lambda s: given(s, [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 30.0]), needs=_NEEDS, train=True)
def gradient_where_the_function_has_a_corner(x: torch.Tensor) -> Tensors:
    corners = (x.relu(), x.abs(), x.clamp(-1, 1), F.hardtanh(x), x.clamp_min(0), x.sign())
    return (*corners, F.leaky_relu(x, 0.1), F.elu(x), x.round(), F.softplus(x), x.maximum(-x))


@theme.agrees(lambda s: given(s, [[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), needs=_NEEDS, train=True)
def gradient_among_equals_is_shared_otherwise(x: torch.Tensor) -> Tensors:
    return (
        x.amax(1),
        x.max(1).values,
        x.max(),
        x.median(1).values,
        x.sort(dim=1, stable=True)[0],
    )


@theme.agrees(lambda s: given(s, [4.0, 0.0, -1.0, 0.25]), needs=_NEEDS, train=True)
def gradient_of_a_branch_not_taken_is_nan(x: torch.Tensor) -> Tensors:
    # Both as eager: the first is the well-known NaN, the second the well-known way round it.
    safe = torch.where(x > 0, x, 1.0)
    return torch.where(x > 0, x.sqrt(), 0.0), torch.where(x > 0, safe.log(), 0.0), x.sqrt()


@theme.agrees(lambda s: (normal(s, 7, 3), given(s, [0, 2, 2, 5, 5, 5])), needs=_NEEDS, train=True)
def repeated_indices_are_counted_once(w: torch.Tensor, i: torch.Tensor) -> Tensors:
    picked = (w[i], w.index_select(0, i), w.gather(0, i.unsqueeze(1).expand(6, 3)))
    return (F.embedding(i, w, padding_idx=2), *picked, w.expand(2, 7, 3), w.repeat(2, 1))


@theme.case(needs=_NEEDS)
def gradient_through_layers(subject: Subject) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24)
            self.out = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            q, k, v = self.mix(self.norm(x)).chunk(3, -1)
            z = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
            return F.cross_entropy(z.flatten(0, 1), y.flatten())

    y = torch.randint(8, (2, 5), device=subject.device)
    subject.agrees(Block().to(subject.device), normal(subject, 2, 5, 8), y, train=True)


@theme.case(needs=_NEEDS)
def gradients_of_one_parameter_in_two_places(subject: Subject) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).relu()) @ self.first.weight

    subject.agrees(Tied().to(subject.device), normal(subject, 4, 5), train=True)


@theme.parametrized(("float64", "bfloat16"), needs=_NEEDS)
def gradient_is_computed_in_another_precision(subject: Subject, name: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        return (x @ w).tanh(), x.softmax(-1)

    dtype: torch.dtype = getattr(torch, name)
    x, w = normal(subject, 9, 12, dtype=dtype), normal(subject, 12, 6, dtype=dtype)
    subject.agrees(program, x, w, train=True)


@theme.agrees(
    lambda s: normal(s, 5, dtype=torch.complex64), needs=_NEEDS | {"complex64"}, train=True
)
def gradient_of_a_complex_input_is_conjugated(z: torch.Tensor) -> Tensors:
    return z * z, z.abs(), (z * z.conj()).real


@theme.case(needs=_NEEDS | {"float64"})
def gradient_is_not_that_of_the_result(subject: Subject) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sigmoid() * w.sum()

    inputs = [normal(subject, 3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    call = subject.compile(program)
    with subject.must("fail_grad", "gradcheck"):
        assert torch.autograd.gradcheck(call, inputs, raise_exception=False)


@theme.case(needs=_NEEDS)
def gradient_of_what_lies_between(subject: Subject) -> None:
    x = normal(subject, 5, requires_grad=True)
    middle = subject.compile(_program)(x)
    middle.retain_grad()
    (middle * 3).sum().backward()
    subject.near(middle.grad, torch.full_like(middle, 3.0), what="gradient of a result")
    wanted = torch.autograd.grad(_program(x).sum() * 3, x)[0]
    subject.near(x.grad, wanted, what="gradient")


@theme.case(needs=_NEEDS)
def gradient_replaces_the_one_before(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 5, requires_grad=True)
    (wanted,) = torch.autograd.grad(_program(x).sum(), x)
    for times in (1, 2, 3):
        call(x).sum().backward()
        subject.near(x.grad, wanted * times, what="accumulated gradient")


@theme.case(needs=_NEEDS)
def second_backward_of_one_graph(subject: Subject) -> None:
    x = normal(subject, 5, requires_grad=True)
    loss = subject.compile(_program)(x).sum()
    (wanted,) = torch.autograd.grad(_program(x).sum(), x)
    loss.backward(retain_graph=True)
    loss.backward()
    subject.near(x.grad, wanted * 2, what="gradient of two backwards with retain_graph")
    try:
        loss.backward()
    except RuntimeError:
        return
    raise Failed("lost_validation", "a graph that was freed runs backward again, and eager raises")


@theme.case(needs=_NEEDS)
def second_derivative_is_wrong_and_nobody_says_so(subject: Subject) -> None:
    x = normal(subject, 5, requires_grad=True)
    (first,) = torch.autograd.grad(_program(x).sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(first.sum(), x)
    (got,) = torch.autograd.grad(subject.compile(_program)(x).sum(), x, create_graph=True)
    subject.near(got, first, what="first derivative")
    with subject.must(
        "fail_grad", "a gradient that create_graph asks for cannot be differentiated"
    ):
        assert got.requires_grad
    second: torch.Tensor | str
    try:
        (second,) = torch.autograd.grad(got.sum(), x)
    except RuntimeError:
        second = REFUSED  # as AOTAutograd does
    subject.near(second, wanted, what="second derivative", or_refused=True)


@theme.case(needs=_NEEDS)
def hooks_on_inputs_and_results_are_not_called(subject: Subject) -> None:
    x, seen = normal(subject, 5, requires_grad=True), list[str]()

    def scaling(name: str, factor: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def hook(gradient: torch.Tensor) -> torch.Tensor:
            seen.append(name)
            return gradient * factor

        return hook

    inner = x * 1
    inner.register_hook(scaling("input", 2))
    result = subject.compile(_program)(inner)
    result.register_hook(scaling("result", 5))
    result.sum().backward()
    with subject.must("fail_grad", "hooks of an input and a result"):
        assert seen == ["result", "input"]
    (wanted,) = torch.autograd.grad(_program(x).sum() * 10, x)
    subject.near(x.grad, wanted, what="gradient that hooks scaled")


@theme.case(needs=_NEEDS)
def gradient_has_another_dtype_or_layout(subject: Subject) -> None:
    def program(w: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w.float()).sum() + (v.t() * 2).cos().sum()

    w = normal(subject, 4, 6, dtype=torch.bfloat16, requires_grad=True)
    v = normal(subject, 3, 5).t().requires_grad_()
    subject.compile(program)(w, v, normal(subject, 2, 4)).backward()
    with subject.must("fail_grad", "a gradient's dtype, shape or strides are not its tensor's"):
        for leaf in (w, v):
            assert leaf.grad is not None
            assert leaf.grad.dtype == leaf.dtype
            assert leaf.grad.shape == leaf.shape
            assert leaf.grad.stride() == leaf.stride()


@theme.case(needs=_NEEDS | {"mutation"})
def gradient_through_an_input_that_is_changed(subject: Subject) -> None:
    def program(y: torch.Tensor) -> torch.Tensor:
        y.mul_(3)
        return y.sin()

    def gradient(call: object) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        y = leaf * 2
        assert callable(call)
        (call(y).sum() + y.sum()).backward()
        assert leaf.grad is not None
        return leaf.grad

    x = normal(subject, 5)
    subject.near(gradient(subject.compile(program)), gradient(program), what="gradient")


@theme.agrees(lambda s: normal(s, 3, 4), needs=_NEEDS, train=True)
def gradient_through_a_view_of_an_input(x: torch.Tensor) -> Tensors:
    return x.view(-1), x.t()[1:], x * 2, x[0]
