"""RAN: self-attention in windows, and a cell that carries information from window to window (Li et al. 2023).

A layer reads the text in windows of W tokens. Each window attends to itself and to the cell [D] of the windows before
it; the cell's own output is the next cell. At the end all tokens attend to all cells (memory review). There is no
feed-forward network. `RanConfig` lists the points in which the authors' code and the paper differ.

The model that is trained and, copied beside the weights, exported. It contains nothing of parallelism: a layer takes
its number of heads from its input, so Linear layers can be replaced by split ones from outside. Runs on transformers
4.40 to 5.

Shapes: B rows, L tokens, D hidden size, N heads, h head size, V vocabulary; n windows, W, P as in windows_ran.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import ModelOutput

from ..adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from ..beams import beam_search
from ..blocks import (
    Predictions,
    at_least_float32,
    attention_weights,
    chosen,
    cross_entropy,
    given_once,
    initialise,
    returned,
    truncated_normal,
)
from ..coreference import ForCoreference
from ..crf import ForTokenClassification
from ..heads import ForKeyPhrases, ForMultipleChoice, ForQuestionAnswering, ForSequenceClassification, TaskHead
from ..vectors import ForEmbedding
from .attention_ran import Chain, RanCellNorm, RanGatedLinear, RanLayer, RanLayerNorm, joined_probabilities
from .characters_ran import RanCharacters, characters_of
from .configuration_ran import RanConfig
from .windows_ran import RanWindows


class RanEmbeddings(nn.Module):
    """Word embeddings, and characters beside them if there are any: positions are rotary, in the queries and keys of
    each window."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        if config.cutoffs:
            self.adaptive_embeddings = AdaptiveEmbedding(*_adaptive(config))
        else:  # no padding_idx: whether [PAD]'s row learns must not depend on how the table is split
            self.word_embeddings = nn.Embedding(config.vocab_size, config.word_size)
        self.characters = RanCharacters(config.character_filters) if config.character_filters else None
        self.LayerNorm = RanLayerNorm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: Tensor, characters: Tensor | None = None) -> Tensor:
        """words [B, L, D - filters], of `table`, and characters [B, L, C] -> [B, L, D].

        Raises ValueError if the model reads characters and has none, or the reverse."""
        if (characters is None) != (self.characters is None):
            raise ValueError("`characters` are for a model with character_filters, which needs them: `characters_of`")
        if self.characters is not None:
            words = torch.cat([words, self.characters(characters)], dim=-1)
        return self.dropout(self.LayerNorm(words))

    @property
    def table(self) -> Any:
        return self.adaptive_embeddings if hasattr(self, "adaptive_embeddings") else self.word_embeddings


def _adaptive(config: RanConfig) -> tuple[list[tuple[int, int]], int, int, int]:
    return config.clusters, config.hidden_size, config.hidden_size, config.div_val


class RanEncoder(nn.Module):
    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(RanLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None,
        windows: RanWindows,
        every: bool = False,
        weights: list[Tensor] | None = None,
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """hidden [B, L, D]; memory [layers, B, D], each layer's first cell; None for the last cell of the layer below.

        Returns the last layer's output [B, L, D] (`every`: after the input and all outputs before it), the last cell of
        each layer [layers, B, D], and the windows' cell outputs in the last layer [B, n, D]. The probabilities of each
        layer [B, N, L, 1 + P], by which it attends, are appended to `weights`.
        """
        if self.config.window_handover:
            return self._window_by_window(hidden, windows, every, weights)
        states, cells = [hidden], []
        cell = empty = hidden.new_zeros(hidden.shape[0], hidden.shape[-1])
        layer: Any
        for number, layer in enumerate(self.layer):
            cell = cell if memory is None else memory[number]
            output, cell, raw, found = layer(hidden, cell, windows, weights is not None)
            if weights is not None:
                weights.append(found)
            hidden = hidden + output if self.config.layer_residual and number else output
            states = [*states, hidden] if every else [hidden]
            cells.append(cell)
            cell = cell if self.config.cell_handover else empty
        return states, torch.stack(cells), raw

    def _window_by_window(
        self, hidden: Tensor, windows: RanWindows, every: bool, weights: list[Tensor] | None
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """`forward` where a window goes through all layers, and the last one's cell to the next window."""
        layers: list[Any] = list(self.layer)
        above = self.config.layer_residual
        cell = raw = hidden.new_zeros(len(hidden), hidden.shape[-1])
        tokens, cells, raws, kept, shares = ([list[Any]() for _ in layers] for _ in range(5))
        for number, x in enumerate(windows.cut(hidden).unbind(1)):
            own, window = windows.only(number), x
            for i, layer in enumerate(layers):
                chain = Chain(raw, tuple(kept[i])) if number else None
                last = layer is layers[-1]
                output, cell, found, by_token = layer(window, cell, own, weights is not None, chain, not last)
                window = window + output if above and i and not last else output
                raw = found[:, 0]
                for values, value in zip((tokens, cells, raws, shares), (window, cell, raw, by_token), strict=True):
                    values[i].append(value)
                kept[i].append(raw if self.config.review_cells == "raw" else cell)
        # What all layers gave of all windows; the last layer has yet to review
        states = [hidden, *(windows.join(torch.stack(one, dim=1), hidden.shape[1]) for one in tokens)]
        output = layers[-1].review_of(states[-1], torch.stack(kept[-1], dim=1), windows)
        states[-1] = states[-2] + output if above and len(layers) > 1 else output
        if weights is not None:
            weights += [joined_probabilities(torch.stack(one, dim=1), windows, hidden.shape[1]) for one in shares]
        return states if every else states[-1:], torch.stack([one[-1] for one in cells]), torch.stack(raws[-1], dim=1)


class RanPooler(nn.Module):
    """The classification vector of tokens and cell (eq. 10 and 11)."""

    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Linear(config.hidden_size, config.hidden_size)
        self.gated = RanGatedLinear(config) if config.classifier == "gated" else None
        self.cell = nn.Linear(config.hidden_size, config.hidden_size, bias=self.gated is not None)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Tensor, cell: Tensor, raw: Tensor, tokens: Tensor | None, filled: Tensor | None
    ) -> Tensor:
        """hidden [B, L, D] of which `tokens` [B, L] count, the last cell [B, D], raw [B, n, D] with `filled` [B, n]."""
        if self.config.cell_pooling != "last":
            cell = _pooled(raw, filled, self.config.cell_pooling)
        cell = self.cell(cell)
        cell = cell if self.gated is None else self.gated(self.dropout(F.silu(cell)))
        return cell + self.tokens(_pooled(hidden, tokens, self.config.pooling))


def _pooled(x: Tensor, counted: Tensor | None, kind: str) -> Tensor:
    """Maximum or mean over dimension 1 of x [B, n, D] where `counted` [B, n]; 0 where nothing is."""
    if counted is None:
        return x.amax(1) if kind == "max" else x.mean(1)
    counted = counted[..., None]
    if kind == "mean":
        total = torch.where(counted, at_least_float32(x), 0).sum(1)
        return (total / counted.sum(1).clamp(min=1)).to(x.dtype)
    greatest = x.masked_fill(~counted, torch.finfo(x.dtype).min).amax(1)
    return torch.where(counted.any(1), greatest, 0)


class RanTransform(nn.Module):
    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = RanLayerNorm(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(F.silu(self.dense(self.dropout(x))))


class RanPredictions(nn.Module):
    def __init__(self, config: RanConfig) -> None:
        super().__init__()
        self.predictions = Predictions(config, RanTransform(config))


@dataclass
class RanModelOutput(ModelOutput):
    """`cell` is the last one [B, D]; `mems` one tensor [layers, B, D] with causal and prefix masks; `hidden_states` the
    embeddings and each layer's output [B, L, D]; `attentions` each layer's probabilities [B, N, L, 1 + P]."""

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    cell: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class RanCausalLMOutput(ModelOutput):
    """`loss` a scalar, the mean of `losses` [B, L]; `logits` [B, L, V]; the rest as in `RanModelOutput`."""

    loss: Tensor | None = None
    losses: Tensor | None = None
    logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class RanPreTrainedModel(PreTrainedModel):
    config_class = RanConfig
    base_model_prefix = "ran"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["RanLayer"]
    config: RanConfig
    cls: RanPredictions

    mems_dim = 1
    """The batch dimension of `mems`."""

    characters_of = staticmethod(characters_of)

    def empty_mems(self, rows: int) -> tuple[Tensor, ...]:
        """One tensor of zeros [layers, rows, D], with which a text begins."""
        shape = (self.config.num_hidden_layers, rows, self.config.hidden_size)
        return (torch.zeros(shape, dtype=self.dtype, device=self.device),)

    def get_output_embeddings(self) -> Any:
        return self.cls.predictions.decoder if hasattr(self, "cls") else None

    def set_output_embeddings(self, value: Any) -> None:
        self.cls.predictions.decoder = value

    def _init_weights(self, module: nn.Module) -> None:
        deviation = self.config.initializer_range
        initialise(module, deviation)  # truncated as in the authors' code
        if isinstance(module, RanLayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.ParameterList | nn.ParameterDict):  # transformers 5 skips modules that own only these
            for projection in module.parameters():
                truncated_normal(projection, deviation)
        if isinstance(module, AdaptiveSoftmax):
            nn.init.zeros_(module.bias)
            truncated_normal(module.cluster_weight, deviation)
            nn.init.zeros_(module.cluster_bias)
        if draw := getattr(module, "draw", None):
            draw()
        if isinstance(module, RanCellNorm) and not self.config.zero_first_cell:
            # As large as the cells to come. At zero, where the authors' code begins, the norm that reads it has
            # gradients 1 / sqrt(eps) times as large.
            nn.init.normal_(module.bias)


class RanModel(RanPreTrainedModel):
    _keys_to_ignore_on_load_unexpected = [r"^cls\.", r"^softmax\.", r"^transform\."]

    def __init__(self, config: RanConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = RanEmbeddings(config)
        self.encoder = RanEncoder(config)
        self.pooler = RanPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.table

    def set_input_embeddings(self, value: Any) -> None:
        setattr(self.embeddings, "adaptive_embeddings" if self.config.cutoffs else "word_embeddings", value)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        characters: Tensor | None = None,
        causal: bool = False,
        segment_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """input_ids, attention_mask (1 for tokens, 0 for padding, which stands after them) [B, L], any L.

        inputs_embeds [B, L, D]: word embeddings instead of input_ids. characters [B, L, C]: of a model that reads them,
        by `characters_of`; its word embeddings are narrower. `attentions` are the probabilities
        [B, N, L, 1 + P] of the cell before a token's window and of the window's positions, and not of memory review,
        before dropout; if they are asked for, tokens attend by them, and not by a fused kernel that has none to return.
        causal: tokens see the tokens before them in their window, and the cells of the windows before.
        segment_ids [B, L]: a prefix mask, see `RanWindows.of`. All tokens review the windows that are all prefix.
        mems: for causal and prefix masks, those returned for the text before; rows of zeros are empty.
        Without these masks a layer begins with the last cell of the layer below. With them that cell would show later
        tokens, so a layer begins with its own cell of the text before.

        Returns last_hidden_state [B, L, D], pooler_output [B, D] (eq. 10), cell [B, D], the last one, and with the
        masks `mems`, one tensor [layers, B, D] without gradient. Raises ValueError for mems without such a mask or of
        another shape, and for such a mask with window_handover.
        """
        # Check what is given: memory only makes sense where tokens see nothing after them.
        given_once(input_ids, inputs_embeds)
        words = self.embeddings.table(input_ids) if inputs_embeds is None else inputs_embeds
        ordered = causal or segment_ids is not None
        if ordered and self.config.window_handover:
            raise ValueError(
                "with window_handover a cell shows later tokens; leave it out with causal and prefix masks"
            )
        if mems and not ordered:
            raise ValueError("mems need tokens that see only those before them: set causal or segment_ids")
        expected = (self.config.num_hidden_layers, words.shape[0], self.config.hidden_size)
        if mems and [tuple(tensor.shape) for tensor in mems] != [expected]:
            raise ValueError(f"mems are one tensor {list(expected)}, not {[list(tensor.shape) for tensor in mems]}")
        # Cut the rows into windows, and begin with the cells of the text before.
        hidden = self.embeddings(words, characters)
        tokens = None if attention_mask is None else attention_mask != 0
        windows = RanWindows.of(self.config, hidden, tokens, segment_ids, causal)
        memory = None
        if ordered:
            memory = (mems or self.empty_mems(len(words)))[0].to(hidden.dtype)
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        weights = attention_weights(output_attentions, self.config)
        states, cells, raw = self.encoder(hidden, memory, windows, every, weights)
        if memory is not None and windows.filled is not None:  # a row of nothing but padding keeps its memory
            cells = torch.where(windows.filled.any(1)[:, None], cells, memory)
        # The pooled vector, from the states and the last layer's last cell
        pooled = None
        if self.pooler is not None:
            counted = None if self.config.official_padding else tokens
            pooled = self.pooler(states[-1], cells[-1], raw, counted, windows.filled)
        output = RanModelOutput(
            last_hidden_state=states[-1],
            pooler_output=pooled,
            cell=cells[-1],
            mems=(cells.detach(),) if ordered else None,
            hidden_states=tuple(states) if every else None,
            attentions=None if weights is None else tuple(weights),
        )
        return returned(self, output, return_dict)


class RanLanguageModel(RanPreTrainedModel):
    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "ran.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    _keys_to_ignore_on_load_unexpected = [r"^ran\.pooler\."]

    def __init__(self, config: RanConfig) -> None:
        if config.character_filters:
            raise ValueError("character_filters would show the words to predict; leave them out but for tags")
        super().__init__(config)
        self.ran = RanModel(config, add_pooling_layer=False)
        if config.cutoffs:
            self._tied_weights_keys = {}
            self.dropout = nn.Dropout(config.hidden_dropout_prob)
            self.transform = nn.Linear(config.hidden_size, config.hidden_size)
            self.softmax = AdaptiveSoftmax(*_adaptive(config), tied=[True] * len(config.clusters))
        else:
            self.cls = RanPredictions(config)
        self.post_init()


class RanForMaskedLM(RanLanguageModel):
    def __init__(self, config: RanConfig) -> None:
        if config.cutoffs:
            raise ValueError("cutoffs are for models of the next word (data.kind: stream); leave them out")
        super().__init__(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `RanModel`, with labels [B, L], -100 where nothing is predicted; logits [B, L, V] in float32.

        masked_positions [n] int64, flat indices into [B * L]: the head runs on these alone; labels are then [n] and
        logits [n, V].
        """
        encoded = self.ran(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.cls.predictions(chosen(encoded.last_hidden_state, masked_positions))
        loss = None if labels is None else cross_entropy(logits, labels)
        output = MaskedLMOutput(loss, logits, encoded.hidden_states, encoded.attentions)
        return returned(self, output, return_dict)


class RanForCausalLM(RanLanguageModel):
    """The next token, with memory; with `segment_ids`, sequence to sequence: the target after its source."""

    memory_in_tokens = False

    def __init__(self, config: RanConfig) -> None:
        if config.window_handover:
            raise ValueError("window_handover would show the words to predict; leave it out where words are predicted")
        super().__init__(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `RanModel` with a causal mask, or the prefix mask of segment_ids: logits [B, L, V] in float32, and mems.

        As elsewhere in transformers, labels [B, L] are the input tokens, shifted in here, or shift_labels [B, L] are
        the token after each; -100 is left out. masked_positions [n] as in `RanForMaskedLM`: logits are [n, V] then, and
        there are no labels.
        With config.cutoffs logits are log-probabilities, and with labels of either kind there are none, but `losses`
        [B, L], negative log-likelihoods in nats in float32, 0 where left out.
        """
        encoded = self.ran(
            input_ids,
            attention_mask,
            causal=True,
            segment_ids=segment_ids,
            mems=mems,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        loss, losses, logits = None, None, None
        states = chosen(encoded.last_hidden_state, masked_positions)
        if shift_labels is None and labels is not None:
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=-100)
        if not self.config.cutoffs:
            logits = self.cls.predictions(states)
            loss = None if shift_labels is None else cross_entropy(logits, shift_labels)
        else:
            hidden = F.silu(self.transform(self.dropout(states)))
            table = self.ran.embeddings.table
            if shift_labels is None:
                logits = self.softmax(hidden, table)
            else:
                losses = self.softmax.losses(hidden.flatten(0, 1), shift_labels.flatten(), table)
                losses = losses.view_as(shift_labels)
                loss = losses.sum() / (shift_labels != -100).sum().clamp(min=1)
        output = RanCausalLMOutput(loss, losses, logits, encoded.mems, encoded.hidden_states, encoded.attentions)
        return returned(self, output, return_dict)

    def predict_next(
        self, input_ids: Tensor, next_ids: Tensor, mems: tuple[Tensor, ...] | None, **_: Any
    ) -> RanCausalLMOutput:
        """Of pretraining: mems and, with config.cutoffs, `losses` [B, L], else `logits` [B, L, V]. Its memory is a
        vector a layer, and it counts no sentences."""
        return cast(RanCausalLMOutput, self(input_ids, mems, shift_labels=next_ids if self.config.cutoffs else None))


class RanForConditionalGeneration(RanForCausalLM):
    """A target that is written of its source: a row is [CLS] source [SEP] target [SEP], with a prefix mask."""

    def write(
        self,
        sources: Tensor,
        attention_mask: Tensor | None = None,
        banned: Sequence[int] = (),
        beams: int | None = None,
    ) -> Tensor:
        """The target [B, t] of each of sources [B, L], [CLS] source [SEP]: its tokens, then [SEP].

        By `beam_search`, with `target_length` and, unless given, `beams` of config.task. `banned` are not written.
        """
        task = cast(dict[str, Any], getattr(self.config, "task", None) or {})
        return beam_search(
            lambda **inputs: cast(Tensor, self(**inputs).logits),
            sources,
            torch.ones_like(sources) if attention_mask is None else attention_mask,
            beams=beams or task.get("beams", 1),
            longest=task.get("target_length", 32),
            end=cast(int, self.config.sep_token_id),
            banned=banned,
        )


class RanHead(RanPreTrainedModel, TaskHead):
    """What RAN's heads of tasks share: a row is a text, or several parts with one [SEP] between them."""

    body = RanModel

    def content(self, ids: Tensor) -> tuple[int, int]:
        """The last part; all that comes after the question, where that is first."""
        known = self.config.sep_token_id is not None
        ends = self.separators(ids).nonzero().flatten().tolist() if known else []
        return (ends[0 if self.question_first else -1] + 1 if ends else 0), len(ids)


class RanForSequenceClassification(RanHead, ForSequenceClassification):
    """Classes of a text or of a pair, from the vector of eq. 10."""


class RanForTokenClassification(RanHead, ForTokenClassification):
    """A tag for each token."""


class RanForKeyPhrases(RanHead, ForKeyPhrases):
    """The key phrases of a text."""


class RanForCoreference(RanHead, ForCoreference):
    """Clusters of the mentions of a text."""


class RanForQuestionAnswering(RanHead, ForQuestionAnswering):
    """An answer within a text; a row is question [SEP] text."""


class RanForMultipleChoice(RanHead, ForMultipleChoice):
    """One of several options, with a row for each; the text comes last."""


class RanForEmbedding(RanHead, ForEmbedding):
    """The vector of a text."""
