"""What is computed in: integers as integers, float64 in float64, and casts as torch casts."""

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import given, normal, numbered
from backbay_conformance.subject import Subject

theme = Collection("contract", "dtypes")

Tensors = tuple[torch.Tensor, ...]
_SMALL_FLOATS = ("bfloat16", "float16")


@theme.agrees(lambda s: normal(s, 17, 9, dtype=torch.float64), needs={"float64"})
def float64_is_computed_in_float32(x: torch.Tensor) -> Tensors:
    return x.sin() * 3, x.exp().sum(-1), x @ x.t(), x.softmax(-1), x.var(0)


@theme.agrees(lambda s: normal(s, 19, dtype=torch.float64), needs={"float64"})
def constant_of_a_float64_program_is_rounded(x: torch.Tensor) -> Tensors:
    return x * 0.1, x + 1 / 3, torch.full_like(x, 1e-300), x * 1e-200, x.add(x, alpha=0.7)


@theme.agrees(
    lambda s: given(s, [2**53 + 1, 2**60 + 3, -(2**53) - 1, 2**24 + 1, 5]), needs={"int64"}
)
def large_integers_go_through_floats(n: torch.Tensor) -> Tensors:
    return n + 1, n * 3, n - 1, n.sum(), n.max(), n // 3, n % 7, n == n + 1, n.clone()


@theme.case(needs={"int8", "uint8", "int32", "int64"})
def integers_saturate(subject: Subject) -> None:
    def program(u: torch.Tensor, s: torch.Tensor, i: torch.Tensor, n: torch.Tensor) -> Tensors:
        return u + 100, u * 3, u - 201, -u, s + 1, s * 2, -s, s.abs(), i + 1, n + 1

    top = torch.iinfo(torch.int64).max
    subject.agrees(
        program,
        given(subject, [0, 100, 200, 255], torch.uint8),
        given(subject, [127, -128, 100, -1], torch.int8),
        given(subject, [2**31 - 1, -(2**31), 7, 0], torch.int32),
        given(subject, [top, -top - 1, 3, 0]),
    )


@theme.agrees(
    lambda s: (
        given(s, [0, 3, 100, 128, 200, 255], torch.uint8),
        given(s, [127, -128, 100, -1, 64, 0], torch.int8),
    ),
    needs={"int8", "uint8", "int16", "int64"},
)
def small_integers_do_not_wrap_inside(u: torch.Tensor, s: torch.Tensor) -> Tensors:
    # What comes after would see a number that does not fit.
    widened = (u + u).to(torch.int16), (u * 3).long(), (s - 100).float(), (-s).long()
    return (*widened, (u + u) // 2, (u - 201) > 100, (s * 2).abs() < 50, (u + u).sum())


@theme.agrees(
    lambda s: (given(s, [7, -7, 7, -7, 6, -6, 0, 1]), given(s, [2, 2, -2, -2, 3, 3, -5, 4])),
    needs={"int64"},
)
def integer_division_rounds_towards_zero(a: torch.Tensor, b: torch.Tensor) -> Tensors:
    down = (a // b, a % b, torch.div(a, b, rounding_mode="floor"), a // -3, a % -3)
    return (*down, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b))


@theme.case()
def remainder_has_the_wrong_sign(subject: Subject) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Tensors:
        return a % b, torch.fmod(a, b), a // b, torch.div(a, b, rounding_mode="trunc")

    # Exact in binary: no rounding decides on which side of an integer a quotient is.
    a = given(subject, [7.5, -7.5, 7.5, -7.5, 6.0, -6.0, 0.25, -1.0])
    subject.agrees(program, a, given(subject, [2.0, 2.0, -2.0, -2.0, 1.5, 1.5, -0.5, 4.0]))


@theme.agrees(lambda s: given(s, [7, -7, 3, 1, -2, 9]), needs={"int64"})
def true_division_of_integers_floors(a: torch.Tensor) -> Tensors:
    return a / 2, a / a.abs().clamp(min=3), a.float().mean(), 1 / a


@theme.agrees(
    lambda s: given(s, [0.9, -0.9, 1.5, -1.5, 2.5, 0.0, -0.0, 99.99, -99.99]),
    needs={"int32", "int64", "uint8", "bool"},
)
def cast_to_integer_rounds(x: torch.Tensor) -> Tensors:
    small = (x.abs().to(torch.uint8), x.to(torch.int8), x.bool())
    return (x.int(), x.long(), *small, (x * 2).int())


@theme.agrees(
    lambda s: (given(s, [0, 1, -1, 2**24 + 1, 256, 257]), given(s, [True, False, True])),
    needs={"int64", "bool"},
)
def cast_from_integer_or_bool(n: torch.Tensor, b: torch.Tensor) -> Tensors:
    return n.float(), n.double(), n.bool(), n.to(torch.uint8), b.float(), b.long(), b + b


@theme.parametrized(_SMALL_FLOATS)
def cast_truncates(subject: Subject, name: str) -> None:
    dtype: torch.dtype = getattr(torch, name)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype)

    x = torch.cat([normal(subject, 257), given(subject, [7e4, -7e4, 1 + 2**-8, 1 + 3 * 2**-8])])
    got, wanted = subject.compile(program)(x), program(x)
    said = f"a cast to {name} is not to the nearest, ties to even"
    subject.same(got, wanted, status="fail_value", what=said)


@theme.parametrized(_SMALL_FLOATS)
def low_precision_is_coarser_than_its_dtype(subject: Subject, name: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        return (x @ w).relu() * 0.5, x.softmax(-1), x.sum(-1), (x * x).mean()

    dtype: torch.dtype = getattr(torch, name)
    subject.agrees(program, normal(subject, 33, 48, dtype=dtype), normal(subject, 48, 9).to(dtype))


@theme.agrees(lambda s: normal(s, 5, 7, dtype=torch.complex64), needs={"complex64"})
def complex_numbers_are_conjugated(z: torch.Tensor) -> Tensors:
    return z * z, z.conj() * z, z.abs(), z.real, z.imag, z.exp(), torch.view_as_real(z * 1j)


@theme.agrees(
    lambda s: (
        normal(s, 4),
        normal(s, 4, dtype=torch.float64),
        given(s, [3, 5, 7, 9]),
        given(s, [1, 2, 3, 4], torch.int32),
        given(s, [True, False, True, True]),
    ),
    needs={"float64", "int64", "int32", "bool"},
)
def types_are_promoted_otherwise(
    f: torch.Tensor, d: torch.Tensor, n: torch.Tensor, i: torch.Tensor, b: torch.Tensor
) -> Tensors:
    floats = (f + d.sum(), f + d, n + 1.5, n * f, b * f, f.bfloat16() + f, f.bfloat16() * 2.5)
    return (*floats, n + i, i + 1, b + b, b + 1, b & b, i + n.sum(), n / i, ~b, b ^ True)


@theme.agrees(
    lambda s: (given(s, [5, -5, 0, 1023, -1]), given(s, [1, 2, 3, 4, 5])), needs={"int64", "bool"}
)
def bits_are_shifted_otherwise(a: torch.Tensor, b: torch.Tensor) -> Tensors:
    logic = (a & b, a | b, a ^ b, ~a, (a > 0) & (b > 2), torch.logical_xor(a, b))
    return (*logic, a << 2, a >> 1, a << b)


@theme.agrees(
    lambda s: (numbered(s, 6, dtype=torch.int32), numbered(s, 6, dtype=torch.uint8), normal(s, 6)),
    needs={"int64", "int32", "uint8", "bool"},
)
def integers_are_returned_as_another_dtype(
    i: torch.Tensor, u: torch.Tensor, x: torch.Tensor
) -> Tensors:
    sums = (i.sum(), u.sum(), (x > 0).sum(), i.cumsum(0), i.prod())
    return (*sums, x.argmax(), x.topk(2).indices, x > 0, i.max(), u.max(), i * 2, u + u)
