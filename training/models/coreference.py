"""The head of clusters: which spans of a text name the same thing (Lee et al. 2018; Joshi et al. 2019).

Copied beside exported weights.

A span of up to W words is g = [state of its first word; of its last; a mean of all by learned attention; its width].
Its mention score s_m(g) comes from a layer of its own. The spans with the best ones are kept, in the order of the text,
and each keeps the C earlier ones with the best s_m(i) + s_m(j) + (W g_i + b)^T g_j, to which a layer over [g_i; g_j;
g_i * g_j; distance] adds. The score of no antecedent is 0. Spans may cross each other, as in Kirstain et al. 2021.

Shapes: n words of a text, D hidden size, W words of the longest span, K spans kept, C antecedents, H the layers' size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import ModelOutput

from .blocks import at_least_float32, returned
from .head_options import kept_spans
from .heads import TaskHead, head_dropout

FEATURE = 20
"""Size of the vectors of widths and distances (Lee et al. 2018)."""
_DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)
"""The smallest number of spans from an antecedent of each bucket."""


class Links(NamedTuple):
    """The spans that are kept of a text, and the scores of their antecedents."""

    spans: Tensor
    """int64 [K, 2]: first and last word."""
    antecedents: Tensor
    """int64 [K, C]: a span's number among those kept."""
    scores: Tensor
    """[K, 1 + C]: 0 for none, and the score of each antecedent, -inf where it does not stand before."""


class Coreference(nn.Module):
    """From the states of words to `Links`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        own: Mapping[str, Any] = config.coreference
        self.width, self.ratio, self.antecedents = own["span_words"], own["spans_per_word"], own["antecedents"]
        hidden, size = config.hidden_size, own["head_size"]
        self.hidden, self.span = hidden, 3 * hidden + FEATURE
        self.attention = nn.Linear(hidden, 1)
        self.widths = nn.Embedding(self.width, FEATURE)
        self.distances = nn.Embedding(len(_DISTANCES), FEATURE)
        self.mention, self.mention_score = nn.Linear(self.span, size), nn.Linear(size, 1)
        self.bilinear = nn.Linear(self.span, self.span)
        self.pair, self.pair_score = nn.Linear(3 * self.span + FEATURE, size), nn.Linear(size, 1)
        self.dropout = nn.Dropout(head_dropout(config))

    def forward(self, states: Tensor) -> Links:
        """states [n, D], n above 0."""
        states = self.dropout(states)
        weights, all_scores = self._all_mentions(states)
        # The spans with the best scores, in the order of the text
        kept = all_scores.detach().flatten().topk(kept_spans(len(states), self.ratio)).indices.sort().values
        first, more = kept // self.width, kept % self.width
        mention = all_scores.flatten().index_select(0, kept)
        spans = self._vectors(states, weights, first, more)
        antecedents, scores = self._antecedents(spans, mention)
        none = scores.new_zeros(len(scores), 1)
        return Links(torch.stack([first, first + more], 1), antecedents, torch.cat([none, scores], 1))

    def _runs(self, states: Tensor) -> Tensor:
        """[n, W, D'] of states [n, D']: those of each word and of the W - 1 after it, zeros behind the last."""
        return F.pad(states, (0, 0, 0, self.width - 1)).unfold(0, self.width, 1).transpose(1, 2)

    def _all_mentions(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The weight [n, W, W] of each word in the mean of a span of w + 1 words, and the mention scores [n, W], -inf
        of spans that the text does not hold. A layer over [a; b] is the sum of one over a and one over b."""
        place = torch.arange(self.width, device=states.device)
        attention = at_least_float32(self._runs(self.attention(states))[..., 0])
        later = place > place[:, None]
        weights = attention[:, None].masked_fill(later, -torch.inf).softmax(-1).to(states.dtype)
        begin, end, mean, width = self.mention.weight.split([self.hidden] * 3 + [FEATURE], 1)
        layer = F.linear(states, begin, self.mention.bias)[:, None] + F.linear(self.widths.weight, width)
        layer = layer + self._runs(F.linear(states, end)) + weights @ self._runs(F.linear(states, mean))
        scores = at_least_float32(self.mention_score(self.dropout(layer.relu()))[..., 0])
        outside = torch.arange(len(states), device=states.device)[:, None] + place >= len(states)
        return weights, scores.masked_fill(outside, -torch.inf)

    def _vectors(self, states: Tensor, weights: Tensor, first: Tensor, more: Tensor) -> Tensor:
        """g [K, 3 D + F] of the spans that begin at `first` [K] and have as many words more."""
        of_span = weights.flatten(0, 1).index_select(0, first * self.width + more)
        mean = (of_span[:, None] @ self._runs(states).index_select(0, first))[:, 0]
        ends = states.index_select(0, first), states.index_select(0, first + more)
        return torch.cat([*ends, mean, self.dropout(self.widths(more))], 1)

    def _antecedents(self, spans: Tensor, mention: Tensor) -> tuple[Tensor, Tensor]:
        """The antecedents [K, C] of spans [K, 3 D + F] and their scores, -inf where fewer stand before."""
        number = torch.arange(len(spans), device=spans.device)
        coarse = at_least_float32(self.bilinear(spans) @ spans.T) + mention[:, None] + mention
        coarse = coarse.masked_fill(number >= number[:, None], -torch.inf)
        rough, chosen = coarse.topk(min(self.antecedents, max(0, len(spans) - 1)))
        # What the layer over both adds: its products with a span alone are computed once
        one, other, both, distance = self.pair.weight.split([self.span] * 3 + [FEATURE], 1)
        of_other = F.linear(spans, other).index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        product = spans[:, None] * spans.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        steps = torch.tensor(_DISTANCES, device=spans.device)
        bucket = torch.bucketize((number[:, None] - chosen).clamp(min=1), steps, right=True) - 1
        layer = F.linear(spans, one, self.pair.bias)[:, None] + of_other + F.linear(product, both)
        layer = layer + F.linear(self.dropout(self.distances(bucket)), distance)
        fine = at_least_float32(self.pair_score(self.dropout(layer.relu()))[..., 0])
        return chosen, rough + fine


def link_losses(links: Links, mentions: Tensor) -> tuple[Tensor, Tensor]:
    """-log p(a right antecedent) of each kept span [K], and whether its best antecedent is right, bool [K].

    mentions int [M, 3]: first and last word, and the number of its cluster, from 0; none where that is below 0. Right
    are all antecedents of the span's cluster; none is, where it has none or is no mention.
    """
    is_one = (links.spans[:, None] == mentions[:, :2]).all(-1)
    cluster = (is_one * (mentions[:, 2] + 1)).sum(1)  # 0: no mention
    of_antecedents = cluster.index_select(0, links.antecedents.flatten()).view(links.antecedents.shape)
    right = (of_antecedents == cluster[:, None]) & (cluster[:, None] > 0) & links.scores[:, 1:].isfinite()
    right = torch.cat([~right.any(1, keepdim=True), right], 1)
    losses = links.scores.logsumexp(1) - links.scores.masked_fill(~right, -torch.inf).logsumexp(1)
    return losses, right.gather(1, links.scores.argmax(1, keepdim=True))[:, 0]


@dataclass
class CoreferenceOutput(ModelOutput):
    """Of each text of a batch its spans [B, K, 2], first and last word, -1 where a text has fewer than another; the
    chosen antecedent of each [B, K], the number of a span before it or -1; and its score `logits` [B, K]. Without
    `word_starts` `logits` are the states of the tokens [B, L, D]."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    spans: Tensor | None = None
    antecedents: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class ForCoreference(TaskHead):
    """Clusters of the mentions of a text. Windows are read one by one, and their spans are scored together."""

    pooling = False
    layer = "coreference"

    def linear(self, config: Any) -> nn.Module:
        return Coreference(config)

    def logits(self, encoded: Any, mask: Tensor | None) -> Tensor:
        """The states [B, L, D]."""
        states: Tensor = encoded.last_hidden_state
        return states

    def links(self, states: Tensor) -> Links:
        """Of the states [n, D] of the first tokens of a text's words."""
        scorer: Any = getattr(self, self.layer)
        return scorer(states)  # type: ignore[no-any-return]

    def classified(self, rows: Mapping[str, Any], labels: Tensor | None, return_dict: bool | None) -> Any:
        """With `word_starts` [B, L], 1 where a word begins, the clusters; and the loss for labels int [B, M, 3], those
        of `link_losses`."""
        starts = rows["word_starts"]
        states, others = self.read({name: x for name, x in rows.items() if name != "word_starts"})
        if starts is None:
            return returned(self, CoreferenceOutput(None, states, **others), return_dict)
        mask = rows["attention_mask"]
        starts = (starts if mask is None else starts * mask) != 0
        found = [self.links(of_text[there]) for of_text, there in zip(states, starts, strict=True)]
        best = [one.scores.max(1) for one in found]
        antecedents = [
            torch.cat([torch.full_like(one.spans[:, :1], -1), one.antecedents], 1).gather(1, at.indices[:, None])
            for one, at in zip(found, best, strict=True)
        ]
        loss = None
        if labels is not None:
            losses = [link_losses(one, gold)[0] for one, gold in zip(found, labels, strict=True)]
            loss = torch.cat(losses).mean()
        logits, spans, chosen = (
            nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)
            for values, fill in (
                ([one.values for one in best], 0.0),
                ([one.spans for one in found], -1),
                ([one[:, 0] for one in antecedents], -1),
            )
        )
        return returned(self, CoreferenceOutput(loss, logits, spans, chosen, **others), return_dict)
