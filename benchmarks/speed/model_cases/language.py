"""Language models, speech and the built-in decoder."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from backbay.proof import Workload
from backbay.workloads import load
from backbay.workloads.hf_models import own_loss
from backbay.workloads.libraries import offline, require
from backbay.workloads.randomise import randomise
from backbay.workloads.reference import table
from speed.model_cases.case import DTYPE, Case, mapping, words

_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "speech": "AutoModelForSpeechSeq2Seq",
}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A model of transformers and its tokens."""

    kind: str
    """Its name in Backbay's table of transformers models, whose task and tiny size it takes."""
    batch: int
    length: int
    target: int = 0
    """Tokens that the decoder is given, of a model with an encoder."""
    last: str = ""
    """How only the last logits are asked for: not, by ``argument``, or by a ``slice`` of all."""
    proof_length: int = 256
    config: Mapping[str, Any] = field(default_factory=dict)
    proof_config: Mapping[str, Any] = field(default_factory=dict)
    """What is smaller in the configuration when it is proven: layers are alike."""

    def sized(self, size: str) -> "Text":
        """Return it with the inputs and the configuration of a size."""
        if size == "full":
            return self
        if size == "proof":
            return dataclasses.replace(
                self,
                batch=min(self.batch, 2),
                length=min(self.length, self.proof_length),
                target=min(self.target, 64),
                config={**self.config, **self.proof_config},
            )
        tiny = table("hf")[self.kind]["tiny"]
        return dataclasses.replace(
            self,
            batch=tiny["batch"],
            length=tiny.get("length", 0),
            target=tiny.get("target_length", 0),
            config={**_dropout(self.config), **tiny["config"]},
        )

    @property
    def shape(self) -> str:
        """Its inputs in words."""
        return f"{self.batch}x{self.length or 'audio'}{f'+{self.target}' if self.target else ''}"


class LastLogits(torch.nn.Module):
    """A model whose caller throws all logits but the last away."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each sequence's last token."""
        logits: torch.Tensor = self.model(input_ids=tokens).logits
        return logits[:, -1]


class Decoding(torch.nn.Module):
    """One step of generation: one new token each, and a cache of fixed size that it is added to."""

    def __init__(self, model: torch.nn.Module, cache: Any) -> None:
        super().__init__()
        self.model = model
        self.cache = cache

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return the next logits; the step is taken at the same position each time."""
        further = {}
        for layer in self.cache.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.copy_(position)
            else:
                further = {"cache_position": position.view(1)}
        output = self.model(input_ids=tokens, past_key_values=self.cache, use_cache=True, **further)
        logits: torch.Tensor = output.logits
        return logits[:, -1]


def model_of(text: Text) -> tuple[torch.nn.Module, Any]:
    """Build a model with random weights; return it and its configuration."""
    transformers: Any = require("transformers", text.kind)
    entry = table("hf")[text.kind]
    with offline():
        config = transformers.AutoConfig.for_model(
            entry.get("type", text.kind), **{**entry.get("always", {}), **text.config}
        )
        model = getattr(transformers, _CLASSES[entry["task"]]).from_config(config, dtype=DTYPE)
    randomise(model)
    return model, config


def language(text: Text, *, train: bool, size: str) -> Workload:
    """Build a language model and its inputs."""
    sized = text.sized(size)
    model, config = model_of(sized)
    task = table("hf")[sized.kind]["task"]
    if task == "speech":
        frames = (sized.batch, config.num_mel_bins, 2 * config.max_source_positions)
        given = {"input_features": torch.randn(frames, dtype=DTYPE)}
    else:
        given = {"input_ids": words(config.vocab_size, sized.batch, sized.length)}
    if sized.last == "slice":
        return Workload(model=LastLogits(model), args=tuple(given.values()))
    if sized.last == "argument":
        return Workload(model=model, kwargs={**given, "logits_to_keep": 1})
    if task in {"seq2seq", "speech"}:
        target = words(config.vocab_size, sized.batch, sized.target)
        given["labels" if train else "decoder_input_ids"] = target
    elif train:
        given["labels"] = words(config.vocab_size, sized.batch, sized.length)
    return Workload(model=model, kwargs=given, loss=own_loss if train else None)


def decoding(text: Text, *, size: str) -> Workload:
    """Build a model whose cache is half full, and the step after."""
    sized = text.sized(size)
    model, config = model_of(sized)
    model.eval()
    cache = require("transformers", sized.kind).StaticCache(
        config=config, max_cache_len=sized.length
    )
    half = sized.length // 2
    with torch.no_grad():
        model(
            input_ids=words(config.vocab_size, sized.batch, half),
            past_key_values=cache,
            use_cache=True,
        )
    tokens = words(config.vocab_size, sized.batch, 1)
    return Workload(model=Decoding(model, cache), args=(tokens, torch.tensor(half)))


def decoder(*, train: bool, size: str) -> Workload:
    """Build Backbay's own decoder: 4x2048 tokens, four layers of a one-billion model's width."""
    workload = load(
        "decoder",
        seed=0,
        dtype=DTYPE,
        device=torch.get_default_device(),
        train=train,
        size="tiny" if size == "tiny" else "base",
    )
    if size != "proof":
        return workload
    assert workload.reduced is not None
    return workload.reduced()


def _dropout(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if "drop" in name}


def _smaller(config: Mapping[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in config.items())


def _case(name: str, text: Text, *, train: bool = False, **more: Any) -> Case:
    return Case(
        name=name,
        train=train,
        build=lambda size: language(text, train=train, size=size),
        shapes={
            "full": text.shape,
            "proof": f"{text.sized('proof').shape}{_smaller(text.proof_config)}",
            "tiny": text.sized("tiny").shape,
        },
        **more,
    )


_SMALLER = mapping(num_hidden_layers=2, vocab_size=8192)
_TWO = mapping(num_hidden_layers=2)


def _llama(layers: int, **more: Any) -> Text:
    return Text(
        kind="llama",
        config=mapping(
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=layers,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
            max_position_embeddings=16384,
            tie_word_embeddings=True,
        ),
        proof_config=_SMALLER,
        **more,
    )


def _qwen(layers: int, **more: Any) -> Text:
    return Text(
        kind="qwen3",
        config=mapping(
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
        proof_config=_SMALLER,
        **more,
    )


_GEMMA = mapping(
    hidden_size=1152,
    intermediate_size=6912,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    vocab_size=262144,
    sliding_window=512,
)
_MIXTRAL = mapping(
    hidden_size=1024,
    intermediate_size=3584,
    num_hidden_layers=4,
    num_attention_heads=16,
    num_key_value_heads=4,
    num_local_experts=8,
    vocab_size=32000,
)
_GPT2 = mapping(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
_OPT = mapping(dropout=0.0, attention_dropout=0.0)
_BERT = mapping(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
_ROBERTA = {**_BERT, "max_position_embeddings": 514, "vocab_size": 50265}
_T5 = mapping(
    d_model=768, d_ff=3072, num_layers=12, num_decoder_layers=12, num_heads=12, dropout_rate=0.0
)
_WHISPER = mapping(
    d_model=512,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
)
_DECODED = _llama(16, batch=1, length=2048)
_DECODED_QWEN = _qwen(28, batch=1, length=2048)


def _decoding_case(name: str, text: Text) -> Case:
    return Case(
        name=name,
        train=False,
        build=lambda size: decoding(text, size=size),
        shapes={
            size: f"{text.sized(size).batch}x1, cache of {text.sized(size).length}"
            for size in ("full", "proof", "tiny")
        },
        proof=False,
    )


def _decoder_case(*, train: bool) -> Case:
    return Case(
        name=f"decoder.{'train' if train else 'infer'}",
        train=train,
        build=lambda size: decoder(train=train, size=size),
        shapes={"full": "4x2048", "proof": "1x512", "tiny": "2x128"},
        control=True,
    )


LANGUAGE = (
    _case(
        "bert.infer",
        Text(kind="bert", batch=32, length=512, config=_BERT, proof_config=_TWO),
        masked=True,
    ),
    _case(
        "llama_1b_4l.prefill_4x2k",
        _llama(4, batch=4, length=2048, last="argument"),
        masked=True,
    ),
    _case(
        "llama_1b_4l.prefill_1x8k",
        _llama(4, batch=1, length=8192, last="argument"),
        masked=True,
    ),
    _case(
        "llama_1b_4l.prefill_slice_4x2k",
        _llama(4, batch=4, length=2048, last="slice"),
        masked=True,
    ),
    _case("llama_1b_2l.train_1x4k", _llama(2, batch=1, length=4096), train=True, masked=True),
    _case("llama_1b_4l.train_1x4k", _llama(4, batch=1, length=4096), train=True, masked=True),
    _case(
        "llama_1b_16l.prefill_1x2k",
        _llama(16, batch=1, length=2048, last="argument"),
        masked=True,
    ),
    _case(
        "llama_1b_16l.prefill_1x8k",
        _llama(16, batch=1, length=8192, last="argument"),
        masked=True,
    ),
    _decoding_case("llama_1b_16l.decode", _DECODED),
    _case("qwen3_8l.prefill_1x8k", _qwen(8, batch=1, length=8192, last="argument"), masked=True),
    _case("qwen3_8l.train_2x2k", _qwen(8, batch=2, length=2048), train=True, masked=True),
    _case("qwen3_0.6b.prefill_1x2k", _qwen(28, batch=1, length=2048, last="argument"), masked=True),
    _decoding_case("qwen3_0.6b.decode", _DECODED_QWEN),
    _case(
        "gemma3_1b_12l.prefill_2x4k",
        Text(
            kind="gemma3",
            batch=2,
            length=4096,
            last="argument",
            proof_length=768,
            config=_GEMMA,
            proof_config=mapping(num_hidden_layers=6, vocab_size=8192),
        ),
        masked=True,
    ),
    _case(
        "mixtral_4l.infer",
        Text(kind="mixtral", batch=4, length=2048, config=_MIXTRAL, proof_config=_SMALLER),
        masked=True,
    ),
    _case(
        "gpt2.train",
        Text(kind="gpt2", batch=8, length=1024, config=_GPT2, proof_config=mapping(n_layer=2)),
        train=True,
        masked=True,
    ),
    _case(
        "opt_125m.train",
        Text(kind="opt", batch=8, length=1024, config=_OPT, proof_config=_TWO),
        train=True,
        masked=True,
    ),
    _case(
        "bert.train",
        Text(kind="bert", batch=16, length=512, config=_BERT, proof_config=_TWO),
        train=True,
        masked=True,
    ),
    _case(
        "roberta.infer",
        Text(kind="roberta", batch=32, length=512, config=_ROBERTA, proof_config=_TWO),
        masked=True,
    ),
    _case(
        "t5_base.infer",
        Text(
            kind="t5",
            batch=16,
            length=512,
            target=128,
            config=_T5,
            proof_config=mapping(num_layers=2, num_decoder_layers=2),
        ),
    ),
    _case(
        "whisper_base.infer",
        Text(
            kind="whisper",
            batch=8,
            length=0,
            target=128,
            config=_WHISPER,
            proof_config=mapping(encoder_layers=2, decoder_layers=2),
        ),
        masked=True,
    ),
    _decoder_case(train=False),
    _decoder_case(train=True),
)
