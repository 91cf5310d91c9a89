import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from reread.pipeline.commands.inspect import inspect as inspect_command
from reread.pipeline.display.rows import count, pieces_of, print_rows, render
from reread.pipeline.recipe.load import load_recipe, write_recipe
from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import UserError
from reread.training.data.batch import IGNORED
from reread.training.data.masking.han import han_vocabulary
from reread.training.data.materialize import materialize
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.data.rows.pairs import guessed
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.rows.segments import Segments
from reread.training.data.rows.stream import StreamSettings
from reread.training.data.settings import MaskingSettings
from tests.corpora import SPECIAL, VOCABULARY, make_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Ids up to 899 are Chinese characters, the rest pieces of English words."""
    corpus = make_corpus(tmp_path_factory.mktemp("inspect") / "corpus", [400] * 60)
    names = {f"[{name.upper()}]": number for name, number in SPECIAL.items()}
    names |= {chr(0x4E00 + number) if number < 900 else f"##w{number}": number for number in range(5, VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(names, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    (corpus.folder / "tokenizer").mkdir()
    tokenizer.save(str(corpus.folder / "tokenizer" / "tokenizer.json"))
    corpus.manifest.write(corpus.folder)
    return corpus


def counts_of(corpus: Corpus, strategy: Any) -> Any:
    data = RowSettings(corpus=corpus.folder, masking=MaskingSettings(strategy=strategy))
    samples = Samples(corpus, data, 0)
    return count(samples, list(samples.counted(1000)))


def test_chinese_vocabulary_is_told_from_the_rest(corpus: Corpus) -> None:
    assert np.flatnonzero(han_vocabulary(corpus.folder / "tokenizer")).tolist() == list(range(5, 900))


@pytest.mark.parametrize("strategy", ["whole-word", "span"])
def test_chinese_words_are_masked_whole(corpus: Corpus, strategy: str) -> None:
    counts = counts_of(corpus, strategy)
    assert counts.whole_chinese_words == counts.chinese_words > 1000
    assert counts.whole_words == counts.words >= counts.chinese_words


def test_the_share_of_whole_words_can_be_wrong(corpus: Corpus) -> None:
    counts = counts_of(corpus, "token")
    assert counts.whole_chinese_words < 0.2 * counts.chinese_words


def test_counts_are_those_of_the_recipe(corpus: Corpus) -> None:
    samples = Samples(corpus, RowSettings(corpus=corpus.folder), 0)
    batches = list(samples.counted(1000))
    counts = count(samples, batches)
    assert counts.rows == 1000 and counts.slots == 128_000
    assert abs(counts.predicted / counts.tokens - 0.15) < 0.005
    assert abs(counts.masked / counts.predicted - 0.8) < 0.02
    assert abs(counts.kept / counts.predicted - 0.1) < 0.015
    label = np.concatenate([rows["next_sentence_label"] for rows in batches])
    label = label[label != IGNORED]
    assert len(label) > 0.9 * counts.rows and abs(label.mean() - 0.5) < 0.05


def test_what_lengths_tell_is_shown(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(RowSettings(corpus=corpus.folder), samples=1)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    found = re.search(r"… guessed from lengths alone ([\d.]+) % by \|A\|, ([\d.]+) % by \|B\|, ([\d.]+) % by", shown)
    assert found and all(45 < float(share) < 55 for share in found.groups())


def test_a_label_that_follows_from_the_length_is_guessed() -> None:
    generator = np.random.default_rng(0)
    label = generator.integers(0, 2, 2000)
    assert guessed(10 + label, label) == 1
    noisy = np.where(generator.random(2000) < 0.2, 1 - label, label)
    assert abs(guessed(noisy, label) - 0.8) < 0.03
    assert abs(guessed(generator.integers(0, 100, 2000), label) - 0.5) < 0.04


def test_a_row_shows_the_original_words_and_what_became_of_them(corpus: Corpus) -> None:
    tokenizer = Tokenizer.from_file(str(corpus.folder / "tokenizer" / "tokenizer.json"))
    row = {
        "input_ids": np.array([2, 4, 4, 7, 8, 20, 10, 3, 0]),
        "labels": np.array([-100, 5, 6, -100, 8, 9, -100, -100, -100]),
        "attention_mask": np.array([1, 1, 1, 1, 1, 1, 1, 1, 0]),
        "continues_word": np.array([0, 0, 1, 0, 0, 0, 1, 0, 0], bool),
    }
    one, two, three, four, five, other, six = (chr(0x4E00 + number) for number in (5, 6, 7, 8, 9, 20, 10))
    shown = render(row, tokenizer, SPECIAL["mask"])
    assert shown.plain == f"[CLS]‹{one}{two}›{three}‹{four}=›‹{five}→{other}›{six}[SEP]"
    assert len({str(span.style) for span in shown.spans}) == 3


def test_a_row_of_byte_level_tokens_shows_whole_characters_and_its_own_spaces(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([], trainers.BpeTrainer(special_tokens=["<mask>"], initial_alphabet=alphabet))
    ids = np.array(tokenizer.encode("an 春 天").ids)
    labels = np.where(np.isin(np.arange(len(ids)), [7, 8, 9, 10]), ids, -100)  # the second space and character
    row = {
        "input_ids": np.where(labels == -100, ids, 0),
        "labels": labels,
        "attention_mask": np.ones(len(ids), int),
        "continues_word": labels != -100,
    }
    assert render(row, tokenizer, 0).plain.replace("‹", "").replace("›", "") == "an 春 天"


def test_inspect_ends_with_an_error_where_whole_words_are_not_known(tmp_path: Path, corpus: Corpus) -> None:
    single = make_corpus(tmp_path / "single", [400] * 60, words=False)
    shutil.copytree(corpus.folder / "tokenizer", single.folder / "tokenizer")
    single.manifest.write(single.folder)
    with pytest.raises(UserError, match="single characters would be masked"):
        print_rows(RowSettings(corpus=single.folder), samples=1)
    print_rows(RowSettings(corpus=single.folder, masking=MaskingSettings(strategy="token")), samples=1)


def test_inspecting_a_corpus_and_its_materialised_form_shows_the_same(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = RowSettings(corpus=corpus.folder, copies=1)
    materialize(corpus.folder, tmp_path / "out", data, 5, 1)
    capsys.readouterr()
    print_rows(data, samples=2, seed=5, verify=True)
    drawn = capsys.readouterr().out
    assert "row 1" in drawn and "100.00 %" in drawn and "‹" in drawn
    print_rows(RowSettings(corpus=tmp_path / "out"), samples=2, verify=True)
    assert capsys.readouterr().out == drawn


def test_keys_are_the_same_with_and_without_a_recipe(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["sequence_length=64", "masking.strategy=span", "next_sentence=false"]
    shown = []
    for recipe in (None, "nezha-base"):
        inspect_command(corpus.folder, keys, recipe, 0, False)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "masking span" in shown[0]


def test_verify_finds_a_changed_bit(tmp_path: Path) -> None:
    damaged = make_corpus(tmp_path / "damaged", [400] * 60)
    path = damaged.folder / "train-00001.tar"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1  # in the ids of the first block
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"train-00001\.tar: altered"):
        print_rows(RowSettings(corpus=damaged.folder), verify=True)


def segment_settings(corpus: Corpus, **changes: Any) -> SegmentSettings:
    return SegmentSettings(kind="segments", corpus=corpus.folder, **{"sequence_length": 64, **changes})


def test_segments_are_shown_as_a_lane_reads_them(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(segment_settings(corpus), samples=12)
    shown = " ".join(capsys.readouterr().out.split())
    title = (
        r"document (\d+), copy 0, chunks in the order ([\d ]+) \(label (\d+)\): (skim|learn), segment (\d+) of (\d+)"
    )
    titles = re.findall(title, shown)
    source = Segments(corpus, segment_settings(corpus), 0)
    expected = []
    for document in dict.fromkeys(int(found[0]) for found in titles):
        (reading,) = source.read(np.array([0]), np.array([document]))
        order = " ".join(str(sorted(reading.chunks).index(chunk)) for chunk in reading.chunks)
        same = (str(document), order, str(reading.label))
        segments = [("skim", reading.segments), *(("learn", number + 1) for number in range(reading.segments))]
        expected += [(*same, name, str(number), str(reading.segments)) for name, number in segments]
    assert titles == expected[:12] and len(set(titles)) == 12
    skim, learn = shown.split(": learn, segment 1 of")[0], shown.split(": learn, segment 1 of")[1]
    assert "[MASK]" in skim and "‹" not in skim.split("segment")[1] and "‹" in learn
    assert "segments a document" in shown and "rows of a step that learn, in 128 lanes" in shown


def test_an_override_or_a_recipe_says_segments(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect_command(corpus.folder, ["kind=segments", "sequence_length=64", "reorder_chunks=2"], None, 1, False)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "{name: documents, train: {model: {type: ernie_doc}, steps: 1, global_batch: 1, micro_batch: 1, "
        "optimizer: {learning_rate: 0.1}, data: {kind: segments, corpus: x, sequence_length: 64}}}"
    )
    drawn = capsys.readouterr().out
    inspect_command(corpus.folder, ["reorder_chunks=2"], str(recipe), 1, False)
    assert capsys.readouterr().out == drawn and "skim, segment 7 of 7" in " ".join(drawn.split())


def test_packed_rows_show_a_document_a_line(tmp_path: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    small = make_corpus(tmp_path / "small", [10, 10, 10, 20] * 10)
    shutil.copytree(corpus.folder / "tokenizer", small.folder / "tokenizer")
    small.manifest.write(small.folder)
    inspect_command(small.folder, ["kind=packed", "sequence_length=56", "copies=1"], None, 1, False)
    shown = capsys.readouterr().out
    row = shown.split("row 0\n")[1].split("\n\n")[0].splitlines()
    assert len(row) == 5 and row[0].startswith("[CLS]") and all(line.endswith("[SEP]") for line in row)
    assert row[4] == "[SEP]"  # the row's own, after the last document's
    assert re.search(r"documents a row\s+│ 4\.0, 4 at most", shown)
    assert "100.00 % of" in shown and re.search(r"slots filled with tokens\s+│ 100\.00 %", shown)
    assert re.search(r"samples an epoch, copies\s+│ 10 x 1", shown)


def test_rows_of_text_alone_are_shown_so(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    inspect_command(corpus.folder, ["special_tokens=false", "next_sentence=false"], None, 2, False)
    shown = capsys.readouterr().out
    assert "row 1" in shown and "[CLS]" not in shown and "[SEP]" not in shown and "‹" in shown


def test_a_stream_shows_unbroken_text_without_masks(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(StreamSettings(kind="stream", corpus=corpus.folder, sequence_length=20), samples=2)
    shown = capsys.readouterr().out
    tokenizer = Tokenizer.from_file(str(corpus.folder / "tokenizer" / "tokenizer.json"))
    first, second = ("".join(pieces_of(tokenizer, corpus.text(0, begin, begin + 20)[0].tolist())) for begin in (0, 20))
    joined = shown.replace("\n", "")
    assert f"tokens from 0 on{first}tokens from 20 on{second}" in joined
    assert "‹" not in shown and f"{corpus.tokens:,}" in shown


def test_words_of_a_vocabulary_of_words_have_spaces_between_them() -> None:
    words = Tokenizer(models.WordLevel({"the": 0, "ferry": 1, ",": 2}, unk_token="the"))
    assert "".join(pieces_of(words, [0, 1, 2])) == " the ferry ,"


@pytest.mark.parametrize(("strategy", "whole"), [("whole-word", True), ("token", False)])
def test_words_of_segments_are_counted(corpus: Corpus, strategy: Any, whole: bool) -> None:
    source = Segments(corpus, segment_settings(corpus, masking=MaskingSettings(strategy=strategy)), 0)
    rows = list(source.counted(300))
    counts = count(source, rows)
    assert counts.rows == 300 and counts.slots == 300 * 64 and counts.chinese_words > 200
    assert (counts.whole_chinese_words == counts.chinese_words) == whole
    documents = next(value for name, value in source.statistics(rows) if name.startswith("segments a document"))
    assert documents.endswith("at most")
    assert abs(counts.predicted / counts.tokens - 0.15) < 0.01


@pytest.mark.parametrize("kind", ["rows", "packed", "segments"])
def test_every_kind_of_data_can_be_asked_for(kind: str, corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    inspect_command(corpus.folder, [f"kind={kind}", "sequence_length=64"], None, 1, False)
    assert "masked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["kind=row"], "inspect: kind: did you mean `rows`? (got row)"),
        (["kind=[1]"], "inspect: kind: is one of: rows, packed, segments, stream (got [1])"),
        (["kind=tag"], "kind: tag is for labelled examples; instead of a corpus give a model to fine-tune"),
        (["kind=packed", "next_sentence=true"], "unknown key `next_sentence`"),
    ],
)
def test_a_kind_that_is_none_names_all(overrides: list[str], message: str, corpus: Corpus) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        inspect_command(corpus.folder, overrides, None, 1, False)


def test_a_run_is_shown_as_it_reads_its_corpora(
    tmp_path: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [{"path": str(corpus.folder), "name": name, "weight": weight} for name, weight in (("a", 3), ("b", 1))]
    recipe = load_recipe("nezha-small", ["name=run", "data.corpus=null", f"data.corpora={json.dumps(parts)}"], "train")
    write_recipe(recipe, tmp_path / "recipe.yaml")
    inspect_command(str(tmp_path), ["sequence_length=32"], None, 1, False)
    shown = capsys.readouterr().out
    assert "75.00 % of rows" in shown and "25.00 % of rows" in shown


@pytest.mark.parametrize(
    ("file", "recipe", "line"),
    [
        (
            "recipe.yaml",
            "quickstart",
            "is a run and is shown by its own recipe; leave out --recipe quickstart, or give",
        ),
        ("config.json", "quickstart", "is a model, not a corpus; give a corpus or a run, or, .*--recipe RECIPE task"),
        ("config.json", None, "is a model, not a corpus; give a corpus or a run, or, .*--recipe RECIPE task.train="),
    ],
)
def test_a_folder_that_is_no_corpus_is_named(tmp_path: Path, file: str, recipe: str | None, line: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(UserError, match=f"^{tmp_path}: {line}"):
        inspect_command(str(tmp_path), [], recipe, 1, False)
