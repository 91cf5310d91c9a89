"""Key phrases in windows: what each decides, what is predicted, and what is out of reach."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.config import TokenizerSettings, VocabularySettings
from reread.preprocessing.labelled.tasks.phrases import phrases_example
from reread.preprocessing.tokens.base import read_backend
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.preprocessing.tokens.vocabulary import train_vocabulary
from reread.training.data.batch import IGNORED
from reread.training.data.tasks.dataset import Member
from reread.training.data.tasks.phrases import PhrasesDataset, PhrasesSettings
from tests.tasks import LETTERS, number_of, write_tokenizer

FRAMES = ["", "segments", "bare"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def opened(tokenizer: Path, texts: list[tuple[str, list[str] | None]], **more: Any) -> PhrasesDataset:
    values = {"kind": "phrases", "train": "a.jsonl", "tokenizer": str(tokenizer), "sequence_length": 12, **more}
    settings = PhrasesSettings.parse(values, "test")
    examples = [
        phrases_example(str(number), f"a:{number}", text, phrases, settings.split)
        for number, (text, phrases) in enumerate(texts)
    ]
    return PhrasesDataset(settings, 0, examples)


def letters(count: int, seed: int = 0, of: int = 5) -> str:
    """Words of one to three letters without a blank between letters: the first letter is a piece, others are more."""
    generator = np.random.default_rng(seed)
    return " ".join(generator.choice(list(LETTERS[:of]), count))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("step", [None, 3, 8])
def test_each_run_of_words_is_decided_once_where_its_first_word_has_most_context(
    frame: str, step: int | None, tokenizer: Path
) -> None:
    text = letters(31)
    phrases = [text[0:3], text[10:15], text[-1], "e", text[0:9]]
    data = opened(tokenizer, [(text, phrases)], frame=frame, step=step, phrase_words=3)
    document, words = data.documents[0], text.split()
    room = document.room
    found: dict[tuple[int, int], list[int]] = {}
    for number in range(document.windows):
        (rows,) = [data.rows([Member(0, 0, number)], True)]
        begin = number * document.step
        content = 1 if frame == "" else 0
        end = min(begin + room, 31)
        starts = rows["word_starts"][0].tolist()
        assert starts == [int(content <= at < content + end - begin) for at in range(len(starts))]
        assert [rows["input_ids"][0, content + at - begin] for at in range(begin, end)] == [
            number_of(words[at]) for at in range(begin, end)
        ]
        assert rows["labels"].shape == (1, len(starts), 3)
        for at in range(len(starts)):
            for count in (1, 2, 3):
                label = int(rows["labels"][0, at, count - 1])
                word = begin + at - content
                if label != IGNORED:
                    assert begin <= word and word + count <= end
                    found.setdefault((word, count), []).append(label)
    keys = [tuple(phrase.split()) for phrase in phrases]
    for word in range(31):
        contexts = []
        for number in range(document.windows):
            begin = number * document.step
            end = min(begin + room, 31)
            inside = begin <= word < end
            contexts.append((min(word - begin, end - 1 - word) + 0.01 * (end - begin)) if inside else -1)
        owner = contexts.index(max(contexts))
        for count in (1, 2, 3):
            fits = word + count <= min(owner * document.step + room, 31)
            right = int(tuple(words[word : word + count]) in keys)
            assert found.get((word, count), []) == ([right] if fits else [])


@pytest.mark.parametrize("frame", FRAMES)
def test_the_best_phrases_are_those_of_all_windows_found_one_by_one(frame: str, tokenizer: Path) -> None:
    """Each with its highest probability, and the characters of its first occurrence, whatever its case."""
    text = letters(40, 1).replace("a b", "A b", 1).replace("a", "A", 2)
    data = opened(tokenizer, [(text, None)], frame=frame, phrase_words=2, phrases=4)
    document, words = data.documents[0], text.lower().split()
    generator = np.random.default_rng(2)
    outputs, best = {}, dict[str, float]()
    for number in range(document.windows):
        rows = data.rows([Member(0, 0, number)], True)  # whose labels say what the window decides
        values = generator.normal(size=(rows["input_ids"].shape[1], 2))
        outputs[0, number] = values
        content = 1 if frame == "" else 0
        for at, n in zip(*np.nonzero(rows["labels"][0] != IGNORED), strict=True):
            word = number * document.step + int(at) - content
            phrase = " ".join(words[word : word + int(n) + 1])
            best[phrase] = max(best.get(phrase, -99.0), float(values[at, n]))
    expected = sorted(best, key=lambda phrase: -best[phrase])
    prediction = data.decode(0, outputs)
    assert [" ".join(one) for one in data.scored(0, prediction)] == expected[:5]  # as many as are scored
    written = data.written(0, prediction)["phrases"]
    assert [one["text"].lower() for one in written] == expected[:4]
    for one, phrase in zip(written, expected, strict=False):
        assert one["start"] == f" {text.lower()} ".index(f" {phrase} ")
        assert text[one["start"] : one["end"]] == one["text"]
        assert one["probability"] == pytest.approx(1 / (1 + np.exp(-best[phrase])), rel=1e-12)


def test_what_is_out_of_reach_is_counted_with_its_reason(tokenizer: Path) -> None:
    text = letters(30, 3, of=26)
    words = text.split()
    pair = " ".join
    gold = [pair(words[0:2]), pair(words[0:4]), "x x x", pair(words[19:21]), pair(words[25:27])]
    data = opened(tokenizer, [(text, gold)], frame="bare", phrase_words=3, longest=20, step=12)
    line = data.remarks()[-1]
    assert line.startswith("4 of 5 key phrases are out of reach (2 past task.longest=20, ")
    assert "1 longer than task.phrase_words=3" in line and "1 that the text does not hold" in line
    assert line.endswith("f1@3 25.00, f1@1 33.33, f1@5 20.00")
    across = opened(tokenizer, [(text, [pair(words[11:13])])], frame="bare", step=12)
    assert "1 in no window of task.sequence_length=12" in across.remarks()[-1]
    for number in range(across.documents[0].windows):
        assert not (across.rows([Member(0, 0, number)], True)["labels"] == 1).any()
    assert opened(tokenizer, [(text, None)]).remarks() == []


def test_marks_and_mistakes_are_for_people(tokenizer: Path) -> None:
    data = opened(tokenizer, [("a b c d a b", ["b c", "a B", "zz"]), ("e f", ["f"])], misplaced=1)
    shown = [(title, data.marks(rows)) for title, rows in data.preview()]
    assert [[tuple(mark) for mark in marks] for _, marks in shown] == [
        [(1, 2, "key phrase"), (5, 6, "key phrase")],  # `b c` overlaps the first
        [(2, 2, "key phrase")],
    ]
    assert "key phrases: b c; a B; zz" in shown[0][0]
    right, wrong = (data.decode(1, {(0, 0): np.full((4, 5), -9.0) + at}) for at in (np.eye(4, 5)[[0, 3, 1, 2]] * 0, 0))
    assert right == wrong  # ties: the first in the text
    logits = np.full((4, 5), -9.0)
    logits[2, 0] = 9
    assert data.mistake(1, data.decode(1, {(0, 0): logits})) is None
    found = data.mistake(1, right)
    assert found is not None and (found.gold, found.predicted, found.weight) == ("f", "e", 1.0)


def test_words_of_a_text_have_the_tokens_of_the_text(tmp_path: Path) -> None:
    """A byte-level vocabulary has others for a word behind a blank."""
    text = "the river ferry, the stone quay the river (ferry) 神经网络"
    vocabulary = train_vocabulary([text] * 3, VocabularySettings(type="bpe", size=300), True, tmp_path)
    load_tokenizer(vocabulary, TokenizerSettings(path=vocabulary)).save(tmp_path / "bpe")
    data = opened(tmp_path / "bpe", [(text, ["river (ferry)"])], sequence_length=64, split="blanks")
    whole = read_backend(tmp_path / "bpe" / "tokenizer.json").encode(text, add_special_tokens=False).ids
    assert data.documents[0].ids.tolist() == whole
    firsts = np.flatnonzero(data.documents[0].offsets[:, 1] == 1)
    assert len(firsts) == len(text.split()) < len(whole)


@pytest.mark.parametrize("frame", FRAMES)
def test_a_text_without_words_has_no_phrases(frame: str, tokenizer: Path) -> None:
    data = opened(tokenizer, [("\u200b", ["x"]), ("a", ["a"])], misplaced=1, frame=frame)
    passes = list(data.passes([0, 1], 8, training=True))
    assert sum(int((rows["labels"] != IGNORED).sum()) for rows in passes) >= 1
    length = passes[0]["input_ids"].shape[1]
    found = data.decode(0, {(0, 0): np.zeros((length, 5))})
    assert len(data.scored(0, found)) == len(data.examples[0].words) <= 1
