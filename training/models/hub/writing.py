"""transformers' encoder-decoders: BART as it is, and LED with the attention of our Longformer.

Each class has the name of transformers' own, by which an export is loaded, and its parameters. A target is
<s> tokens </s>, and the decoder reads it moved by one, behind its start token, as transformers does with `labels`.

Shapes: B rows, L tokens of the longest source, T of the longest target, V vocabulary.
"""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.models.bart import modeling_bart
from transformers.models.led import modeling_led

from reread.preprocessing.errors import UserError
from reread.training.models.hub.encoder_decoders import ENCODER_DECODERS
from reread.training.models.hub.encoders import ATTENTION
from reread.training.models.longformer.attention_longformer import LongformerSelfAttention, Sight
from reread.training.models.longformer.modeling_longformer import windows
from reread.training.models.spec import ModelSpec, OwnKey

IGNORED = -100
"""A label without a token."""


class Written:
    """What the classes here add to transformers' own."""

    config: Any
    has_global_token = False
    """Whether the first token of a source is global."""

    def sources(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """The encoder's inputs for sources [B, L]."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.has_global_token:
            first = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
            inputs["global_attention_mask"] = first.long().expand_as(input_ids)
        return inputs

    def forced(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Any]:
        """The arguments of a call whose logits [B, T, V] predict labels [B, T], of which those behind a target are
        `IGNORED`, each from the source and the labels before it."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        before = torch.cat([start, labels[:, :-1]], dim=1)
        read = before.masked_fill(before == IGNORED, self.config.pad_token_id)
        return {**self.sources(input_ids, attention_mask), "decoder_input_ids": read, "use_cache": False}

    def write(self, sources: Tensor, attention_mask: Tensor, longest: int, beams: int, banned: Sequence[int]) -> Tensor:
        """The target [B, T] of each of sources [B, L], without the start token: <s>, tokens, </s>, padding. Arguments
        as in `generation`."""
        how = self.generation(longest, beams, banned)
        written = self.generate(**self.sources(sources, attention_mask), generation_config=how)  # type: ignore[attr-defined]
        return written[:, 1:]  # type: ignore[no-any-return]

    def generation(self, longest: int, beams: int, banned: Sequence[int]) -> GenerationConfig:
        """How a target of up to `longest` tokens is written, also by an export: by beam search of transformers, where
        the best target has the highest mean log-probability of a token and at least one token; 1 beam is greedy.
        `banned` are tokens that are not written."""
        ends = {self.config.bos_token_id, self.config.eos_token_id}
        return GenerationConfig(
            max_new_tokens=longest + 2,  # with <s> and </s>
            min_new_tokens=2,
            num_beams=beams,
            do_sample=False,
            decoder_start_token_id=self.config.decoder_start_token_id,
            forced_bos_token_id=self.config.bos_token_id,
            forced_eos_token_id=self.config.eos_token_id,
            bos_token_id=self.config.bos_token_id,
            eos_token_id=self.config.eos_token_id,
            pad_token_id=self.config.pad_token_id,
            suppress_tokens=sorted(set(banned) - ends) or None,
        )


def _tied(body: str) -> dict[str, str]:
    """Names of copies of the table of words, which only the classes of a model's parts know."""
    copies = ("lm_head.weight", f"{body}.encoder.embed_tokens.weight", f"{body}.decoder.embed_tokens.weight")
    return dict.fromkeys(copies, f"{body}.shared.weight")


class BartForConditionalGeneration(Written, modeling_bart.BartForConditionalGeneration):
    """transformers' own."""

    _tied_weights_keys = _tied("model")


class LongAttention(LongformerSelfAttention):
    """Our Longformer's attention by the arguments of transformers' LED."""

    def forward(self, hidden_states: Tensor, attention_mask: Sight, **_: Any) -> tuple[Tensor]:  # type: ignore[override]
        return (super().forward(hidden_states, attention_mask),)


class LongEncoder(modeling_led.LEDEncoder):
    """LED's encoder (Beltagy et al. 2020, section 7), whose rows need not be padded to a multiple of the window."""

    def __init__(self, config: Any) -> None:
        sizes = windows(config)
        super().__init__(config)
        for layer, size in zip(self.layers, sizes, strict=True):
            layer.self_attn.longformer_self_attn = LongAttention(config, size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> modeling_led.LEDEncoderBaseModelOutput:
        """States [B, L, D] of input_ids [B, L], or of their vectors [B, L, D]; masks are 1 for tokens that are text,
        and for global ones."""
        words = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        marks = torch.ones(words.shape[:2], dtype=torch.long, device=words.device)
        for mask, add in ((attention_mask, 0), (global_attention_mask, 1)):
            marks = marks if mask is None else marks * (mask + add)
        hidden = self.layernorm_embedding(words + self.embed_positions(words.shape[:2]))
        hidden = nn.functional.dropout(hidden, p=self.dropout, training=self.training)
        sight = Sight(marks)
        for layer in self.layers:
            hidden = layer(hidden, sight)[0]
        return modeling_led.LEDEncoderBaseModelOutput(last_hidden_state=hidden)


class LEDForConditionalGeneration(Written, modeling_led.LEDForConditionalGeneration):
    """transformers' own, but for the attention of its encoder."""

    has_global_token = True
    _tied_weights_keys = _tied("led")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.led.encoder = LongEncoder(config)
        self.post_init()


CLASSES: dict[str, Any] = {"bart": BartForConditionalGeneration, "led": LEDForConditionalGeneration}
_ATTENTION = """Attention of transformers: torch's (sdpa), as written (eager), or the package flash-attn, in half
precision on a GPU; default: transformers' own choice, which the log says."""
ONLY = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "tie_word_embeddings": True}
"""Keys with the one value that is supported: layers left out at random are others on each process."""


def flops(config: Any, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of totals["rows"] sources of `length` tokens with totals["predicted"] tokens of targets.

    Three times the forward pass, a multiply and an add counted as two, dense matrix products alone. A source's token
    meets the keys of its window and the global one, or all; a target's meets the source and, as masked products are
    computed, the whole target.
    """
    width, rows = config.d_model, max(totals["rows"], 1.0)
    sources, targets, square = rows * length, totals["predicted"], width * width
    keys, projections = [length] * config.encoder_layers, 4
    if ENCODER_DECODERS[config.model_type].has_windows:
        keys = [min(2 * window + 2, length) for window in windows(config)]
        projections += 2  # keys and values of all tokens, for the global one
    dense = 2 * sources * (projections * square + 2 * width * config.encoder_ffn_dim)
    encoder = sum(dense + 4 * sources * many * width for many in keys)
    own = 8 * targets * square + 4 * targets * targets / rows * width
    crossing = 4 * (targets + sources) * square + 4 * targets * length * width
    decoder = config.decoder_layers * (own + crossing + 4 * targets * width * config.decoder_ffn_dim)
    return 3.0 * (encoder + decoder + 2 * targets * width * config.vocab_size)


@cache
def writer_spec(name: str) -> ModelSpec:
    """The model of this name in `ENCODER_DECODERS`. Raises `UserError` if the installed transformers is of version 4,
    whose layers take other arguments."""
    if "layer_head_mask" in inspect.signature(modeling_led.LEDEncoderLayer.forward).parameters:
        raise UserError(f"train.model.type: transformers {transformers.__version__} has an older LED; install 5.3")
    one = ENCODER_DECODERS[name]
    return ModelSpec(
        name,
        getattr(transformers, f"{one.stem}Config"),
        {"generate": CLASSES[name]},
        {},
        flops,
        longest=attrgetter(one.positions),
        own_keys={} if one.has_windows else {"attn_implementation": OwnKey(ATTENTION, "sdpa", _ATTENTION)},
        only=ONLY,
        special={"cls": ("bos_token_id",), "sep": ("eos_token_id", "decoder_start_token_id")},
    )
