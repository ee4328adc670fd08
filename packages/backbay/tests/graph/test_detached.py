"""A result that is returned detached as well is what eager returns, and shares its memory."""

from dataclasses import dataclass

import pytest
import torch

from backbay.graph.rewrite import call_before
from backbay.kit import Backend, Rewrite
from backbay.kit.passes import Call


def doubled(x):
    return (x * 2).t()


def with_base(x):
    base = x * 2
    return base.t(), base.t().detach(), base


def written(x):
    y = (x * 2).t()
    z = y.detach()
    z.add_(1)
    return y, z


def of_input(x):
    return x.t(), x.t().detach()


def no_view(x):
    y = x * 2
    return y, y.detach()


def in_other_form(x):
    y = doubled(x)
    return y, y.detach()[0], y[1]


def detached_alone(x):
    return doubled(x).detach(), x * 3


def detached(x):
    y = doubled(x)
    return y, y.detach()


def data(x):
    y = doubled(x)
    return y, y.data


def detached_twice(x):
    y = doubled(x)
    return y.detach().detach(), y + 1, y


def detached_view(x):
    y = doubled(x)
    return y, y.view_as(y).detach(), y[1]


def two_results(x):
    return *detached(x), *detached(x + 1)


def another_shape(x):
    y = (x * 2).unflatten(0, (1, 3)).mT
    return y, y.detach()


def with_gaps(x):
    y = (x * 2)[:, ::2]
    return y, y.detach()


def expanded(x):
    y = (x * 2)[0].expand(3, 3)
    return y, y.detach()


def read_around(x):
    y = (x * 2)[1:]
    return y, y.detach(), y.as_strided((3,), (1,), 0) * 1


def a_part(x):
    y = (x * 2)[1:]
    return y, y.detach()


COPIED = dict.fromkeys((detached, data, detached_twice, detached_view, another_shape, a_part), 1)
COPIED[two_results] = 2
LEFT = [
    *(no_view, in_other_form, detached_alone, of_input, with_base, written),
    *(with_gaps, expanded, read_around),
]


@torch.library.custom_op("backbay_tests::doubled_across", mutates_args=())
def doubled_across(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled_across.register_fake(lambda x: x * 2)
doubled_across.register_autograd(lambda _, dy: dy * 2)


@dataclass(frozen=True, kw_only=True)
class Across(Rewrite[Call]):
    """Has a product be a view of one of transposed tensors."""

    targets = (torch.ops.aten.mul.Tensor, torch.mul, "mul")

    def replacement(self, site, context):
        first, factor = site.node.args
        turned = call_before(site.node, "t", first)
        made = call_before(site.node, torch.multiply, turned, factor)
        return call_before(site.node, "t", made)


@dataclass(frozen=True, kw_only=True)
class Opaque(Across):
    """Has an operator of its own compute a product: a compiler may see through it to a view."""

    def replacement(self, site, context):
        operator = torch.ops.backbay_tests.doubled_across.default
        return call_before(site.node, operator, site.node.args[0])


class Own(Backend):
    """It may trace the graph again, and runs it as it is."""

    def compile(self, graph_module, example_inputs):
        return graph_module.forward


class Traced(Backend):
    codegen = "aot_eager"


class AsItIs(Backend):
    codegen = "eager"


def compiled(program, *, dynamic=None, rewrites=(), backend=Traced):
    """Return a program, compiled, and a list of how many results were copied."""
    counted = []

    class Noting(backend):
        passes = rewrites

        def __call__(self, graph_module, example_inputs, **keywords):
            made = super().__call__(graph_module, example_inputs, **keywords)
            nodes = graph_module.graph.find_nodes(op="call_function", target=torch.clone)
            counted.append(len(nodes))
            return made

    return torch.compile(program, backend=Noting(), fullgraph=True, dynamic=dynamic), counted


def shared(results):
    where = [x.untyped_storage().data_ptr() for x in results]
    return [a == b for a in where for b in where]


def check(program, call):
    x = torch.arange(9.0).view(3, 3)
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    results, wanted = call(ours), program(eager)
    assert shared(results) == shared(wanted)
    for result, other in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, other)
        assert (result.stride(), result.requires_grad) == (other.stride(), other.requires_grad)
    for got in (results, wanted):
        sum((y * (n + 1)).sum() for n, y in enumerate(got) if y.requires_grad).backward()
    torch.testing.assert_close(ours.grad, eager.grad)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", COPIED)
def test_a_result_and_its_detached_self_are_two_things(program, dynamic):
    call, copied = compiled(program, dynamic=dynamic)
    check(program, call)
    assert copied == [COPIED[program]]


@pytest.mark.parametrize("program", LEFT)
def test_results_are_copied_that_need_no_copy_or_may_have_none(program):
    call, copied = compiled(program, backend=Own)  # of some AOTAutograd has results wrong
    check(program, call)
    assert copied == [0]


@pytest.mark.parametrize("rewrite", [Across(), Opaque()])
def test_a_rewrite_makes_a_view_of_a_result_that_was_none(rewrite):
    def program(x):
        y = torch.mul(x, 2)
        return y, y.detach()

    call, copied = compiled(program, rewrites=(rewrite,))
    check(program, call)
    assert copied == [1]


def test_where_nothing_traces_the_graph_again_results_are_copied():
    call, copied = compiled(detached, backend=AsItIs)
    check(detached, call)
    assert copied == [0]


def test_a_dry_run_raises_where_the_program_is_compiled():
    class Cut(Own):
        level = "aten"
        supports = (torch.ops.aten.mul.Tensor,)

    assert Cut().dry_run(detached, torch.ones(3, 4, requires_grad=True), train=True).graphs


def test_without_gradients_nothing_is_copied():
    call, copied = compiled(detached)
    with torch.no_grad():
        call(torch.ones(3, 3))
    assert copied == [0]
