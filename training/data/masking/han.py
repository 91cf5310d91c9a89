"""Counts the Chinese tokens of a corpus, and those in marked words."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import CONTINUES_WORD, Corpus

FEWEST_HAN_TOKENS = 1000
LOWEST_WORD_SHARE = 0.01
"""The least share of Chinese tokens that must be in words of several tokens. Modern text has over 1/2, classical
Chinese over 1/5."""

_HAN = re.compile(r"(##|▁| )?[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]+")


def count_han(corpus: Corpus) -> tuple[int, int]:
    """The number of Chinese tokens, and of those in words of several tokens.

    The counts are those of preprocessing, if it made any, or else of the first tokens of 100 documents.
    """
    statistics = corpus.manifest.statistics
    han, in_words = (statistics.get(name) for name in ("han_tokens", "han_tokens_in_multi_token_words"))
    if isinstance(han, int) and isinstance(in_words, int):
        return han, in_words
    if not (corpus.folder / "tokenizer" / "tokenizer.json").exists() or corpus.documents == 0:
        return 0, 0
    is_han = han_vocabulary(corpus.folder / "tokenizer")
    han = in_words = 0
    for index in np.linspace(0, corpus.documents - 1, min(corpus.documents, 100)).astype(int).tolist():
        ids, flags = (values[:10_000] for values in corpus.document(index))
        continues = flags & CONTINUES_WORD != 0
        several = continues | np.append(continues[1:], False)
        han += int(np.count_nonzero(is_han[ids]))
        in_words += int(np.count_nonzero(is_han[ids] & several))
    return han, in_words


def han_vocabulary(tokenizer_folder: Path) -> NDArray[np.bool_]:
    """bool [vocabulary]: whether each token consists of Chinese characters alone."""
    from reread.preprocessing.tokens.base import read_backend

    tokenizer = read_backend(tokenizer_folder / "tokenizer.json")
    texts = tokenizer.decode_batch(
        [[number] for number in range(tokenizer.get_vocab_size())], skip_special_tokens=False
    )
    return np.array([_HAN.fullmatch(text) is not None for text in texts])
