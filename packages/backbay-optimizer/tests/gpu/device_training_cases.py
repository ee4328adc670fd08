"""Training in which only a device can tell: streams, threads at once, captures, short memory."""

import threading

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from training_cases import as_it_is, case, gradients, net, raised, rows, values


@case
def streams(way):
    model, seen = net(), []
    call = way(model)
    sides = [torch.cuda.Stream() for _ in range(2)]
    for step in range(12):
        x = rows(seed=step)
        model.zero_grad()
        torch.cuda.synchronize()
        with torch.cuda.stream(sides[step % 2] if step > 3 else torch.cuda.current_stream()):
            loss = call(x).square().mean()
            loss.backward()
        torch.cuda.synchronize()
        seen += [loss.detach().clone(), *gradients(model)]
    return seen


@case
def a_backward_from_another_stream(way):
    model, seen = net(), []
    call, side = way(model), torch.cuda.Stream()
    for step in range(8):
        model.zero_grad()
        result = call(rows(seed=step))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result.square().mean().backward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        seen += gradients(model)
    return seen


@case
def threads(way):
    model, found = net(), {}
    call = way(model)
    for _ in range(4):
        call(rows()).square().mean().backward()

    def work(number):
        for step in range(10):
            loss = call(rows(seed=100 * number + step)).square().mean()
            found[number, step] = torch.autograd.grad(loss, list(model.parameters()))

    running = [threading.Thread(target=work, args=(x,)) for x in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return [x for key in sorted(found) for x in found[key]]


@case
def a_graph_of_the_callers(way):
    model, seen = net(), []
    call, x = way(model), rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        call(x).square().mean().backward()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            optimizer.zero_grad()
            call(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
    for step in range(3):
        x.copy_(rows(seed=step))
        graph.replay()
        seen.append(loss.detach().clone())
    return [*seen, *values(model)]


@case
def memory_that_is_short(way):
    def function(x, y):
        return torch.sin(x * y).exp()

    call, scale = way(function), torch.ones(1, device="cuda", requires_grad=True)
    x, seen = torch.linspace(0, 1, 1 << 22, device="cuda"), []
    for _ in range(4):
        call(x, scale).mean().backward()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction((held + (1 << 26)) / whole)
    kept = []
    try:
        kept += [call(x, scale) for _ in range(64)]
    except torch.cuda.OutOfMemoryError:
        seen.append("OutOfMemoryError")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    kept.clear()
    for _ in range(3):
        scale.grad = None
        call(x, scale).mean().backward()
        seen.append(scale.grad)
    return seen


@case
def parameters_whose_memory_is_freed(way):  # as FSDP does between calls
    model, seen = net(), []
    call = way(model)
    for step in range(6):
        model.zero_grad()
        call(rows(seed=step)).square().mean().backward()
        seen += gradients(model)
        kept = [(x, x.detach().clone()) for x in model.parameters()]
        with torch.no_grad():
            for one, _ in kept:
                one.untyped_storage().resize_(0)
            others = torch.full((1 << 16,), float("nan"), device="cuda")  # where parameters were
            for one, given in kept:
                one.untyped_storage().resize_(given.untyped_storage().nbytes())
                one.data.copy_(given)
            del others
    return seen


@as_it_is
def numbers_on_the_host(way):  # whose gradients are kept, too, as those of random_numbers
    model, kept = net(), []
    call = way(lambda x, y: model(x) * y)
    for step in range(5):
        model.zero_grad()
        call(rows(seed=step), torch.tensor(float(step))).square().mean().backward()
        kept += [x.grad for x in model.parameters()]
    return kept


@case
def random_numbers_that_are_drawn_again(way):  # in the backward, by a checkpoint inside
    from torch.utils.checkpoint import checkpoint

    model, kept = net(), []  # as in random_numbers

    def part(x):
        return F.dropout(model(x), 0.5)

    call = way(lambda x: checkpoint(part, torch.sin(x), use_reentrant=False))
    torch.manual_seed(5)
    for step in range(6):
        model.zero_grad()
        first = call(rows(seed=step))
        second = call(rows(seed=step + 9)) if step % 2 else first
        (first + second).square().mean().backward()
        kept += [x.grad for x in model.parameters()]
    return [*kept, torch.rand(3, device="cuda")]


@case
def embeddings(way):
    table, seen = torch.nn.Embedding(100, 32).cuda(), []
    with torch.no_grad():
        table.weight.copy_(torch.linspace(-1, 1, 3200, device="cuda").view(100, 32))
    call = way(lambda x: torch.tanh(table(x)))
    for step in range(6):
        table.zero_grad()
        made = torch.Generator("cuda").manual_seed(step)
        call(torch.randint(0, 100, (8, 4), device="cuda", generator=made)).sum().backward()
        seen += gradients(table)
    return seen


@case
def a_device_that_is_empty(way):
    model, seen = net(), []
    call = way(model)
    for _ in range(4):
        model.zero_grad()
        seen.append(raised(call(rows(0)).sum().backward))
        seen += [x for x in gradients(model) if x is not None]
    return seen


@case
def many_layers(way):
    model = torch.nn.Sequential(*(net() for _ in range(6)))
    # Inductor may sum in another order each time, and AdamW makes a step of a gradient's rounding.
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), []
    call = way(model)
    for step in range(30):
        optimizer.zero_grad()
        loss = call(rows(seed=step)).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    return [*seen, *values(model)]
