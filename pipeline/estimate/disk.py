"""Estimates the sizes on disk of a corpus and of checkpoints, and the size of the vocabulary."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reread.pipeline.recipe.schema import Recipe
from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.corpus.checksums import read_manifest
from reread.preprocessing.errors import UserError
from reread.preprocessing.input.sources import find_files
from reread.preprocessing.tokens.extension import words_listed_in
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.training.config import TrainSettings
from reread.training.data.materialize import MaterializedSamples, is_materialized

log = logging.getLogger("reread")

TEXT_RATIO, COMPRESSED_RATIO = 1.0, 3.0
"""Most bytes of corpus for a byte of input. Measured: plain Chinese 0.99, English 0.63; .xz 3.1 and 2.3, .gz 2.3, dumps
of Wikipedia (.bz2) 1.0 to 1.8 (docs/plan.md)."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".tgz", ".zip", ".epub")

KNOWN_VOCABULARIES = {"roberta-base": 50265, "roberta-large": 50265, "vocab.txt": 21128}
"""Sizes of vocabularies by the last part of `tokenizer.path`; vocab.txt is taken for that of bert-base-chinese."""


@dataclass(frozen=True)
class CorpusSize:
    bytes: float
    tokens: float
    """Tokens of the training split."""
    source: str
    """Where the figures come from."""
    is_there: bool = True
    """Whether the corpus or its input exists."""


def vocabulary(recipe: Recipe, train: TrainSettings) -> int:
    """Size of the vocabulary of the corpus, or of the tokenizer with which the corpus will be made.

    Logs one line if the size is assumed. Raises `UserError` if it cannot be known.
    """
    corpus, stated = train.data.folder, train.model.get("vocab_size")
    if stated is not None:
        return int(stated)
    if is_materialized(corpus):
        return MaterializedSamples(corpus, "train").vocab_size
    if (corpus / "manifest.json").exists():
        return int(Manifest.read(corpus).tokenizer["vocab_size"])
    if recipe.preprocess is None:
        raise UserError(f"{corpus}: not there, so its vocabulary is not known; set train.model.vocab_size=...")
    tokenizer = recipe.preprocess.tokenizer
    if tokenizer.train is not None:
        return tokenizer.train.size
    path, new = tokenizer.path or Path(), tokenizer.extend or 0
    new = len(words_listed_in(new)) if isinstance(new, Path) else new
    if path.exists():
        return load_tokenizer(path, tokenizer).vocab_size + new
    if path.name not in KNOWN_VOCABULARIES:
        raise UserError(f"preprocess.tokenizer.path: {path} is not there; set train.model.vocab_size=...")
    size = KNOWN_VOCABULARIES[path.name]
    log.info("vocabulary: %s is not there, %d tokens are assumed; set train.model.vocab_size=... otherwise", path, size)
    return size + new


def has_new_tokens(recipe: Recipe, corpus: Path) -> bool:
    """Whether the vocabulary of the corpus has tokens that `tokenizer.extend` added, or will have."""
    if (corpus / "manifest.json").exists():  # of a corpus or of finished rows; its index is not needed
        return "new" in (read_manifest(corpus).get("tokenizer") or {})
    return recipe.preprocess is not None and recipe.preprocess.tokenizer.extend is not None


def tokens_read(train: TrainSettings) -> float:
    """Tokens that the whole run reads, including padding."""
    return float(train.rows_before(train.steps)) * train.data.sequence_length


def corpus_size(recipe: Recipe, train: TrainSettings, vocab_size: int) -> CorpusSize:
    """The size of the corpus if it exists, else an estimate from its input, else from the tokens that the run reads.

    A token is an id of two bytes, four where the vocabulary needs it, and a byte of flags.
    """
    folders = [one.folder for one in train.data.parts] or [train.data.folder]
    token_bytes = 3 if vocab_size <= 2**16 else 5
    copies = getattr(train.data, "copies", 1)
    if all((folder / "manifest.json").exists() and not is_materialized(folder) for folder in folders):
        shards = [shard for folder in folders for shard in Manifest.read(folder).shards]
        held = sum(shard.tokens for shard in shards if shard.split == "train")
        return CorpusSize(sum(shard.bytes for shard in shards), held, f"the manifest of {train.data.location}")
    inputs = 0.0 if recipe.preprocess is None else _input_bytes(recipe.preprocess)
    if inputs:
        return CorpusSize(inputs / 3 * token_bytes, inputs / 3, "the bytes of preprocess.input.paths, at most")
    tokens = tokens_read(train) / copies
    what = f"what the run reads, each text {copies} times" if copies > 1 else "what the run reads, each text once"
    return CorpusSize(tokens * token_bytes, tokens, what, is_there=False)


def _input_bytes(settings: PreprocessSettings) -> float:
    """Bytes of the corpus that will be made from the inputs; 0 if they do not exist."""
    try:
        with quiet():
            files = find_files(settings.inputs, settings.output)
    except UserError:
        return 0.0
    return sum(
        file.bytes * (COMPRESSED_RATIO if file.path.lower().endswith(COMPRESSED) else TEXT_RATIO) for file in files
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings and the log lines that preprocessing will print when it runs."""
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
