"""Operators that take functions: branches, loops, scans, checkpoints, attention."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from backbay_conformance.case import Collection, NotRunnable
from backbay_conformance.levels.making import given, normal
from backbay_conformance.subject import Subject, message_of

theme = Collection("context", "higher_order")


@theme.case()
def branch_that_is_not_asked_for(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2 - 1, (x,))

    call = subject.compile(program)
    for values in ([1.0, 2.0], [-1.0, -2.0], [3.0, -1.0]):
        x = given(subject, values)
        subject.near(call(x), x.sin() if x.sum() > 0 else x * 2 - 1)


@theme.case()
def branch_sees_other_values_from_outside(subject: Subject) -> None:
    outside, layer = normal(subject, 4), torch.nn.Linear(4, 4).to(subject.device)

    def yes(x: torch.Tensor) -> torch.Tensor:
        return layer(x) + outside

    def no(x: torch.Tensor) -> torch.Tensor:
        return x - outside

    def program(x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, yes, no, (x,)) * 2

    with torch.no_grad():
        call, x = subject.compile(program), normal(subject, 3, 4)
        for flag in (True, False, True):
            wanted = (yes(x) if flag else no(x)) * 2
            subject.near(call(x, given(subject, flag)), wanted)


@theme.case(needs={"training"})
def gradient_of_the_other_branch(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * x, (x,)).sum()

    call = subject.compile(program)
    for values in ([1.0, 2.0], [-1.0, -2.0]):
        x = given(subject, values).requires_grad_()
        call(x).backward()
        wanted = x.detach().cos() if x.sum() > 0 else 2 * x.detach()
        subject.near(x.grad, wanted, what="gradient")


@theme.case()
def loop_ends_too_early_or_late(subject: Subject) -> None:
    from torch._higher_order_ops.while_loop import while_loop  # noqa: PLC0415 (no other name)

    def program(n: torch.Tensor, x: torch.Tensor) -> Any:
        return while_loop(lambda n, _: n < 5, lambda n, x: (n + 1, x * 1.5 + n), (n, x))

    call = subject.compile(program)
    for start in (0, 3, 5):
        n, x = start, normal(subject, 3)
        got = call(given(subject, start), x)
        while n < 5:
            n, x = n + 1, x * 1.5 + n
        subject.near(tuple(got), (given(subject, n), x))


@theme.case()
def map_visits_the_rows_in_another_order(subject: Subject) -> None:
    from torch._higher_order_ops.map import map as each  # noqa: PLC0415 (as above)

    def program(xs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return each(lambda x, y: x.cumsum(0) * y, xs, y)  # type: ignore[arg-type] # torch's own

    xs, y = normal(subject, 3, 4), normal(subject, 4)
    subject.near(subject.compile(program)(xs, y), xs.cumsum(1) * y)


@theme.case()
def scan_forgets_what_it_carries(subject: Subject) -> None:
    from torch._higher_order_ops.scan import scan  # noqa: PLC0415 (as above)

    def program(start: torch.Tensor, xs: torch.Tensor) -> Any:
        return scan(lambda c, x: (c * 0.5 + x, c.sin()), start, xs, dim=0)

    start, xs = normal(subject, 4), normal(subject, 5, 4)
    last, seen = subject.compile(program)(start, xs)
    carried, wanted = start, []
    for x in xs:
        wanted.append(carried.sin())
        carried = carried * 0.5 + x
    subject.near((last, seen), (carried, torch.stack(wanted)))


def _block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin().exp()


@theme.parametrized(("reentrant", "not_reentrant"), needs={"training"})
def checkpoint_gives_another_gradient(subject: Subject, name: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = checkpoint(_block, x * 2, w, use_reentrant=name == "reentrant")
        return y.tanh()

    subject.agrees(program, normal(subject, 3, 4), normal(subject, 4, 4) / 4, train=True)


@theme.case(needs={"training"})
def checkpoint_drops_other_elements_in_backward(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        dropped = checkpoint(
            lambda y: torch.nn.functional.dropout(y * 3, 0.5), x, use_reentrant=False
        )
        assert isinstance(dropped, torch.Tensor)
        return dropped

    x = torch.ones(256, device=subject.device, requires_grad=True)
    result = subject.compile(program)(x)
    result.sum().backward()
    # Linear: on ones, the gradient is the result.
    subject.near_each_other(x.grad, result.detach(), what="gradient")


@theme.case(needs={"training"})
def checkpoints_inside_checkpoints(subject: Subject) -> None:
    def outer(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(_block, checkpoint(_block, x, w, use_reentrant=False), w,
                          use_reentrant=False)  # fmt: skip

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(outer, x, w, use_reentrant=False)

    subject.agrees(program, normal(subject, 3, 4), normal(subject, 4, 4) / 9, train=True)


@theme.case(needs={"training"})
def selective_checkpoint_gives_another_gradient(subject: Subject) -> None:
    def policy(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        saved = op == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(policy)

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(_block, x, w, use_reentrant=False, context_fn=contexts)

    subject.agrees(program, normal(subject, 3, 4), normal(subject, 4, 4) / 4, train=True)


@theme.case()
def flexible_attention_ignores_its_score(subject: Subject) -> None:
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415 (slow)

    def score(s: torch.Tensor, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:  # noqa: ARG001
        return torch.where(q >= k, s * 0.5, -float("inf"))

    def program(q: torch.Tensor) -> Any:
        return flex_attention(q, q, q, score_mod=score)

    q = normal(subject, 1, 2, 128, 16)
    mask = torch.ones(128, 128, dtype=torch.bool, device=q.device).tril()
    scores = (q @ q.mT / 4 * 0.5).masked_fill(~mask, -float("inf"))
    with torch.no_grad():
        try:
            got = subject.compile(program)(q)
        except NotImplementedError as error:
            raise NotRunnable(f"refused clearly: {message_of(error)}") from error
    subject.near(got, scores.softmax(-1) @ q)


@theme.case()
def region_that_is_compiled_once(subject: Subject) -> None:
    if not hasattr(torch.compiler, "nested_compile_region"):
        raise NotRunnable("this torch has no nested_compile_region")
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).to(subject.device)

    @torch.compiler.nested_compile_region
    def region(layer: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return layer(x).relu() + x

    def program(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = region(layer, x)
        return x

    def plain(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x).relu() + x
        return x

    with torch.no_grad():
        x = normal(subject, 3, 4)
        subject.near(subject.compile(program)(x), plain(x))
