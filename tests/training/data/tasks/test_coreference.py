"""Mentions in windows: what is learned of each, what perfect predictions give, and what is out of reach."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.coreference import CoreferenceExample, coreference_example, of_tokens
from reread.training.data.tasks.coreference import CoreferenceDataset, CoreferenceSettings
from tests.conftest import shared
from tests.tasks import LETTERS, number_of, write_tokenizer

FRAMES = ["", "segments", "bare"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def opened(tokenizer: Path, examples: list[CoreferenceExample], **more: Any) -> CoreferenceDataset:
    values = {"kind": "coreference", "train": "a.jsonl", "tokenizer": str(tokenizer), "sequence_length": 12, **more}
    return CoreferenceDataset(CoreferenceSettings.parse(values, "test"), 0, examples)


def letters(count: int, seed: int = 0) -> list[str]:
    return np.random.default_rng(seed).choice(list(LETTERS), count).tolist()  # type: ignore[no-any-return]


def perfect(data: CoreferenceDataset, number: int) -> Any:
    """The prediction of links that are those of the mentions that a model can find, from states that name words."""
    rows = [one for rows in data.passes([number], 8, training=True) for one in [rows]]
    mentions = np.concatenate([one["mentions"].reshape(-1, 3) for one in rows])
    document = data.documents[number]
    words = {word: place for place, word in enumerate(sorted({int(one) for one in document.offsets[:, 0]}))}
    outputs, order = {}, iter(range(10**6))
    for passed in rows:
        for row, window in enumerate(passed["window"].tolist()):
            length = int(passed["attention_mask"][row].sum())
            states = np.full((length, 1), -1.0)
            for position in np.flatnonzero(passed["words"][row]):
                states[position] = next(order)
            outputs[0, window] = states

    def links(states: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        assert states[:, 0].tolist() == list(range(len(words)))  # each word once, in order
        most = max(1, int(len(words) * data.settings.spans_per_word))
        found = [one for one in mentions.tolist() if one[2] >= 0 and one[1] - one[0] < data.settings.span_words]
        kept = sorted(found[:most])
        last: dict[int, int] = {}
        chosen = []
        for place, (_, _, cluster) in enumerate(kept):
            chosen.append(last.get(cluster, -1))
            last[cluster] = place
        return np.array([one[:2] for one in kept], np.int64).reshape(-1, 2), np.array(chosen, np.int64)

    return data.decode(number, outputs, links)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("step", [None, 3])
def test_perfect_links_of_all_windows_give_the_gold_clusters(frame: str, step: int | None, tokenizer: Path) -> None:
    gold = [[(0, 1), (9, 12), (30, 31)], [(3, 8), (4, 5)], [(7, 8)]]
    examples = [
        of_tokens("0", "", [letters(31)], gold),
        of_tokens("1", "", [["a"]], []),
        of_tokens("2", "", [letters(9)], []),
    ]
    data = opened(tokenizer, examples, frame=frame, step=step)
    assert data.documents[0].windows >= 3
    predictions = {number: perfect(data, number) for number in range(3)}
    assert set(data.scores(predictions).values()) == {100.0}
    assert data.written(1, predictions[1]) == {"clusters": []} and data.mistake(0, predictions[0]) is None
    text = examples[0].text
    assert [
        [text[one["start"] : one["end"]] == one["text"] for one in c]
        for c in data.written(0, predictions[0])["clusters"]
    ] == [[True] * 3, [True] * 2]
    # The rows: the first pieces, and the numbers of spans in the last pass of documents that are read together
    passes = list(data.passes([1, 2, 0], 2, training=True))
    assert sum(int(rows["kept"].sum()) for rows in passes) == 12 + 1 + 3
    if frame == "segments":
        assert [int(rows["kept"].sum()) for rows in passes] == [0] * (len(passes) - 1) + [16]
    for rows in passes:
        learned = rows["input_ids"][rows["words"]].tolist()
        assert not set(learned) & {number_of("[CLS]"), number_of("[SEP]"), number_of("[PAD]")}


@pytest.mark.parametrize("frame", FRAMES)
def test_where_only_the_last_window_learns_its_mentions_count_from_its_first_word(frame: str, tokenizer: Path) -> None:
    words = letters(28)
    data = opened(tokenizer, [of_tokens("0", "", [words], [[(0, 1), (25, 27), (27, 28)]])], frame=frame, learns="last")
    document = data.documents[0]
    first = document.window(document.windows - 1).start
    last = [rows for rows in data.passes([0], 8, training=True) if rows["kept"].any()][-1]
    row = int(np.flatnonzero(last["learns"])[-1])
    assert last["input_ids"][row][last["words"][row]].tolist() == [number_of(one) for one in words[first:]]
    assert [one for one in last["mentions"][row].tolist() if one[2] >= 0] == [
        [25 - first, 26 - first, 0],
        [27 - first] * 2 + [0],
    ]
    assert int(last["kept"].sum()) == max(1, int((28 - first) * 0.4))


def test_what_is_out_of_reach_is_counted_with_its_reason(tokenizer: Path) -> None:
    """Clusters of one are left out of learning and of gold, with a line that says why."""
    gold = [[(0, 1), (2, 6), (25, 26)], [(3, 4), (26, 27)], [(7, 8), (9, 10), (11, 12)], [(5, 6)]]
    data = opened(tokenizer, [of_tokens("0", "", [letters(30, 3)], gold)], longest=20, span_words=3, spans_per_word=0.2)
    alone, line = data.remarks()[-2:]
    assert alone.startswith("1 of 4 clusters have one mention and are left out, of learning and of gold in scores: ")
    assert (
        line.startswith("5 of 8 mentions are out of reach (2 past task.longest=20, ") or "2 alone without them" in line
    )
    assert "1 longer than task.span_words=3" in line
    assert "conll-f1" in line and data.gold(data.examples[0]) == data.examples[0].linked
    within = coreference_example("0", "", "abc d abc", [[(0, 2), (6, 9)], [(0, 3), (4, 5)]], "words")
    assert "1 that begin or end within a word, 1 alone without them" in opened(tokenizer, [within]).remarks()[-1]
    few = opened(tokenizer, [of_tokens("0", "", [letters(5)], [[(n, n + 1) for n in range(5)]])])
    assert "3 beyond task.spans_per_word=0.4" in few.remarks()[-1]
    assert opened(tokenizer, [coreference_example("0", "", "a b", None, "words")]).remarks() == []


def test_marks_and_mistakes_are_for_people(tokenizer: Path) -> None:
    data = opened(tokenizer, [of_tokens("0", "", [["a", "b", "c", "a"]], [[(0, 2), (3, 4)], [(1, 2), (2, 3)]])])
    ((title, rows),) = data.preview()
    assert "2 clusters of 4 mentions" in title
    assert [tuple(one) for one in data.marks(rows)] == [(1, 2, "0"), (3, 3, "1"), (4, 4, "0")]  # `b` is in the first
    found = data.mistake(0, (((0, 3), (6, 7)),))
    assert found is not None and (found.gold, found.predicted, found.weight) == ("b = c", "none", 1)


def test_perfect_predictions_for_litbank_lose_what_the_line_says(tokenizer: Path) -> None:
    examples: Any = read_examples(shared("en_litbank_coref/80-documents.conll.xz"), "coreference").examples
    data = opened(tokenizer, examples[:6], sequence_length=512)
    scores = data.scores({number: perfect(data, number) for number in range(6)})
    line = data.remarks()[-1]
    assert line.endswith(", ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    assert min(scores.values()) > 98
