"""What the log warns of when a corpus is made."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from preprocessing.config import PreprocessSettings
from preprocessing.corpus import Manifest
from preprocessing.execution.work import Work
from preprocessing.input.piece import Document, Piece
from preprocessing.input.readers import read
from preprocessing.tokens.punctuation import MARKS

ENOUGH_TOKENS = 50_000
"""A held-out split of so many has about 7,500 masked tokens, whose mean loss has a standard error of 0.03 or so."""
FEW_TOKENS = 20_000
_MOST_SHARE = 0.1
"""What may be asked for of a small corpus."""
_SAMPLED_PARTS, _SAMPLED_DOCUMENTS, _SAMPLED_CHARACTERS = 8, 8, 4_000
"""How much is looked into beforehand: parts, documents of each, and characters of each of those."""


def warnings_of(manifest: Manifest, settings: PreprocessSettings) -> Iterator[str]:
    """A line for each."""
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
                f"{file['path']}: {file['short']:,} of {file['texts']:,} texts are too short to be searched for "
                "(`dedup.evaluation_words`, `dedup.evaluation_characters`)"
            )


def warning_of_sample(work: Work) -> str | None:
    """`warning_of_unknown` for the begin of a few documents, before hours of work."""
    cleaner, tokenizer = work.new_cleaner(), work.tokenizer
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
    """A line if many of the tokens are unknown; `characters` are those they begin with, the most frequent first."""
    if unknown <= 0.01 * tokens:
        return None
    line = f"{100 * unknown / tokens:.1f} % of the tokens are unknown to the vocabulary"
    if tokenizer["type"] == "words":
        return f"{line}: is it the right one for this text?"
    line = f"{line}, most often {' '.join(characters[:10])}: is it the right one for this text?"
    marks = [character for character in characters if character in MARKS]
    if marks and not settings.clean.map_punctuation and settings.tokenizer.path is not None:
        line += f" `clean.map_punctuation=true` writes {' '.join(marks)} with marks that it has"
    return line


def _of_held_out(manifest: Manifest, settings: PreprocessSettings) -> Iterator[str]:
    statistics = manifest.statistics
    documents, tokens = statistics["validation_documents"], statistics["validation_tokens"]
    if documents == statistics["documents"]:
        yield "every document is held out and none is left to train on; lower `validation_share`"
        return
    named = any(section.validation_paths for section in settings.inputs)
    if documents == 0 and settings.validation_share == 0 and not named:
        return
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
    enough = max(1, min(ENOUGH_TOKENS, int(_MOST_SHARE * statistics["tokens"])))
    if tokens >= enough * FEW_TOKENS / ENOUGH_TOKENS:
        return
    share = enough / statistics["tokens"]
    line = f"{documents:,} documents with {tokens:,} tokens are held out, too few for a validation loss that means much"
    if documents == 0:
        line = "no document is held out, so training will have no validation loss"
    if share * statistics["documents"] < 5:
        yield (
            f"{line}; {enough:,} tokens would do: with so few documents, cut them into smaller ones, or name some by "
            "`input.validation_paths`"
        )
    else:
        share = max(_rounded_up(share), settings.validation_share)
        yield f"{line}; {enough:,} tokens would do: set `validation_share={share:g}`"


def _rounded_up(share: float) -> float:
    """To one digit."""
    unit = 10.0 ** math.floor(math.log10(share))
    return float(f"{math.ceil(share / unit) * unit:.1g}")
