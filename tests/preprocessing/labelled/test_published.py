"""The readers on published data: the counts were taken from the files by other code."""

from collections import Counter
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import Found, read_examples
from reread.preprocessing.labelled.splits import check_labels, duplicates, labels_of
from tests.conftest import shared
from tests.training.scoring.real_data import questions


def read(path: str, task: Any, **settings: Any) -> Found:
    return read_examples(shared(path), task, **settings)


def examples(path: str, task: Any) -> list[Any]:
    found = read(path, task)
    assert not found.skipped
    return found.examples


def test_chnsenticorp_keeps_the_rows_with_quotation_marks() -> None:
    train, dev = (examples(f"zh_chnsenticorp/{name}.tsv.xz", "classify") for name in ("train", "dev"))
    assert Counter(example.label for example in train) == {"0": 4801, "1": 4799}
    assert Counter(example.label for example in dev) == {"0": 607, "1": 593}
    assert [sum('"' in example.text for example in split) for split in (train, dev)] == [55, 8]
    assert len(train) - len({example.text for example in train}) == 1351
    assert duplicates(train, dev) == 338


def test_iflytek_keeps_its_line_separators_within_texts() -> None:
    train, dev = (examples(f"zh_iflytek_fewclue/{name}_few_all.json.xz", "classify") for name in ("train", "dev"))
    assert (len(train), len(dev), duplicates(train, dev)) == (3024, 1373, 0)
    assert labels_of(train) == [str(number) for number in range(119)] and len(labels_of(dev)) == 117
    check_labels(labels_of(train), dev)
    assert sum(example.text.count("\u2028") for example in [*train, *dev]) == 40


def test_cmrc2018_has_two_hundred_answers_elsewhere_which_are_scored() -> None:
    path = "zh_cmrc2018/cmrc2018_dev.json.xz"
    refused = r"cmrc2018_dev.json.xz: 176 of 3,219 questions \(5.47%\).*`task.wrong=skip`; the first: .*DEV_6_QUERY_2: "
    for allowed in (0.0, 0.05):
        with pytest.raises(UserError, match=refused):
            read(path, "answer", misplaced=allowed)
    found = read(path, "answer", misplaced=0.06)
    kept: list[Any] = list(found.examples)
    assert (len(kept), len(found.skipped), len(found.misplaced)) == (3219, 0, 176)
    assert len({example.text for example in kept}) == 848
    assert all(example.text[start:][: len(text)] == text for example in kept for start, text in example.learnable)
    assert sum(len(example.learnable) for example in kept) == 3 * 3219 - 200
    assert sum(not example.learnable for example in kept) == 3
    assert [[answer.text for answer in example.answers] for example in kept] == [one.answers for one in questions(path)]


def test_drcd_is_sound() -> None:
    dev, test = (examples(f"zh_drcd/DRCD_{name}.json.xz", "answer") for name in ("dev", "test"))
    assert (len(dev), len(test), duplicates(dev, test)) == (3524, 3493, 0)
    assert len({example.text for example in dev}) == 1000


@pytest.mark.parametrize(
    ("name", "documents", "sizes"),
    # Published with 415 and 988 questions of 3 options; 2 and 3 of those with 4 have one option twice.
    [("m", 3138, {2: 553, 3: 415 + 2, 4: 5045 - 2}), ("d", 4885, {3: 988 + 3, 4: 4868 - 3})],
)
def test_c3_has_each_option_once(name: str, documents: int, sizes: dict[int, int]) -> None:
    found = examples(f"zh_c3/c3-{name}-train.json.xz", "choose")
    assert Counter(len(example.options) for example in found) == sizes
    assert len({example.group for example in found}) == documents
    assert all(len(set(example.options)) == len(example.options) for example in found)


@pytest.mark.long
@pytest.mark.slow
def test_peoples_daily_has_all_sentences() -> None:
    found = examples("zh_peopledaily_ner/train.txt.xz", "tag")
    tags = Counter(tag for example in found for tag in example.tags)
    assert (len(found), sum(tags.values()), max(len(example.tokens) for example in found)) == (50_658, 2_169_879, 100)
    assert (tags["B-LOC"], tags["B-ORG"], tags["B-PER"]) == (36_517, 20_571, 17_615)
    assert {example.joiner for example in found} == {""}


@pytest.mark.slow
def test_imdb_is_read_from_its_archive() -> None:
    found = examples("en_imdb/train-5000.tar.xz", "classify")
    assert Counter(example.label for example in found) == {"neg": 2500, "pos": 2500}
    ids = {tuple(example.id.removesuffix(".txt").replace("/", "_").split("_")[:2]) for example in found}
    assert ids == {(label, str(number)) for label in ("neg", "pos") for number in range(2500)}
    assert sum("<br />" in example.text for example in found) == 2890


def test_hyperpartisan_has_the_words_of_its_articles() -> None:
    found = examples("en_hyperpartisan/articles-training-byarticle-20181122.xml.xz", "classify")
    assert Counter(example.label for example in found) == {"false": 407, "true": 238}
    words = sorted(len(example.text.split()) for example in found)
    assert (words[len(words) // 2], words[-1]) == (413, 5537)
    assert [int(example.id) for example in found] == list(range(645))


def test_cmrc2019_has_an_example_for_each_blank() -> None:
    found = examples("zh_cmrc2019/cmrc2019_dev.json.xz", "choose")
    groups = Counter(example.group for example in found)
    assert (len(found), len(groups), min(groups.values()), max(groups.values())) == (3053, 300, 5, 14)
    assert all(example.text.count(example.question) == 1 for example in found)
    assert len({(example.group, example.label) for example in found}) == len(found)  # each choice is used once


def test_cail_is_unlabelled_here() -> None:
    found = examples("zh_cail2019_scm/input.jsonl.xz", "choose")
    assert len(found) == 500 and len({text for example in found for text in (example.text, *example.options)}) == 227
    assert {example.label for example in found} == {None}
