"""Warnings about a corpus, with the settings to change: unknown tokens, too much or too little held-out text."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.execution.work import Work
from reread.preprocessing.input.piece import Document, Piece
from reread.preprocessing.input.read import read
from reread.preprocessing.tokens.punctuation import MARKS

ENOUGH_TOKENS = 50_000
"""A held-out split of this size has about 7,500 masked tokens, whose mean loss has a standard error of about 0.03."""
FEW_TOKENS = 20_000
_MOST_SHARE = 0.1
"""The largest share of a small corpus that a hint suggests to hold out."""
_SAMPLED_PARTS, _SAMPLED_DOCUMENTS, _SAMPLED_CHARACTERS = 8, 8, 4_000
"""The size of the sample: parts, documents of each part, and characters of each document."""


def warnings_of(manifest: Manifest, settings: PreprocessSettings) -> Iterator[str]:
    """The warnings about a finished corpus, a line each."""
    statistics = manifest.statistics
    tokens, unknown = statistics["tokens"], statistics["unknown_tokens"]
    if line := warning_of_unknown(
        tokens, unknown, list(statistics["unknown_characters"]), settings, manifest.tokenizer
    ):
        yield line
    yield from _of_held_out(manifest, settings)
    for file in statistics.get("evaluation", []):
        if file["short"]:
            yield (
                f"{file['path']}: {file['short']:,} of {file['texts']:,} texts are too short to be found in training "
                "text (`dedup.evaluation_words`, `dedup.evaluation_characters`)"
            )


def warning_of_sample(work: Work) -> str | None:
    """`warning_of_unknown` for the beginnings of a few documents, to find a wrong vocabulary before hours of work."""
    cleaner, tokenizer = work.new_cleaner(), work.given_tokenizer
    tokens, characters = 0, Counter[str]()
    for part in range(0, work.parts, -(-work.parts // _SAMPLED_PARTS)):
        for document in islice(_documents(work, part), _SAMPLED_DOCUMENTS):
            text = cleaner.clean(document.text[:_SAMPLED_CHARACTERS])
            ids, starts = tokenizer.encode(text)
            tokens += len(ids)
            characters.update(text[start] for start in starts[ids == tokenizer.special["unk"]].tolist())
    most_frequent = [character for character, _ in characters.most_common()]
    line = warning_of_unknown(tokens, characters.total(), most_frequent, work.settings, tokenizer.describe())
    return line and f"in a sample of the text {line}"


def _documents(work: Work, part: int) -> Iterator[Document]:
    for _, _, piece in work.pieces(part):
        section = work.settings.inputs[piece["section"]].model_copy(update={"bad_input": "report"})
        yield from read(Piece(**piece), section, lambda problem: None)


def warning_of_unknown(
    tokens: int, unknown: int, characters: Sequence[str], settings: PreprocessSettings, tokenizer: dict[str, Any]
) -> str | None:
    """A warning if more than 1 % of the tokens are unknown, else None.

    `characters` are the first characters of the unknown tokens, the most frequent first.
    """
    if unknown <= 0.01 * tokens:
        return None
    line = f"{100 * unknown / tokens:.1f} % of the tokens are unknown to the vocabulary"
    if tokenizer["type"] == "words":
        return f"{line}: is it the right one for this text?"
    line = f"{line}, most often {' '.join(characters[:10])}: is it the right one for this text?"
    marks = [character for character in characters if character in MARKS]
    if marks and not settings.clean.map_punctuation and settings.tokenizer.path is not None:
        line += f" `clean.map_punctuation=true` replaces {' '.join(marks)} by marks that it has"
    return line


def _of_held_out(manifest: Manifest, settings: PreprocessSettings) -> Iterator[str]:
    """The warnings about the held-out split: everything, too much, nothing or too little is held out."""
    statistics = manifest.statistics
    documents, tokens = statistics["validation_documents"], statistics["validation_tokens"]
    named = any(section.validation_paths for section in settings.inputs)
    if documents == statistics["documents"]:
        way = "name less text by `input.validation_paths`" if named else "lower `validation_share`"
        yield f"all documents are held out, so none is left to train on; {way}"
        return
    if documents == 0 and settings.validation_share == 0 and not named:
        return
    # Too much is held out, for example a single long book
    share = tokens / statistics["tokens"]
    if share > max(2 * _MOST_SHARE, 1.5 * settings.validation_share):
        yield (
            f"{100 * share:.1f} % of the tokens, {documents:,} of {statistics['documents']:,} documents, are held out "
            "from training; "
            + (
                "name less text by `input.validation_paths`"
                if named
                else "lower `validation_share`, cut long documents into smaller ones, or set `validation_share=0` and "
                "name some by `input.validation_paths`"
            )
        )
        return
    # Too little is held out for a meaningful loss: suggest a share that gives `enough` tokens
    enough = max(1, min(ENOUGH_TOKENS, int(_MOST_SHARE * statistics["tokens"])))
    if tokens >= enough * FEW_TOKENS / ENOUGH_TOKENS:
        return
    share = enough / statistics["tokens"]
    line = f"{documents:,} documents with {tokens:,} tokens are held out, too few for a reliable validation loss"
    if documents == 0:
        line = "no document is held out, so training will have no validation loss"
    if share * statistics["documents"] < 5:
        yield (
            f"{line}; {enough:,} tokens would be enough: since there are few documents, cut them into smaller ones, "
            "or name some by `input.validation_paths`"
        )
    else:
        share = max(_rounded_up(share), settings.validation_share)
        yield f"{line}; {enough:,} tokens would be enough: set `validation_share={share:g}`"


def _rounded_up(share: float) -> float:
    """`share` rounded up to one significant digit."""
    unit = 10.0 ** math.floor(math.log10(share))
    return float(f"{math.ceil(share / unit) * unit:.1g}")
