"""A foreign engine where sizes change from call to call."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from numpy_engine import Numpy, engine

from backbay import compile_log


def test_a_ninth_size_runs_elsewhere_and_the_first_eight_stay_built():
    backend, model = engine(most_sizes=3), torch.nn.Linear(6, 4)
    call = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 4, 5, 6, 2):
            x = torch.randn(batch, 6)
            torch.testing.assert_close(call(x), model(x))
    assert len(backend.programs) == 3
    (left,) = [x for x in compile_log.records() if x.fell_back]
    assert "built a region for 3 sizes, and eager runs all others" in left.why


def test_an_engine_without_symbols_can_leave_what_has_them():
    backend = engine(symbols="elsewhere")
    call = torch.compile(lambda x: x * 2 + 1, backend=backend, dynamic=True)
    for batch in (4, 7):
        assert torch.equal(call(torch.ones(batch, 2)), torch.full((batch, 2), 3.0))
    assert not backend.programs
    assert "has a size that changes" in compile_log.records()[0].why


def test_two_threads_that_come_with_one_new_size_build_it_twice():
    class Slow(Numpy):
        def build(self, program):
            time.sleep(0.1)
            return super().build(program)

    backend = Slow()
    call = torch.compile(lambda x: x * 2, backend=backend, dynamic=True)
    call(torch.ones(4, 2))
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(call, [torch.ones(7, 2)] * 2))
    assert [x.sum() for x in made] == [28, 28]
    assert len(backend.programs) == 2
