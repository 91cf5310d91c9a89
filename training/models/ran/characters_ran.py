"""A convolution over the characters of words; copied beside exported weights.

Characters are the bytes of a word in UTF-8, as in ELMo (Peters et al. 2018): of English text they are its letters, and
no character of another script is unknown.

Shapes: B rows, L tokens, C bytes of the longest word.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..blocks import truncated_normal

LONGEST = 32
"""Bytes of a word that are read."""
REACH = 3
"""Bytes that a filter reads (Li et al. 2023, section 4.3)."""
SIZE = 30
"""Width of a byte's vector, which the paper does not give, as in Ma and Hovy (2016)."""


def characters_of(rows: Sequence[Sequence[str | None]]) -> Tensor:
    """The characters [B, L, C] of tokens: 1 + each byte, 0 after the last; None is a token without any.

    A word's first piece has all its characters, its further pieces none.
    """
    coded = [[[1 + byte for byte in (word or "").encode()[:LONGEST]] for word in row] for row in rows]
    most = max((len(word) for row in coded for word in row), default=0)
    found = torch.zeros(len(rows), max(map(len, rows), default=0), max(1, most), dtype=torch.long)
    for number, row in enumerate(coded):
        for place, word in enumerate(row):
            found[number, place, : len(word)] = torch.tensor(word, dtype=torch.long)
    return found


class RanCharacters(nn.Module):
    """Filters over `REACH` bytes, and of each the maximum over a word; 0 for a word without bytes."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(257, SIZE))
        """Vectors of bytes."""
        self.weight = nn.Parameter(torch.empty(filters, REACH * SIZE))
        """Of `REACH` bytes, whose vectors one after the other are the input: a product, whose gradients are the same
        each time."""
        self.bias = nn.Parameter(torch.empty(filters))

    def forward(self, characters: Tensor) -> Tensor:
        """int [B, L, C] -> [B, L, filters]."""
        there = characters != 0
        vectors = F.embedding(characters, self.table) * there[..., None]
        around = F.pad(vectors, (0, 0, REACH // 2, REACH // 2))
        runs = torch.cat([around[..., begin : begin + there.shape[-1], :] for begin in range(REACH)], dim=-1)
        values = F.linear(runs, self.weight, self.bias)
        values = values.masked_fill(~there[..., None], torch.finfo(values.dtype).min).amax(-2)
        return torch.where(there.any(-1, keepdim=True), values, 0)

    def draw(self) -> None:
        """Draw weights that make the results about as large as word vectors: a deviation of a tenth to a half."""
        truncated_normal(self.table, SIZE**-0.5)
        truncated_normal(self.weight, (REACH * SIZE) ** -0.5)
        nn.init.zeros_(self.bias)
