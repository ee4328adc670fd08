"""CUDA's streams: what is compiled runs where it is called, and waits for what it reads."""

import torch

from backbay_conformance.case import Collection
from backbay_conformance.levels.making import normal
from backbay_conformance.subject import Subject

theme = Collection("context", "streams")


def _program(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).tanh() + x


@theme.case()
def stream_of_the_caller_is_left(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 256, 256)
    wanted = _program(x)
    call(x)
    stream = torch.cuda.Stream(subject.device)
    stream.wait_stream(torch.cuda.current_stream(subject.device))
    with torch.cuda.stream(stream):
        got = call(x)
        with subject.must("fail_behaviour", "another stream is current after the call"):
            assert torch.cuda.current_stream(subject.device) == stream
    stream.synchronize()
    subject.near(got, wanted)


@theme.case()
def input_is_read_before_its_stream_is_done(subject: Subject) -> None:
    call, base = subject.compile(_program), normal(subject, 512, 512)
    call(base)
    stream = torch.cuda.Stream(subject.device)
    stream.wait_stream(torch.cuda.current_stream(subject.device))
    with torch.cuda.stream(stream):
        x = base
        for _ in range(50):
            x = (x @ base).tanh()
        got = call(x)
    stream.synchronize()
    subject.near(got, _program(x))


@theme.case()
def device_is_another_after_a_call(subject: Subject) -> None:
    before = torch.cuda.current_device()
    x = normal(subject, 8, 8)
    subject.matches(_program, x)
    with subject.must("fail_behaviour", "another device is current after the call"):
        assert torch.cuda.current_device() == before


@theme.case()
def call_cannot_be_captured_in_a_cuda_graph(subject: Subject) -> None:
    call, x = subject.compile(_program), normal(subject, 64, 64)
    for _ in range(3):
        call(x)
    torch.cuda.synchronize(subject.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x)
    x.copy_(normal(subject, 64, 64))
    graph.replay()
    torch.cuda.synchronize(subject.device)
    subject.near(result, _program(x))
