"""The models of ``model_cases`` as workloads of a campaign: ``benchmarks/speed/workloads.py:NAME``.

NAME is a case's, with ``_`` in place of each dot: ``bert_infer``. The step must be asked for as the
case has it, and the dtype is bfloat16.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from backbay.proof import Workload
from backbay.workloads.randomise import randomise

sys.path.insert(0, str(Path(__file__).parents[1]))  # it is loaded by its path

from speed.model_cases import CASES, Case, built

_PROMPTS = 8


def _workload(case: Case) -> Callable[[], Workload]:
    def workload() -> Workload:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return built(case, "full" if device.type == "cuda" else "tiny", device=device, seed=0)

    return workload


def text_encoder() -> Workload:
    """Build the text encoder of Stable Diffusion 1.5, on a batch of prompts."""
    from transformers import CLIPTextConfig, CLIPTextModel  # noqa: PLC0415 (not all need it)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    with device:
        model = CLIPTextModel(config)
        words = torch.randint(config.vocab_size, (_PROMPTS, config.max_position_embeddings))
    randomise(model)
    return Workload(model=model, kwargs={"input_ids": words, "return_dict": False})


globals().update({case.name.replace(".", "_"): _workload(case) for case in CASES})
