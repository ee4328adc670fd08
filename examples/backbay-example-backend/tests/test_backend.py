"""What the backend rewrites, what it must leave alone, and that results and gradients are right."""

from collections.abc import Callable

import pytest
import torch
from backbay.kit.observing import collected
from backbay.proof import Workload, make_golden, observe
from torch import Tensor, nn
from torch.nn import functional as F

from backbay_example_backend.backend import ReluSquared
from backbay_example_backend.passes import rewrite_relu_squared

Function = Callable[[Tensor], Tensor]


class OnEager(ReluSquared):
    """The same passes; then the graph runs as it is, which takes no time to compile."""

    codegen = "eager"


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def rewrites(function: Function, x: Tensor) -> int:
    """Compile a function, compare it with eager bit for bit, and count what was rewritten."""
    backend = OnEager()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    with collected() as reports:
        torch.testing.assert_close(compiled(x.clone()), function(x.clone()), rtol=0, atol=0)
    return sum(report.changes for report in reports if report.name == rewrite_relu_squared.name)


def product(x: Tensor) -> Tensor:
    """Square by multiplying."""
    y = torch.relu(x)
    return y * y


SPELLINGS: dict[str, Function] = {
    "power": lambda x: torch.relu(x) ** 2,
    "power, of a float": lambda x: torch.pow(F.relu(x), 2.0),
    "method": lambda x: x.relu().square(),
    "function": lambda x: torch.square(F.relu(x)),
    "product": product,
    "module": lambda x: nn.ReLU()(x).pow(2),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_rewritten(spelling: str) -> None:
    assert rewrites(SPELLINGS[spelling], torch.linspace(-3, 3, 50)) == 1


def used_elsewhere(x: Tensor) -> Tensor:
    """Use the ReLU again: it has to be computed anyway."""
    y = torch.relu(x)
    return y**2 + y


def written_between(x: Tensor) -> Tensor:
    """Write to what was read, through a view of it, before the square."""
    source = x + 0
    y = torch.relu(source)
    source.view(-1).mul_(2)
    return y**2 + source


ALIKE: dict[str, Function] = {
    "another power": lambda x: torch.relu(x) ** 3,
    "of another": lambda x: torch.relu(x) * x,
    "no ReLU": lambda x: torch.abs(x) ** 2,
    "a leaky one": lambda x: F.leaky_relu(x).square(),
    "in place": lambda x: F.relu(x + 0, inplace=True).square(),
    "used elsewhere": used_elsewhere,
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    assert rewrites(ALIKE[name], torch.linspace(-3, 3, 50)) == 0


def test_a_write_to_what_was_read_does_not_change_the_result() -> None:
    rewrites(written_between, torch.linspace(-3, 3, 50))  # whether it is rewritten is free


def test_integers_are_left_alone_because_the_operator_has_no_gradient_for_them() -> None:
    assert rewrites(SPELLINGS["power"], torch.arange(-3, 4)) == 0


REFUSED = {
    "a dtype": torch.linspace(-3, 3, 48, dtype=torch.float64),
    "a layout": torch.linspace(-3, 3, 48).view(6, 8).t(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_kernel_refuses_is_left_to_inductor(what: str) -> None:
    assert rewrites(SPELLINGS["power"], REFUSED[what].contiguous().float()) == 1
    assert rewrites(SPELLINGS["power"], REFUSED[what]) == 0


class Mlp(nn.Module):
    """Two layers with a squared ReLU between."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        return torch.as_tensor(self.down(F.relu(self.up(x)) ** 2))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", [OnEager(), ReluSquared()], ids=lambda x: x.codegen)
def test_outputs_and_every_gradient_are_as_near_to_float64_as_eagers(
    backend: ReluSquared, dtype: torch.dtype, dynamic: bool
) -> None:
    backend.reset()
    torch.manual_seed(0)
    model = Mlp().to(dtype)
    compiled, fired = torch.compile(model, backend=backend, dynamic=dynamic), list[int]()
    for rows in (5, 9):
        workload = Workload(model=model, args=(torch.randn(rows, 6, dtype=dtype),))
        golden = make_golden(workload, train=True)
        with golden.context(), collected() as reports:
            proof = golden.judge(observe(compiled, golden.at(workload), train=True))
        assert proof.passed, proof.worst
        fired += [x.changes for x in reports if x.name == rewrite_relu_squared.name]
    graphs = 1 if dynamic else 2
    assert fired == [1] * graphs


def test_an_input_that_is_written_is_written_once() -> None:
    def step(x: Tensor) -> Tensor:
        x.add_(1)
        return torch.relu(x) ** 2

    x = torch.zeros(3)
    compiled = torch.compile(step, backend=ReluSquared(), fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.ones(3))
    torch.testing.assert_close(x, torch.ones(3))
