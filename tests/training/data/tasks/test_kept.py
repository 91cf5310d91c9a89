"""Large labelled files, read and tokenised once: the same rows as from a small file, whoever reads and whenever."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled import file, mapped
from reread.preprocessing.labelled.mapped import MappedExamples
from reread.preprocessing.tokens import long_text
from reread.training.data.kinds import KINDS, open_task
from reread.training.data.tasks import dataset as of_tasks
from reread.training.data.tasks import encoder, kept
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.examples import examples_of, forget_examples
from reread.training.run.files import RUNS
from tests.tasks import write_lines, write_tokenizer

LETTERS = list("abcdefghij")
KEYS: dict[str, dict[str, Any]] = {
    "one": {"kind": "classify", "labels": ["u", "v"]},
    "set": {"kind": "classify", "answer": "set", "labels": ["u", "v"]},
    "number": {"kind": "classify", "answer": "number"},
    "tag": {"kind": "tag", "labels": ["O", "B-p", "I-p"]},
    "answer": {"kind": "answer", "choices": ["YES"]},
    "choose": {"kind": "choose"},
    "rank": {"kind": "rank", "passages": 2, "irrelevant": 0.5},
    "embed": {"kind": "embed"},
}


def line(task: str, number: int, draw: np.random.Generator) -> dict[str, Any]:
    text = [str(one) for one in draw.choice(LETTERS, int(draw.integers(1, 40)))]
    if task == "tag":
        return {"tokens": text, "tags": [["O", "B-p", "I-p"][ord(token) % 3] for token in text]}
    if task == "answer":
        answer = (
            {"start": -1, "text": "YES"}
            if number % 3 == 0
            else {"start": 2 * (len(text) // 2), "text": text[len(text) // 2]}
        )
        return {"text": " ".join(text), "question": "a b ?", "answers": [answer]}
    if task == "choose":
        return {"text": " ".join(text), "question": "?", "options": ["a b", "c"], "label": number % 2}
    if task == "rank":
        grades = [0, number % 4, 0]
        return {"query": " ".join(text[:5]), "passages": [" ".join(text), "b", "c d"], "grades": grades}
    if task == "embed":
        return {"text": " ".join(text), "positives": [" ".join(text[:3])], "negatives": ["b", "c d"][: number % 3]}
    label = {"one": "uv"[number % 2], "set": ["u", "v"][: number % 3], "number": number / 3}[task]
    return {"text": " ".join(text), "second": "x y", "label": label}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes the examples of a task and returns its settings; what is kept is in this folder, forgotten before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(of_tasks, "ENCODED_AT_ONCE", 5)
    forget_examples()
    tokenizer = write_tokenizer(tmp_path / "tokenizer")

    def settings_of(task: str, count: int = 23, **more: Any) -> Any:
        draw = np.random.default_rng(0)
        for name in ("train", "dev"):
            write_lines(tmp_path / f"{name}.jsonl", [line(task, number, draw) for number in range(count)])
        values = {"sequence_length": 16, "tokenizer": tokenizer, "train": "train.jsonl", "dev": "dev.jsonl", **more}
        return KINDS[KEYS[task]["kind"]].settings.parse({**KEYS[task], **values}, "test")

    return settings_of


def everything(settings: Any, split: str) -> Any:
    """All that a run takes from a split."""
    data = open_task(settings, 3, split)
    rows = [
        {name: values.tolist() for name, values in one.items()}
        for step in range(4)
        for _, one in data.step_passes(step, 7, 3, 1, 0)
    ]
    golds = [data.gold(one) for one in data.examples]
    return rows, golds, data.fingerprint, data.facts(), data.coverage(), data.remarks(), dict(data.compared)


def kept_folders() -> list[str]:
    return sorted(one.name.partition("-")[0] for one in kept.KEPT.iterdir() if one.is_dir())


@pytest.mark.parametrize("task", KEYS)
def test_rows_of_a_kept_file_are_those_of_one_in_memory(
    files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    settings = files(task, wrong="skip")
    expected = {split: everything(settings, split) for split in ("train", "validation")}
    examples = [list(examples_of(settings, split)) for split in ("train", "validation", "predict")]
    assert not kept.KEPT.exists()
    monkeypatch.setattr(kept, "LARGE", 0)
    # Most texts are long ones here, which are read, written and tokenised by pieces
    for module, name in ((file, "_PIECE"), (mapped, "LONG"), (encoder, "LONG"), (long_text, "PIECE_CHARACTERS")):
        monkeypatch.setattr(module, name, 9)
    monkeypatch.setattr(encoder, "TOGETHER", 30)
    for _ in range(2):  # made, and mapped
        forget_examples()
        assert {split: everything(settings, split) for split in expected} == expected
        found = [examples_of(settings, split) for split in ("train", "validation", "predict")]
        assert all(isinstance(one, MappedExamples) for one in found)
        assert list(map(list, found)) == examples


def count_tokenised(monkeypatch: pytest.MonkeyPatch, task: str) -> list[int]:
    """The number of examples of each call of `encode`."""
    kind: Any = KINDS[KEYS[task]["kind"]].task(None)  # type: ignore[misc]
    counts: list[int] = []
    encode = kind.encode

    def counted(self: TaskDataset[Any, Any], examples: Any) -> Any:
        counts.append(len(examples))
        return encode(self, examples)

    monkeypatch.setattr(kind, "encode", counted)
    return counts


def test_what_a_file_depends_on_is_in_its_name(files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenised once for all that reads it alike, and again for another file, tokenizer or length."""
    assert kept.KEPT.parent == RUNS
    monkeypatch.setattr(kept, "LARGE", 0)
    settings, tokenised = files("one"), count_tokenised(monkeypatch, "one")

    def opened(changed: Any) -> int:
        """The number of examples that are tokenised when a new process opens the split."""
        forget_examples()
        before = sum(tokenised)
        assert len(open_task(changed, 0, "train").documents) == len(examples_of(changed, "train"))
        return sum(tokenised) - before

    assert opened(settings) == 23 and kept_folders() == ["examples", "tokens"]
    for same in ({"head_dropout": 0.3}, {"dev": None}, {"labels": ["v", "u"]}, {"learns": "last"}, {"pooling": "mean"}):
        assert opened(settings.model_copy(update=same)) == 0, same
    assert kept_folders() == ["examples", "tokens"]
    for other in ({"sequence_length": 12}, {"longest": 5}, {"frame": "bare"}, {"step": 2}, {"other_length": 1}):
        assert opened(settings.model_copy(update=other)) == 23, other
    assert kept_folders() == ["examples", *["tokens"] * 6]
    # The same bytes at another time are the same file
    os.utime("train.jsonl", (1, 1))
    assert opened(settings) == 0
    # Another file under the same name, and then the old one again
    data = Path("train.jsonl").read_bytes()
    Path("train.jsonl").write_bytes(data + b'{"text": "j", "second": "i", "label": "u"}\n')
    assert opened(settings) == 24 and kept_folders() == ["examples", "examples", *["tokens"] * 7]
    Path("train.jsonl").write_bytes(data)
    assert opened(settings) == 0
    # Another vocabulary
    write_tokenizer(settings.tokenizer)
    path = settings.tokenizer / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    assert opened(settings) == 23


def test_what_reading_says_is_said_again_by_who_maps(
    files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reread")
    monkeypatch.setattr(kept, "LARGE", 0)
    settings = files("one", wrong="skip")
    with Path("train.jsonl").open("a") as file:
        file.write('{"text": "", "label": "u"}\n')
    said = []
    for _ in range(2):
        forget_examples()
        caplog.clear()
        examples_of(settings, "train")
        said.append([one.getMessage() for one in caplog.records])
    assert said[0][-1].startswith("runs/.labelled/examples-") and said[1] == said[0][:-1]
    assert said[1][-1].startswith("train.jsonl: 1 mistakes are left out, the first: train.jsonl:24: text is empty")


def test_a_mistake_is_one_line_each_time(files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of a file that is refused."""
    monkeypatch.setattr(kept, "LARGE", 0)
    settings = files("one")
    with Path("train.jsonl").open("a") as file:
        file.write('{"text": "", "label": "u"}\n')
    for _ in range(2):
        forget_examples()
        with pytest.raises(UserError, match=r"^train\.jsonl:24: text is empty"):
            examples_of(settings, "train")
        assert kept_folders() == []


def test_a_file_that_changes_while_it_is_read_is_refused(
    files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LARGE", 0)
    settings, read = files("one"), kept.read_examples

    def read_and_change(path: Path, *how: Any, **more: Any) -> Any:
        found = read(path, *how, **more)
        with path.open("a") as file:
            file.write("\n")
        return found

    monkeypatch.setattr(kept, "read_examples", read_and_change)
    with pytest.raises(UserError, match=r"^train\.jsonl: was changed while it was read; start again$"):
        examples_of(settings, "train")
    assert kept_folders() == []


def test_without_the_right_to_write_examples_are_in_memory(
    files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept, "LARGE", 0)
    monkeypatch.setattr(kept, "KEPT", Path("train.jsonl/kept"))
    settings = files("one")
    assert isinstance(examples_of(settings, "train"), list)
    assert "train.jsonl/kept: cannot be written (Not a directory), so that each process holds all of" in caplog.text


def test_small_files_and_standard_input_are_not_kept(files: Callable[..., Any]) -> None:
    settings = files("one")
    assert isinstance(examples_of(settings, "train"), list) and not kept.KEPT.exists()


def test_the_texts_of_a_folder_are_kept_by_its_files(
    files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LARGE", 0)
    settings = files("one")
    for name in ("u", "v"):
        Path("folder", name).mkdir(parents=True)
        Path("folder", name, "1.txt").write_text("a b")
    settings = settings.model_copy(update={"train": Path("folder")})
    assert [one.text for one in examples_of(settings, "train")] == ["a b", "a b"]
    Path("folder", "u", "2.txt").write_text("c")
    forget_examples()
    assert [one.text for one in examples_of(settings, "train")] == ["a b", "c", "a b"]
    assert kept_folders() == ["examples", "examples"]
