"""`reread preprocess` as a whole: what it promises about its output and of the user's mistakes."""

import json
import logging
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import CONTINUES_WORD, LENGTHS, Corpus, Manifest
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import build, build_share, missing_stages
from reread.preprocessing.execution.executors.base import WHOLE
from reread.preprocessing.text import dedup
from tests.conftest import shared
from tests.raw_text import EVERY_STAGE, contents, make, sentences, values, write_raw


@pytest.fixture(scope="module")
def corpus(raw: Path) -> Path:
    """A finished corpus, for tests that only look."""
    make(raw, raw / "corpus")
    return raw / "corpus"


def kept_texts(raw: Path, corpus: Path, split: str = "train") -> list[str]:
    vocabulary = (raw / "vocab.txt").read_text(encoding="utf-8").split("\n")
    documents = Corpus(corpus, split)
    return ["".join(vocabulary[token] for token in documents.document(n)[0]) for n in range(documents.documents)]


def test_the_corpus_holds_every_unique_document_once_in_source_order(raw: Path, corpus: Path) -> None:
    manifest = Manifest.read(corpus)
    statistics = manifest.statistics
    assert (statistics["documents_read"], statistics["documents"]) == (66, 60)
    assert manifest.dropped == {"duplicate documents": 6, "unreadable": 2}
    texts = [path.read_text(encoding="utf-8") for path in sorted((raw / "texts").glob("novel-*.txt"))]
    for line in (raw / "texts" / "web.jsonl").read_text(encoding="utf-8").split("\n"):
        if line.endswith("}"):
            texts.append(json.loads(line)["text"])
    unique = list(dict.fromkeys(text.replace("\n", "") for text in texts if text))
    train, validation = kept_texts(raw, corpus), kept_texts(raw, corpus, "validation")
    assert [text for text in unique if text not in validation] == train
    assert [text for text in unique if text in validation] == validation
    assert 3 < len(validation) == statistics["validation_documents"] < 25
    assert sum(map(len, train + validation)) == statistics["tokens"] == statistics["characters"] - 60 * 3


def test_the_number_of_workers_changes_nothing(raw: Path, corpus: Path, tmp_path: Path) -> None:
    make(raw, tmp_path / "corpus", workers=2)
    one, two = contents(corpus), contents(tmp_path / "corpus")
    assert sum(name.endswith(".tar") for name in one) > 8
    assert one == two


def test_the_number_of_key_ranges_changes_nothing(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "KEYS_PER_RANGE", 18)
    monkeypatch.setattr(dedup, "RANGES_PER_TASK", 3)
    make(raw, tmp_path / "corpus", **EVERY_STAGE)
    assert contents(tmp_path / "corpus") == reference


def test_nothing_but_the_corpus_is_left_in_the_folder(corpus: Path) -> None:
    shards = Manifest.read(corpus).shards
    assert all(shard.documents for shard in shards)
    expected = {"manifest.json", "index.npz", "lengths.npy", "preprocess.json", "tokenizer"}
    expected |= {"report.md", "problems.jsonl"}
    assert {path.name for path in corpus.iterdir()} == expected | {shard.name for shard in shards}


def test_the_report_shows_what_was_found(corpus: Path) -> None:
    report = (corpus / "report.md").read_text(encoding="utf-8")
    assert "| documents kept | 60 |" in report
    assert "| duplicate documents | 6 |" in report
    lengths = Manifest.read(corpus).statistics["word_tokens"]
    most = max(lengths.values())
    for length, count in lengths.items():
        bar = "█" * max(1, round(40 * count / most))
        assert not count or re.search(rf"^\| {length}( or more)? \| {count:,} \| {bar} \|$", report, re.MULTILINE)


def test_bad_input_is_listed_with_file_and_position(corpus: Path) -> None:
    lines = (corpus / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    problems = {Path(problem["path"]).name: problem for problem in map(json.loads, lines)}
    assert set(problems) == {"novel-98.txt", "web.jsonl"}
    assert "not JSON" in problems["web.jsonl"]["reason"]
    assert problems["web.jsonl"]["position"]


def test_bad_input_is_refused_where_the_recipe_says_so(raw: Path, tmp_path: Path) -> None:
    inputs = {"paths": [str(raw / "texts")], "bad_input": "refuse"}
    with pytest.raises(UserError, match=r"novel-98\.txt.*empty|web\.jsonl.*not JSON"):
        make(raw, tmp_path / "corpus", input=inputs, workers=2)
    assert not (tmp_path / "corpus" / "manifest.json").exists()


def test_where_nothing_can_be_read_the_message_names_place_and_remedy(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "gb.txt").write_bytes("春天来了，河边的柳树发了芽。".encode("gb18030"))
    with pytest.raises(UserError, match=r"unreadable: 1.*gb\.txt:whole file: not utf-8.*input\.encoding=gb18030"):
        make(raw, tmp_path / "corpus", input={"paths": [str(tmp_path / "gb.txt")]})


def test_the_statistics_tell_whether_chinese_words_have_several_tokens(corpus: Path) -> None:
    statistics = Manifest.read(corpus).statistics
    splits = [Corpus(corpus, split) for split in ("train", "validation")]
    flags = [split.document(index)[1] for split in splits for index in range(split.documents)]
    continued = sum(np.count_nonzero(flag & CONTINUES_WORD) for flag in flags)
    assert statistics["tokens"] - statistics["words"] == continued
    assert 0.9 < statistics["han_tokens_in_multi_token_words"] / statistics["han_tokens"] <= 1


def test_paragraphs_that_stood_before_are_dropped_when_asked(raw: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    generator = random.Random(1)
    a, b, c, d = (sentences(generator, 3) for _ in range(4))
    documents = [f"{a}\n{b}", f"{a}\n今天\n{c}", f"{b}\n{c}", f"{d}\n今天\n{d}", f"{a}\n{b}"]
    for number, text in enumerate(documents):
        (texts / f"{number}.txt").write_text(text, encoding="utf-8")
    settings = {"paths": [str(texts)]}, {"paragraphs": True}
    manifest = make(raw, tmp_path / "c", input=settings[0], dedup=settings[1], validation_share=0.0, part_bytes=1_000)
    assert manifest.dropped == {"duplicate documents": 1, "duplicate paragraphs": 4, "duplicate paragraphs only": 1}
    assert kept_texts(raw, tmp_path / "c") == [a + b, "今天" + c, d + "今天"]


def test_a_dropped_document_does_not_hold_the_first_of_a_paragraph(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """Whole duplicates that are not looked for are near-duplicates, too: the same text is left."""
    make(raw, tmp_path / "corpus", dedup={**EVERY_STAGE["dedup"], "documents": False})
    shards = {name: data for name, data in reference.items() if name.endswith(".tar")}
    assert shards == {name: data for name, data in contents(tmp_path / "corpus").items() if name.endswith(".tar")}


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece", "bpe"])
def test_a_vocabulary_is_trained_from_what_is_left(raw: Path, tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {"tokenizer": {"train": {"type": kind, "size": 300}}, "part_bytes": 20_000}
    manifest = make(raw, tmp_path / "one", **settings)
    statistics = manifest.statistics
    assert manifest.tokenizer["type"] == kind
    assert (statistics["documents"], statistics["unknown_tokens"]) == (60, 0)
    assert Corpus(tmp_path / "one").documents > 30
    assert statistics["han_tokens_in_multi_character_words"] > 0.9 * statistics["han_tokens"]
    make(raw, tmp_path / "two", **settings, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_vocabulary_that_cannot_be_trained_loses_nothing_that_was_done_before(tmp_path: Path) -> None:
    write_raw(tmp_path)
    (tmp_path / "texts" / "more.txt").write_text("".join(map(chr, range(0x4E00, 0x4E00 + 300))) * 9, encoding="utf-8")

    def settings(output: str, size: int, **changes: Any) -> PreprocessSettings:
        tokenizer = {"train": {"type": "sentencepiece", "size": size}}
        return PreprocessSettings.parse(values(tmp_path, tmp_path / output, tokenizer=tokenizer, **changes), "test")

    with pytest.raises(UserError, match=r"tokenizer.train.size: 200 is too small for SentencePiece: 3\d\d tokens"):
        build(settings("corpus", 200))
    with pytest.raises(UserError, match=r"tokenizer\.train\.size was 200, is 1000"):
        build(settings("corpus", 1000, validation_share=0.1))
    assert [stage.name for stage in missing_stages(settings("corpus", 1000))] == ["vocabulary", "encode"]
    build(settings("corpus", 1000))
    build(settings("anew", 1000))
    assert contents(tmp_path / "corpus") == contents(tmp_path / "anew")


def test_what_was_cleaned_or_encoded_by_a_vocabulary_is_not_kept_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(tmp_path)
    (tmp_path / "other.txt").write_text((tmp_path / "vocab.txt").read_text(encoding="utf-8") + '"\n', encoding="utf-8")
    other = {"tokenizer": {"path": str(tmp_path / "other.txt")}}

    def no_merge(work: object) -> Manifest:
        raise UserError("killed")

    monkeypatch.setattr("reread.preprocessing.execution.build.merge", no_merge)
    with pytest.raises(UserError, match="killed"):
        make(tmp_path, tmp_path / "encoded")
    with pytest.raises(UserError, match=r"was begun with other input or settings: tokenizer\.path was"):
        make(tmp_path, tmp_path / "encoded", **other)
    cleaning = {"clean": {"map_punctuation": True}}
    build_share(PreprocessSettings.parse(values(tmp_path, tmp_path / "cleaned", **cleaning), "test"), "read", WHOLE)
    with pytest.raises(UserError, match=r"was begun with other input or settings: tokenizer\.path was"):
        make(tmp_path, tmp_path / "cleaned", **cleaning, **other)


def test_a_corpus_simplified_by_older_tables_is_read_and_not_mixed_with_newer_ones(raw: Path, tmp_path: Path) -> None:
    simplified = {"clean": {"simplify": True}}
    assert make(raw, tmp_path / "new", **simplified).version == 4
    assert make(raw, tmp_path / "old").version == 3
    record = tmp_path / "old" / "preprocess.json"
    record.write_text(record.read_text(encoding="utf-8").replace('"simplify": false', '"simplify": true'))
    assert Corpus(tmp_path / "old").manifest.version == 3
    with pytest.raises(UserError, match="was begun with other input or settings: format was 3, is 4"):
        make(raw, tmp_path / "old", **simplified)


def test_a_finished_corpus_is_returned_at_once(raw: Path, corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    with caplog.at_level(logging.INFO, "reread"):
        manifest = make(raw, corpus, workers=2)
    assert manifest == Manifest.read(corpus)
    assert "nothing to do" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before


def test_a_corpus_of_an_earlier_version_with_fewer_settings_is_the_same(
    raw: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    record = tmp_path / "corpus" / "preprocess.json"
    values = json.loads(record.read_text(encoding="utf-8"))
    del values["settings"]["clean"]["join_wrapped_lines"]
    record.write_text(json.dumps(values), encoding="utf-8")
    with caplog.at_level(logging.INFO, "reread"):
        make(raw, tmp_path / "corpus")
    assert "nothing to do" in caplog.text
    with pytest.raises(UserError, match="join_wrapped_lines was false, is true"):
        make(raw, tmp_path / "corpus", clean={"join_wrapped_lines": True})


def test_a_corpus_that_lost_a_shard_is_built_again(raw: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    (tmp_path / "corpus" / "train-00001.tar").unlink()
    make(raw, tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == contents(corpus)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clean": {"nfkc": False}}, r"clean\.nfkc was true, is false"),
        ({"part_bytes": 4_000}, r"part_bytes was 6000, is 4000"),
        ({"dedup": {"paragraphs": True}}, r"dedup\.paragraphs was false, is true"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    raw: Path, corpus: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=f"{named}.*another output folder"):
        make(raw, corpus, **changes)


def test_changed_input_and_vocabulary_are_refused_by_name(tmp_path: Path) -> None:
    write_raw(tmp_path)
    make(tmp_path, tmp_path / "corpus")
    path, vocabulary = tmp_path / "texts" / "novel-05.txt", tmp_path / "vocab.txt"
    for file, more, named in ((path, "好", r"novel-05\.txt was .* bytes"), (vocabulary, "好\n", "tokenizer")):
        before, stat = file.read_bytes(), file.stat()
        file.write_bytes(before + more.encode())
        with pytest.raises(UserError, match=named):
            make(tmp_path, tmp_path / "corpus")
        file.write_bytes(before)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    path.rename(path.with_name("novel-06b.txt"))
    with pytest.raises(UserError, match=r"novel-05\.txt is gone.*novel-06b\.txt is new"):
        make(tmp_path, tmp_path / "corpus")


def test_a_corpus_whose_raw_text_is_gone_is_refused_with_the_way_to_use_it(corpus: Path, tmp_path: Path) -> None:
    """Unseen text may have changed."""
    with pytest.raises(UserError, match=f"matches no file;.*`preprocess=null` uses {corpus} as it is, .*text$"):
        make(tmp_path, corpus)
    with pytest.raises(UserError, match=r"matches no file; check the path .or glob. and the folder you run in$"):
        make(tmp_path, tmp_path / "corpus")


def test_a_folder_with_other_files_is_left_alone(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        make(raw, tmp_path)
    assert (tmp_path / "thesis.doc").read_text() == "mine"


def test_an_output_that_cannot_be_written_is_named(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "corpus"):
        with pytest.raises(UserError, match=r"file.*: (File exists|Not a directory); give another path"):
            make(raw, output)


def test_lost_input_is_said_at_the_end_and_most_of_it_before_the_work_goes_on(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "few.jsonl"
    lines = [{"content": "今天", "id": 1}, *({"content": "明天"} for _ in range(2)), *({"text": "历史"},) * 3]
    for count, lost in ((1, "most of the input is missing: 3 of 4 inputs (75.0 %)"), (3, "3 of 6 inputs (50.0 %)")):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[: 3 + count]))
        caplog.clear()
        make(raw, tmp_path / str(count), input={"paths": [str(path)]})
        line = f"{lost} could not be read, most often: no field `text`; it has content (`input.text_field` says which)"
        assert caplog.messages[-1] == f"{line}; they are listed in {tmp_path / str(count) / 'problems.jsonl'}"
        assert caplog.messages.count(line) == (count == 1)


def test_no_document_left_is_an_error_that_says_what_was_dropped(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no document is left .*too short: 66"):
        make(raw, tmp_path / "corpus", clean={"minimum_characters": 10_000})
    make(raw, tmp_path / "corpus")  # the corrected settings may use the same folder


def test_chinese_novels(tmp_path: Path) -> None:
    novels = shared("zh_novels")
    settings = {
        "input": {"paths": [str(novels), str(novels / "红楼梦.txt.xz")]},
        "output": str(tmp_path / "corpus"),
        "tokenizer": {"path": str(shared("vocab/bert-base-chinese.vocab.txt"))},
        "workers": 1,
    }
    statistics = build(PreprocessSettings.parse(settings, "test")).statistics
    assert statistics["documents"] == 3
    assert 2_200_000 < statistics["tokens"] < 2_400_000
    assert 0.6 < statistics["han_tokens_in_multi_token_words"] / statistics["han_tokens"] < 0.85


@pytest.mark.parametrize("how", ["altered", "missing"])
def test_lengths_that_are_not_as_they_were_written_are_made_again(
    raw: Path, corpus: Path, tmp_path: Path, how: str
) -> None:
    make(raw, tmp_path / "corpus")
    path = tmp_path / "corpus" / LENGTHS
    splits = [Corpus(corpus, split) for split in ("train", "validation")]
    lengths = [len(split.document(number)[0]) for split in splits for number in range(split.documents)]
    assert np.load(path).tolist() == lengths
    path.write_bytes(path.read_bytes()[:-1] + b"?") if how == "altered" else path.unlink()
    with pytest.raises(UserError, match=r"lengths\.npy: .*; copy it again, or run `reread preprocess` again"):
        Corpus(tmp_path / "corpus").chunk_counts(50)
    make(raw, tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == contents(corpus)
