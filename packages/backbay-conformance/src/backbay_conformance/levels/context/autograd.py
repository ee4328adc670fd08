"""Autograd's further ways: hooks on tensors, saved tensors, compiled backward, its own calls."""

from typing import Any

import torch

from backbay_conformance.case import Collection, NotRunnable
from backbay_conformance.levels.making import normal, numbered
from backbay_conformance.subject import Subject, message_of

theme = Collection("context", "autograd")

_NEEDS = {"training"}


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).exp()


def _gradient(x: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(_program(leaf).sum(), leaf)
    return found


@theme.case(needs=_NEEDS)
def hook_inside_the_graph_is_not_called(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 10)
        return y * y

    x, wanted = (numbered(subject, 4).requires_grad_() for _ in range(2))
    subject.compile(program)(x).sum().backward()
    program(wanted).sum().backward()
    subject.near(x.grad, wanted.grad, what="gradient")


@theme.case(needs=_NEEDS)
def hook_after_accumulation_is_not_called(subject: Subject) -> None:
    x, seen = normal(subject, 4, requires_grad=True), list[torch.Tensor]()

    def hook(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        seen.append(leaf.grad.clone())
        leaf.grad = None

    x.register_post_accumulate_grad_hook(hook)
    call = subject.compile(_program)
    for _ in range(2):
        call(x).sum().backward()
    subject.near(seen, [_gradient(x)] * 2, what="gradients seen by the hook")
    with subject.must("fail_grad", "what the hook did to the gradient was undone"):
        assert x.grad is None


@theme.case(needs=_NEEDS)
def optimizer_inside_backward(subject: Subject) -> None:
    model = torch.nn.Linear(4, 3).to(subject.device)
    wanted = torch.nn.Linear(4, 3).to(subject.device)
    wanted.load_state_dict(model.state_dict())

    def step(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        with torch.no_grad():
            leaf.sub_(leaf.grad, alpha=0.1)
        leaf.grad = None

    for parameter in (*model.parameters(), *wanted.parameters()):
        parameter.register_post_accumulate_grad_hook(step)
    call, x = subject.compile(model), normal(subject, 5, 4)
    for _ in range(3):
        call(x).square().mean().backward()
        wanted(x).square().mean().backward()
    subject.near(model.state_dict(), wanted.state_dict(), what="weights")


@theme.case(needs=_NEEDS)
def saved_tensors_are_not_packed_as_asked(subject: Subject) -> None:
    def pack(x: torch.Tensor) -> Any:
        return x.cpu().clone()

    def unpack(x: torch.Tensor) -> torch.Tensor:
        return x.to(subject.device)

    x, call = normal(subject, 4, requires_grad=True), subject.compile(_program)
    for _ in range(2):
        x.grad = None
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            result = call(x)
        result.sum().backward()
        subject.near(x.grad, _gradient(x), what="gradient")


@theme.case(needs=_NEEDS)
def backward_in_another_thread(subject: Subject) -> None:
    import threading  # noqa: PLC0415 (only here)

    x = normal(subject, 4, requires_grad=True)
    loss = subject.compile(_program)(x).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    subject.near(x.grad, _gradient(x), what="gradient")


@theme.case(needs=_NEEDS)
def compiled_backward_gives_another_gradient(subject: Subject) -> None:
    from torch._dynamo import compiled_autograd  # noqa: PLC0415 (slow)

    def compiler(graph_module: torch.fx.GraphModule) -> Any:
        return torch.compile(graph_module, backend=subject.watched)

    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    model.to(subject.device)
    call, x = subject.compile(model), normal(subject, 3, 4)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    for _ in range(2):
        model.zero_grad()
        loss = call(x).square().sum()
        with compiled_autograd._enable(compiler):  # noqa: SLF001 (it has no public name)
            loss.backward()
        subject.near([p.grad for p in model.parameters()], list(wanted), what="gradients")


@theme.case(needs=_NEEDS)
def gradient_that_the_program_takes_itself(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(_program(y).sum(), y)
        return found * 2

    x = normal(subject, 4)
    subject.near(subject.compile(program)(x), _gradient(x) * 2)


@theme.case(needs=_NEEDS)
def gradient_of_a_result_inside(subject: Subject) -> None:
    x = normal(subject, 4, requires_grad=True)
    first = subject.compile(_program)(x)
    second = first * first
    found = torch.autograd.grad(second.sum(), [first, x])
    plain = _program(x)
    wanted = torch.autograd.grad((plain * plain).sum(), [plain, x])
    subject.near(found, wanted, what="gradients")


@theme.case(needs=_NEEDS)
def forward_mode_is_wrong_and_nobody_says_so(subject: Subject) -> None:
    from torch.autograd import forward_ad  # noqa: PLC0415 (only here)

    call, x, t = subject.compile(_program), normal(subject, 4), normal(subject, 4)
    call(x)
    with forward_ad.dual_level():
        try:
            got = forward_ad.unpack_dual(call(forward_ad.make_dual(x, t)))
        except (RuntimeError, NotImplementedError) as error:
            raise NotRunnable(f"refused clearly: {message_of(error)}") from error
        wanted = forward_ad.unpack_dual(_program(forward_ad.make_dual(x, t)))
        subject.near(got.primal, wanted.primal)
        with subject.must("fail_grad", "the tangent is lost"):
            assert got.tangent is not None
        subject.near(got.tangent, wanted.tangent, what="tangent")


@theme.case(needs=_NEEDS)
def several_graphs_in_one_backward(subject: Subject) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + x

    one, two = subject.compile(_program), subject.compile(other)
    x, wanted = (normal(subject, 4).fill_(0.4).requires_grad_() for _ in range(2))
    (two(one(x)) * one(x.sin())).sum().backward()
    (other(_program(wanted)) * _program(wanted.sin())).sum().backward()
    subject.near(x.grad, wanted.grad, what="gradient")
