"""New words in the vocabulary of a model that exists, and the old tokens that each of them stands for.

WordPiece takes a word that its pre-tokeniser keeps whole as one more token. A word of several Han characters, which it
would part, is found in the text before anything else, as transformers finds added tokens. A byte-level BPE takes
further merges (`merges`). SentencePiece takes a piece whose score is the mean of its pieces' scores, which is more than
their sum. Old ids stay as they are.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.text.characters import codes_of
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.encode import is_han
from reread.preprocessing.tokens.merges import Merge, learned_merges, merges_of_words
from reread.preprocessing.tokens.tokenizer import Tokenizer
from reread.preprocessing.tokens.wordpiece import WordPiece

log = logging.getLogger("reread")

FEWEST = 2
"""A word that comes less often is not chosen."""


@dataclass(frozen=True)
class Extension:
    """A vocabulary with new tokens."""

    path: Path
    """What `load_tokenizer` reads."""
    pieces: list[list[int]]
    """The old ids that each new token stands for, in the order of the new ids, which follow the old ones."""


def extend_from_text(
    tokenizer: Tokenizer, texts: Iterable[str], segmenter: WordSegmenter, count: int, folder: Path
) -> Extension:
    """Write `tokenizer` with the `count` words of `texts` that save the most tokens into `folder`; fewer if there are
    no more. A word saves one less than its tokens whenever it comes. A BPE gets the next `count` merges of its own
    training instead.

    Raises `UserError` if there is no word. `tokenizer` has passed `check_extensible`.
    """
    if tokenizer.describe()["type"] == "bpe":
        return _learn_bpe(tokenizer, texts, count, folder)
    kind = _kind_of(tokenizer)
    counts: Counter[str] = Counter()
    for word, times in Counter(_words_of(texts, segmenter)).items():
        if (form := kind.form(tokenizer, word)) is not None:
            counts[form] += times
    # A word has at most as many tokens as bytes: the search ends where that saves less than the least of the best.
    most = {word: times * (len(word.encode()) - 1) for word, times in counts.items() if times >= FEWEST}
    saved: dict[str, int] = {}
    least: list[int] = []
    for word in sorted(most, key=lambda word: (-most[word], word)):
        if len(least) == count and most[word] < least[0]:
            break
        if less := counts[word] * (len(kind.pieces(tokenizer, word)) - 1):
            saved[word] = less
            heappush(least, less)
            if len(least) > count:
                heappop(least)
    best = sorted(saved, key=lambda word: (-saved[word], word))[:count]
    if not best:
        raise UserError(
            f"tokenizer.extend: no word of the text comes {FEWEST} times and has several tokens; leave the setting out"
        )
    made = kind.add(tokenizer, best, folder)
    log.info(
        "tokenizer.extend: %s words save %s tokens in the text that they were chosen from%s: %s",
        f"{len(best):,}",
        f"{sum(saved[word] for word in best):,}",
        "" if len(best) == count else f" (all that come {FEWEST} times or more and have several tokens)",
        _few(best),
    )
    return made


def extend_by_list(tokenizer: Tokenizer, path: Path, folder: Path) -> Extension:
    """Write `tokenizer` with the words of the file `path`, one a line, into `folder`. Words that have one token
    already, or that it parts before it looks into its vocabulary, are left out, which is logged.

    Raises `UserError` for a file that cannot be read or has several words in a line, and if no word is left.
    `tokenizer` has passed `check_extensible`.
    """
    kind = _kind_of(tokenizer)
    words = words_listed_in(path)
    forms = {word: kind.form(tokenizer, word) for word in words}
    parted = [word for word, form in forms.items() if form is None]
    pieces = {form: kind.pieces(tokenizer, form) for form in forms.values() if form is not None}
    new = [form for form, ids in pieces.items() if len(ids) > 1 or ids == [tokenizer.special["unk"]]]
    if known := len(words) - len(parted) - len(new):
        log.info("%s: %s words have one token already", path, f"{known:,}")
    if parted:
        log.warning(
            "%s: %s words are left out, since the tokenizer parts them at signs or digits: %s",
            path,
            f"{len(parted):,}",
            _few(parted),
        )
    if not new:
        raise UserError(f"{path}: no word of it is new to the vocabulary; leave tokenizer.extend out")
    made = kind.add(tokenizer, new, folder)
    log.info("%s: %s words by %s new tokens: %s", path, f"{len(new):,}", f"{len(made.pieces):,}", _few(new))
    return made


def check_extensible(tokenizer: Any) -> None:
    """Raises `UserError` for a tokenizer that cannot be extended: its ids must be those of its file, without gaps."""
    if tokenizer.type not in _KINDS:
        raise UserError(
            "tokenizer.extend: a vocabulary of whole words has no pieces that a new word's row could begin with; train "
            "a new one (tokenizer.train)"
        )
    ids = sorted(tokenizer.backend.get_vocab(with_added_tokens=False).values())
    if tokenizer.vocab_size > len(ids) or ids[-1] >= len(ids):
        raise UserError(
            f"tokenizer.extend: {tokenizer.path} lacks some of the special tokens, or has gaps in its ids, so new "
            "words would get ids of others; put the special tokens into the file"
        )


def words_listed_in(path: Path) -> list[str]:
    """The words of a file, one in each line; repeated ones once. Raises `UserError` as `extend_by_list` does."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(
            f"tokenizer.extend: {path}: {error.strerror}; give a file with a word in each line, or the number of words"
        ) from None
    words: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if len(parts) > 1:
            raise UserError(f"{path}: line {number}: `{line.strip()[:40]}`: several words; write one in each line")
        words |= dict.fromkeys(parts)
    if not words:
        raise UserError(f"{path}: no word in it; write one in each line")
    return list(words)


def _words_of(texts: Iterable[str], segmenter: WordSegmenter) -> Iterator[str]:
    """The words of two letters or Han characters and more."""
    for text in texts:
        bounds = [*np.flatnonzero(segmenter.joined_starts(text)).tolist(), len(text)]
        for begin, end in pairwise(bounds):
            if end - begin > 1 and (word := text[begin:end]).isalpha():
                yield word


def _all_han(word: str) -> bool:
    return bool(is_han(codes_of(word)).all())


def _few(words: Sequence[str]) -> str:
    return ", ".join(words[:8]) + (", ..." if len(words) > 8 else "")


def _pieces(tokenizer: Tokenizer, word: str) -> list[int]:
    return [int(one) for one in tokenizer.encode(word)[0]]


def _form_in_wordpiece(tokenizer: Any, word: str) -> str | None:
    """A word as the vocabulary holds it: normalised, or as it is if it is found in the text."""
    if _all_han(word):
        return word
    normal = str(tokenizer.backend.normalizer.normalize_str(word)).strip()
    return normal if len(tokenizer.backend.pre_tokenizer.pre_tokenize_str(normal)) == 1 else None


def _pieces_in_wordpiece(tokenizer: Any, word: str) -> list[int]:
    """The ids of one word, which takes `tokenizers` a tenth of the time that the encoder of long texts would take."""
    known = tokenizer.backend.token_to_id(word)
    return tokenizer.backend.encode(word, add_special_tokens=False).ids if known is None else [known]


def _add_to_wordpiece(tokenizer: Any, words: Sequence[str], folder: Path) -> Extension:
    joined = [*tokenizer.joined, *filter(_all_han, words)]
    WordPiece(folder, [*tokenizer.tokens, *words], tokenizer.lowercase, joined).save(folder)
    return Extension(folder / "tokenizer.json", [_pieces(tokenizer, word) for word in words])


def _form_in_sentencepiece(tokenizer: Any, word: str) -> str:
    """A word behind a blank, unless it is Chinese."""
    return word if _all_han(word) else f"▁{word}"


def _pieces_in_sentencepiece(tokenizer: Any, word: str) -> list[int]:
    known = tokenizer.backend.token_to_id(word)
    ids = _pieces(tokenizer, word.removeprefix("▁")) if known is None else [known]
    # The blank that it puts before a text is not one of Chinese words within it.
    return ids[1:] if word[0] != "▁" and tokenizer.backend.id_to_token(ids[0]) == "▁" else ids


def _add_to_sentencepiece(tokenizer: Any, words: Sequence[str], folder: Path) -> Extension:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    proto = ModelProto.FromString(tokenizer.path.read_bytes())
    pieces = [_pieces_in_sentencepiece(tokenizer, word) for word in words]
    for word, ids in zip(words, pieces, strict=True):
        proto.pieces.add(piece=word, score=float(np.mean([proto.pieces[one].score for one in ids])))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "spiece.model", proto.SerializeToString())
    return Extension(folder / "spiece.model", pieces)


def _form_in_bpe(tokenizer: Any, word: str) -> str | None:
    """A word as BPE sees it within a text, in letters that stand for bytes: behind a blank, unless it is Chinese."""
    parts = tokenizer.backend.pre_tokenizer.pre_tokenize_str(word if _all_han(word) else f" {word}")
    return str(parts[0][0]) if len(parts) == 1 else None


def _add_to_bpe(tokenizer: Any, words: Sequence[str], folder: Path) -> Extension:
    model = tokenizer.backend.model
    split = [tuple(token.value for token in model.tokenize(word)) for word in words]
    return _with_merges(tokenizer, merges_of_words(split), folder)


def _learn_bpe(tokenizer: Any, texts: Iterable[str], count: int, folder: Path) -> Extension:
    split, model = tokenizer.backend.pre_tokenizer.pre_tokenize_str, tokenizer.backend.model
    counts = Counter(part for text in texts for line in text.split("\n") for part, _ in split(line))
    words = {tuple(token.value for token in model.tokenize(word)): times for word, times in counts.items()}
    merges = learned_merges(words, count, tokenizer.backend.get_vocab(with_added_tokens=False))
    if not merges:
        raise UserError("tokenizer.extend: no two tokens of the text come together twice; leave the setting out")
    log.info(
        "tokenizer.extend: %s new tokens by further merges save %s tokens in the text that they were learned from",
        f"{len(merges):,}",
        f"{sum(saved for _, saved in merges):,}",
    )
    return _with_merges(tokenizer, [merge for merge, _ in merges], folder)


def _with_merges(tokenizer: Any, merges: Sequence[Merge], folder: Path) -> Extension:
    values = json.loads(tokenizer.backend.to_str())
    model, vocabulary = values["model"], values["model"]["vocab"]
    first = len(vocabulary)
    pieces = {token: [number] for token, number in vocabulary.items()}
    for left, right in merges:
        if left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            pieces[left + right] = pieces[left] + pieces[right]
    is_text = model["merges"] and isinstance(model["merges"][0], str)
    model["merges"] += [" ".join(merge) if is_text else list(merge) for merge in merges]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "tokenizer.json", json.dumps(values, ensure_ascii=False).encode())
    return Extension(folder / "tokenizer.json", [pieces[token] for token in [*vocabulary][first:]])


@dataclass(frozen=True)
class _Kind:
    """How a type of tokenizer takes new words."""

    form: Callable[[Any, str], str | None]
    """A word as `add` takes it; None for a word that it cannot take."""
    pieces: Callable[[Any, str], list[int]]
    """The old ids of a form."""
    add: Callable[[Any, Sequence[str], Path], Extension]


_KINDS = {
    "wordpiece": _Kind(_form_in_wordpiece, _pieces_in_wordpiece, _add_to_wordpiece),
    "sentencepiece": _Kind(_form_in_sentencepiece, _pieces_in_sentencepiece, _add_to_sentencepiece),
    "bpe": _Kind(
        _form_in_bpe,
        lambda tokenizer, form: [token.id for token in tokenizer.backend.model.tokenize(form)],
        _add_to_bpe,
    ),
}


def _kind_of(tokenizer: Tokenizer) -> _Kind:
    return _KINDS[str(tokenizer.describe()["type"])]
