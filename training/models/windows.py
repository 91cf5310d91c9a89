"""Texts longer than a window: where they are cut, and how the windows' logits become those of the text.

Copied beside exported weights.

Shapes: L tokens of a row, n tokens of its content, that is the text which is cut, W windows, K labels.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

OUTSIDE = -1e4
"""Logits of places that are padding: finite, and below all others."""


@dataclass(frozen=True)
class Text:
    """A row that is read in windows, each with all that stands around the content."""

    tokens: Tensor
    """int64 [n + others], the places of its tokens in the row."""
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
    def places(self) -> list[Tensor]:
        """The places in the row of each window's tokens."""
        tokens, (first, end) = self.text.tokens, self.text.content
        return [torch.cat([tokens[:first], tokens[begin:stop], tokens[end:]]) for begin, stop in self.spans]

    def joined(self, logits: list[Tensor], length: int) -> Tensor:
        """Logits [length, K] of all places of the row, from each window's, [its tokens, K].

        A token's are those of the window with the most context around it: the greatest min(tokens before, tokens after)
        + 0.01 * tokens of content in the window, and the first of equals. Tokens that all windows have take the first.
        """
        context = torch.full((len(self.spans), length), -1, device=logits[0].device)  # a hundred times as much
        index = torch.zeros_like(context)
        for number, (places, (begin, stop)) in enumerate(zip(self.places, self.spans, strict=True)):
            index[number, places] = torch.arange(len(places), device=places.device)
            tokens = torch.arange(stop - begin, device=places.device)
            context[number, self.text.tokens[begin:stop]] = 100 * torch.minimum(tokens, tokens.flip(0)) + len(tokens)
        context[0, self.text.tokens] = context[0, self.text.tokens].clamp(min=0)
        owner = context.argmax(0)
        padded = torch.nn.utils.rnn.pad_sequence(logits, batch_first=True)
        joined = padded[owner, index.gather(0, owner[None])[0]]
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
