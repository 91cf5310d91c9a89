"""Heads of the tasks that a pretrained encoder is fine-tuned for; copied beside exported weights.

A model's class for a task joins what the heads of the model share (a subclass of its `PreTrainedModel` that names the
encoder's class as `body`) with a task, such as `ForSequenceClassification`. Parameters have transformers' names.

A row with more tokens than `config.reading` gives a window is read in windows, as in training: its text is cut, what
stands around it is repeated in each window, and the logits returned are those of the whole text.

Shapes: B rows, L tokens, D hidden size, K labels, or options of a question; n tokens of a text, W windows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from .blocks import at_least_float32, chosen_first, cross_entropy, mean_state, returned

OUTSIDE = -1e4
"""Logits of positions that are padding: finite, and below all others."""


@dataclass(frozen=True)
class Text:
    """A row that is read in windows, each with all that stands around the content."""

    tokens: Tensor
    """int64 [n + others], the positions of its tokens in the row."""
    content: tuple[int, int]
    """Which of the tokens are content: the first, and the one after the last."""

    @property
    def others(self) -> int:
        """Tokens beside the content: special tokens, a question, an option."""
        return len(self.tokens) - (self.content[1] - self.content[0])

    def cut(self, room: int, step: int) -> "Windows":
        """Windows of `room` tokens of content that begin `step` apart, the last where one reaches the end."""
        first, end = self.content
        step = min(step, room)  # no token stands between two windows
        count = 1 + max(0, -(-(end - first - room) // step))
        spans = [(begin, min(begin + room, end)) for begin in range(first, first + count * step, step)]
        return Windows(self, spans)


@dataclass(frozen=True)
class Windows:
    text: Text
    spans: list[tuple[int, int]]
    """The tokens of content in each window, as `Text.content`."""

    @property
    def positions(self) -> list[Tensor]:
        """The positions in the row of each window's tokens."""
        tokens, (first, end) = self.text.tokens, self.text.content
        return [torch.cat([tokens[:first], tokens[begin:stop], tokens[end:]]) for begin, stop in self.spans]

    def joined(self, logits: list[Tensor], length: int, beside: str = "first") -> Tensor:
        """Logits [length, K] of all positions of the row, from each window's, [its tokens, K].

        A token's are those of the window with the most context around it: the greatest min(tokens before, tokens after)
        + 0.01 * tokens of content in the window, and the first of equals. Tokens that all windows have take those of
        the first window, or of the last (`beside` is "last"), or the windows' mean ("mean").
        """
        context = torch.full((len(self.spans), length), -1, device=logits[0].device)  # a hundred times as much
        index = torch.zeros_like(context)
        for number, (positions, (begin, stop)) in enumerate(zip(self.positions, self.spans, strict=True)):
            index[number, positions] = torch.arange(len(positions), device=positions.device)
            tokens = torch.arange(stop - begin, device=positions.device)
            context[number, self.text.tokens[begin:stop]] = 100 * torch.minimum(tokens, tokens.flip(0)) + len(tokens)
        context[0, self.text.tokens] = context[0, self.text.tokens].clamp(min=0)
        owner = context.argmax(0)
        padded = torch.nn.utils.rnn.pad_sequence(logits, batch_first=True)
        joined = padded[owner, index.gather(0, owner[None])[0]]
        if beside != "first":
            first, end = self.text.content
            others = torch.cat([self.text.tokens[:first], self.text.tokens[end:]])
            of_windows = padded[torch.arange(len(padded), device=owner.device)[:, None], index[:, others]]
            joined[others] = of_windows[-1] if beside == "last" else of_windows.mean(0)
        return joined.masked_fill((context.amax(0) < 0)[:, None], OUTSIDE)


def merged(logits: Tensor, kind: str, predict: str) -> Tensor:
    """Logits [..., K] of a text from those of its windows [W, ..., K]: of the last, or of the mean of probabilities.

    kind: "classes", whose softmax is averaged over the windows and returned as its logarithm; "set", whose sigmoids
    are; or "numbers", which are averaged themselves.
    """
    if predict == "last":
        return logits[-1]
    if kind == "numbers":
        return logits.mean(0)
    if kind == "set":
        return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
    return logits.log_softmax(-1).logsumexp(0) - torch.tensor(float(len(logits))).log().item()


@dataclass
class HeadOutput(ModelOutput):
    """`loss` is a scalar; `logits` float32; `mems` as the encoder returns them, if it has a memory."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class SpanOutput(ModelOutput):
    """As `HeadOutput`, with logits [B, L] of the first and of the last token of an answer and, of a model with marks,
    those that `ForQuestionAnswering` describes."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    mark_logits: Tensor | None = None
    kind_logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def head_dropout(config: Any) -> float:
    """`classifier_dropout`; None, or a configuration without it, stands for `hidden_dropout_prob`."""
    share: float | None = getattr(config, "classifier_dropout", None)
    return float(config.hidden_dropout_prob if share is None else share)


class TaskHead(PreTrainedModel):
    """An encoder, dropout and a linear layer; a model's heads add `content`."""

    body: type[Any]
    """The encoder's class."""
    pooling = True
    """Whether the linear layer reads one vector of a row [B, D], which `config.classifier_pooling` names: the encoder's
    pooled vector ("cls", or a configuration without it) or the mean of the states ("mean"); or all states [B, L, D]."""
    overlaps = False
    """Whether a window moves by half its room, not by all of it, if config.reading names no step."""
    question_first = False
    """Whether a row is a question and then the text, where the model reads rows in that order."""
    layer = "classifier"
    """The linear layer's name."""
    _keys_to_ignore_on_load_unexpected = [r"^(cls|lm_head|softmax|transform)\.", r"^[^.]+\.pooler\."]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.averages = self.pooling and getattr(config, "classifier_pooling", "cls") == "mean"
        pools = self.pooling and not self.averages
        setattr(self, self.base_model_prefix, self.body(config, add_pooling_layer=pools))
        self.dropout = nn.Dropout(head_dropout(config))
        setattr(self, self.layer, self.linear(config))
        self.post_init()

    def linear(self, config: Any) -> nn.Module:
        """The layer on top; one with an output for each label."""
        return nn.Linear(config.hidden_size, config.num_labels)

    def encode(self, rows: Mapping[str, Any]) -> Any:
        """The encoder's output for the arguments `rows`."""
        return self.base_model(**rows, return_dict=True)

    def logits(self, encoded: Any, mask: Tensor | None) -> Tensor:
        """[B, K] or [B, L, K], float32, from the encoder's output and which of its tokens are real, mask [B, L]."""
        features = encoded.last_hidden_state
        if self.pooling:
            features = mean_state(features, mask) if self.averages else encoded.pooler_output
        return at_least_float32(getattr(self, self.layer)(self.dropout(features)))

    def content(self, ids: Tensor) -> tuple[int, int]:
        """Which of a row's tokens `ids` [n] are the text that windows cut: the first, and the one after the last.

        Raises ValueError for a row that is not framed as the exported tokenizer frames it."""
        raise ValueError(f"{type(self).__name__} does not read in windows: set config.reading to None")

    def separators(self, input_ids: Tensor) -> Tensor:
        """Which of input_ids are [SEP], bool. Raises ValueError if the configuration does not name it."""
        if self.config.sep_token_id is None:
            raise ValueError("config.sep_token_id is None, so the parts of a row cannot be found")
        return input_ids.eq(self.config.sep_token_id)

    def ends(self, ids: Tensor) -> list[int]:
        """The positions of the separators in a row's tokens `ids` [n]. Raises ValueError if there are none."""
        ends: list[int] = self.separators(ids).nonzero().flatten().tolist()
        if not ends:
            raise ValueError("a row without [SEP] is longer than reading.length; let the tokenizer add special tokens")
        return ends

    def read(self, rows: Mapping[str, Any], options: int = 1) -> tuple[Tensor, dict[str, Any]]:
        """The logits for the encoder's arguments, of which None are not given, and its other outputs.

        `options` rows, one after the other, belong to a question. Of a text in windows only `mems` are returned beside
        the logits, those behind its last window; none with `use_cache` false."""
        given = {name: value for name, value in rows.items() if value is not None}
        remembers = given.pop("use_cache", True)
        ids, reading = given.get("input_ids"), getattr(self.config, "reading", None)
        if reading and ids is not None and ids.shape[1] > reading["length"]:
            windows = self.windows(ids, given.get("attention_mask"), reading, options)
            logits, mems = self.walk(windows, given, reading["retrospective"])
            others = {"mems": mems} if remembers else {}
            return self.whole(windows, logits, ids.shape[1], reading["predict"], options), others
        encoded = self.encode(given)
        names = ("mems", "hidden_states", "attentions") if remembers else ("hidden_states", "attentions")
        return self.logits(encoded, given.get("attention_mask")), {name: getattr(encoded, name, None) for name in names}

    def windows(self, ids: Tensor, mask: Tensor | None, reading: Mapping[str, Any], options: int) -> list[Windows]:
        """The windows of each row of ids [B, L]. The options of a question are cut at the same tokens.

        Raises ValueError where a question and its option leave no room for text."""
        there = torch.ones_like(ids) if mask is None else mask
        texts = []
        for row, real in zip(ids, there, strict=True):
            positions = real.nonzero().flatten()
            texts.append(Text(positions, self.content(row[positions])))
        windows = []
        for begin in range(0, len(texts), options):
            others = max(text.others for text in texts[begin : begin + options])
            if others >= reading["length"]:
                raise ValueError(f"{others} tokens beside the text leave it no room in {reading['length']}")
            room = reading["length"] - others
            step = reading["step"] or (max(1, room // 2) if self.overlaps else room)
            windows += [text.cut(room, step) for text in texts[begin : begin + options]]
        return windows

    def walk(
        self, windows: list[Windows], given: Mapping[str, Any], retrospective: bool
    ) -> tuple[list[list[Tensor]], Any]:
        """Each row's logits of each of its windows, and the memory behind the last; here all windows as one batch."""
        pairs = [(row, positions) for row, one in enumerate(windows) for positions in one.positions]
        logits = iter(self.read_windows(pairs, given)[0])
        return [[next(logits) for _ in one.spans] for one in windows], None

    def read_windows(
        self, pairs: list[tuple[int, Tensor]], given: Mapping[str, Any], mems: tuple[Tensor, ...] = ()
    ) -> tuple[list[Tensor], Any]:
        """Logits of windows as one batch, and its memory; pairs: each window's row, and its tokens' positions there."""
        rows = torch.tensor([row for row, _ in pairs], device=pairs[0][1].device)
        positions = torch.nn.utils.rnn.pad_sequence([positions for _, positions in pairs], batch_first=True)
        lengths = torch.tensor([len(positions) for _, positions in pairs], device=positions.device)
        names = [name for name in ("input_ids", "token_type_ids", "word_starts", "characters") if name in given]
        batch: dict[str, Any] = {name: given[name][rows[:, None], positions] for name in names}
        batch["attention_mask"] = (torch.arange(positions.shape[1], device=positions.device) < lengths[:, None]).long()
        encoded = self.encode({**batch, "mems": mems} if mems else batch)
        logits = list(self.logits(encoded, batch["attention_mask"]))
        if not self.pooling:
            logits = [one[: len(positions)] for one, (_, positions) in zip(logits, pairs, strict=True)]
        return logits, getattr(encoded, "mems", None)

    def whole(
        self, windows: list[Windows], logits: list[list[Tensor]], length: int, predict: str, options: int
    ) -> Tensor:
        """The logits of rows of `length` tokens from those of their windows; here [B, L, K], those of tokens."""
        return torch.stack([one.joined(parts, length) for one, parts in zip(windows, logits, strict=True)])

    def classified(self, rows: Mapping[str, Any], labels: Tensor | None, return_dict: bool | None) -> Any:
        """What `forward` of all tasks but answers returns."""
        logits, others = self.read(rows)
        loss = None if labels is None else self.loss(logits, labels)
        return returned(self, HeadOutput(loss, logits, **others), return_dict)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over labels that are not -100."""
        return cross_entropy(logits, labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        labels: Tensor | None = None,
        word_starts: Tensor | None = None,
        characters: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As the encoder, which raises TypeError for token types, memory or characters that it does not know; with
        logits, and the loss if `labels` are given. With `use_cache` false no `mems` are returned, as
        transformers' pipeline for classes asks, which would take them apart by rows. Classes: logits [B, K], labels by
        `ForSequenceClassification.loss`. Tags: [B, L, K], labels [B, L], -100 where there is none. Options: inputs
        [B, K, L], logits [B, K], labels [B]. Key phrases: logits and labels [B, L, K]; they and `ForCoreference`, whose
        output is its own, alone take word_starts [B, L], 1 where a word begins.
        """
        rows = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "mems": mems,
            "word_starts": word_starts,
            "characters": characters,
            "inputs_embeds": inputs_embeds,
            "use_cache": use_cache,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
        }
        return self.classified(rows, labels, return_dict)


class ForSequenceClassification(TaskHead):
    """Classes of a text or of a pair, from one vector of the row."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """By config.problem_type, or else num_labels and the type of `labels`: a mean square (labels [B], numbers),
        cross entropy ([B], classes) or binary cross entropy ([B, K], 1 for each class of the set)."""
        kind = self.kind
        if kind == "numbers":
            return F.mse_loss(logits.flatten(), labels.flatten().to(logits.dtype))
        if kind == "set" or (self.config.problem_type is None and labels.is_floating_point()):
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        return cross_entropy(logits, labels)

    @property
    def kind(self) -> str:
        """ "numbers", "set" or "classes", as `merged` has it."""
        known = {"regression": "numbers", "multi_label_classification": "set", None: "numbers"}
        given = self.config.problem_type
        return "classes" if given is None and self.num_labels > 1 else known.get(given, "classes")

    def whole(
        self, windows: list[Windows], logits: list[list[Tensor]], length: int, predict: str, options: int
    ) -> Tensor:
        return torch.stack([merged(torch.stack(parts), self.kind, predict) for parts in logits])


class ForKeyPhrases(TaskHead):
    """For each word, whether a key phrase of n words begins there, n from 1 to K (Xiong et al. 2019; ERNIE-Doc's on
    OpenKP): a convolution of its own for each n over the states of the words' first tokens, ReLU, dropout, and a
    logit."""

    pooling = False
    overlaps = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.convolutions = nn.ModuleList(nn.Linear((1 + n) * width, width) for n in range(self.num_labels))
        """Of n + 1 words, whose states one after the other are the input."""
        self.post_init()

    def read(self, rows: Mapping[str, Any], options: int = 1) -> tuple[Tensor, dict[str, Any]]:
        """As `TaskHead.read`; without `word_starts` [B, L] each token that is not special is a word."""
        if rows.get("word_starts") is None:
            rows = {**rows, "word_starts": self._tokens(rows.get("input_ids"), rows.get("inputs_embeds"))}
        return super().read(rows, options)

    def _tokens(self, ids: Tensor | None, embeds: Any) -> Tensor:
        """Which tokens are not special, bool [B, L]; of embeddings all count as words."""
        if ids is None:
            return torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        words = torch.ones_like(ids, dtype=torch.bool)
        for special in (self.config.cls_token_id, self.config.sep_token_id):
            words = words if special is None else words & (ids != special)
        return words

    def encode(self, rows: Mapping[str, Any]) -> Any:
        """The encoder's output, and `word_starts` beside it, which `logits` needs."""
        encoded = super().encode({name: x for name, x in rows.items() if name != "word_starts"})
        encoded.word_starts = rows["word_starts"]
        return encoded

    def logits(self, encoded: Any, mask: Tensor | None) -> Tensor:
        """[B, L, K], float32; `OUTSIDE` where no word begins, and where fewer words than the phrase's are left."""
        starts = encoded.word_starts != 0
        starts = starts if mask is None else starts & (mask != 0)
        # The words at the front of each row
        order = chosen_first(starts)
        left = starts.sum(1, keepdim=True) - torch.arange(starts.shape[1], device=starts.device)  # to the last word
        wide = order[..., None].expand(-1, -1, encoded.last_hidden_state.shape[-1])
        states = self.dropout(encoded.last_hidden_state.gather(1, wide).masked_fill(left[..., None] <= 0, 0.0))
        logits = torch.stack([self._logit(states, n) for n in range(self.num_labels)], dim=-1)
        # Back where they were
        counts = torch.arange(1, self.num_labels + 1, device=left.device)
        logits = at_least_float32(logits).masked_fill(counts > left[..., None], OUTSIDE)
        return torch.empty_like(logits).scatter(1, order[..., None].expand_as(logits), logits)

    def _logit(self, states: Tensor, n: int) -> Tensor:
        """[B, L] of the runs of n + 1 words, from the states of the words [B, L, D]; what follows the last is 0."""
        convolution: Any = self.convolutions[n]
        padded = F.pad(states, (0, 0, 0, n))
        parts = enumerate(convolution.weight.chunk(n + 1, dim=1))  # products, whose gradients are the same each time
        runs = sum((F.linear(padded[:, i : i + states.shape[1]], part) for i, part in parts), convolution.bias)
        classifier: Any = getattr(self, self.layer)
        return F.linear(self.dropout(runs.relu()), classifier.weight[n : n + 1], classifier.bias[n : n + 1])[..., 0]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean binary cross entropy over labels [B, L, K] that are not -100."""
        return phrase_losses(logits, labels).sum() / (labels != -100).sum()


def phrase_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The binary cross entropy of each logit [...], 0 where the label is -100."""
    losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).to(logits.dtype), reduction="none")
    return losses.where(labels != -100, 0.0)


class ForMultipleChoice(TaskHead):
    """A logit for each option of a question, from one vector of the option's own row.

    With `config.joined` all options stand in one row before the text, each behind a token of its own: `forward` takes
    rows [B, L] and returns logits [B, L], of which those at these tokens are the options'; it computes no loss. In
    windows they are the means of the windows' (Longformer on WikiHop: Beltagy et al. 2020, appendix D.1)."""

    @property
    def joined(self) -> bool:
        return bool(getattr(self.config, "joined", False))

    @property
    def pooling(self) -> bool:  # type: ignore[override]
        return not self.joined

    @property
    def question_first(self) -> bool:  # type: ignore[override]
        return self.joined

    def linear(self, config: Any) -> nn.Module:
        return nn.Linear(config.hidden_size, 1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.joined:
            raise ValueError("labels: options in one row have no loss here; compute it from the logits at their tokens")
        return super().loss(logits, labels)

    def read(self, rows: Mapping[str, Any], options: int = 1) -> tuple[Tensor, dict[str, Any]]:
        """rows [B, K, L] -> logits [B, K]; `mems` and the other outputs have B * K rows."""
        if self.joined:
            logits, others = super().read(rows)
            return logits[..., 0], others
        given = rows["inputs_embeds"] if rows.get("input_ids") is None else rows["input_ids"]
        flat = {name: x.flatten(0, 1) if isinstance(x, Tensor) else x for name, x in rows.items()}
        logits, others = super().read(flat, options=given.shape[1])
        return logits.view(given.shape[:2]), others

    def whole(
        self, windows: list[Windows], logits: list[list[Tensor]], length: int, predict: str, options: int
    ) -> Tensor:
        """Probabilities are those of the question's options in each window; an option whose text is shorter than the
        others' keeps the logit of its last window."""
        if self.joined:
            pairs = zip(windows, logits, strict=True)
            return torch.stack([one.joined(parts, length, beside=predict) for one, parts in pairs])
        questions = []
        for begin in range(0, len(logits), options):
            parts = logits[begin : begin + options]
            count = max(map(len, parts))
            table = [torch.cat([*one, *one[-1:] * (count - len(one))]) for one in parts]
            questions.append(merged(torch.stack(table, dim=-1), "classes", predict))
        return torch.cat(questions)


class FeedForward(nn.Module):
    """Two layers with ReLU and dropout between them."""

    def __init__(self, config: Any, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(head_dropout(config))
        self.out_proj = nn.Linear(config.hidden_size, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out_proj(self.dropout(self.dense(hidden).relu()))  # type: ignore[no-any-return]


class ForQuestionAnswering(TaskHead):
    """The first and the last token of an answer.

    With `config.answer_kinds`, K of them, a row has marks, and each token mark_logits [B, L, 2], of which those at the
    marks `config.sentence_token_id` (the first) and `config.paragraph_token_id` (the second) say whether sentence and
    paragraph support the answer, and kind_logits [B, L, K], of which those of [CLS], or of the first token where there
    is none, say whether the answer is a span (0) or one that is no part of the text, such as yes (Longformer on
    HotpotQA: Beltagy et al. 2020, appendix D.1). `forward` computes no loss of them."""

    pooling = False
    overlaps = True
    question_first = True
    layer = "qa_outputs"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if kinds := self.kinds:
            self.sentence_outputs, self.paragraph_outputs = FeedForward(config, 1), FeedForward(config, 1)
            self.kind_outputs = FeedForward(config, kinds)
            self.post_init()

    @property
    def kinds(self) -> int:
        return int(getattr(self.config, "answer_kinds", 0))

    def linear(self, config: Any) -> nn.Module:
        return nn.Linear(config.hidden_size, 2)

    def logits(self, encoded: Any, mask: Tensor | None) -> Tensor:
        """[B, L, 2] of start and end, or [B, L, 4 + K] with those of marks and kinds; float32."""
        spans = super().logits(encoded, mask)
        if not self.kinds:
            return spans
        states = self.dropout(encoded.last_hidden_state)
        heads = (self.sentence_outputs, self.paragraph_outputs, self.kind_outputs)
        return torch.cat([spans, *(at_least_float32(head(states)) for head in heads)], dim=-1)

    def whole(
        self, windows: list[Windows], logits: list[list[Tensor]], length: int, predict: str, options: int
    ) -> Tensor:
        """The kind of the answer is that of the windows' mean, or of the last."""
        pairs = zip(windows, logits, strict=True)
        return torch.stack([one.joined(parts, length, predict if self.kinds else "first") for one, parts in pairs])

    def answered(
        self, rows: Mapping[str, Any], start: Tensor | None, end: Tensor | None, return_dict: bool | None
    ) -> Any:
        """What `forward` returns, for the positions [B] of answers."""
        logits, others = self.read(rows)
        starts, ends = (x.contiguous() for x in logits[..., :2].unbind(-1))
        more: dict[str, Any] = {"mark_logits": logits[..., 2:4], "kind_logits": logits[..., 4:]} if self.kinds else {}
        loss = None
        if start is not None and end is not None:
            loss = (_position_loss(starts, start) + _position_loss(ends, end)) / 2
        return returned(self, SpanOutput(loss, starts, ends, **more, **others), return_dict)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mems: tuple[Tensor, ...] | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """As the encoder, which raises TypeError for token types or memory that it does not know; with start_logits
        and end_logits [B, L], and the loss if the positions [B] are given: the mean of two cross entropies over all L
        positions. Positions outside the row are left out."""
        rows = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "mems": mems,
            "inputs_embeds": inputs_embeds,
            "output_attentions": output_attentions,
            "output_hidden_states": output_hidden_states,
        }
        return self.answered(rows, start_positions, end_positions, return_dict)


def _position_loss(logits: Tensor, positions: Tensor) -> Tensor:
    positions = positions.view(-1)
    return cross_entropy(logits, torch.where((positions >= 0) & (positions < logits.shape[1]), positions, -100))
