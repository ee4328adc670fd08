"""Time and memory of a language model's last layer and its loss, in training, on a GPU.

    python benchmarks/linear_losses.py [heads] [model] [--out FILE]

``heads`` are a linear layer without bias and the cross entropy of its logits, forward and backward.
Weights are in 16 bits, or in float32 under autocast, or in 16 bits and frozen, as beside LoRA's.
``model`` is a llama of 16 layers with 1.2 billion parameters in 16 bits, on random tokens.

Inductor's default, its auto-chunker (``auto_chunker.enable``; on heads, with 8 parts), and
``backbay`` with ``linear_cross_entropy`` take turns, with three steps in a row. A cell is the
median of the milliseconds of a step, by CUDA events, with the fastest and the slowest turn, and in
MiB the peak above what is held before a step, its gradients included. *kernels* is the sum of the
kernels' times in one step.
"""

import datetime as dt
import gc
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from torch.profiler import ProfilerActivity, profile

from backbay.timing.device import device_name
from speed.command import print_tables
from speed.surroundings import versions

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEvent

HEADS = (
    *((8192, 2048, 128256), (16384, 2048, 128256), (32768, 2048, 128256)),
    *((8192, 4096, 128256), (32768, 4096, 128256), (16384, 896, 151936), (16384, 1024, 50257)),
)
"""Tokens, features, words."""
KINDS = ("16 bits", "float32", "frozen")
CHUNKER = {
    "auto_chunker.enable": True,
    "auto_chunker.num_chunk": 8,
    "auto_chunker.amplify_ratio_threshold": 0,
}
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Inductor": ("inductor", {}),
    "auto-chunker": ("inductor", CHUNKER),
    "linear_cross_entropy": ("backbay", {"linear_cross_entropy": True, "cuda_graphs": False}),
}
TOKENS = (4, 4096)
ROUNDS = 5
_IN_A_ROW = 3

Step = Callable[[], Any]


class Found(NamedTuple):
    """What was found of an arm."""

    milliseconds: list[float]
    kernels: float
    mebibytes: float

    def cells(self, first: "Found") -> list[str]:
        """Return cells, of which one is how many times as fast as another arm it is."""
        median, most, least = (f(self.milliseconds) for f in (statistics.median, max, min))
        times = f"{median:.2f} [{least:.2f}, {most:.2f}]"
        ratio = statistics.median(first.milliseconds) / median
        return [times, f"{self.kernels:.2f}", f"{ratio:.3f}", f"{self.mebibytes:.0f}"]


def loss_of(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Compute the loss as transformers does."""
    logits = F.linear(x, weight)
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), target)


def heads() -> Iterator[str]:
    """Compare layers alone."""
    yield _row("tokens, features, words", "weight", *_titles(ARMS))
    yield _rule(2, ARMS)
    for sizes, kind in itertools.product(HEADS, KINDS):
        yield _row(", ".join(map(str, sizes)), kind, *_cells(_head(*sizes, kind)))


def _head(tokens: int, features: int, words: int, kind: str) -> dict[str, Found | str]:
    torch.manual_seed(0)
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    x = torch.randn(tokens, features, device="cuda", dtype=dtype).requires_grad_()
    weight = torch.randn(words, features, device="cuda", dtype=dtype) / features**0.5
    weight.requires_grad_(kind != "frozen")
    target = torch.randint(words, (tokens,), device="cuda")

    def clear() -> None:
        x.grad = weight.grad = None

    def made(compiled: Any) -> Step:
        def step() -> None:
            clear()
            with torch.autocast("cuda", torch.bfloat16, enabled=kind == "float32"):
                loss = compiled(x, weight, target)
            loss.backward()

        return step

    torch.compiler.reset()
    return _compared({arm: made(_compiled(loss_of, arm)) for arm in ARMS}, clear)


def model() -> Iterator[str]:
    """Compare a whole model's training step, without its optimizer."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 (only this table's)

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=TOKENS[1],
        tie_word_embeddings=True,
        use_cache=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        trained = LlamaForCausalLM(config).to(torch.bfloat16).train()
    ids = torch.randint(config.vocab_size, TOKENS, device="cuda")

    def loss(ids: Tensor) -> Tensor:
        result: Tensor = trained(input_ids=ids, labels=ids).loss
        return result

    def made(compiled: Any) -> Step:
        def step() -> None:
            trained.zero_grad()
            compiled(ids).backward()

        return step

    names = ("Inductor", "backbay", "linear_cross_entropy")
    yield _row("tokens", *_titles(names))
    yield _rule(1, names)
    torch.compiler.reset()
    found = _compared({arm: made(_compiled(loss, arm)) for arm in names}, trained.zero_grad)
    yield _row(" x ".join(map(str, TOKENS)), *_cells(found))


def _compiled(function: Callable[..., Tensor], arm: str) -> Any:
    backend, options = ARMS.get(arm, (arm, {"cuda_graphs": False}))
    return torch.compile(function, backend=backend, options=dict(options), dynamic=False)


def _compared(steps: Mapping[str, Step], clear: Step) -> dict[str, Found | str]:
    """Warm steps up, and time them in turns; a text says why there is no time.

    Args:
        steps: of arms that were compiled since Dynamo was reset.
        clear: drops gradients.
    """
    found: dict[str, Found | str] = {}
    for arm, step in steps.items():
        try:
            step()
            step()
        except Exception as error:  # noqa: BLE001 (whatever it is, the others are compared)
            found[arm] = f"{type(error).__name__}: {error}".splitlines()[0][:60]
    ran = {arm: step for arm, step in steps.items() if arm not in found}
    times: dict[str, list[float]] = {arm: [] for arm in ran}
    for _ in range(ROUNDS):
        for arm, step in ran.items():
            times[arm].append(_milliseconds(step))
    for arm, step in ran.items():
        found[arm] = Found(times[arm], _kernels(step), _peak(step, clear))
    return {arm: found[arm] for arm in steps}


def _milliseconds(step: Step) -> float:
    """Time steps in a row, as a training loop makes them, so that the device doesn't wait."""
    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_IN_A_ROW):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / _IN_A_ROW


def _kernels(step: Step) -> float:
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    events: list[FunctionEvent] = seen.events() or []
    return float(sum(x.self_device_time_total for x in events)) / 1e3


def _peak(step: Step, clear: Step) -> float:
    clear()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before) / 2**20


def _titles(arms: Any) -> list[str]:
    return [y for arm in arms for y in (f"{arm}, ms", "kernels", "ratio", "MiB")]


def _cells(found: Mapping[str, Found | str]) -> list[str]:
    first = next(iter(found.values()))
    cells = []
    for one in found.values():
        if isinstance(one, str) or isinstance(first, str):
            cells += [str(one) if isinstance(one, str) else "-", "-", "-", "-"]
        else:
            cells += one.cells(first)
    return cells


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(first: int, arms: Any) -> str:
    return f"|{'---|' * (first + 4 * len(arms))}"


TABLES = {x.__name__: x for x in (heads, model)}


def main() -> None:
    """Measure and print."""
    print_tables(__doc__, TABLES, header)


def header() -> str:
    """Return the date, the GPU, versions, and how often steps are timed."""
    names = ", ".join(f"{k} {v}" for k, v in versions("transformers").items())
    where = f"{dt.datetime.now(dt.UTC).date()}; {device_name(torch.device('cuda'))}"
    return f"{where}, {names}; {ROUNDS} rounds of {_IN_A_ROW} steps."


if __name__ == "__main__":
    main()
