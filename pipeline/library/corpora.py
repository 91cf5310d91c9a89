"""`reread.preprocess` and `reread.open_corpus`: corpora for programs."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from reread.pipeline.library.command import run_command
from reread.pipeline.recipe.schema import Recipe, preprocess_section
from reread.preprocessing.corpus import Corpus
from reread.preprocessing.corpus.cache import CacheSettings
from reread.preprocessing.errors import UserError
from reread.training.data.kinds import open_corpora
from reread.training.data.rows.samples import RowSettings

Source = str | Path


def preprocess(
    paths: Source | Sequence[Source],
    *,
    output: Source,
    tokenizer: Source | Mapping[str, Any],
    **sections: Any,
) -> Corpus:
    """Make a corpus from raw text, as `reread preprocess` does, and open it; what is finished is not done again.

    paths: files, folders or globs of text. output: the folder to write. tokenizer: a vocabulary, a folder with a
    tokenizer, or the section `tokenizer`, such as {"train": {"size": 8000}}. Other sections and settings of
    `preprocess` are keyword arguments: `clean={"nfkc": False}`, `validation_share=0.01` (`reread settings preprocess`).

    Raises `UserError` for settings that cannot work, and as the command does.

    ```python
    corpus = reread.preprocess(["novels/"], tokenizer="vocab.txt", output="corpora/zh")
    print(corpus.documents, corpus.tokens)
    ```
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    one = tokenizer if isinstance(tokenizer, Mapping) else {"path": str(tokenizer)}
    further = sections.pop("input", {})
    values = {
        "input": {"paths": [str(path) for path in given], **further},
        "tokenizer": dict(one),
        "output": str(output),
        **sections,
    }
    recipe = Recipe.parse({"name": "library", "preprocess": values}, "reread.preprocess")
    with tempfile.TemporaryDirectory(prefix="reread-") as folder:
        file = Path(folder) / "library.yaml"
        file.write_text(yaml.safe_dump(recipe.model_dump(mode="json"), allow_unicode=True), encoding="utf-8")
        run_command(["preprocess", str(file)])
    return Corpus(preprocess_section(recipe).output)


def open_corpus(
    location: Source, *, split: str = "train", cache: CacheSettings | Mapping[str, Any] | None = None
) -> Corpus:
    """A split ("train" or "validation") of the corpus in a folder, or at an address such as s3://BUCKET/FOLDER.

    cache: for an address, the section `train.data.cache`: {"folder": ..., "size": "100GB"}. Raises `UserError` for what
    is no corpus, is damaged, or cannot be reached.

    ```python
    corpus = reread.open_corpus("corpora/zh")
    ids, flags = corpus.document(0)
    ```
    """
    if split not in ("train", "validation"):
        raise UserError(f"reread.open_corpus: split: `{split}`; it is train or validation")
    settings = RowSettings.parse({"kind": "rows", "corpus": str(location), "cache": cache}, "reread.open_corpus")
    (corpus,) = open_corpora(settings, split)
    if corpus is None:
        raise UserError(f"{location}: holds samples of `reread preprocess --materialize`; give the corpus itself")
    return corpus
