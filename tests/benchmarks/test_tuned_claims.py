"""Claims judged by fine-tuning: the table is what the results give, and noise is no result."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims import tuned, tuned_experiment, tuned_far, tuned_long, tuned_table
from benchmarks.claims.tuned_experiment import (
    BLOCKS,
    SEEDS,
    Judged,
    Tuned,
    TunedClaim,
    difference,
    write_lines,
    write_task,
)
from benchmarks.harness import between, read_results
from reread.pipeline.recipe.load import recipe_of
from reread.pipeline.recipe.schema import train_section
from reread.preprocessing.labelled.read import Found
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.training.evaluation import evaluate_run

RESULTS = read_results(tuned_table.RESULTS)
CLAIM = TunedClaim("a beats b", "", "task", "a", "b")


def test_the_table_of_tuned_claims_is_what_the_results_give() -> None:
    assert RESULTS
    assert between(
        tuned_table.PAGE.read_text(encoding="utf-8"), tuned_table.BEGIN, tuned_table.END
    ) == tuned_table.page(RESULTS)


@pytest.mark.long
def test_the_tuned_results_are_of_the_settings_that_the_recipes_have() -> None:
    assert tuned.current(RESULTS, SEEDS) == RESULTS


def verdict(differences: list[list[float]]) -> str:
    """Of the differences of each seed and block."""
    better = {seed: [50 + value for value in blocks] for seed, blocks in enumerate(differences)}
    worse = {seed: [50.0] * len(blocks) for seed, blocks in enumerate(differences)}
    found = difference(CLAIM, {("a", "task"): better, ("b", "task"): worse})
    return found.verdict if found else "undecided"


def test_a_difference_within_two_standard_errors_or_of_fewer_than_eight_seeds_is_undecided() -> None:
    apart = [1.0, -1.0] * 5  # of the blocks: a standard error of 1.054 / sqrt(10) = .333
    assert verdict([apart]) == "undecided"
    assert verdict([[0.6 + one for one in apart]] * 8) == "undecided"
    assert verdict([[0.7 + one for one in apart]] * 7) == "undecided"
    assert verdict([[0.7 + one for one in apart]] * 8) == "holds"
    assert verdict([[-0.7 + one for one in apart]] * 8) == "does not hold"
    # of the seeds: .6 * sqrt(8 / 7) / sqrt(8) = .227, and of both sqrt(.333² + .227²) = .403
    seeds = [[0.7 + shift + one for one in apart] for shift in (-0.6, 0.6) * 4]
    assert verdict(seeds) == "undecided"


def test_a_label_that_stands_far_away_stands_in_one_segment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A novel is a range of characters here, so a segment shows which one it is from."""
    monkeypatch.setattr(tuned_far, "TRAIN", dict.fromkeys(tuned_far.TRAIN, 50))
    novels = []
    for number in range(3):
        novels.append(tmp_path / f"{number}.txt")
        known, unknown = (
            "".join(chr(0x5000 + 0x1000 * number + half + place % 500) for place in range(count))
            for half, count in ((0, 4000), (0x800, 1000))
        )
        novels[-1].write_text(known + unknown, encoding="utf-8")
    tuned_far.write(tmp_path / "data" / "far", {"novels": novels}, [0])

    def shown(text: str) -> list[int]:
        """The novel of each segment."""
        parts = [
            text[place : place + tuned_far.SEGMENT].replace(tuned_far.MARK, "") for place in range(0, len(text), 32)
        ]
        novels_of = [{(ord(one) - 0x5000) // 0x1000 for one in part} for part in parts]
        assert all(len(one) == 1 for one in novels_of)
        return [one.pop() for one in novels_of]

    def lines(task: str, file: str) -> list[dict[str, Any]]:
        path = tmp_path / "data" / task / file
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    for line in lines("far-first", "train-0.jsonl"):
        first, *others = shown(line["text"])
        assert first == int(line["label"]) > 0 and others and not any(others)
    for line in lines("far-last", "train-0.jsonl"):
        *others, last = shown("".join(line["tokens"]))
        assert last > 0 and others and not any(others)
        marked = [place for place, token in enumerate(line["tokens"]) if token == tuned_far.MARK]
        assert [place for place, tag in enumerate(line["tags"]) if tag == f"B-{last}"] == marked
        assert len(marked) == tuned_far.MARKS * (len(others) + 1)
    pretrained = {character for line in lines("far", "text.jsonl") for character in line["text"]}
    tests = [line for block in range(BLOCKS) for line in lines("far-first", f"test-0-{block}.jsonl")]
    assert len(tests) == tuned_far.TEST
    assert not pretrained & {character for line in tests for character in line["text"]}


def test_each_article_is_tested_in_one_fold_and_learned_in_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    articles = [ClassifyExample(str(number), "", f"article {number}", label="true") for number in range(53)]
    monkeypatch.setattr(tuned_long, "write_reviews", lambda *_: None)
    monkeypatch.setattr(tuned_long, "read_examples", lambda *_: Found(list(articles), []))
    tuned_long.write(tmp_path / "long", {"articles": [tmp_path]}, [0])

    def texts(*files: str) -> list[str]:
        paths = [tmp_path / "long-hyperpartisan" / file for file in files]
        return [json.loads(line)["text"] for path in paths for line in path.read_text(encoding="utf-8").splitlines()]

    folds = [texts(*(f"test-{fold}-{block}.jsonl" for block in range(BLOCKS))) for fold in range(tuned_long.FOLDS)]
    everything = sorted(one.text for one in articles)
    assert sorted(text for fold in folds for text in fold) == everything
    for number, fold in enumerate(folds):
        assert sorted(fold + texts(f"train-{number}.jsonl")) == everything


RECIPE = """
name: tiny
preprocess:
  input: {paths: [data/tiny/text.jsonl]}
  output: corpora/tiny
  tokenizer: {train: {type: wordpiece, size: 100}}
train:
  model: {type: nezha, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32}
  data: {corpus: corpora/tiny, sequence_length: 16, next_sentence: false}
  steps: 2
  global_batch: 4
  micro_batch: 4
  optimizer: {name: adam, learning_rate: 0.001}
  parallel: {processes: 1}
ablations:
  - name: clipped
    overrides: [model.max_relative_position=4]
"""
TASK = """
name: tiny-task
task: {kind: classify, format: jsonl, sequence_length: 16}
finetune: {epochs: 1}
train:
  global_batch: 4
  micro_batch: 4
  optimizer: {name: adam, learning_rate: 0.001}
  parallel: {processes: 1}
"""


def test_a_key_is_of_the_settings_and_not_of_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_experiment, "RECIPES", tmp_path)
    (tmp_path / "tiny-task.yaml").write_text(TASK, encoding="utf-8")
    experiment, keys = Tuned("tiny", "", (), lambda folder, data, seeds: None, {}, ()), []
    steps, batch = "  steps: 2\n", "  global_batch: 4\n"
    for recipe in (RECIPE, RECIPE.replace(steps + batch, batch + steps), RECIPE.replace(steps, "  steps: 3\n")):
        (tmp_path / "tiny.yaml").write_text(recipe, encoding="utf-8")
        keys.append(experiment.key(experiment.rows[0], Judged("tiny-task")))
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.long
def test_a_row_is_pretrained_once_and_scored_on_each_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are of one size here, so the mean of their scores is the score of all test texts."""
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "tiny-task.yaml").write_text(TASK, encoding="utf-8")
    monkeypatch.setattr(tuned_experiment, "RECIPES", tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = [{"text": f"letter {'xyz'[number % 3]}", "label": "xyz"[number % 3]} for number in range(40)]
    texts = Path("data/tiny-task")
    write_lines(Path("data/tiny/text.jsonl"), [{"text": f"{one['text']}. " * 9} for one in lines])
    write_lines(texts / "all.jsonl", lines)
    write_task(texts, 3, lines[:8], lines)
    judged = Judged("tiny-task")
    experiment = Tuned("tiny", "", (), lambda folder, data, seeds: None, {"task": judged}, ())
    row, *_ = experiment.rows
    scores = experiment.run(row, 3, judged)
    run = Path("runs/tiny-task-clipped-3")
    recipe = recipe_of(run, ["task.dev=data/tiny-task/all.jsonl"])
    assert len(scores) == BLOCKS and len(set(scores)) > 1
    assert math.isclose(sum(scores) / BLOCKS, evaluate_run(run, train_section(recipe))["accuracy"])
    weights = Path("runs/tiny-clipped-3/export/model.safetensors")
    changed = weights.stat().st_mtime_ns
    assert experiment.run(row, 3, judged) == scores
    assert weights.stat().st_mtime_ns == changed
