"""Small programs that a rule is tried on, each with the faults that only it can have.

A program computes through an ``Arithmetic``, so that it can be run as other kernels would, and
takes the name of a fault to have.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from backbay.workloads.workload import Workload
from calibration.arithmetic import Arithmetic

Compute = Callable[..., torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program: what it computes, from what, and how it can be wrong."""

    name: str
    compute: Compute
    """From an Arithmetic, a fault's name or None, and tensors of ``shapes``."""
    shapes: Shapes
    """Inputs, drawn from a normal distribution."""
    faults: tuple[str, ...] = ()
    train: bool = True
    classes: int | None = None
    """Where given, a last input holds one class out of so many for each row of the first."""


class Model(torch.nn.Module):
    """A program as a model; its inputs are its workload's."""

    def __init__(self, program: Program, arithmetic: Arithmetic, fault: str | None) -> None:
        super().__init__()
        self.program, self.arithmetic, self.fault = program, arithmetic, fault

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Compute the program."""
        return self.program.compute(self.arithmetic, self.fault, *inputs)


def workload_of(
    program: Program, *, dtype: torch.dtype, seed: int, device: torch.device
) -> Workload:
    """Draw a program's inputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(s, generator=generator).to(device, dtype) for s in program.shapes]
    if program.classes is not None:
        rows = program.shapes[0][0]
        inputs.append(torch.randint(program.classes, (rows,), generator=generator).to(device))
    model = Model(program, Arithmetic(), None)
    return Workload(model=model, args=tuple(inputs), name=program.name)


def _short(value: torch.Tensor, fault: str | None) -> torch.Tensor:
    """Lose the last of the elements that are added up, as a wrong loop bound does."""
    return value[..., :-1] if fault == "truncated reduction" else value


def _linear_gelu(
    do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    x, w = _short(x, fault), _short(w, fault)
    h = do.matmul(x, w.t() * 0.125) + b
    return F.gelu(h, approximate="tanh" if fault == "gelu tanh for erf" else "none")


def _softmax(do: Arithmetic, fault: str | None, x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).float().exp()
    whole = do.total(_short(e, fault), -1).unsqueeze(-1)
    return (e / whole).to(x.dtype)


def _layer_norm(
    do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    eps = 1e-3 if fault == "eps changed" else 1e-5
    wide = x.float() if x.element_size() < 4 else x  # noqa: PLR2004
    centred = wide - do.mean(wide, -1)
    n = x.shape[-1]
    variance = do.mean(centred.square(), -1) * (n / (n - 1) if fault == "unbiased variance" else 1)
    return (centred * (variance + eps).rsqrt()).to(x.dtype) * w + b


def _total(do: Arithmetic, fault: str | None, x: torch.Tensor) -> torch.Tensor:
    return do.total(_short(x, fault), -1)


def _pointwise(_: Arithmetic, fault: str | None, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.sigmoid(x * y) if fault != "fast sigmoid" else (x * y).clamp(-8, 8).sigmoid()
    return torch.tanh(x + z) * torch.exp(-y.abs()) + (0.0 if fault == "dropped term" else z)


def _attention(
    do: Arithmetic, fault: str | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    scale = q.shape[-1] ** -0.5 * (1.001 if fault == "attention scale 1e-3" else 1.0)
    score = do.matmul(q * scale, k.transpose(-1, -2))
    above = 2 if fault == "causal mask off by one" else 1
    mask = torch.ones(score.shape[-2:], dtype=torch.bool, device=q.device).triu(above)
    weight = score.masked_fill(mask, -torch.inf).float().softmax(-1).to(v.dtype)
    return do.matmul(weight, v)


def _loss(
    do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    logits = do.matmul(x, w.t() * 0.125).float()
    if fault == "labels off by one":
        labels = (labels + 1) % w.shape[0]
    rows = F.cross_entropy(logits, labels, reduction="none")
    return do.total(rows, 0) / (rows.numel() + (fault == "mean over n + 1"))


def _conv(
    _: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    if fault == "padding by replication":
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), w, b)
    return F.conv2d(x, w, None if fault == "dropped term" else b, padding=1)


def _score(
    do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return torch.sigmoid(do.matmul(_short(x, fault), _short(w, fault).t() * 0.125) + b)


def _batch_norm(
    do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    h = do.matmul(x, w.t() * 0.125) + b
    wide = h.float() if h.element_size() < 4 else h  # noqa: PLR2004
    centred = wide - do.mean(wide, 0)
    eps = 1e-3 if fault == "eps changed" else 1e-5
    return (centred * (do.mean(centred.square(), 0) + eps).rsqrt()).to(x.dtype)


def _swiglu(  # noqa: PLR0917 (a program's tensors come by position)
    do: Arithmetic,
    fault: str | None,
    x: torch.Tensor,
    scale: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> torch.Tensor:
    wide = x.float() if x.element_size() < 4 else x  # noqa: PLR2004
    eps = 1e-3 if fault == "eps changed" else 1e-6
    h = (wide * (do.mean(wide.square(), -1) + eps).rsqrt()).to(x.dtype) * scale
    opened = do.matmul(h, gate.t() * 0.125)
    act = F.gelu(opened) if fault == "gelu for silu" else F.silu(opened)
    return act * do.matmul(_short(h, fault), _short(up, fault).t() * 0.125)


def _pooled(
    do: Arithmetic, fault: str | None, table: torch.Tensor, w: torch.Tensor, words: torch.Tensor
) -> torch.Tensor:
    shift = 1 if fault == "row off by one" else 0
    found = F.embedding((words.view(-1, 8) + shift) % table.shape[0], table)
    mean = do.mean(found[:, :-1] if fault == "mean without the last" else found, 1).squeeze(1)
    return do.matmul(mean, w.t() * 0.125)


def _group_norm(
    do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor
) -> torch.Tensor:
    rows = x.reshape(x.shape[0] * (2 if fault == "half the groups" else 4), -1)
    wide = rows.float() if rows.element_size() < 4 else rows  # noqa: PLR2004
    centred = wide - do.mean(wide, -1)
    normal = centred * (do.mean(centred.square(), -1) + 1e-5).rsqrt()
    return F.silu(normal.to(x.dtype).view_as(x) * w)


def _log_mean(do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = do.matmul(x, w.t() * 0.25)
    energy = do.mean(do.mean(_short(h.square(), fault), -1), 0)
    return torch.log(energy + (1e-3 if fault == "eps changed" else 1e-5)).reshape(())


def _smoothed(
    do: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    logits = do.matmul(x, w.t() * 0.125).float()
    shifted = logits - logits.amax(-1, keepdim=True)
    whole = do.total(_short(shifted.exp(), fault), -1).unsqueeze(-1)
    log_share = shifted - whole.log()
    kept = 1.0 if fault == "smoothing dropped" else 0.9
    own = log_share.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -(kept * own + (1 - kept) * do.mean(log_share, -1).squeeze(-1))


def _rotary_scores(
    do: Arithmetic, fault: str | None, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor:
    half = q.shape[-1] // 2
    rate = 100.0 ** (-torch.arange(half, device=q.device, dtype=torch.float32) / half)
    first = 1 if fault == "position off by one" else 0
    position = torch.arange(q.shape[-2], device=q.device, dtype=torch.float32)
    turned = [_turned(x, torch.outer(position + s, rate)) for x, s in ((q, first), (k, 0))]
    scale = q.shape[-1] ** (-0.25 if fault == "root of the scale" else -0.5)
    return do.matmul(turned[0] * scale, turned[1].transpose(-1, -2))


def _turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _depthwise(_: Arithmetic, fault: str | None, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.conv2d(x, w.flip(-1) if fault == "kernel mirrored" else w, padding=1, groups=x.shape[1])
    return F.relu6(h) if fault == "gate dropped" else F.hardswish(h)


FIXING: tuple[Program, ...] = (
    Program(
        name="linear + gelu",
        compute=_linear_gelu,
        shapes=((64, 64), (64, 64), (64,)),
        faults=("gelu tanh for erf", "truncated reduction"),
    ),
    Program(name="softmax", compute=_softmax, shapes=((64, 64),), faults=("truncated reduction",)),
    Program(
        name="layer norm",
        compute=_layer_norm,
        shapes=((64, 64), (64,), (64,)),
        faults=("eps changed", "unbiased variance"),
    ),
    Program(name="sum", compute=_total, shapes=((64, 128),), faults=("truncated reduction",)),
    Program(
        name="pointwise",
        compute=_pointwise,
        shapes=((64, 64), (64, 64)),
        faults=("dropped term",),
        train=False,
    ),
    Program(
        name="attention",
        compute=_attention,
        shapes=((2, 4, 32, 16),) * 3,
        faults=("causal mask off by one", "attention scale 1e-3"),
    ),
    Program(
        name="scalar loss",
        compute=_loss,
        shapes=((64, 64), (32, 64)),
        classes=32,
        faults=("labels off by one", "mean over n + 1"),
    ),
    Program(
        name="conv",
        compute=_conv,
        shapes=((2, 8, 16, 16), (8, 8, 3, 3), (8,)),
        faults=("padding by replication", "dropped term"),
    ),
    Program(
        name="one score",
        compute=_score,
        shapes=((8, 64), (1, 64), (1,)),
        faults=("truncated reduction",),
    ),
    Program(
        name="bias before batch norm",
        compute=_batch_norm,
        shapes=((64, 32), (32, 32), (32,)),
        faults=("eps changed",),
    ),
    Program(
        name="rms norm + swiglu",
        compute=_swiglu,
        shapes=((64, 64), (64,), (64, 64), (64, 64)),
        faults=("eps changed", "gelu for silu", "truncated reduction"),
    ),
    Program(
        name="embedding + mean pool",
        compute=_pooled,
        shapes=((128, 32), (16, 32)),
        classes=128,
        faults=("row off by one", "mean without the last"),
    ),
    Program(
        name="group norm + silu",
        compute=_group_norm,
        shapes=((4, 16, 64), (16, 64)),
        faults=("half the groups",),
    ),
    Program(
        name="log of mean",
        compute=_log_mean,
        shapes=((32, 64), (16, 64)),
        faults=("truncated reduction", "eps changed"),
    ),
)
"""What the rule's constants were fixed on."""

UNSEEN: tuple[Program, ...] = (
    Program(
        name="smoothed loss",
        compute=_smoothed,
        shapes=((64, 64), (32, 64)),
        classes=32,
        faults=("smoothing dropped", "truncated reduction"),
    ),
    Program(
        name="rotary scores",
        compute=_rotary_scores,
        shapes=((2, 4, 32, 16),) * 2,
        faults=("position off by one", "root of the scale"),
    ),
    Program(
        name="depthwise conv + hardswish",
        compute=_depthwise,
        shapes=((2, 16, 12, 12), (16, 1, 3, 3)),
        faults=("kernel mirrored", "gate dropped"),
    ),
)
"""Written after the constants were fixed, and never used to change them."""
