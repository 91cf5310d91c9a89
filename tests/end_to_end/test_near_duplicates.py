"""Near-duplicates, text of evaluation sets and the held-out split in a corpus as a whole."""

import json
import logging
import random
import re
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.corpus import Corpus, Manifest
from reread.preprocessing.errors import UserError
from tests.raw_text import make, sentences

NEAR: dict[str, Any] = {"dedup": {"near": {}}, "validation_share": 0.0}


def changed(text: str, generator: random.Random, characters: int = 1) -> str:
    """`text` with single characters replaced."""
    letters = list(text)
    for place in generator.sample(range(len(text)), characters):
        letters[place] = "乐" if letters[place] != "乐" else "火"
    return "".join(letters)


def write(folder: Path, texts: dict[str, str]) -> dict[str, Any]:
    """The files, and the `input` that names their folder."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {"paths": [str(folder)]}


def kept(raw: Path, corpus: Path, split: str = "train") -> list[str]:
    vocabulary = (raw / "vocab.txt").read_text(encoding="utf-8").split("\n")
    documents = Corpus(corpus, split)
    return [
        "".join("?" if token == 1 else vocabulary[token] for token in documents.document(n)[0])
        for n in range(documents.documents)
    ]


def known(text: str) -> str:
    return text.replace("乐", "?").replace("\n", "")


def test_of_near_duplicates_the_first_stays_and_the_report_shows_the_others(raw: Path, tmp_path: Path) -> None:
    generator = random.Random(0)
    a, b, c = (sentences(generator, 20) for _ in range(3))
    texts = {
        "0": a,
        "1": b,
        "2": changed(a, generator),
        "3": changed(a, generator, 2),
        "4": c,
        "5": changed(b, generator),
    }
    inputs = write(tmp_path / "texts", texts)
    for part_bytes in (1_000, 100_000):  # the pairs lie in different parts, or in one
        output = tmp_path / f"{part_bytes}"
        manifest = make(raw, output, input=inputs, part_bytes=part_bytes, **NEAR)
        assert manifest.dropped == {"near-duplicate documents": 3}
        assert kept(raw, output) == [a, b, c]
        found = manifest.statistics["near_duplicates"]
        assert (found["dropped"], found["sizes"]) == (3, {"2": 2})
        examples = found["examples"]
        assert 2 <= len(examples) <= 3 and all(0.8 <= one["similarity"] <= 1 for one in examples)
        assert all("乐" in one["dropped"] and "乐" not in one["kept"] for one in examples)
        assert examples[0]["similarity"] < examples[-1]["similarity"]
        report = (output / "report.md").read_text(encoding="utf-8")
        assert "| near-duplicate documents | 3 |" in report and "3 documents are dropped" in report
        assert examples[0]["dropped"] in report


def test_training_documents_like_a_validation_file_are_dropped_and_it_stays_whole(raw: Path, tmp_path: Path) -> None:
    generator = random.Random(1)
    held_out, other = sentences(generator, 20), sentences(generator, 20)
    training = {"0": changed(held_out, generator), "1": other, "2": changed(held_out, generator), "3": held_out}
    inputs = write(tmp_path / "texts", training) | {"validation_paths": write(tmp_path / "v", {"v": held_out})["paths"]}
    manifest = make(raw, tmp_path / "corpus", input=inputs, **NEAR)
    assert manifest.dropped == {"duplicate documents": 1, "near-duplicate documents": 2}
    assert manifest.statistics["near_duplicates"]["dropped_near_held_out"] == 2
    assert kept(raw, tmp_path / "corpus") == [other]
    assert kept(raw, tmp_path / "corpus", "validation") == [held_out]


def test_no_held_out_text_has_a_near_duplicate_in_training_text(raw: Path, tmp_path: Path) -> None:
    generator, texts = random.Random(2), {}
    for number in range(12):
        text = sentences(generator, 20)
        texts |= {f"{number:02d}-{copy}": changed(text, generator) for copy in range(4)}
    manifest = make(raw, tmp_path / "c", input=write(tmp_path / "texts", texts), **NEAR | {"validation_share": 0.4})
    train, held_out = kept(raw, tmp_path / "c"), kept(raw, tmp_path / "c", "validation")
    assert len(train) + len(held_out) == 12 == 48 - manifest.dropped["near-duplicate documents"]
    assert sorted(train + held_out) == sorted(known(texts[f"{number:02d}-0"]) for number in range(12))
    assert len(held_out) > 1 and manifest.statistics["near_duplicates"]["dropped_near_held_out"] > 1


def written_as(kind: str, texts: list[str]) -> tuple[str, str]:
    """The name and the content of an evaluation set."""
    if kind == "json lines":
        return "dev.json", "\n".join(json.dumps({"sentence": text, "label": 1}) for text in texts)
    if kind == "json":
        return "dev.json", json.dumps({"data": [{"paragraphs": [{"context": text}]} for text in texts]})
    if kind == "table":
        return "dev.tsv", "label\ttext\n" + "".join(f"1\t{text}\n" for text in texts)
    if kind == "tags":
        tokens = [text.split() if text.isascii() else list(text) for text in texts]
        return "dev.txt", "\n".join("".join(f"{token} O\n" for token in sentence) for sentence in tokens)
    return "dev.txt", "\n".join(texts)


@pytest.mark.parametrize("kind", ["text", "json lines", "json", "table", "tags"])
def test_training_documents_with_text_of_an_evaluation_set_are_dropped(raw: Path, tmp_path: Path, kind: str) -> None:
    generator = random.Random(3)
    question, first, second, whole = (sentences(generator, count) for count in (2, 9, 9, 9))
    english = "it was a bright cold day in april and the clocks were striking thirteen"
    texts = {
        "0": first + question + second,  # contains all of it
        "1": first + question[:25] + second,  # too little
        "2": f"{second} It was a bright, cold day in April, and the clocks were striking thirteen. {second}",
        "3": whole,
    }
    name, content = written_as(kind, [question, english, "短"])
    (tmp_path / name).write_text(content, encoding="utf-8")
    settings = {"dedup": {"evaluation": str(tmp_path / name)}, "validation_share": 0.0}
    inputs = write(tmp_path / "texts", texts) | {
        "validation_paths": write(tmp_path / "v", {"v": question * 3})["paths"]
    }
    manifest = make(raw, tmp_path / "corpus", input=inputs, **settings)
    assert manifest.dropped == {"evaluation text": 2}
    assert [text[:9] for text in kept(raw, tmp_path / "corpus")] == [first[:9], whole[:9]]
    assert len(kept(raw, tmp_path / "corpus", "validation")) == 1
    [found] = manifest.statistics["evaluation"]
    assert (found["path"], found["dropped"]) == (str(tmp_path / name), 2)
    assert found["examples"][0].startswith(question[:20]) and found["examples"][1].startswith("It was a bright, cold")
    report = (tmp_path / "corpus" / "report.md").read_text(encoding="utf-8")
    assert "| evaluation text | 2 |" in report and f"| {tmp_path / name} |" in report


def test_an_evaluation_set_that_cannot_be_searched_for_is_one_line(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(content: str, name: str = "dev.json") -> str:
        (tmp_path / name).write_text(content, encoding="utf-8")
        with pytest.raises(UserError) as raised:
            make(raw, tmp_path / "corpus", dedup={"evaluation": [str(tmp_path / name)]})
        return str(raised.value)

    assert "dev.json: has no text of 13 words or 30 characters in a row to search for" in refused('["今天天气", "a b"]')
    assert "dev.json: not JSON" in refused('{"text": ')
    with pytest.raises(UserError, match=r"dedup\.evaluation: `.*none\.tsv` matches no file"):
        make(raw, tmp_path / "corpus", dedup={"evaluation": [str(tmp_path / "none.tsv")]})
    (tmp_path / "dev.json").write_text(
        json.dumps([{"text": "短"}, {"text": sentences(random.Random(4), 3)}]), encoding="utf-8"
    )
    with caplog.at_level(logging.WARNING, "reread"):
        make(raw, tmp_path / "corpus", dedup={"evaluation": [str(tmp_path / "dev.json")]})
    assert "dev.json: 1 of 2 texts are too short to be found" in caplog.text
    (tmp_path / "dev.json").write_text(json.dumps([sentences(random.Random(5), 30)]), encoding="utf-8")
    with pytest.raises(UserError, match=r"dev\.json was .* bytes"):
        make(raw, tmp_path / "corpus", dedup={"evaluation": [str(tmp_path / "dev.json")]})


@pytest.mark.parametrize(
    ("lengths", "share", "expected"),
    [
        (
            [60] * 100,
            0.01,
            "no document is held out, so training will have no validation loss; "
            r"69\d tokens would be enough: set `validation_share=0\.1`",
        ),
        ([60] * 100, 0.2, ""),
        ([600] * 3, 0.005, "no document is held out, so training .* since there are few documents, cut them"),
        ([15], 0.005, "no document is held out, so training .* since there are few documents, cut them"),
        ([60] * 100, 0.0, ""),
        (
            [6000, *[60] * 30],
            0.2,
            r"8\d\.\d % of the tokens, 8 of 31 documents, are held out .*; lower `validation_share`, cut",
        ),
    ],
)
def test_a_held_out_split_that_is_too_small_or_large_is_one_line_with_the_share_that_would_do(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, lengths: list[int], share: float, expected: str
) -> None:
    generator = random.Random(6)
    lines = "\n".join(sentences(generator, length // 15) for length in lengths)
    inputs = write(tmp_path / "texts", {"a": lines}) | {"format": "document-per-line"}
    with caplog.at_level(logging.INFO, "reread"):
        manifest = make(raw, tmp_path / "corpus", input=inputs, validation_share=share)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == bool(expected)
    if expected:
        assert re.search(expected, warnings[0])
    tokens = sum(shard.tokens for shard in manifest.shards if shard.split == "validation")
    assert manifest.statistics["validation_tokens"] == tokens
    assert f"tokens, {tokens:,} of them held out" in caplog.text
    assert Manifest.read(tmp_path / "corpus") == manifest


def test_if_all_text_is_held_out_by_its_name_the_setting_that_names_it_is_to_change(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = write(tmp_path / "texts", {"a": sentences(random.Random(7), 3)})
    make(raw, tmp_path / "corpus", input=inputs | {"validation_paths": inputs["paths"]})
    assert caplog.messages[-1].endswith("none is left to train on; name less text by `input.validation_paths`")


def test_marks_that_the_vocabulary_lacks_are_mapped_where_the_warning_says_so(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vocabulary = (raw / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "vocab.txt").write_text(vocabulary + '"\n-\n', encoding="utf-8")
    text = sentences(random.Random(7), 9).replace("。", "。“今天——明天”")
    settings = {
        "input": write(tmp_path / "texts", {"a": text, "b": "今天，明天。"}),
        "tokenizer": {"path": str(tmp_path / "vocab.txt")},
        "validation_share": 0.0,
    }
    with caplog.at_level(logging.INFO, "reread"):
        before = make(raw, tmp_path / "before", **settings)
    line = "`clean.map_punctuation=true` replaces — “ ” by marks that it has"
    said = [number for number, message in enumerate(caplog.messages) if line in message]
    read = next(number for number, message in enumerate(caplog.messages) if message.startswith("reading and cleaning"))
    assert said[0] < read < said[1]  # of a sample, and of all
    caplog.clear()
    after = make(raw, tmp_path / "after", clean={"map_punctuation": True}, **settings)
    assert line not in caplog.text
    assert before.statistics["unknown_tokens"] == 9 * 4 + 1
    assert after.statistics["unknown_tokens"] == 1  # the comma has no substitute
    assert after.statistics["cleaned"] == {"map_punctuation": {"documents": 1, "characters": 36}}
    report = (tmp_path / "after" / "report.md").read_text(encoding="utf-8")
    assert "| `map_punctuation` | 1 | 36 |" in report
