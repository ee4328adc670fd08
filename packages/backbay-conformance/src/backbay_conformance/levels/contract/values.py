"""Numbers at the edges: what fast arithmetic and algebra on real numbers lose first."""

import math

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal, numbered, threads
from backbay_conformance.subject import Subject

theme = Collection("contract", "values")

INF, NAN = math.inf, math.nan
Tensors = tuple[torch.Tensor, ...]


@theme.agrees(lambda s: given(s, [NAN, -2.0, 0.5, 3.0, NAN, 1.0, -1.0, 2.0, NAN]))
def nan_is_lost(x: torch.Tensor) -> Tensors:
    zero = torch.zeros_like(x)
    return x + 1, x.clamp(0, 1), torch.maximum(x, zero), torch.minimum(x, zero), x.relu()


@theme.agrees(lambda s: given(s, [INF, -INF, NAN, 0.0, 1.0, -2.0, 5e-1, 3.0, INF]))
def infinity_is_taken_for_a_number(x: torch.Tensor) -> Tensors:
    return x - x, x / x, 0 / x, x**0, x * torch.zeros_like(x[:1])


@theme.agrees(lambda s: given(s, [INF, -INF, NAN, 0.0, 1.0, -2.0, 5e-1]))
def product_with_zero_is_taken_for_zero(x: torch.Tensor) -> Tensors:
    return x * 0, x * 0.0


@theme.agrees(lambda s: given(s, [INF, -INF, 0.0, 1.0, -1.0, 88.0, -103.0, 1e4, -1e4]))
def infinity_becomes_nan(x: torch.Tensor) -> Tensors:
    return x.sigmoid(), x.tanh(), x.exp(), x.atan(), x.abs().log(), 1 / x, F.softplus(x)


@theme.case()
def negative_zero_is_lost(subject: Subject) -> None:
    def program(x: torch.Tensor) -> Tensors:
        return -x, x * 2, x.clone(), torch.copysign(torch.ones_like(x), x), torch.signbit(-x)

    x = given(subject, [0.0, -0.0, 0.0, -0.0, 1.0, -1.0, -0.0, 0.0, -0.0])
    subject.agrees(program, x)
    for got, wanted in zip(subject.compile(program)(x), program(x), strict=True):
        subject.same(got, wanted, status="fail_value", what="the sign of a zero is not eager's")


@theme.agrees(lambda s: given(s, [2e-40, -4e-41, 6e-39, 1e-42, 3e-40, 8e-41, 5e-40]))
def subnormal_numbers_are_flushed(x: torch.Tensor) -> Tensors:
    return x * 0.5, x.neg(), x + x


@theme.agrees(
    lambda s: (
        given(s, [NAN, 1.0, NAN, INF, -INF, 0.0, -0.0, 2.0]),
        given(s, [1.0, NAN, NAN, INF, INF, -0.0, 0.0, 1.0]),
    )
)
def comparison_with_nan_is_turned_round(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    less = (x < y, x >= y, ~(x < y), x == x, x != x)  # noqa: PLR0124 (NaN is not)
    return (*less, x.isnan(), x.isinf(), x.isfinite(), torch.where(x > y, x, y))


@theme.agrees(lambda s: normal(s, 5, 9))
def not_a_finite_constant(x: torch.Tensor) -> Tensors:
    masked = torch.where(x > 0, x, -INF)
    return masked, masked.softmax(-1), torch.full_like(x, NAN), x.masked_fill(x < 0, INF)


@theme.agrees(lambda s: normal(s, 6, 19) * 1e4)
def large_arguments_overflow(x: torch.Tensor) -> Tensors:
    return x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1), F.silu(x), F.logsigmoid(x)


@theme.agrees(lambda s: torch.rand(67, device=s.device) * 1e-6)
def small_arguments_lose_digits(x: torch.Tensor) -> Tensors:
    return x.log1p(), x.expm1(), x.sin(), x.tanh()


@theme.agrees(lambda s: torch.rand(67, device=s.device) * 1e-6)
def error_function_of_small_arguments_loses_digits(x: torch.Tensor) -> torch.Tensor:
    return x.erf()


@theme.agrees(lambda s: torch.linspace(-6, 6, 131, device=s.device))
def activation_is_an_approximation_of_it(x: torch.Tensor) -> Tensors:
    gelus = (F.gelu(x), F.gelu(x, approximate="tanh"))
    return (*gelus, F.silu(x), F.elu(x, 0.7), F.mish(x), F.hardswish(x), F.leaky_relu(x, 0.2))


@theme.agrees(lambda s: given(s, [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.4999, 7.0, -3.7]))
def rounding_is_not_half_to_even(x: torch.Tensor) -> Tensors:
    return x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()


@theme.agrees(
    lambda s: (given(s, [0.0, -2.0, 3.5, -1.0, 1.0, INF, NAN]), given(s, [0, -2, 3, 7, 1, -5, 11]))
)
def powers_of_special_numbers(x: torch.Tensor, n: torch.Tensor) -> Tensors:
    integers = (n**2, n**3, 2 ** n.abs())
    return x**0, x**2, x**3, x**-1, x.abs() ** 0.5, x ** n.float(), *integers


@theme.agrees(lambda s: (normal(s, 33), given(s, [NAN, *[0.1] * 32])))
def bounds_of_clamp_are_exchanged(x: torch.Tensor, low: torch.Tensor) -> Tensors:
    return x.clamp(2, 1), x.clamp(min=low), x.clamp(max=low), F.hardtanh(x)


# The variance is of epsilon's size, where it matters most.
@theme.agrees(lambda s: (normal(s, 6, 24) * 3e-3, normal(s, 24)))
def normalisation_uses_another_epsilon(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return (
        F.layer_norm(x, (24,), w, w),
        F.layer_norm(x, (24,), eps=1e-3),
        F.rms_norm(x, (24,), w, 1e-4),
        F.group_norm(x, 4, w, w),
        F.normalize(x, dim=-1),
    )


@theme.case()
def product_of_matrices_is_computed_coarsely(subject: Subject) -> None:
    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
        return a @ b, torch.addmm(c, a, b, alpha=0.5, beta=2.0), torch.einsum("ij,kj->ik", a, a)

    a, b = normal(subject, 63, 65), normal(subject, 65, 33)
    subject.agrees(program, a, b, normal(subject, 33))


@theme.case()
def last_elements_of_odd_sizes(subject: Subject) -> None:
    sizes = (1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 129, 1023, 1025)

    def program(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [(x.exp() * 3 - 1).sigmoid() for x in inputs]

    subject.agrees(program, *(normal(subject, size) for size in sizes))


@theme.case()
def last_rows_and_columns_of_odd_sizes(subject: Subject) -> None:
    shapes = ((1, 1), (1, 17), (17, 1), (3, 5), (7, 33), (31, 9), (65, 3), (2, 129))

    def program(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [y for x in inputs for y in ((x * 2).sum(-1), x.cos().amax(0), x.t() + 1)]

    subject.agrees(program, *(normal(subject, *shape) for shape in shapes))


# What is computed of the views, since no backend computes a view itself.
@theme.agrees(lambda s: (numbered(s, 9, 5), given(s, [8, 0, -1, 3, 3, -9])))
def indices_reach_other_elements(x: torch.Tensor, i: torch.Tensor) -> Tensors:
    rows = (i % 9).unsqueeze(1).expand(-1, 3)
    few = i[1:4]  # each once, with -1
    picked = (x[i], x[i, 1], x[few, few], x[:, few] + 1, x.gather(0, rows), x.take(i))
    views = (x[-1] * 2, x[:, -1] + 1, (x * 2)[-2] + 1, x[:, -3:-1] + 1, x[-1])
    put = (x.index_put((few,), -x[:3]), x.index_put((few, few), x[0, :3] - 1))
    scattered = x.scatter(0, rows[:2], -x - 1)
    moved = (x.roll(2, 0), x.flip(1), x[:, 1:-1:2], x.diagonal(1), x.tril(-1))
    return (*picked, *views, *put, scattered, x.index_select(1, i % 5), *moved)


@theme.case()
def repeated_indices_are_added_once(subject: Subject) -> None:
    def program(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Tensors:
        return (
            x.index_add(0, i, v),
            x.scatter_add(0, i.unsqueeze(1).expand_as(v), v),
            x.index_put((i,), v, accumulate=True),
            x.scatter_reduce(0, i.unsqueeze(1).expand_as(v), v, "amax"),
            torch.bincount(i, minlength=100),
        )

    # So many, on several threads, that one may lose another's sum: in every tenth call, say.
    x, v = numbered(subject, 100, 64), normal(subject, 16384, 64)
    indices = torch.arange(16384, device=subject.device) * 7 % 97
    with threads(3):
        subject.agrees(program, x, indices, v, calls=32)


@theme.agrees(lambda s: (numbered(s, 3, 4), -numbered(s, 3, 7)))
def pieces_are_put_together_in_another_order(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    wide = torch.cat([x, y, x[:, :1]], 1)
    pads = (F.pad(x, (1, 2, 0, 1), value=7.0), F.pad(x[None], (2, 1), mode="reflect"))
    return (wide, torch.stack([x, x + 1], 1), *pads, *wide.split([3, 4, 5], 1), *x.unbind(1))


@theme.case()
def convolution_is_shifted(subject: Subject) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Tensors:
        return (
            F.conv2d(x, w, stride=2, padding=(1, 2)),
            F.conv2d(x, v, groups=2, dilation=2),
            F.conv_transpose2d(x, w.transpose(0, 1), stride=2, output_padding=1),
        )

    x, w = normal(subject, 2, 4, 11, 9), normal(subject, 6, 4, 3, 3)
    subject.agrees(program, x, w, normal(subject, 4, 2, 3, 3))


# All negative: a padding of zeros would win.
@theme.agrees(lambda s: -torch.rand(2, 3, 11, 7, device=s.device) - 1)
def pooling_counts_padding(x: torch.Tensor) -> Tensors:
    return (
        F.max_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.max_pool2d(x, 2, ceil_mode=True),
        F.adaptive_avg_pool2d(x, (4, 3)),
    )


@theme.agrees(lambda s: normal(s, 2, 3, 6, 8))
def window_that_overhangs_is_averaged_as_a_whole_one(x: torch.Tensor) -> Tensors:
    flat = x.flatten(0, 1).flatten(1)
    return (
        F.avg_pool2d(x, 3, 2, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool1d(flat, 4, 3, ceil_mode=True),
        F.max_pool1d(flat, 4, 3, ceil_mode=True),
    )


@theme.case()
def attention_sees_what_is_masked(subject: Subject) -> None:
    def program(q: torch.Tensor, mask: torch.Tensor) -> Tensors:
        attend = F.scaled_dot_product_attention
        return (
            attend(q, q, q),
            attend(q, q, q, is_causal=True),
            attend(q, q, q, attn_mask=mask),
            attend(q, q, q, scale=0.3),
        )

    mask = torch.rand(7, 7, device=subject.device) > 0.4
    mask.fill_diagonal_(fill_value=True)
    subject.agrees(program, normal(subject, 2, 3, 7, 8), mask)


@theme.agrees(lambda s: (normal(s, 9, 5), given(s, [0, 1, 2, 3, 4, 2, 1, 0, 2])))
def losses_count_what_is_ignored(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return (
        F.cross_entropy(x, y, ignore_index=2),
        F.cross_entropy(x, y, label_smoothing=0.1, reduction="sum"),
        F.nll_loss(x.log_softmax(1), y, reduction="none"),
        F.smooth_l1_loss(x, x.roll(1, 0), beta=0.5),
        F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    )
