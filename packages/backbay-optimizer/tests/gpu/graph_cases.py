"""Programs in which a replay might be told from the default mode, by what they do or who calls."""

import functools
import threading

import torch
from small_models import Images, Net
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from training_cases import LAYERS, assert_alike

from backbay_optimizer.backend import backbay

D = 64


def net(kind=Net):
    torch.manual_seed(0)
    return kind().cuda()


def rows(count=16, seed=1):
    made = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(count, D, device="cuda", generator=made)


def default(function, **options):
    return torch.compile(function, backend=backbay, options={"cuda_graphs": False}, **options)


def ours(function, **options):
    return torch.compile(function, backend=backbay, options={"cuda_graphs": True}, **options)


def auto(function, **options):
    return torch.compile(function, backend=backbay, **options)


def torchs(function, **options):
    return torch.compile(function, mode="reduce-overhead", **options)


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def assert_as_default(case, way, alike=same):
    """Assert that a case gives the same for a way to compile as for the default mode."""
    results = []
    for one in (default, way):
        torch.compiler.reset()
        torch.manual_seed(3)
        results.append(case(one))
    alike(results[1], results[0])


def assert_trains_as_default(case, way):
    """Assert the same of a case of training, which may give texts, too."""
    assert_as_default(case, way, functools.partial(assert_alike, rtol=1e-4, atol=1e-5))


CASES = {}
"""By name, what takes a way to compile, and asserts that it gives what the default mode gives."""


def compared(case):
    CASES[case.__name__] = lambda way: assert_as_default(case, way)
    return case


def checked(case):
    CASES[case.__name__] = case
    return case


@compared
@torch.no_grad()
def outputs_of_many_calls(way):
    call = way(net())
    return [call(rows(seed=x)) for x in range(6)]


@compared
def outputs_in_inference_mode(way):
    call = way(net())
    with torch.inference_mode():
        results = [call(rows(seed=x)) for x in range(5)]
    assert all(x.is_inference() for x in results)
    return [x.clone() for x in results]


@compared
def both_modes_of_inference(way):
    call, results = way(net()), []
    for step in range(8):
        with torch.inference_mode() if step % 2 else torch.no_grad():
            results.append(call(rows(seed=step)))
    return [x.clone() for x in results]


@compared
@torch.no_grad()
def outputs_that_the_caller_writes(way):
    call = way(net())
    return [call(rows(seed=x)).add_(1) for x in range(6)]


def aliases(x):
    y = x.sin() + 1
    return y, y[1:], y.t(), y.exp(), x.view(-1), x


@checked
@torch.no_grad()
def views_and_shared_storage(way):
    found = []
    for one in (default, way):
        torch.compiler.reset()
        call, kept = one(aliases), []
        for step in range(5):
            x = rows(seed=step)
            results = call(x)
            memory = [y.untyped_storage().data_ptr() for y in (*results, x)]
            layout = [(y.shape, y.stride(), y.storage_offset()) for y in results]
            sizes = [y.untyped_storage().nbytes() for y in results]
            shared = [memory.index(y) for y in memory]
            kept.append((shared, layout, sizes, [y.clone() for y in results], results[-1] is x))
        found.append(kept)
    for one, other in zip(*found, strict=True):
        assert one[:3] == other[:3]
        same(other[3], one[3])
        assert one[4] == other[4]


@compared
@torch.no_grad()
def a_part_of_a_result(way):
    def part(x):
        return (x.sin() @ x.t()).unflatten(0, (4, 4))[:, -1]

    call = way(part)
    return [call(rows(seed=x)) for x in range(5)]


@compared
@torch.no_grad()
def inputs_of_many_layouts(way):
    call, results = way(lambda x, y: (x * 2 + y).sum(0)), []
    for _ in range(4):
        wide = torch.randn(16, 2 * D, device="cuda")
        results.append(call(wide[:, ::2], wide[:, :D]))
    ones = torch.ones(1, 1, device="cuda").expand(D, 16)
    results += [call(rows(17, step)[1:].t(), ones) for step in range(4)]
    for step in range(4):
        flat = torch.randn(16 * D + 1, device="cuda")[1:].view(16, D)  # not on 16 bytes
        results.append(call(flat, rows(seed=step)))
    return results


@compared
@torch.no_grad()
def empty_inputs(way):
    call = way(net())
    return [call(rows(0)) for _ in range(4)]


@compared
@torch.no_grad()
def sizes_that_differ(way):
    call = way(net(), dynamic=True)
    return [call(rows(count, seed)) for seed in range(3) for count in range(3, 20)]


@compared
@torch.no_grad()
def inputs_that_are_written(way):
    def write(x):
        x.add_(1)
        return x * 2

    call, x = way(write), rows()
    return [*(call(x) for _ in range(5)), x]


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(D))

    def forward(self, x):
        self.count.add_(x.sum(0))
        return self.count * 2 + x


@compared
@torch.no_grad()
def buffers_that_are_written(way):
    model = net(Counting)
    call = way(model)
    results = [call(rows(seed=x)) for x in range(5)]
    model.count.zero_()
    return [*results, call(rows(seed=9)), model.count]


@compared
@torch.no_grad()
def numbers_on_the_host(way):
    call = way(lambda x, y: x * y + 1)
    return [call(rows(), torch.tensor(float(y))) for y in range(5)]


@compared
@torch.no_grad()
def operators_that_wait(way):
    call = way(lambda x: torch.bincount(x, minlength=8) * 2)
    made = [torch.randint(0, 8, (100,), device="cuda") for _ in range(5)]
    return [call(x) for x in made]


@torch.library.custom_op("backbay_tests::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    return x + float(x.sum().item())


@waits.register_fake
def _(x):
    return torch.empty_like(x)


@compared
@torch.no_grad()
def operators_of_others(way):
    call = way(lambda x: waits(x.sin()) * 2)
    return [call(rows(seed=x)) for x in range(5)]


@compared
@torch.no_grad()
def a_graph_of_the_callers(way):
    call, x = way(net()), rows()
    for _ in range(4):
        call(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            call(x)
    torch.cuda.current_stream().wait_stream(side)
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        result = call(x)
    for step in range(3):
        x.copy_(rows(seed=step))
        graph.replay()
        results.append(result.clone())
    return results


@compared
@torch.no_grad()
def streams(way):
    call, results = way(net()), []
    sides = [torch.cuda.Stream() for _ in range(3)]
    for step in range(12):
        x = rows(seed=step)
        torch.cuda.synchronize()
        with torch.cuda.stream(sides[step % 3] if step > 3 else torch.cuda.current_stream()):
            results.append(call(x))
    torch.cuda.synchronize()
    return results


@compared
def threads(way):
    call, results = way(net()), {}
    with torch.no_grad():
        for step in range(3):  # kept, too: reduce-overhead overwrites these each time
            results[-1, step] = call(rows(seed=step))

    def work(number):
        with torch.no_grad():
            for step in range(10):
                results[number, step] = call(rows(seed=100 * number + step))

    running = [threading.Thread(target=work, args=(x,)) for x in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    torch.cuda.synchronize()  # the net goes out of scope, and this thread's stream may be another
    return [results[x] for x in sorted(results)]


@compared
@torch.no_grad()
def parameters_elsewhere(way):
    model, results = net(), []
    call = way(model)
    for step in range(4):
        results += [call(rows(seed=step)) for _ in range(3)]
        for one in model.parameters():
            one.data = torch.randn_like(one) / 8
    for step in range(3):
        state = {name: torch.randn_like(x) / 8 for name, x in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        results += [call(rows(seed=step)) for _ in range(3)]
    return results


@compared
@torch.no_grad()
def parameters_that_never_stay(way):
    model, results = net(), []
    call = way(model)
    held = []  # so that no address comes back
    for step in range(80):
        results.append(call(rows(seed=step)))
        for one in model.parameters():
            one.data = torch.randn_like(one) / 8
            held.append(torch.empty_like(one))  # where the parameter was
    return results


@compared
@torch.no_grad()
def one_graph_of_many_layers(way):  # as where each layer is compiled, of a model that is not
    torch.manual_seed(0)
    layers = nn.ModuleList(Net() for _ in range(LAYERS)).cuda()
    call, results = way(lambda layer, x: x + layer(x) / LAYERS), []
    for step in range(4):
        x = rows(seed=step)
        for layer in layers:
            x = call(layer, x)
        results.append(x.clone())
    return results


@compared
@torch.no_grad()
def parameters_whose_memory_is_freed(way):  # as FSDP does between calls
    model, results = net(), []
    call = way(model)
    for step in range(6):
        results.append(call(rows(seed=step)))
        kept = [(x, x.clone()) for x in model.parameters()]
        for one, _ in kept:
            one.untyped_storage().resize_(0)
        others = torch.full((1 << 16,), float("nan"), device="cuda")  # where parameters were
        for one, values in kept:
            one.untyped_storage().resize_(values.untyped_storage().nbytes())
            one.copy_(values)
        del others
    return results


@compared
def inference_between_training_steps(way):
    model, results = net(), []
    call = way(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        with torch.no_grad():
            results += [call(rows(seed=step)) for _ in range(2)]
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        call(rows(seed=step)).square().mean().backward()
        optimizer.step()
    return [*results, *(x.detach().clone() for x in model.parameters())]


@compared
def steps_of_optimizers(way):
    kinds = (
        lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9),
        lambda x: torch.optim.NAdam(x, capturable=True),
        lambda x: torch.optim.ASGD(x, weight_decay=0.1, capturable=True),
    )
    results = []
    for kind in kinds:
        parameters = [torch.nn.Parameter(rows(4, seed=x)) for x in range(3)]
        step = way(kind(parameters).step)
        for number in range(6):
            for parameter in parameters:
                parameter.grad = rows(4, seed=10 + number)
            step()
        results += [x.detach() for x in parameters]
    return results


@compared
@torch.no_grad()
def exceptions_in_between(way):
    call, results = way(net()), []
    for step in range(6):
        results.append(call(rows(seed=step)))
        try:
            call(torch.ones(4, D + 1, device="cuda"))
        except Exception as error:  # noqa: BLE001 (it is compared with the default mode's)
            results.append(torch.tensor(len(type(error).__name__)))
    return results


@compared
@torch.no_grad()
def memory_that_is_short(way):
    call, x = way(torch.sin), torch.linspace(0, 1, 1 << 22, device="cuda")
    results = [call(x * step).sum() for step in range(4)]
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction((held + (1 << 26)) / whole)
    kept = []
    try:
        kept += [call(x) for _ in range(64)]
    except torch.cuda.OutOfMemoryError:
        results.append(torch.tensor(-1))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return [*results, *(call(x * step).sum() for step in range(4))]


@compared
@torch.no_grad()
def random_numbers(way):
    call = way(lambda x: torch.rand_like(x) + F.dropout(x, 0.5))
    results = [call(rows()) for _ in range(5)]
    state = torch.cuda.get_rng_state()
    results += [call(rows()), torch.rand(3, device="cuda")]
    torch.cuda.set_rng_state(state)
    return [*results, call(rows()), torch.rand(3, device="cuda")]


@compared
@torch.no_grad()
def settings_of_cudnn(way):
    model = net(Images).eval()
    call, results = way(model), []
    x = torch.randn(4, 3, 16, 16, device="cuda")
    for benchmark in (False, False, False, True, True, False):
        with torch.backends.cudnn.flags(benchmark=benchmark, deterministic=not benchmark):
            results.append(call(x))
    return results


@compared
@torch.no_grad()
def several_models(way):
    torch.manual_seed(0)
    models = [Net().cuda() for _ in range(4)]
    calls, results = [way(x) for x in models], []
    for step in range(5):
        x = rows(seed=step)
        for call in calls:
            x = call(x)
            results.append(x)
    return results
