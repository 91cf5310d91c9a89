"""Makes the start of a fine-tuning from random weights: a model whose tokens are whole words, and its tokenizer.

The vocabulary has the words of the training examples, the most frequent first, and then those of a file of word vectors
in its order. A word of the examples has the vector of the file's word that is equal to it, or else to it in lower case.
Words of the examples that come once and have no vector are [UNK], so that the row of unknown words learns, too.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.tokens.vectors import Vectors, read_vectors
from reread.preprocessing.tokens.wordlevel import TaskWords, words_in
from reread.training.exchange.card import model_card
from reread.training.exchange.export import write_huggingface
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.objectives import OBJECTIVES

log = logging.getLogger("reread")

_OFTEN = 2
"""Occurrences from which on a word without a vector has a row of its own."""


def start_from_words(
    out: Path,
    values: Mapping[str, Any],
    task: str,
    examples: Sequence[Example],
    *,
    size: int,
    path: Path | None = None,
    seed: int = 0,
) -> None:
    """Write the folder `out` with a model of the kind that `values` (a recipe's `train.model`) describe, random by
    `seed`, for the words of the `examples` of a `task` and those of the file `path` of word vectors.

    The vocabulary has at most `size` tokens. Raises `UserError` as `read_vectors` and `model_config` do.
    """
    spec = model_spec(str(values.get("type", "")))
    counts = _counts(examples)
    config = model_config(spec, dict(values), 1, None)
    width = config.hidden_size - getattr(config, "character_filters", 0)
    vectors: Vectors = {}
    if path is not None:
        wanted = {form for word in counts for form in (word, word.lower())}
        vectors = read_vectors(path, width, wanted, size)
    words, found = _vocabulary(counts, vectors, size)
    if path is not None:
        _say(path, counts, vectors, words)
    tokenizer = TaskWords(out, words, not _is_split(examples))
    with TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        config = model_config(spec, dict(values), tokenizer.vocab_size, None, tokenizer.special)
        model = build_model(spec.heads[task], config, None, seed)
        _fill(model, tokenizer, found)
        summary = f"Random weights, and words of `{path.name}`." if path else "Random weights, before any training."
        objective = OBJECTIVES[next(iter(spec.heads))]
        card = model_card(spec, objective, summary, {}, lengths={"sequence_length": 512, **config.to_dict()})
        heads = [name for name in model.state_dict() if not name.startswith(f"{model.base_model_prefix}.")]
        write_huggingface(out, model, Path(folder), card, heads)
    log.info("%s: made for %s words", out, f"{len(words):,}")


def _is_split(examples: Sequence[Example]) -> bool:
    """Whether the examples are words already, and not text."""
    return hasattr(examples[0], "tokens")


def _counts(examples: Sequence[Any]) -> Counter[str]:
    if _is_split(examples):
        return Counter(word for one in examples for word in words_in(one.tokens, False))
    return Counter(words_in((text for one in examples for text in one.texts.values()), True))


def _vocabulary(counts: Counter[str], vectors: Vectors, size: int) -> tuple[list[str], Vectors]:
    """At most `size` words, and the vectors of those that have one."""
    found = {word: vectors.get(word, vectors.get(word.lower())) for word in counts}
    words = [word for word, count in counts.most_common() if count >= _OFTEN or found[word] is not None]
    every = list(dict.fromkeys([*words, *vectors]))[:size]
    rows = {word: vectors[word] if word in vectors else found.get(word) for word in every}
    return every, {word: row for word, row in rows.items() if row is not None}


def _say(path: Path, counts: Iterable[str], vectors: Vectors, words: Sequence[str]) -> None:
    known, own = set(words), list(counts)
    lower = sum(word not in vectors and word.lower() in vectors for word in own)
    written = sum(word in vectors for word in own)
    log.info(
        "%s: has vectors of %s of the %s words of the training examples (%s as written, %s in lower case); of the "
        "others %s begin at random, and %s that come once are [UNK]; %s further words",
        path,
        *(f"{count:,}" for count in (written + lower, len(own), written, lower)),
        *(f"{count:,}" for count in _without(own, vectors, known)),
        f"{len(known.difference(own)):,}",
    )


def _without(own: Sequence[str], vectors: Vectors, known: set[str]) -> tuple[int, int]:
    """Of the words without a vector: those in the vocabulary, and those that are not."""
    without = [word for word in own if word not in vectors and word.lower() not in vectors]
    kept = sum(word in known for word in without)
    return kept, len(without) - kept


@torch.no_grad()
def _fill(model: PreTrainedModel, tokenizer: TaskWords, found: Vectors) -> None:
    """Put the vectors into the table of words, whose other rows are drawn as large as they are.

    Raises `UserError` for a table of another width."""
    table: Any = getattr(model.get_input_embeddings(), "weight", None)
    if not found:
        return
    if table is None or table.shape[1] != len(next(iter(found.values()))):
        raise UserError("finetune.words.vectors: this model has no table of words of one width; leave the vectors out")
    rows = torch.tensor([tokenizer.backend.token_to_id(word) for word in found])
    vectors = torch.stack([torch.from_numpy(vector) for vector in found.values()])
    table *= vectors.std() / table.std()
    table[rows] = vectors
