"""Whole words as tokens, for language models whose perplexity is per word (Transformer-XL on WikiText-103).

Ids are in order of decreasing frequency, as the adaptive softmax needs them (Grave et al. 2017, section 4). `<eos>` is
first, then come the words, in the order of the text if they are equally frequent. `<unk>` is among them, according to
the total frequency of all words that are left out. Words are separated by spaces; with `split_punctuation` they are
split further into runs of letters and digits, numbers with their points, single signs, and clitics ('s). Case is kept.
The marks of WikiText stay whole: `@-@`, `@,@`, `@.@`, `<unk>`.

A literal `<unk>` in text is the unknown token: WikiText has it in place of rare words, and other vocabularies do not
contain it. It is the only special token that text can contain; a literal `<eos>` is ordinary text.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.tokens.base import (
    SPECIAL_NAMES,
    BackedTokenizer,
    Encoding,
    encode_in_pieces,
    read_tokenizer_json,
)

logger = logging.getLogger("reread")

UNKNOWN, END = "<unk>", "<eos>"

_PARTS = "|".join(
    [
        r"<unk>",
        r"@[-,.]@",
        r"(?:\p{L}\.){2,}",  # U.S., e.g.
        r"\p{N}+(?:[.,]\p{N}+)+",
        r"['’](?i:s|t|m|d|re|ve|ll)(?![\p{L}\p{M}\p{N}])",
        r"[\p{L}\p{M}\p{N}]+",
        r"\.{2,}",
        r"-{2,}",
        r"\S",
    ]
)


class Words(BackedTokenizer):
    """Tokens are whole words, with an `<eos>` at the end of each line that has any."""

    type = "words"

    def __init__(self, path: Path, tokens: list[str], split_punctuation: bool) -> None:
        for name in (UNKNOWN, END):
            if name not in tokens:
                raise UserError(f"{path}: the token {name} is missing; put it into the vocabulary")
        backend = words_backend(tokens, split_punctuation)
        super().__init__(path, backend, {"unk": UNKNOWN, "eos": END}, [tokens, split_punctuation])
        self.split_punctuation = split_punctuation

    def encode(self, text: str) -> Encoding:
        ids, starts = encode_in_pieces(self.backend, text, " \n")
        ids[ids == self.special["eos"]] = self.special["unk"]  # a literal one
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        line_ends = np.append(np.flatnonzero(codes == ord("\n")), len(codes))
        indices = np.searchsorted(starts, line_ends)
        holds_words = np.diff(indices, prepend=0) > 0
        indices, last = indices[holds_words], line_ends[holds_words] - 1
        return np.insert(ids, indices, self.special["eos"]), np.insert(starts, indices, last)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "split_punctuation": self.split_punctuation}

    def _templates(self) -> tuple[str, str, list[str]]:
        return f"$A {END}", f"$A {END} $B {END}", ["input_ids"]


class TaskWords(BackedTokenizer):
    """Tokens are whole words, as a task's examples have them; the special tokens are BERT's."""

    type = "words"

    def __init__(self, path: Path, words: Iterable[str], split_punctuation: bool) -> None:
        names = {role: names[0] for role, names in SPECIAL_NAMES.items()}
        tokens = list(dict.fromkeys([*names.values(), *words]))
        backend = words_backend(tokens, split_punctuation, names["unk"])
        super().__init__(path, backend, names, [tokens, split_punctuation])


def words_backend(tokens: list[str], split_punctuation: bool, unknown: str = UNKNOWN) -> Backend:
    """The backend whose ids are the indices of `tokens`; it treats line ends as blanks and adds no `<eos>`."""
    backend = Backend(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=unknown))
    backend.pre_tokenizer = _pre_tokenizer(split_punctuation)
    return backend


def words_in(texts: Iterable[str], split_punctuation: bool) -> Iterator[str]:
    """The words of texts, one after the other."""
    split = _pre_tokenizer(split_punctuation)
    for text in texts:
        yield from (word for word, _ in split.pre_tokenize_str(text))


def train_words(lines: Iterable[str], size: int, split_punctuation: bool, folder: Path) -> Path:
    """Count the words of `lines` and write a tokenizer.json with at most `size` tokens; returns its path."""
    counts = Counter(words_in(lines, split_punctuation))
    total = counts.total()
    unknown = counts.pop(UNKNOWN, 0) + counts.pop(END, 0)
    ranked = counts.most_common()
    unknown += sum(count for _, count in islice(ranked, size - 2, None))
    kept = ranked[: size - 2]
    rank = sum(count >= unknown for _, count in kept)  # of `<unk>`
    words = [word for word, _ in kept]
    backend = words_backend([END, *words[:rank], UNKNOWN, *words[rank:]], split_punctuation)
    logger.info(
        "tokenizer: %s of %s different words kept; %.2f %% of the text is unknown",
        f"{len(kept):,}",
        f"{len(ranked):,}",
        100 * unknown / total,
    )
    path = folder / "tokenizer.json"
    write_atomically(path, backend.to_str(pretty=True).encode())
    return path


def read_words_json(path: Path) -> tuple[list[str], bool]:
    """The tokens of a tokenizer.json in id order, and whether it splits punctuation off."""
    values = read_tokenizer_json(path)
    model = values["model"]
    if model.get("type") != "WordLevel" or values.get("normalizer") is not None:
        raise UserError(f"{path}: not a tokenizer of whole words; leave out `tokenizer.type`, and its type is found")
    found = [split for split in (True, False) if values.get("pre_tokenizer") == _described(split)]
    if not found:
        raise UserError(f"{path}: splits text in an unsupported way; give its words as a vocab.txt and `type: words`")
    vocabulary = model["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(f"{path}: its ids have gaps; write the vocabulary as a vocab.txt")
    return tokens, found[0]


def _described(split_punctuation: bool) -> object:
    return json.loads(words_backend([END, UNKNOWN], split_punctuation).to_str())["pre_tokenizer"]


def _pre_tokenizer(split_punctuation: bool) -> pre_tokenizers.PreTokenizer:
    blanks = pre_tokenizers.WhitespaceSplit()
    if not split_punctuation:
        return blanks
    return pre_tokenizers.Sequence([blanks, pre_tokenizers.Split(Regex(_PARTS), "isolated")])
