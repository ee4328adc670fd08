"""Training in which a replay might be told from the default mode.

Each takes a way to compile, and returns what can be seen: tensors, and texts of errors. They run on
a GPU, and on the CPU where one is made up.
"""

import contextlib
import functools
import threading

import small_models
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
D = 32
Net = functools.partial(small_models.Net, D)
Images = functools.partial(small_models.Images, D)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, D)

    def forward(self, x):
        return F.dropout(torch.tanh(self.layer(F.dropout(x, 0.3))), 0.5)


class Two(nn.Module):
    """Two results, of which one may stay unused, and one that is saved."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        hidden = torch.exp(torch.tanh(self.layer(x)))  # its gradient reads the result
        return hidden, torch.sigmoid(self.other(x))


def net(kind=Net):
    torch.manual_seed(0)
    return kind().to(DEVICE)


def rows(count=16, seed=1):
    made = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(count, D, device=DEVICE, generator=made)


def images(seed):
    made = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(4, 3, 8, 8, device=DEVICE, generator=made)


def gradients(model):
    return [None if x.grad is None else x.grad.detach().clone() for x in model.parameters()]


def values(model):
    return [x.detach().clone() for x in model.state_dict().values()]


def raised(function, *given, **named):
    """Return the first line of what a function raises."""
    try:
        function(*given, **named)
    except Exception as error:  # noqa: BLE001 (it is compared with the default mode's)
        return f"{type(error).__name__}: {error}".splitlines()[0][:90]
    return "nothing"


def assert_alike(got, wanted, *, rtol, atol):
    """Assert that two ways to compile a case give the same of what can be seen."""
    assert len(got) == len(wanted)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(other, torch.Tensor):
            said = lambda x, n=number: f"number {n} of what is seen: {x}"  # noqa: E731
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=said)
        else:
            assert one == other, number


CASES = {}
AS_THEY_ARE = set()
"""Where nothing need be replayed: something keeps it from that."""


def case(function):
    CASES[function.__name__] = function
    return function


def as_it_is(function):
    AS_THEY_ARE.add(function.__name__)
    return case(function)


def steps(way, make=torch.optim.SGD, *, kind=Net, inputs=rows, set_to_none=True, **given):
    model, seen = net(kind), []
    call, optimizer = way(model), make(model.parameters(), lr=0.1, **given)
    for step in range(6):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = call(inputs(seed=step)).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    return [*seen, *values(model), *gradients(model)]


@case
def plain_steps(way):
    return steps(way)


@case
def gradients_that_stay(way):
    return steps(way, set_to_none=False)


@case
def an_optimizer_that_is_fused(way):
    return steps(way, torch.optim.AdamW, fused=True)


@case
def an_optimizer_of_many_at_once(way):
    return steps(way, torch.optim.AdamW, foreach=True)


@case
def an_optimizer_one_by_one(way):
    return steps(way, torch.optim.AdamW, foreach=False, fused=False)


@case
def buffers_that_are_written(way):
    return steps(way, kind=Images, inputs=images)


@case
def random_numbers(way):  # whose gradients are kept: reduce-overhead overwrites them each time
    torch.manual_seed(7)
    model, kept = net(Dropping), []
    call = way(model)
    for step in range(6):
        model.zero_grad()
        loss = call(rows(seed=step)).square().mean()
        loss.backward()
        kept += [loss.detach(), *(x.grad for x in model.parameters())]
    return [*kept, torch.rand(3, device=DEVICE)]


@case
def losses_of_the_whole(way):  # whose gradients are expanded
    model, seen = net(), []
    call = way(model)
    for step in range(5):
        model.zero_grad()
        call(rows(seed=step)).sum().backward()
        seen += gradients(model)
    return seen


@case
def forwards_before_backwards(way):
    model, seen = net(), []
    call = way(model)
    for step in range(6):
        first, second = call(rows(seed=step)), call(rows(seed=step + 50))
        third = call(rows(seed=step + 90))
        for result in (first, third, second) if step % 2 else (second, first, third):
            model.zero_grad()
            result.square().mean().backward()
            seen += gradients(model)
        seen += [first.detach().clone(), second.detach().clone(), third.detach().clone()]
    return seen


@case
def one_backward_of_many_forwards(way):
    model, seen = net(), []
    call = way(model)
    for step in range(5):
        model.zero_grad()
        results = [call(rows(seed=10 * step + x)) for x in range(4)]
        torch.stack(results).square().mean().backward()
        seen += gradients(model)
    return seen


@case
def results_of_the_last_one(way):  # which is called on its own result
    model, seen = net(), []
    call = way(model)
    for step in range(5):
        model.zero_grad()
        call(call(rows(seed=step))).square().mean().backward()
        seen += gradients(model)
    return seen


@case
def forwards_without_backwards(way):
    model, seen = net(), []
    call = way(model)
    for step in range(12):
        result = call(rows(seed=step))
        seen.append(result.detach().clone())
        if step % 3 == 0:
            model.zero_grad()
            result.square().mean().backward()
            seen += gradients(model)
        if step == 7:
            kept = result
    kept.square().mean().backward()
    return [*seen, *gradients(model)]


@case
def a_graph_that_is_retained(way):
    # Of its own: what a cache has of a graph may have been compiled for backwards that retain none.
    model, seen = net(), []
    call = way(lambda x: torch.cos(model(x)))
    for step in range(6):
        model.zero_grad()
        loss = call(rows(seed=step)).square().mean()
        loss.backward(retain_graph=True)
        seen += gradients(model)
        loss.backward()
        seen += gradients(model)
        seen.append(raised(loss.backward))
    return seen


@case
def a_graph_that_is_retained_too_late(way):
    model, seen = net(), []
    call = way(lambda x: torch.cos(model(x) + 1))
    for step in range(6):
        model.zero_grad()
        loss = call(rows(seed=step)).square().mean()
        if step > 3:
            seen.append(raised(loss.backward, retain_graph=True))
        else:
            loss.backward()
        seen += gradients(model)
    return seen


@case
def a_backward_twice(way):
    model, seen = net(), []
    call = way(model)
    for step in range(5):
        model.zero_grad()
        x = rows(seed=step).requires_grad_()
        loss = call(x).square().mean()

        def twice(loss=loss, x=x):
            (found,) = torch.autograd.grad(loss, x, create_graph=True)
            found.square().sum().backward()

        if step == 4:
            seen.append(raised(twice))
        else:
            loss.backward()
            seen += [*gradients(model), x.grad]
    return seen


@case
def gradients_that_are_accumulated(way):
    model, seen = net(), []
    call = way(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        for part in range(3):
            loss = call(rows(seed=10 * step + part)).square().mean() / 3
            loss.backward()
            seen.append(loss.detach().clone())
        seen += gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, *values(model)]


@case
def gradients_that_are_kept(way):
    model, kept = net(), []
    call = way(model)
    for step in range(6):
        model.zero_grad(set_to_none=True)
        call(rows(seed=step)).square().mean().backward()
        kept += [x.grad for x in model.parameters()]
        if step == 3:
            for one in kept:
                one.mul_(2)  # the caller's own
    return kept


@case
def gradients_that_are_asked_for(way):
    model, kept = net(), []
    call = way(model)
    for step in range(6):
        x = rows(seed=step).requires_grad_()
        loss = call(x).square().mean()
        kept += torch.autograd.grad(loss, [x, *model.parameters()])
    return kept


@case
def checkpoints(way):
    seen = []
    for reentrant in (False, True):
        model = net()
        calls = [way(model.up), way(net())]
        for step in range(5):
            model.zero_grad()
            x = rows(seed=step).requires_grad_()
            result = checkpoint(lambda x, c=calls: c[1](torch.sin(x)), x, use_reentrant=reentrant)
            result = checkpoint(calls[0], result, use_reentrant=reentrant)
            result.square().mean().backward()
            seen += [x.grad, *gradients(model)]
    return seen


@case
def inference_in_between(way):
    model, seen = net(Images), []
    call = way(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        result = call(images(step))
        with torch.no_grad():
            model.eval()
            seen += [call(images(step + 50)) for _ in range(2)]
            model.train()
            seen += [call(images(step + 70)) for _ in range(2)]
        result.square().mean().backward()
        optimizer.step()
        seen += [result.detach().clone(), *gradients(model)]
    return [*seen, *values(model)]


@case
def exceptions_in_between(way):
    model, seen = net(), []
    call = way(model)

    def bad(_):
        raise RuntimeError("a hook of the caller's")

    for step in range(8):
        model.zero_grad()
        seen.append(raised(call, torch.ones(4, D + 1, device=DEVICE)))
        result = call(rows(seed=step))
        hooked = (torch.zeros((), requires_grad=True), result, model.up.weight)[step % 3]
        hook = hooked.register_hook(bad)
        seen.append(raised(result.square().mean().backward))
        hook.remove()
        seen += [x for x in gradients(model) if x is not None]
    return seen


@case
def hooks(way):
    model, seen = net(), []
    call = way(model)
    model.up.weight.register_hook(lambda x: x * 2)
    model.down.weight.register_hook(lambda x: seen.append(x))

    def tripled(x):
        x.grad.mul_(3)

    model.norm.weight.register_post_accumulate_grad_hook(tripled)
    for step in range(5):
        model.zero_grad()
        x = rows(seed=step).requires_grad_()
        result = call(torch.sin(x))
        result.register_hook(lambda x: x + 1)
        result.square().mean().backward()
        seen += [*gradients(model), x.grad]
    return seen


@case
def hooks_of_what_is_saved(way):
    model, seen, kept = net(), [], []
    call = way(model)

    def kept_for_good(x):
        kept.append(x)
        return x

    ways = (
        (lambda x: x, lambda x: x),
        (lambda x: x.clone(), lambda x: x),
        (lambda x: x.cpu(), lambda x: x.to(DEVICE)),
        (lambda x: (x.detach(), x.clone()), lambda x: x[0]),
    )
    for step in range(12):
        model.zero_grad()
        pack, unpack = ways[step % 4]
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            result = call(rows(seed=step))
        result.square().mean().backward()
        seen += gradients(model)
    with torch.autograd.graph.saved_tensors_hooks(kept_for_good, lambda x: x):
        result = call(rows(seed=20))
    before = [x.clone() for x in kept]
    for step in range(4):
        model.zero_grad()
        call(rows(seed=step)).square().mean().backward()
        seen += gradients(model)
    return [*seen, *before, *kept]


@case
def some_results_alone(way):
    model, seen = net(Two), []
    call = way(model)
    for step in range(8):
        model.zero_grad()
        one, other = call(rows(seed=step))
        used = (one, other, one + other)[step % 3]
        used.square().mean().backward()
        seen += [one.detach().clone(), other.detach().clone(), *gradients(model)]
    return seen


@case
def results_that_are_saved_and_written(way):
    model, seen = net(Two), []
    call = way(model)
    for step in range(8):
        model.zero_grad()
        one, other = call(rows(seed=step))
        loss = (one * other).sum() if step % 2 else (one + other).sum()
        if step > 4:
            with torch.no_grad():
                one.add_(1)
        seen += [raised(loss.backward), one.detach().clone(), *gradients(model)]
    return seen


@case
def inputs_that_are_written_before_the_backward(way):
    model, seen = net(), []
    call = way(model)
    for step in range(8):
        model.zero_grad()
        x = rows(seed=step)
        loss = call(x).square().mean()
        if step % 2:
            x.add_(1)
        seen += [raised(loss.backward), *gradients(model)]
        if step == 6:
            loss = call(x).square().mean()
            with torch.no_grad():
                model.up.weight.add_(1)
            seen += [raised(loss.backward), *gradients(model)]
    return seen


@as_it_is
def inputs_that_are_written(way):
    model, seen = net(), []

    def written(x):
        x.add_(1)
        return model(x)

    call = way(written)
    for step in range(6):
        model.zero_grad()
        x = rows(seed=step)
        call(x).square().mean().backward()
        seen += [x, *gradients(model)]
    return seen


@case
def inputs_that_have_gradients(way):
    model, seen = net(), []
    call = way(model)
    for step in range(6):
        leaf = rows(seed=step).requires_grad_()
        call(leaf * 2).square().mean().backward()
        seen += [leaf.grad, *gradients(model)]
    return seen


@case
def parameters_that_are_frozen(way):
    model, seen = net(), []
    call = way(model)
    for step in range(12):
        model.up.weight.requires_grad_(step not in {4, 5, 6, 7})
        model.zero_grad()
        call(rows(seed=step)).square().mean().backward()
        seen += [x for x in gradients(model) if x is not None]
    return seen


@case
def parameters_elsewhere(way):
    model, seen = net(), []
    call = way(model)
    for step in range(9):
        model.zero_grad()
        result = call(rows(seed=step))
        if step == 8:
            model.down.weight.data = torch.randn_like(model.down.weight) / 8  # too late for it
        result.square().mean().backward()
        seen += gradients(model)
        if step == 3:
            for one in model.parameters():
                one.data = torch.randn_like(one) / 8
        if step == 6:
            made = torch.Generator(DEVICE).manual_seed(step)
            state = {
                name: torch.randn(x.shape, device=DEVICE, generator=made) / 8
                for name, x in model.state_dict().items()
            }
            model.load_state_dict(state, assign=True)
    return seen


LAYERS = 12
"""More than a graph is recorded sizes for."""


@case
def one_graph_of_many_layers(way):  # as where each layer is compiled, of a model that is not
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(Net() for _ in range(LAYERS)).to(DEVICE)
    call, seen = way(lambda layer, x: x + layer(x) / LAYERS), []
    for step in range(6):
        layers.zero_grad()
        result = rows(seed=step).requires_grad_()
        for layer in layers:
            result = call(layer, result)
        result.square().mean().backward()
        seen += gradients(layers)
    return seen


@case
def sizes_that_differ(way):
    model, seen = net(), []
    call = way(model, dynamic=True)
    for step in range(30):
        model.zero_grad()
        first, second = call(rows(3 + step % 12, step)), call(rows(5, step))
        first.square().mean().backward()
        second.square().mean().backward()
        seen += [first.detach().clone(), *gradients(model)]
    return seen


@case
def sizes_that_are_compiled_anew(way):
    model, seen = net(), []
    call = way(model, dynamic=False)
    for step in range(12):
        model.zero_grad()
        call(rows((16, 8, 12)[step % 3], step)).square().mean().backward()
        seen += gradients(model)
    return seen


@case
def several_models(way):
    torch.manual_seed(0)
    models = [Net().to(DEVICE) for _ in range(3)]
    calls, seen = [way(x) for x in models], []
    for step in range(6):
        x = rows(seed=step)
        for call in calls if step % 2 else reversed(calls):
            x = call(x)
        x.square().mean().backward()
        for model in models:
            seen += gradients(model)
            model.zero_grad()
    return seen


@case
def graph_breaks(way):
    model, seen = net(), []

    def function(x):
        first = model(x)
        torch._dynamo.graph_break()
        second = model(first) + first
        torch._dynamo.graph_break()
        return model(second)

    call = way(function)
    for step in range(6):
        model.zero_grad()
        call(rows(seed=step)).square().mean().backward()
        seen += gradients(model)
    return seen


@case
def results_that_are_views(way):
    model = net()

    def function(x):
        hidden = torch.exp(model(x))
        return hidden, hidden[1:], hidden.t(), x.view(-1)

    call, seen = way(function), []
    for step in range(6):
        model.zero_grad()
        x = rows(seed=step)
        results = call(x)
        memory = [y.untyped_storage().data_ptr() for y in (*results, x)]
        seen.append(str([memory.index(y) for y in memory]))
        seen.append(str([(y.stride(), y.storage_offset(), y.requires_grad) for y in results]))
        (results[0].mean() + results[1].square().mean() + results[2].sin().mean()).backward()
        seen += [*gradients(model), *(y.detach().clone() for y in results)]
    return seen


@case
def another_thread(way):
    model, seen = net(), []
    call = way(model)
    for step in range(8):
        model.zero_grad()
        loss = call(rows(seed=step)).square().mean()
        if step % 2:
            one = threading.Thread(target=loss.backward)
            one.start()
            one.join()
        else:
            loss.backward()
        seen += gradients(model)
    return seen


@case
def a_backward_in_the_callers_thread(way):
    with torch.autograd.set_multithreading_enabled(False):
        return steps(way)


@case
def numbers_of_less_precision(way):
    model, seen = net(), []
    call = way(model)
    for step in range(6):
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = call(rows(seed=step)).float().square().mean()
        (loss * 1024).backward()
        seen += gradients(model)
    return seen


@case
def results_that_die_at_once(way):
    model, seen = net(), []
    call = way(model)
    for step in range(8):
        call(rows(seed=step + 40))
        with contextlib.suppress(ZeroDivisionError):
            call(rows(seed=step + 50)).sum() / (1 / 0)
        model.zero_grad()
        call(rows(seed=step)).square().mean().backward()
        seen += gradients(model)
    return seen


@case
def gradients_of_one_layer(way):  # that saves nothing of its own
    layer, seen = nn.Linear(D, D).to(DEVICE), []
    with torch.no_grad():
        layer.weight.fill_(0.25)
        layer.bias.fill_(0.5)
    call = way(layer)
    for step in range(6):
        layer.zero_grad()
        first, second = call(rows(seed=step)), call(rows(seed=step + 9))
        first.square().mean().backward()
        second.square().mean().backward()
        seen += gradients(layer)
    return seen
