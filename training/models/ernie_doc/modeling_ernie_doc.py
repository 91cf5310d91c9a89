"""ERNIE-Doc: a BERT encoder that reads a document segment by segment (Ding et al. 2021, arXiv:2012.15688).

Each layer attends to the segment and to a memory of the segments before it. Positions are those of the authors' code:
Transformer-XL's form (Dai et al. 2019, section 3.3) over a learned table of distances to both sides, and a term for
the type of the key, each with biases.

The model that is trained and, copied beside the weights, exported. It contains nothing of parallelism: a layer takes
its number of heads from its input, so Linear layers can be replaced by split ones from outside. Runs on transformers
4.40 to 5.

Shapes: B rows, T tokens of a segment, M slots of memory, S = M + T keys, D hidden size, N heads, h = D / N head size,
V vocabulary, P = M + 2T distances between a query and a key, the last of them unused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..blocks import (
    PostNormLayer,
    Predictions,
    Transform,
    at_least_float32,
    at_positions,
    attention_weights,
    chosen,
    chosen_first,
    cross_entropy,
    given_once,
    initialise,
    remembers_output,
    returned,
    truncated_normal,
)
from ..coreference import ForCoreference
from ..crf import ForTokenClassification
from ..heads import ForKeyPhrases, ForMultipleChoice, ForQuestionAnswering, ForSequenceClassification, TaskHead, Windows
from ..vectors import ForEmbedding
from .attention_ernie_doc import MASKED, OFFICIAL_MASKED, ErnieDocSelfAttention, Surroundings, Update, moved
from .configuration_ernie_doc import MOST_SKIMMED, ErnieDocConfig


class ErnieDocEmbeddings(nn.Module):
    """Words, distances and types, each with a table, a layer norm and dropout; they are not summed."""

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.longest = config.max_position_embeddings
        # No padding_idx: whether [PAD]'s row learns must not depend on how the table is split
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(2 * self.longest + config.memory_length, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.word_layer_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.position_layer_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.token_type_layer_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: Tensor) -> Tensor:
        """[B, T, D], of `word_embeddings` -> [B, T, D]."""
        return self.dropout(self.word_layer_norm(words))

    def positions(self, length: int, slots: int) -> Tensor:
        """[P, D] for `length` tokens, padding included, after `slots` of memory.

        Distance d = query - key has row -d of the table if d <= 0, longest - 1 + d if the key lies to the left.
        """
        if length > self.longest:
            raise ValueError(f"a segment of {length} tokens, but max_position_embeddings is {self.longest}")
        if self.longest + length + slots > self.position_embeddings.num_embeddings + 1:
            raise ValueError(f"{slots} slots of memory before {length} tokens reach past the table of positions")
        weight = self.position_embeddings.weight
        distances = torch.arange(slots + length - 1, -length - 1, -1, device=weight.device)
        rows = torch.where(distances <= 0, -distances, self.longest - 1 + distances)
        return self.dropout(self.position_layer_norm(self.position_embeddings(rows)))

    def all_positions(self) -> Tensor:
        """[R, D], every row of the table of positions."""
        return self.dropout(self.position_layer_norm(self.position_embeddings.weight))

    def rows_of(self, begins: Tensor, length: int, keys: int) -> Tensor:
        """[B, T, keys], the row of the table for each token of a segment, whose first has the place begins [B] in the
        text, and each place of the text; the row of the farthest distance for those that are farther."""
        places = begins[:, None] + torch.arange(length, device=begins.device)
        distances = places[..., None] - torch.arange(keys, device=begins.device)
        left = distances.clamp(max=self.position_embeddings.num_embeddings - 1 - self.longest)
        return torch.where(distances <= 0, (-distances).clamp(max=self.longest - 1), self.longest - 1 + left)

    def types(self) -> Tensor:
        """[types, D]."""
        return self.dropout(self.token_type_layer_norm(self.token_type_embeddings.weight))


class ErnieDocLayer(PostNormLayer):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__(config, ErnieDocSelfAttention(config))

    def forward(self, hidden: Tensor, memory: Tensor | None, weights: Tensor | None, *around: Any) -> Tensor:
        """`around` are the fields of `Surroundings` one by one, since a checkpoint does not look into tuples."""
        return self.behind(self.attention.self(hidden, memory, *around, weights=weights), hidden)


class ErnieDocEncoder(nn.Module):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(ErnieDocLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden: Tensor,
        mems: tuple[Tensor, ...],
        around: Surroundings,
        valid: Tensor,
        every: bool = False,
        weights: list[Tensor] | None = None,
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """hidden [B, T, D]; mems, N tensors [B, M, D] or none; valid [B, S], True where a state may be remembered.
        The probabilities of each layer [B, N, T, S], by which it then attends, are appended to `weights`.

        Returns the last layer's output [B, T, D] (`every`: after the input and all outputs before it) and new mems.
        """
        update = Update.of(valid, self.config.slots) if self.config.slots else None
        states, new = [hidden], []
        layer: Any
        for number, layer in enumerate(self.layer):
            memory = mems[number] if mems else None
            before = hidden
            if weights is not None:
                weights.append(layer.attention.self.probabilities(hidden, memory, around))
            hidden = layer(hidden, memory, weights[-1] if weights else None, *around)
            states = [*states, hidden] if every else [hidden]
            if update is not None:
                new.append(update(memory, hidden if remembers_output(self.config.recurrence, number) else before))
        return states, tuple(new)


class ErnieDocPooler(nn.Module):
    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, T, D] -> [B, D], from the last position, that of [CLS]."""
        return self.dense(hidden[:, -1]).tanh()


class ErnieDocHeads(nn.Module):
    def __init__(self, config: ErnieDocConfig, reorder: bool) -> None:
        super().__init__()
        transform = Transform(config, config.hidden_size, eps=1e-5)  # the authors' eps, as in the embeddings
        self.predictions = Predictions(config, transform)
        if reorder:
            self.segment_reorder = nn.Linear(config.hidden_size, config.reorder_classes)


@dataclass
class ErnieDocModelOutput(ModelOutput):
    """`mems` are N tensors [B, memory_length, D], and with the full recurrence what `empty_mems` adds to them;
    `hidden_states` the embeddings and each layer's output [B, T, D]."""

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class ErnieDocMaskedLMOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class ErnieDocForPreTrainingOutput(ModelOutput):
    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    reorder_logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None

    @property
    def logits(self) -> Tensor | None:
        """Those of the tokens, by the name that other heads give them."""
        return self.prediction_logits


class ErnieDocPreTrainedModel(PreTrainedModel):
    config_class = ErnieDocConfig
    base_model_prefix = "ernie_doc"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["ErnieDocLayer"]
    config: ErnieDocConfig
    cls: ErnieDocHeads

    mems_dim = 0
    """The batch dimension of `mems`."""

    def empty_mems(self, rows: int, segments: int = MOST_SKIMMED) -> tuple[Tensor, ...]:
        """N tensors of zeros [rows, memory_length, D], what a document begins with; () without memory. With the full
        recurrence two more: the states of a skim of at most `segments` [rows, H, D], layer by layer, H = N * segments
        * skimmed_length, and how many segments were skimmed, and then read [rows, 2]."""
        config = self.config
        layers = config.num_hidden_layers if config.slots else 0
        shapes: list[tuple[int, ...]] = [(rows, config.slots, config.hidden_size)] * layers
        if config.recurrence == "full":
            shapes += [(rows, layers * segments * config.skimmed_length, config.hidden_size), (rows, 2)]
        return tuple(torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes)

    @contextmanager
    def skimming(self) -> Iterator[None]:
        """Within it a text is skimmed: without gradient and, with the full recurrence, keeping the states of all layers
        for the reading that follows."""
        body: Any = self.base_model
        body.skims = True
        try:
            with torch.no_grad():
                yield
        finally:
            body.skims = False

    def check_kept(self, segments: int) -> None:
        """Raises ValueError if the full recurrence keeps fewer segments than a text has."""
        if self.config.recurrence == "full" and segments > MOST_SKIMMED:
            raise ValueError(
                f"a text of {segments} segments, but recurrence full keeps {MOST_SKIMMED}; shorten it, or set "
                "config.recurrence to enhanced"
            )

    def get_output_embeddings(self) -> Any:
        return self.cls.predictions.decoder if hasattr(self, "cls") else None

    def set_output_embeddings(self, value: Any) -> None:
        self.cls.predictions.decoder = value

    def _init_weights(self, module: nn.Module) -> None:
        initialise(module, self.config.initializer_range)  # truncated as in the authors' code
        if isinstance(module, ErnieDocSelfAttention):
            for bias in (module.content_bias, module.position_bias, module.token_type_bias):
                truncated_normal(bias, self.config.initializer_range)


class ErnieDocModel(ErnieDocPreTrainedModel):
    _keys_to_ignore_on_load_unexpected = [r"^cls\."]

    skims = False
    """Whether it is within `skimming`."""

    def __init__(self, config: ErnieDocConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = ErnieDocEmbeddings(config)
        self.encoder = ErnieDocEncoder(config)
        self.pooler = ErnieDocPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        gap: int = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """input_ids, attention_mask (1 for tokens, 0 for padding), token_type_ids [B, T]; mems as they were returned.

        Slots of `mems` that are zero are empty: zero a row to begin a document there. None means all are empty.
        inputs_embeds [B, T, D]: word embeddings instead of input_ids. `attentions` are probabilities [B, N, T, S]
        before dropout; if they are asked for, layers attend by them, and not by a fused kernel that has none to return.
        A segment ends with [SEP], padding, and [CLS] in last position; `gap` columns of padding before it can be left
        out and still count as distance to it. Memory has the type of its row's first token.
        Returns last_hidden_state [B, T, D], pooler_output [B, D] and mems, N tensors [B, memory_length, D] without
        gradient: the last states of [mems; segment] that belong to tokens. With the full recurrence a reading also
        attends to the states of the skim in `mems`, which `skimming` adds to them.

        Raises ValueError for segments longer than `max_position_embeddings`, and with `official_memory`, which
        remembers padding, or the full recurrence for a `gap`.
        """
        # The segment's embeddings, and the memory before it
        given_once(input_ids, inputs_embeds)
        hidden = self.embeddings(self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds)
        batch, length = hidden.shape[:2]
        official = self.config.official_memory
        if official and gap:
            raise ValueError("official_memory remembers padding, so none can be left out")
        full = self.config.recurrence == "full"
        if full and (gap or length > self.config.skimmed_length):
            kept = self.config.skimmed_length
            raise ValueError(f"recurrence full keeps {kept} tokens of a segment and no gap, not {length} and {gap}")
        mems = self._given(mems or (self.empty_mems(batch) if official or full else ()), hidden.dtype)
        mems, skimmed = mems[: self.config.num_hidden_layers], mems[self.config.num_hidden_layers :]
        slots = mems[0].shape[1] if mems else 0
        # What may be seen: tokens, and slots of memory that are not empty
        filled = mems[0].any(-1) if mems else hidden.new_ones(batch, 0, dtype=torch.bool)
        tokens = torch.ones(batch, length, dtype=torch.bool, device=hidden.device)
        tokens = tokens if attention_mask is None else attention_mask != 0
        mask = None
        if official:
            token_type_ids = tokens.long() * 0 if token_type_ids is None else token_type_ids
            filled = torch.ones_like(filled)
            if attention_mask is not None:
                seen = torch.cat([filled, tokens], dim=1)[:, None, None] & tokens[:, None, :, None]
                mask = at_least_float32((~seen).to(hidden.dtype)) * OFFICIAL_MASKED
            tokens = torch.ones_like(tokens)
        elif mems or attention_mask is not None:
            mask = (~torch.cat([filled, tokens], dim=1))[:, None, None].to(hidden.dtype) * MASKED
        # Types and positions, which all layers share
        types = key_types = None
        before = slots if self.skims or not skimmed else slots + skimmed[0].shape[1]
        if token_type_ids is not None:
            types, key_types = self.embeddings.types(), self._key_types(token_type_ids, before).to(hidden.dtype)
        around = Surroundings(self.embeddings.positions(length + gap, slots), types, key_types, mask, gap)
        if skimmed and not self.skims:
            around = self._with_skim(around, skimmed, length)
        # The layers, each of which also returns its new memory
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        weights = attention_weights(output_attentions, self.config)
        valid = torch.cat([filled, tokens], dim=1)
        states, mems = self.encoder(hidden, mems, around, valid, every or bool(skimmed), weights)
        if skimmed:
            mems = (*mems, *self._kept(skimmed, states[1:], tokens))
        output = ErnieDocModelOutput(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            mems=mems,
            hidden_states=tuple(states) if every else None,
            attentions=None if weights is None else tuple(weights),
        )
        return returned(self, output, return_dict)

    def _given(self, mems: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """`mems` in `dtype`; raises ValueError if there are not as many as layers that remember."""
        if mems and len(mems) != (layers := len(self.empty_mems(0))):
            raise ValueError(f"{len(mems)} mems, but the model has {layers}")
        return tuple(memory.to(dtype) for memory in mems)

    def _with_skim(self, around: Surroundings, skimmed: tuple[Tensor, ...], length: int) -> Surroundings:
        """`around` a segment of `length` tokens, and the states of a skim.

        A state stands where its token was read, and so does the segment: the distance between them is counted over all
        segments of the text, each as long as `skimmed_length`."""
        states, counts = skimmed
        keys = states.shape[1] // self.config.num_hidden_layers
        empty = ~states[:, :keys].any(-1)[:, None, None]
        rows = self.embeddings.rows_of(counts[:, 1].long() * self.config.skimmed_length, length, keys)
        table = self.embeddings.all_positions()
        mask = empty.to(states.dtype) * MASKED
        return around._replace(skimmed=states, table=table, rows=rows, skimmed_mask=mask)

    def _kept(self, skimmed: tuple[Tensor, ...], states: list[Tensor], tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What `mems` have of a skim after another segment, whose padding is not kept."""
        held, counts = skimmed
        if not self.skims:
            return held, counts + counts.new_tensor([0, 1])
        new = torch.stack(states, dim=1).detach() * tokens[:, None, :, None]
        places = counts[:, :1].long() * self.config.skimmed_length + torch.arange(new.shape[2], device=new.device)
        by_layer = held.unflatten(1, (new.shape[1], -1))
        by_layer = by_layer.scatter(2, places[:, None, :, None].expand_as(new), new)
        return by_layer.flatten(1, 2), counts + counts.new_tensor([1, 0])

    def _key_types(self, types: Tensor, slots: int) -> Tensor:
        """[B, S, type_vocab_size] int64: one-hot types of `slots` of memory and of the tokens, types [B, T]."""
        first = types[:1, :1] if self.config.official_memory else types[:, :1]
        return F.one_hot(
            torch.cat([first.expand(types.shape[0], slots), types], dim=1).long(), self.config.type_vocab_size
        )

    def read(self, input_ids: Tensor, *, retrospective: bool = True) -> ErnieDocModelOutput:
        """Read a whole document of any length: input_ids [n], without special tokens.

        It is cut into segments of `config.segment_length`, [SEP] and [CLS] included, and read twice (retrospective
        feed, paper, section 3.2): skimmed without gradient, then read with the memory of the skim, so that the first
        segment sees the last. `retrospective=False` reads it once. With gradients, the second pass keeps activations
        of the whole document; within `torch.no_grad()` it does not.

        Returns last_hidden_state [n, D], pooler_output [D] of the last segment, and mems as `forward` does.
        Raises ValueError if the configuration has no cls_token_id or sep_token_id, and with the full recurrence for
        documents that it cannot keep.
        """
        cls, sep, pad = self.config.cls_token_id, self.config.sep_token_id, self.config.pad_token_id
        if cls is None or sep is None:
            raise ValueError("reading a document needs config.cls_token_id and config.sep_token_id")
        room = (self.config.skimmed_length if self.config.recurrence == "full" else self.config.segment) - 2
        mems: tuple[Tensor, ...] = ()
        segments = []
        for piece in input_ids.split(room) if len(input_ids) else [input_ids]:
            padding = room - len(piece)
            ids = torch.cat([piece, piece.new_tensor([sep] + [pad] * padding + [cls])])
            mask = torch.cat([torch.ones_like(piece), piece.new_tensor([1] + [0] * padding + [1])])
            segments.append((len(piece), ids[None], mask[None]))
        if retrospective and self.config.slots:
            self.check_kept(len(segments))
            with self.skimming():
                mems = self.empty_mems(1, len(segments)) if self.config.recurrence == "full" else ()
                for _, ids, mask in segments:
                    mems = self(ids, mask, mems=mems, return_dict=True).mems
        states = []
        for count, ids, mask in segments:
            output = self(ids, mask, mems=mems, return_dict=True)
            mems = output.mems
            states.append(output.last_hidden_state[0, :count])
        pooled = None if output.pooler_output is None else output.pooler_output[0]
        return ErnieDocModelOutput(last_hidden_state=torch.cat(states), pooler_output=pooled, mems=mems)


class ErnieDocForPreTraining(ErnieDocPreTrainedModel):
    """Masked language modelling and segment reordering, as ERNIE-Doc was pretrained (paper, section 3.4)."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "ernie_doc.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__(config)
        self.ernie_doc = ErnieDocModel(config)
        self.cls = ErnieDocHeads(config, reorder=True)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        gap: int = 0,
        masked_positions: Tensor | None = None,
        labels: Tensor | None = None,
        reorder_labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `ErnieDocModel`, with labels [B, T] and reorder_labels [B], -100 where nothing is predicted.

        masked_positions [n] int64, flat indices into [B * T]: the head runs on these alone; labels are then [n].
        Returns prediction_logits [B, T, V] or [n, V], reorder_logits [B, K], both float32, mems, and the sum of the
        mean losses whose labels are given.
        """
        encoded = self.ernie_doc(
            input_ids,
            attention_mask,
            token_type_ids,
            mems,
            inputs_embeds=inputs_embeds,
            gap=gap,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.cls.predictions(chosen(encoded.last_hidden_state, masked_positions))
        reorder = at_least_float32(self.cls.segment_reorder(encoded.pooler_output))
        losses = []
        if labels is not None:
            losses.append(cross_entropy(logits, labels))
        if reorder_labels is not None:
            losses.append(cross_entropy(reorder, reorder_labels))
        output = ErnieDocForPreTrainingOutput(
            loss=sum(losses) if losses else None,  # type: ignore[arg-type]
            prediction_logits=logits,
            reorder_logits=reorder,
            mems=encoded.mems,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        return returned(self, output, return_dict)


class ErnieDocForMaskedLM(ErnieDocPreTrainedModel):
    """Masked language modelling alone; loads what `ErnieDocForPreTraining` saved."""

    _tied_weights_keys = ErnieDocForPreTraining._tied_weights_keys
    _keys_to_ignore_on_load_unexpected = [r"^ernie_doc\.pooler\.", r"^cls\.segment_reorder\."]

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__(config)
        self.ernie_doc = ErnieDocModel(config, add_pooling_layer=False)
        self.cls = ErnieDocHeads(config, reorder=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        masked_positions: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As `ErnieDocForPreTraining` without reordering; logits [B, T, V] or [n, V]."""
        encoded = self.ernie_doc(
            input_ids,
            attention_mask,
            token_type_ids,
            mems,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.cls.predictions(chosen(encoded.last_hidden_state, masked_positions))
        output = ErnieDocMaskedLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels),
            logits=logits,
            mems=encoded.mems,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        return returned(self, output, return_dict)


class ErnieDocHead(ErnieDocPreTrainedModel, TaskHead):
    """What ERNIE-Doc's heads of tasks share: a row is a segment, text [SEP] other [SEP] ... [CLS]."""

    body = ErnieDocModel

    def content(self, ids: Tensor) -> tuple[int, int]:
        """The first part; all that comes before the question, where another model reads that first."""
        ends = self.ends(ids)
        return 0, ends[-2] if self.question_first and len(ends) > 1 else ends[0]

    def walk(
        self, windows: list[Windows], given: Mapping[str, Any], retrospective: bool
    ) -> tuple[list[list[Tensor]], tuple[Tensor, ...]]:
        """The rows' windows one after the other, each row with its memory, which begins as `given` has it."""
        most = max(len(one.spans) for one in windows)
        mems = tuple(given.get("mems") or self.empty_mems(len(windows), most))
        if retrospective and mems:
            self.check_kept(most)
            with self.skimming():
                mems = self._walk(windows, given, mems)[1]
        return self._walk(windows, given, mems)

    def _walk(
        self, windows: list[Windows], given: Mapping[str, Any], mems: tuple[Tensor, ...]
    ) -> tuple[list[list[Tensor]], tuple[Tensor, ...]]:
        logits: list[list[Tensor]] = [[] for _ in windows]
        positions = [one.positions for one in windows]
        for number in range(max(map(len, positions))):
            rows = [row for row, parts in enumerate(positions) if number < len(parts)]
            index = torch.tensor(rows, device=given["input_ids"].device)
            pairs = [(row, positions[row][number]) for row in rows]
            found, new = self.read_windows(pairs, given, tuple(memory[index] for memory in mems))
            pairs_of_memory = zip(mems, new, strict=True)
            mems = tuple(memory.index_copy(0, index, one.to(memory.dtype)) for memory, one in pairs_of_memory)
            for row, one in zip(rows, found, strict=True):
                logits[row].append(one)
        return logits, mems

    def encode(self, rows: Mapping[str, Any]) -> Any:
        """The encoder's output. It reads padding after all tokens, where distances between tokens and to the memory do
        not depend on it, wherever padding stands in the row; the pooled vector is that of the last token, [CLS].
        With a mask, states and attentions are returned as copies in the row's order, on which no logit depends.

        A row without `mems` is a whole text, so it is skimmed first if config.reading says so."""
        reading = self.config.reading
        if rows.get("mems") is None and reading and reading["retrospective"] and self.config.slots:
            given = rows["inputs_embeds"] if rows.get("input_ids") is None else rows["input_ids"]
            mems = self.empty_mems(len(given), 1) if self.config.recurrence == "full" else ()
            with self.skimming():
                rows = {**rows, "mems": self.encode({**rows, "mems": mems}).mems}
        mask = rows.get("attention_mask")
        if mask is None:
            return super().encode(rows)
        order = chosen_first(mask != 0)
        by_token = ("input_ids", "attention_mask", "token_type_ids", "inputs_embeds")
        encoded = super().encode({name: at_positions(x, order) if name in by_token else x for name, x in rows.items()})
        hidden = encoded.last_hidden_state
        if (pooler := getattr(self, self.base_model_prefix).pooler) is not None:
            cls = (mask != 0).sum(1, keepdim=True).clamp(min=1) - 1
            encoded.pooler_output = pooler(at_positions(hidden, cls))
        places = torch.arange(order.shape[1], device=order.device).expand_as(order)
        back = torch.empty_like(order).scatter(1, order, places)
        encoded.last_hidden_state = at_positions(hidden, back)
        if encoded.hidden_states is not None:
            encoded.hidden_states = tuple(at_positions(states, back) for states in encoded.hidden_states)
        if encoded.attentions is not None:
            encoded.attentions = tuple(moved(weights, back) for weights in encoded.attentions)
        return encoded


class ErnieDocForSequenceClassification(ErnieDocHead, ForSequenceClassification):
    """Classes of a segment and its memory."""


class ErnieDocForTokenClassification(ErnieDocHead, ForTokenClassification):
    """A tag for each token."""


class ErnieDocForKeyPhrases(ErnieDocHead, ForKeyPhrases):
    """The key phrases of a segment and its memory."""


class ErnieDocForCoreference(ErnieDocHead, ForCoreference):
    """Clusters of the mentions of a text."""


class ErnieDocForQuestionAnswering(ErnieDocHead, ForQuestionAnswering):
    """An answer within a segment; a row is text [SEP] question [SEP] [CLS], all of type 0."""


class ErnieDocForMultipleChoice(ErnieDocHead, ForMultipleChoice):
    """One of several options, with a row and a memory for each."""


class ErnieDocForEmbedding(ErnieDocHead, ForEmbedding):
    """The vector of a text, whose segments are read one after the other."""

    cls_is_last = True
