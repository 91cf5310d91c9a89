"""The small labelled task that the quickstart ends with."""

import logging
from collections.abc import Iterable
from pathlib import Path

import jieba
import numpy as np
import pytest
from tokenizers import Tokenizer

from reread.pipeline.recipe.load import load_recipe
from reread.preprocessing.corpus.reader import Corpus
from reread.preprocessing.labelled.read import read_examples
from tests.conftest import ROOT, preprocess_values

WORDS = ROOT / "pipeline" / "sample" / "tasks" / "words"


def sentences(split: str) -> list[tuple[str, list[str]]]:
    """Each sentence and its tags."""
    examples = read_examples(WORDS / f"{split}.txt", "tag", "conll").examples
    return [("".join(one.tokens), list(one.tags)) for one in examples]  # type: ignore[attr-defined]


def joined(tokens: Iterable[str | None]) -> str:
    return "".join((token or "").removeprefix("##") for token in tokens)


def text_of(corpus: Path, split: str, tokenizer: Tokenizer) -> str:
    """All text of a split as its tokens, without blanks."""
    documents = Corpus(corpus, split)
    ids = np.concatenate([documents.document(number)[0] for number in range(documents.documents)])
    return joined(tokenizer.id_to_token(int(number)) for number in ids)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_labels_are_jiebas_words(split: str) -> None:
    jieba.setLogLevel(logging.ERROR)
    for sentence, tags in sentences(split):
        expected = []
        for word in jieba.cut(sentence):
            expected += ["B-W" if word[0].isalnum() else "O", *["I-W" if word[0].isalnum() else "O"] * (len(word) - 1)]
        assert tags == expected, sentence


def test_the_quickstart_has_not_read_the_sentences_that_it_is_scored_on(sample_corpus: Path) -> None:
    recipe = load_recipe("quickstart", [])
    assert recipe.preprocess is not None
    assert recipe.preprocess.validation_share == preprocess_values(sample_corpus)["validation_share"]
    tokenizer = Tokenizer.from_file(str(sample_corpus / "tokenizer" / "tokenizer.json"))
    known, held_out = (text_of(sample_corpus, split, tokenizer) for split in ("train", "validation"))
    train, dev = (
        [joined(tokenizer.encode(sentence, add_special_tokens=False).tokens) for sentence, _ in sentences(split)]
        for split in ("train", "dev")
    )
    assert [one for one in dev if one not in held_out or one in known] == []
    assert [one for one in train if one not in known] == []
