"""What a model learns from texts made for one mechanism, and does not learn when the mechanism is off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from reread.training.trainer import Trainer
from tests.tasks import task_values, write_lines, write_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOM = 8
"""Words of text in a window."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


Make = Callable[[np.random.Generator], dict[str, Any]]
"""A line of examples."""


class Probe:
    """A tiny model trained on lines of `make`, and its scores on others that it has not seen."""

    def __init__(
        self, folder: Path, tokenizer: Path, model: str, kind: str, make: Make, steps: int, **more: Any
    ) -> None:
        generator = np.random.default_rng(0)
        task = {
            name: str(write_lines(folder / f"{name}.jsonl", [make(generator) for _ in range(count)]))
            for name, count in (("train", 1500), ("dev", 200))
        }
        values = task_values(model, kind, tokenizer, **task, **more.pop("task", {}))
        values["model"] |= {"num_hidden_layers": 1, **more.pop("sizes", {})}
        values |= {"steps": steps, "global_batch": 32, "micro_batch": 32, "validate_every": 10000, "log_every": 1000}
        values["optimizer"] = {"name": "adam", "learning_rate": 0.005}
        values["schedule"] = {"warmup_steps": 20}
        self.values = {**values, **more}
        trainer = Trainer(TrainSettings.parse(self.values, "test"), folder, Mesh())
        trainer.train()
        self.objective: Any = trainer.objective

    def scores(self, **task: Any) -> dict[str, float]:
        """The scores of the trained model, its text read with these keys of the task."""
        if task:
            settings = TrainSettings.parse({**self.values, "data": {**self.values["data"], **task}}, "test")
            held_out = type(self.objective.held_out).open(settings.data, 0, "validation")
            self.objective = type(self.objective)(self.objective.model, settings, Mesh(), held_out, held_out)
        return self.objective.held_out_summary(None)


def filler(generator: np.random.Generator, count: int) -> list[str]:
    return [str(word) for word in generator.choice(list("abcdefgh"), count)]


def labelled(generator: np.random.Generator, *, window: int, windows: int) -> dict[str, Any]:
    """A text of `windows` windows, of which one holds the word of its label."""
    words, label = filler(generator, windows * ROOM), "xy"[generator.integers(2)]
    words[window * ROOM + int(generator.integers(ROOM))] = label
    return {"text": " ".join(words), "label": label}


@pytest.mark.parametrize("memory", [ROOM + 2, 0])
def test_memory_carries_a_label_from_the_first_window_to_the_last(tokenizer: Path, tmp_path: Path, memory: int) -> None:
    task = {"sequence_length": ROOM + 2, "labels": ["x", "y"], "learns": "last", "predict": "last"}
    make = lambda generator: labelled(generator, window=0, windows=2)  # noqa: E731
    probe = Probe(tmp_path, tokenizer, "ernie_doc", "classify", make, 100, task=task, sizes={"memory_length": memory})
    accuracy = probe.scores()["accuracy"]
    assert accuracy > 95 if memory else accuracy < 65


def test_a_label_in_the_last_window_is_found(tokenizer: Path, tmp_path: Path) -> None:
    """Of three windows; with the text cut after the first it is not."""
    task = {"sequence_length": ROOM + 2, "labels": ["x", "y"]}
    make = lambda generator: labelled(generator, window=2, windows=3)  # noqa: E731
    probe = Probe(tmp_path, tokenizer, "nezha", "classify", make, 60, task=task)
    assert probe.scores()["accuracy"] > 95
    assert probe.scores(longest=ROOM)["accuracy"] < 65


def test_an_answer_across_the_edge_of_two_windows_is_found(tokenizer: Path, tmp_path: Path) -> None:
    """Windows overlap by half; if they do not, no window holds the whole answer."""

    def make(generator: np.random.Generator) -> dict[str, Any]:
        words = filler(generator, 3 * ROOM)
        edge = ROOM * int(generator.integers(1, 3))
        words[edge - 2 : edge + 1] = ["x", *filler(generator, 1), "y"]
        return {
            "text": " ".join(words),
            "question": "q",
            "answers": [{"start": 2 * edge - 4, "text": " ".join(words[edge - 2 : edge + 1])}],
        }

    task = {"sequence_length": ROOM + 4, "without": "skip"}
    probe = Probe(tmp_path, tokenizer, "nezha", "answer", make, 60, task=task)
    assert probe.scores()["em"] > 95
    assert probe.scores(step=ROOM)["em"] < 5


@pytest.mark.parametrize("occurrences", ["all", "first"])
def test_an_answer_that_stands_twice_is_right_in_both_places(tokenizer: Path, tmp_path: Path, occurrences: str) -> None:
    """Its two places are named in either order: learning the one named first costs log 2, learning both nothing."""

    def make(generator: np.random.Generator) -> dict[str, Any]:
        words = filler(generator, 3 * ROOM)
        for place in (places := generator.choice(3 * ROOM, 2, replace=False)):
            words[place] = "x"
        return {
            "text": " ".join(words),
            "question": "q",
            "answers": [{"start": 2 * int(place), "text": "x"} for place in places],
        }

    task = {"sequence_length": 3 * ROOM + 4, "occurrences": occurrences, "without": "skip", "answer_length": 1}
    probe = Probe(tmp_path, tokenizer, "nezha", "answer", make, 60, task=task, log_every=30)
    assert probe.scores()["em"] > 95
    loss = next(line["loss"] for line in reversed(read_metrics(tmp_path)) if "loss" in line)
    assert loss < 0.2 if occurrences == "all" else loss > 0.6


def test_an_entity_at_the_end_of_a_window_has_its_context(tokenizer: Path, tmp_path: Path) -> None:
    """`x` begins an entity if y follows; where windows do not overlap, the last word of each is guessed."""

    def make(generator: np.random.Generator) -> dict[str, Any]:
        words = filler(generator, 3 * ROOM)
        tags = ["O"] * len(words)
        for edge in (ROOM, 2 * ROOM):
            if generator.integers(2):
                words[edge - 1 : edge + 1], tags[edge - 1 : edge + 1] = ["x", "y"], ["B-X", "I-X"]
            else:
                words[edge - 1] = "x"
        return {"tokens": words, "tags": tags}

    task = {"sequence_length": ROOM + 2, "labels": ["B-X", "I-X", "O"]}
    probe = Probe(tmp_path, tokenizer, "nezha", "tag", make, 80, task=task)
    assert probe.scores()["entity-f1"] > 95
    assert probe.scores(step=ROOM)["entity-f1"] < 80
