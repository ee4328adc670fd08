"""Workloads that can't be raced: one takes its process down, and one's eager itself fails."""

import os
import signal

import torch


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


class Failing(torch.nn.Module):
    def forward(self, x):
        raise ArithmeticError("the model's own")


def fails():
    return Failing(), (torch.ones(4),)
