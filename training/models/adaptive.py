"""Adaptive input and softmax for vocabularies of words: the rarer a word, the narrower its vector.

Ids are sorted by falling frequency and cut into clusters, of which the first is the shortlist. Copied beside exported
weights.

Shapes: D the model's width, V vocabulary, w a cluster's width, d_embed // div_val ** cluster.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Clusters = Sequence[tuple[int, int]]
"""First id and the one after the last, of each cluster."""


class AdaptiveEmbedding(nn.Module):
    """Embeddings whose width falls with frequency, projected to D and scaled (Baevski and Auli 2019).

    With div_val 1 one table holds all clusters, and there is a projection only if its width is not D.
    """

    def __init__(self, clusters: Clusters, width: int, d_embed: int, div_val: int, *, scale: float = 1.0) -> None:
        """`width` is D."""
        super().__init__()
        self.scale = scale
        self.sizes = [end - start for start, end in clusters]
        self.shared = div_val == 1
        self.borders = [(0, clusters[-1][1])] if self.shared else list(clusters)
        widths = [d_embed // div_val**c for c in range(len(self.borders))]
        self.tables = nn.ModuleList(
            nn.Embedding(end - start, own) for (start, end), own in zip(self.borders, widths, strict=True)
        )
        projected = not self.shared or d_embed != width
        self.projections = nn.ParameterList(
            nn.Parameter(torch.empty(width, own)) for own in (widths if projected else [])
        )

    def weights(self) -> Sequence[Tensor]:
        """[size, width] of each cluster."""
        tables: list[Any] = [table.weight for table in self.tables]
        return tables[0].split(self.sizes) if self.shared else tables

    def projection(self, cluster: int) -> Tensor | None:
        """[D, width]."""
        return self.projections[0 if self.shared else cluster] if len(self.projections) else None

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]. Every table is read for every token, which is cheaper than sorting tokens by table."""
        parts = []
        for cluster, ((start, end), table) in enumerate(zip(self.borders, self.tables, strict=True)):
            x = table((input_ids - start).clamp(0, end - start - 1))
            projection = self.projection(cluster)
            x = x if projection is None else F.linear(x, projection)
            if len(self.borders) > 1:
                x = x * ((input_ids >= start) & (input_ids < end))[..., None]
            parts.append(x)
        return sum(parts[1:], parts[0]) * self.scale


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities by shortlist and clusters (Grave et al. 2017), with the embeddings' own matrices.

    p(w) is the head's probability of w in the shortlist, else the head's of w's cluster times the cluster's of w.
    """

    def __init__(self, clusters: Clusters, width: int, d_embed: int, div_val: int, *, tied: Sequence[bool]) -> None:
        """The embeddings' arguments; `tied` is whether each cluster projects by the embeddings' matrix."""
        super().__init__()
        self.clusters = clusters
        self.bias = nn.Parameter(torch.zeros(clusters[-1][1]))
        if self.clusters[1:]:
            self.cluster_weight = nn.Parameter(torch.empty(len(self.clusters) - 1, d_embed))
            self.cluster_bias = nn.Parameter(torch.zeros(len(self.clusters) - 1))
        self.projections = nn.ParameterDict()
        for cluster, is_tied in enumerate(tied):
            own = d_embed // div_val**cluster
            if not is_tied and (div_val > 1 or own != width):
                self.projections[str(cluster)] = nn.Parameter(torch.empty(width, own))

    def forward(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """[..., D] -> log-probabilities [..., V], at least float32."""
        head = self._logits(hidden, 0, embedding).log_softmax(-1)
        shortlist, clusters = head.split([self.clusters[0][1], len(self.clusters) - 1], dim=-1)
        parts = [shortlist]
        for cluster in range(1, len(self.clusters)):
            tail = self._logits(hidden, cluster, embedding).log_softmax(-1)
            parts.append(clusters[..., cluster - 1, None] + tail)
        return torch.cat(parts, dim=-1)

    def losses(self, hidden: Tensor, labels: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """-log p(label) [n], at least float32, of hidden [n, D] and labels [n]; 0 where the label is -100.

        A cluster's words are scored only for tokens whose label is in it.
        """
        members = [(labels >= start) & (labels < end) for start, end in self.clusters]
        targets = labels
        for cluster, inside in enumerate(members[1:]):
            targets = targets.masked_fill(inside, self.clusters[0][1] + cluster)
        losses = F.cross_entropy(self._logits(hidden, 0, embedding), targets, reduction="none")
        for cluster, inside in enumerate(members[1:], 1):
            where = inside.nonzero().squeeze(1)  # if none, the cluster's gradients are zeros and not missing
            logits = self._logits(hidden.index_select(0, where), cluster, embedding)
            tail = F.cross_entropy(logits, labels[where] - self.clusters[cluster][0], reduction="none")
            losses = losses.index_add(0, where, tail)
        return losses

    def _logits(self, hidden: Tensor, cluster: int, embedding: AdaptiveEmbedding) -> Tensor:
        """[..., D] -> [..., words of the cluster]; the shortlist's are followed by one for each cluster."""
        weight, bias = embedding.weights()[cluster], self.bias[slice(*self.clusters[cluster])]
        if cluster == 0 and self.clusters[1:]:
            weight, bias = torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias])
        name = str(cluster)
        projection = self.projections[name] if name in self.projections else embedding.projection(cluster)
        logits = F.linear(hidden if projection is None else hidden @ projection, weight, bias)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
