"""``cuda_graphs``: nothing tells a replay from the default mode, its errors included.

Each case compares with the default mode. Torch's own ``mode="reduce-overhead"`` goes through the
same cases, and what it does in them is written down: those that it passes are in `TORCH_PASSES`.
"""

import contextlib
import functools
import gc
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

from backbay import compile_log  # noqa: E402
from backbay_optimizer.backend import backbay  # noqa: E402
from backbay_optimizer.cuda_graphs import capture, recording, replaying  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
D = 64


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.norm, self.dropout = nn.LayerNorm(D), dropout

    def forward(self, x):
        h = F.dropout(F.gelu(self.up(self.norm(x))), self.dropout, training=self.dropout > 0)
        return torch.sin(x + self.down(h))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x)))).mean((2, 3))


def net(kind=Net, **options):
    torch.manual_seed(0)
    return kind(**options).cuda()


def rows(count=16, seed=1):
    made = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(count, D, device="cuda", generator=made)


def default(function, **options):
    return torch.compile(function, backend=backbay, **options)


def ours(function, **options):
    return torch.compile(function, backend=backbay, options={"cuda_graphs": True}, **options)


def torchs(function, **options):
    return torch.compile(function, mode="reduce-overhead", **options)


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def both(case, way):
    """Compare what a case gives for the default mode with what it gives for another one."""
    results = []
    for one in (default, way):
        torch.compiler.reset()
        torch.manual_seed(3)
        results.append(case(one))
    same(results[1], results[0])


CASES = {}


def compared(case):
    CASES[case.__name__] = lambda way: both(case, way)
    return case


def checked(case):
    CASES[case.__name__] = case
    return case


def trained(call, model, steps=5, *, make=None, lr=0.05, between=lambda step: None):
    optimizer = (make or torch.optim.SGD)(model.parameters(), lr=lr)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = call(rows(seed=step)).square().mean()
        between(step)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return [x.detach() for x in losses] + [x.detach().clone() for x in model.parameters()]


# -- inference


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
        for _ in range(3):
            call(rows())

    def work(number):
        with torch.no_grad():
            for step in range(10):
                results[number, step] = call(rows(seed=100 * number + step))

    running = [threading.Thread(target=work, args=(x,)) for x in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
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
    for step in range(24):
        results.append(call(rows(seed=step)))
        for one in model.parameters():
            held.append(one.data)
            one.data = torch.randn_like(one) / 8
    return results


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


# -- training

INFERENCE = tuple(CASES)
TRAINS = pytest.mark.skip(reason="training graphs are not recorded yet")


@compared
def training(way):
    model = net()
    return trained(way(model), model)


@compared
def training_with_an_optimizer_of_lists(way):
    model = net()
    return trained(way(model), model, make=torch.optim.AdamW, lr=1e-3)


@compared
def training_with_dropout(way):
    model = net(dropout=0.3)
    return trained(way(model), model)


@compared
def training_images(way):
    model = net(Images)
    call, results = way(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(6):
        x = torch.randn(8, 3, 16, 16, device="cuda", generator=made(step))
        loss = call(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
    return [
        *results,
        model.norm.running_mean,
        model.norm.running_var,
        model.norm.num_batches_tracked,
    ]


def made(seed):
    return torch.Generator("cuda").manual_seed(seed)


@compared
def gradients_that_add_up(way):
    model = net()
    call = way(model)
    for step in range(5):
        call(rows(seed=step)).square().mean().backward()
    return [x.grad for x in model.parameters()]


@compared
def gradients_that_are_kept(way):
    model, kept = net(), []
    call = way(model)
    for step in range(5):
        call(rows(seed=step)).square().mean().backward()
        kept += [x.grad for x in model.parameters()]
        model.zero_grad()
    return kept


@compared
def gradients_of_inputs(way):
    call, results = way(net()), []
    for step in range(5):
        x = rows(seed=step).requires_grad_()
        results += torch.autograd.grad(call(x).square().sum(), x)
    return results


@compared
def two_forwards_before_two_backwards(way):
    model, results = net(), []
    call = way(model)
    for step in range(4):
        one, other = call(rows(seed=step)), call(rows(seed=50 + step))
        one.square().mean().backward()
        other.square().mean().backward()
        results += [one.detach(), other.detach(), *(x.grad.clone() for x in model.parameters())]
    return results


@compared
def many_forwards_before_a_backward(way):
    model, results = net(), []
    call = way(model)
    for step in range(4):
        outs = [call(rows(seed=10 * step + x)) for x in range(4)]
        sum(x.square().mean() for x in outs).backward()
        results += [*(x.detach() for x in outs), *(x.grad.clone() for x in model.parameters())]
    return results


@compared
def a_model_that_is_called_twice_in_a_step(way):
    model = net()
    call = way(model)
    return trained(lambda x: call(call(x)), model)


@compared
def forwards_without_a_backward(way):
    model = net()
    call = way(model)
    kept = []

    def between(step):
        kept.append(call(rows(seed=70 + step)))
        if step == 3:
            kept.clear()

    results = trained(call, model, 7, between=between)
    return [*results, *(x.detach() for x in kept)]


@compared
def inference_between_steps(way):
    model, seen = net(), []
    call = way(model)

    def between(step):
        with torch.no_grad():
            seen.extend(call(rows(seed=80 + step)) for _ in range(2))

    return [*trained(call, model, between=between), *seen]


@compared
def an_error_between(way):
    model = net()
    call, results = way(model), []
    for step in range(6):
        with contextlib.suppress(ValueError):
            loss = call(rows(seed=step)).square().mean()
            if step % 2:
                raise ValueError("something of the caller's")
            loss.backward()
            results += [x.grad.clone() for x in model.parameters()]
    return results


def said(function):
    """Return what a function says where it fails."""
    try:
        function()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


@checked
def backward_twice(way):
    texts = []
    for one in (default, way):
        torch.compiler.reset()
        model = net()
        call, found = one(model), []
        for step in range(4):
            loss = call(rows(seed=step)).square().mean()
            found.append(said(functools.partial(loss.backward, retain_graph=True)))
            found.append(said(loss.backward))
            found.append(said(loss.backward))
        texts.append((found, [x.grad for x in model.parameters() if x.grad is not None]))
    assert texts[0][0] == texts[1][0]
    same(texts[1][1], texts[0][1])


@compared
def backward_twice_without_donated_buffers(way):
    with torch._functorch.config.patch(donated_buffer=False):
        model = net()
        call = way(model)
        for step in range(5):
            loss = call(rows(seed=step)).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
        return [x.grad for x in model.parameters()]


@checked
def double_backward(way):
    texts = []
    for one in (default, way):
        torch.compiler.reset()
        call, found = one(net()), []
        for step in range(4):
            x = rows(seed=step).requires_grad_()

            def run(x=x, call=call):
                (first,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
                first.sum().backward()

            found.append(said(run))
        texts.append(found)
    assert texts[0] == texts[1]
    assert all(texts[0])


@checked
def a_saved_result_that_is_written(way):
    texts = []
    for one in (default, way):
        torch.compiler.reset()
        weight = rows(D).requires_grad_()
        call, found = one(lambda x, weight=weight: torch.exp(x @ weight * 0.1)), []
        for step in range(5):
            result = call(rows(seed=step))
            result.mul_(2)
            found.append(said(result.sum().backward))
        texts.append(found)
    assert texts[0] == texts[1]
    assert all("modified by an inplace operation" in x for x in texts[0])


@checked
def a_saved_input_that_is_written(way):
    texts = []
    for one in (default, way):
        torch.compiler.reset()
        weight = rows(D).requires_grad_()
        call, found = one(lambda x, weight=weight: (x @ weight).sin()), []
        for step in range(5):
            x = rows(seed=step)
            result = call(x)
            x.mul_(2)
            found.append(said(result.sum().backward))
        texts.append(found)
    assert texts[0] == texts[1]
    assert all("modified by an inplace operation" in x for x in texts[0])


@compared
def checkpoints_around(way):
    model = net()
    call = way(model)
    return trained(lambda x: checkpoint(call, x, use_reentrant=False), model)


@compared
def checkpoints_inside(way):
    model = net(dropout=0.2)
    call = way(lambda x: checkpoint(model, x.sin(), use_reentrant=False).cos())
    return trained(call, model)


@compared
def saved_tensors_on_the_host(way):
    model = net()
    call = way(model)

    def through(x):
        with torch.autograd.graph.save_on_cpu():
            return call(x)

    return trained(through, model)


@compared
def hooks_of_gradients(way):
    model, seen = net(), []
    for one in model.parameters():
        one.register_hook(lambda grad: grad * 2)
        one.register_post_accumulate_grad_hook(lambda x: seen.append(x.grad.sum()))
    return [*trained(way(model), model), *seen]


@compared
def scaled_gradients(way):
    model = net()
    call, scaler = way(model), torch.amp.GradScaler("cuda", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(6):
        with torch.autocast("cuda", torch.float16):
            loss = call(rows(seed=step)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return [x.detach() for x in model.parameters()]


@compared
def a_model_that_is_gone(way):
    results = []
    for _ in range(3):
        model = net()
        call = way(model)
        for step in range(3):
            x = rows(seed=step).requires_grad_()
            loss = call(x).square().mean()
            if step < 2:
                loss.backward()
        del model, call
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.ones(1 << 20, device="cuda").mul_(7)
        loss.backward()
        results.append(x.grad)
    return results


@compared
def training_several_models(way):
    torch.manual_seed(0)
    models = [Net().cuda() for _ in range(3)]
    calls, results = [way(x) for x in models], []
    for step in range(5):
        outs = [call(rows(seed=step)) for call in calls]
        for out in outs:
            out.square().mean().backward()
        for model in models:
            for one in model.parameters():
                results.append(one.grad)
                one.grad = None
    return results


@compared
def training_in_threads(way):
    torch.manual_seed(0)
    models = [Net().cuda() for _ in range(3)]
    calls, results = [way(x) for x in models], {}

    def work(number):
        results[number] = trained(calls[number], models[number])

    for number in range(3):
        work(number)
    running = [threading.Thread(target=work, args=(x,)) for x in range(3)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return [results[x] for x in range(3)]


@compared
def training_in_streams(way):
    model = net()
    call, results = way(model), []
    sides = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for step in range(8):
        torch.cuda.synchronize()
        with torch.cuda.stream(sides[step // 2 % 2]):
            results += trained(call, model, 1)
        torch.cuda.synchronize()
    return results


@compared
def training_with_sizes_that_differ(way):
    model = net()
    call, results = way(model, dynamic=True), []
    for step in range(4):
        for count in range(4, 18, 2):
            loss = call(rows(count, step)).square().mean()
            loss.backward()
            results.append(loss.detach())
    return [*results, *(x.grad for x in model.parameters())]


@compared
def training_with_breaks(way):
    first, second = net(), net()

    def both_of_them(x):
        x = first(x)
        torch._dynamo.graph_break()
        return second(x)

    model = nn.ModuleList([first, second])
    return trained(way(both_of_them), model, 6)


RUN_AS_THEY_ARE = {
    "inputs_that_are_written",
    "numbers_on_the_host",
    "operators_that_wait",
    "operators_of_others",
    "backward_twice",
    "a_saved_result_that_is_written",
    "a_saved_input_that_is_written",
    "double_backward",
    "empty_inputs",
    "training_in_streams",
}
"""Where nothing need have been replayed: something keeps it from that, or errors come first."""
TORCH_PASSES = {
    "a_model_that_is_called_twice_in_a_step",
    "a_saved_result_that_is_written",
    "checkpoints_inside",
    "double_backward",
    "empty_inputs",
    "hooks_of_gradients",
    "inputs_that_are_written",
    "saved_tensors_on_the_host",
    "scaled_gradients",
    "training",
    "training_images",
    "training_in_streams",
    "training_with_an_optimizer_of_lists",
    "training_with_breaks",
    "training_with_dropout",
    "views_and_shared_storage",
}
"""Cases that ``reduce-overhead`` passes, too; in the others it fails, or gives something else."""


@pytest.fixture
def replays(monkeypatch):
    counted, replay = [], recording.Recording.replay

    def counting(self, inputs):
        counted.append(self)
        return replay(self, inputs)

    monkeypatch.setattr(recording.Recording, "replay", counting)
    compile_log.clear()
    return counted


@pytest.mark.parametrize(
    "name", [x if x in INFERENCE else pytest.param(x, marks=TRAINS) for x in CASES]
)
def test_a_replay_is_told_from_the_default_mode(name, replays):
    CASES[name](ours)
    assert replays or name in RUN_AS_THEY_ARE, [x.why for x in compile_log.records()]


@pytest.mark.parametrize("name", CASES)
def test_torchs_own_mode_is_otherwise_than_written_down(name):
    try:
        CASES[name](torchs)
        passed = True
    except Exception:  # noqa: BLE001 (whatever it is, it is told from the default mode)
        passed = False
    finally:
        torch.compiler.reset()
    assert passed == (name in TORCH_PASSES)


def reasons():
    return [x.why for x in compile_log.records()]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("inputs_that_are_written", "inputs that are neither parameters nor buffers"),
        ("numbers_on_the_host", "it runs on cpu, cuda"),
        ("operators_of_others", "backbay_tests.waits is not known to be safe"),
        ("streams", "another stream"),
        ("a_graph_of_the_callers", "the caller is capturing one"),
        ("settings_of_cudnn", "settings of cuDNN"),
        ("parameters_that_never_stay", "8 recordings are made"),
        ("sizes_that_differ", "8 recordings are made"),
    ],
)
def test_nobody_says_why_a_graph_runs_as_it_is(name, reason, replays):
    CASES[name](ours)
    assert any(reason in x for x in reasons()), reasons()


@TRAINS
def test_random_numbers_differ_in_a_bit(replays):
    results = []
    for way in (default, ours):
        torch.compiler.reset()
        model = net(dropout=0.3)
        torch.manual_seed(5)
        results.append(trained(way(model), model, 6))
    assert replays
    assert all(map(torch.equal, *results))


def test_a_capture_that_fails_leaves_something_behind():
    index, x = torch.cuda.current_device(), torch.ones(8, device="cuda")
    stream = torch.cuda.current_stream()

    def fails():
        torch.rand(8, device="cuda")
        return (x * 2).sum().item()

    for _ in range(3):
        with pytest.raises(Exception, match="captur"):
            capture.captured(capture.Pool(index, 0), fails)
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
        torch.manual_seed(0)
        drawn = torch.rand(8, device="cuda")
        torch.manual_seed(0)
        assert torch.equal(torch.rand(8, device="cuda"), drawn)
        assert (x @ x).item() == 8.0
    graph, result = capture.captured(capture.Pool(index, 0), lambda: x * 3)
    graph.replay()
    assert result.tolist() == [3.0] * 8


@torch.no_grad()
def test_code_that_can_not_be_captured_fails(replays, monkeypatch):
    monkeypatch.setattr("backbay_optimizer.cuda_graphs.codegen.refusal", lambda *_: None)
    both(CASES_OF_OTHERS, ours)
    assert not replays
    assert any("could not be recorded" in x for x in reasons())


def CASES_OF_OTHERS(way):  # noqa: N802 (a case)
    call = way(lambda x: waits(x.sin()) * 2)
    return [call(rows(seed=x)) for x in range(5)] + [torch.rand(3, device="cuda")]


@torch.no_grad()
def test_memory_is_not_bounded(replays):
    def call_often(share):
        options = {"cuda_graphs": True, "cuda_graphs_memory": share}
        call = torch.compile(net(), backend=backbay, options=options)
        return [call(rows(seed=x)) for x in range(4)]

    wanted = call_often(0.5)
    assert replays
    torch.compiler.reset()
    replays.clear()
    same(call_often(1e-9), wanted)
    assert not replays
    assert any("recordings would hold" in x for x in reasons())


@TRAINS
def test_memory_is_not_given_back():
    def used():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    model = net()
    trained(ours(model), model)
    model.zero_grad()
    before = used()
    for _ in range(3):
        model = net()
        trained(ours(model), model)
        with torch.no_grad():
            call = ours(model)
            for step in range(4):
                call(rows(1 << 12, step))
        assert capture.pool_bytes(torch.cuda.current_device())
        del call
        model.zero_grad()
    assert used() <= before
    assert not capture.pool_bytes(torch.cuda.current_device())


def test_recordings_are_not_few(replays):
    CASES["sizes_that_differ"](ours)
    graphs = 2  # one of them for a size that Dynamo takes for a constant
    assert len({id(x) for x in replays}) <= graphs * replaying.MOST_RECORDINGS


@pytest.mark.parametrize("train", [False, pytest.param(True, marks=TRAINS)])
def test_what_is_timed_is_not_kept(train, replays, tmp_path, monkeypatch):
    monkeypatch.setattr("backbay_optimizer.tuning.graph_timing.BUDGET_S", 0.2)

    def run(model):
        torch.compiler.reset()
        call = torch.compile(model, backend=backbay, options={"cuda_graphs": "auto"})
        if train:
            return trained(call, model)
        with torch.no_grad():
            return [call(rows(seed=x)) for x in range(5)]

    many = nn.Sequential(*(net() for _ in range(12)))  # many small kernels: it waits for the host
    first = run(many)
    assert any("CUDA graphs used, timed:" in x for x in reasons()), reasons()
    assert replays
    compile_log.clear()
    again = nn.Sequential(*(net() for _ in range(12)))
    same(run(again), first)
    assert any("CUDA graphs used, timed on" in x for x in reasons()), reasons()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@torch.no_grad()
def test_the_second_device_is_not_the_first(replays):
    model = net().to("cuda:1")
    call = ours(model)
    for step in range(5):
        x = rows(seed=step).to("cuda:1")
        same(call(x), model(x))
    assert replays
