"""Shapes and strides, in and out: no size or place in memory may be taken for granted."""

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("contract", "layout")

Tensors = tuple[torch.Tensor, ...]


def _sums(x: torch.Tensor) -> Tensors:
    return x * 2 + 1, x.sum(-1), x.sum(0), x.exp().amax()


@theme.agrees(lambda s: (normal(s, 1)[0], normal(s, 5)))
def zero_dimensions_become_one(x: torch.Tensor, v: torch.Tensor) -> Tensors:
    return x + 1, v.sum(), v.dot(v), v[2], x * v, v.max(), x.reshape(1), v.mean().exp()


@theme.agrees(lambda s: (normal(s, 0, 4), normal(s, 3, 0), normal(s, 3, 4)))
def empty_tensors_are_refused(
    rows: torch.Tensor, columns: torch.Tensor, w: torch.Tensor
) -> Tensors:
    products = (rows @ w.t(), columns @ columns.t(), columns.t() @ w)
    return (rows.relu(), columns + 1, torch.cat([rows, w]), rows.view(-1), *products)


@theme.agrees(lambda s: (normal(s, 1, 5, 1), normal(s, 1, 1, 1)))
def dimensions_of_size_one_are_squeezed(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return x + y, x.squeeze(), x.transpose(0, 2) * 2, x.sum(1), y.unsqueeze(0) - x, x @ y.mT


# Square: the wrong dimension has the right size.
@theme.agrees(lambda s: (normal(s, 5, 5), normal(s, 5), normal(s, 5, 1)))
def broadcasting_runs_along_another_dimension(
    x: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> Tensors:
    return (
        x + row,
        x * column,
        row - column,
        x.expand(2, 5, 5) + row,
        torch.where(x > 0, row, x),
    )


@theme.agrees(lambda s: normal(s, 2, 3, 2, 2, 3, 2, 2))
def many_dimensions(x: torch.Tensor) -> Tensors:
    turned = x.permute(6, 2, 4, 0, 1, 5, 3)
    return turned + 1, turned.sum((1, 4)), x.flatten(2, 5) * 2, x.movedim(0, -1).contiguous()


@theme.case()
def transposed_input_is_read_as_contiguous(subject: Subject) -> None:
    subject.agrees(_sums, normal(subject, 7, 5).t())


@theme.case()
def offset_of_an_input_is_ignored(subject: Subject) -> None:
    subject.agrees(_sums, numbered(subject, 9, 6)[2:, 1:5])


@theme.case()
def stride_of_an_input_is_ignored(subject: Subject) -> None:
    subject.agrees(_sums, numbered(subject, 8, 10)[::2, ::3])


@theme.case()
def expanded_input_is_read_beyond_its_end(subject: Subject) -> None:
    subject.agrees(_sums, normal(subject, 1, 6).expand(5, 6))


@theme.case()
def overlapping_input_is_read_as_dense(subject: Subject) -> None:
    subject.agrees(_sums, numbered(subject, 13).as_strided((5, 4), (2, 1), 1))


@theme.case()
def index_counts_in_the_order_of_memory(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        ordered = (*x.sort(1), *x.topk(2, 0))
        return x.argmax(), x.argmin(), x.argmax(0), *x.max(1), *ordered, (x > 0).nonzero()

    x = normal(subject, 7, 5)
    for laid_out in (x.t(), x[1::2, ::3], x.t()[1:]):
        subject.agrees(program, laid_out)


@theme.agrees(lambda s: (numbered(s, 9), given(s, [0.0, 7.5, 3.0, 2.5, 11.0])))
def search_begins_at_the_start_of_memory(s: torch.Tensor, x: torch.Tensor) -> Tensors:
    parts = s[2:], s[::2], s[1:-1]
    found = (torch.searchsorted(part, x) for part in parts)
    return (*found, torch.bucketize(x, s[3:]), s[2:].index_select(0, x.long() % 3))


@theme.agrees(lambda s: numbered(s, 6, 6))
def strides_inside_the_graph_are_lost(x: torch.Tensor) -> Tensors:
    windows = x.flatten().as_strided((4, 3), (2, 1), 3)
    return x.t() + x, windows * 2, x.flip(0) - x, x[:, ::2].t().reshape(-1), x.T.ravel() + 1


@theme.agrees(lambda s: normal(s, 3, 4, 5))
def result_is_laid_out_otherwise(x: torch.Tensor) -> Tensors:
    y = x.permute(2, 0, 1)
    return y + 1, y.contiguous() * 2, y.transpose(0, 1).exp(), torch.empty_like(y).fill_(3.0)


@theme.agrees(lambda s: normal(s, 2, 3, 6, 4).to(memory_format=torch.channels_last))
def channels_last_is_lost(x: torch.Tensor) -> Tensors:
    return x * 2, x.relu() + 1, x.contiguous(), x.mean((2, 3)), F.max_pool2d(x, 2)


@theme.case(needs={"training"})
def channels_last_convolution_is_scrambled(subject: Subject) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)
    ).to(subject.device)
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    x = normal(subject, 2, 3, 7, 5).to(memory_format=torch.channels_last)
    subject.agrees(model, x, train=True)


@theme.agrees(lambda s: normal(s, 2, 3, 5, 4))
def channels_last_is_asked_for_and_not_given(x: torch.Tensor) -> Tensors:
    last = x.to(memory_format=torch.channels_last)
    return last, (last + 1).contiguous(memory_format=torch.channels_last)


@theme.case()
def layout_of_the_first_call_is_kept(subject: Subject) -> None:
    x, wide = normal(subject, 6, 6), numbered(subject, 6, 12)
    subject.matches(_sums, x, x.t(), x.flip(0).t(), wide[:, ::2], x)


@theme.case()
def offset_of_the_first_call_is_kept(subject: Subject) -> None:
    # Dynamo has no guard on where in its storage an input begins, or how that is aligned.
    call, base = subject.compile(_sums), normal(subject, 40)
    for start in (0, 1, 3, 8, 15):
        x = base[start : start + 24].view(4, 6)
        subject.near(call(x), _sums(x))


@theme.agrees(lambda s: normal(s, 6, 5).t(), needs={"training"}, train=True)
def gradient_of_a_strided_input(x: torch.Tensor) -> Tensors:
    return x.t() * 2, x[1:, ::2].exp(), x.expand(3, *x.shape).sin()


@theme.case(needs={"training"})
def cotangent_is_read_as_contiguous(subject: Subject) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x

    x, seed = normal(subject, 5, 5), normal(subject, 5, 5)
    for cotangent in (seed.t(), seed[0].expand(5, 5), seed.flip(1)[:, ::1]):
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        subject.compile(program)(leaves[0]).backward(cotangent)
        program(leaves[1]).backward(cotangent)
        subject.near(leaves[0].grad, leaves[1].grad, what="gradient")
