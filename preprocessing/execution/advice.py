"""What the log warns of when a corpus is made."""

import math
from collections.abc import Iterator

from preprocessing.config import PreprocessSettings
from preprocessing.corpus import Manifest
from preprocessing.tokens.punctuation import MARKS

ENOUGH_TOKENS = 50_000
"""A held-out split of so many has about 7,500 masked tokens, whose mean loss has a standard error of 0.03 or so."""
FEW_TOKENS = 20_000
_MOST_SHARE = 0.1
"""What may be asked for of a small corpus."""


def warnings_of(manifest: Manifest, settings: PreprocessSettings) -> Iterator[str]:
    """A line for each."""
    yield from _of_unknown_tokens(manifest, settings)
    yield from _of_held_out(manifest, settings)
    for file in manifest.statistics.get("evaluation", []):
        if file["short"]:
            yield (
                f"{file['path']}: {file['short']:,} of {file['texts']:,} texts are too short to be searched for "
                "(`dedup.evaluation_words`, `dedup.evaluation_characters`)"
            )


def _of_unknown_tokens(manifest: Manifest, settings: PreprocessSettings) -> Iterator[str]:
    statistics = manifest.statistics
    if statistics["unknown_tokens"] <= 0.01 * statistics["tokens"]:
        return
    share = 100 * statistics["unknown_tokens"] / statistics["tokens"]
    line = f"{share:.1f} % of the tokens are unknown to the vocabulary"
    if manifest.tokenizer["type"] == "words":
        yield f"{line}: is it the right one for this text?"
        return
    most_frequent = list(statistics["unknown_characters"])
    line = f"{line}, most often {' '.join(most_frequent[:10])}: is it the right one for this text?"
    marks = [character for character in most_frequent if character in MARKS]
    if marks and not settings.clean.map_punctuation and settings.tokenizer.path is not None:
        line += f" `clean.map_punctuation=true` writes {' '.join(marks)} with marks that it has"
    yield line


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
