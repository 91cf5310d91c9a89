"""Fine-tuning on real process groups: the split of the work changes only rounding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.training.config import TrainSettings
from tests.conftest import rarer
from tests.distributed.test_training import agree, curve, state_of
from tests.tasks import LETTERS, task_values, write_lines, write_tokenizer

FIGURES = ("loss", "gradient_norm", "accuracy", "validation_accuracy", "validation_macro-f1")


def predict_in_process(values: dict[str, Any], run: Path) -> dict[int, Any]:
    """Train, and return the predictions that this rank has for each held-out example."""
    from reread.training.parallel.rendezvous import close_mesh, init_mesh
    from reread.training.trainer import Trainer

    mesh = init_mesh(values["parallel"]["tensor"])
    trainer: Any = Trainer(TrainSettings.parse(values, "test"), run, mesh)
    trainer.train()
    predictions = trainer.objective.predict(trainer.objective.held_out)
    close_mesh()
    return predictions  # type: ignore[no-any-return]


def finetune_in_process(values: dict[str, Any], run: Path) -> dict[int, list[float]]:
    """As `predict_in_process`, for classes: their probabilities."""
    return {example: one.tolist() for example, one in predict_in_process(values, run).items()}


def finetune_kept(values: dict[str, Any], run: Path, folder: Path) -> tuple[dict[int, list[float]], int]:
    """As `finetune_in_process`, with the examples kept in `folder`, and how many of them this rank has tokenised."""
    from reread.training.data.tasks import kept
    from reread.training.data.tasks.classify import ClassifyDataset
    from reread.training.data.tasks.examples import forget_examples

    kept.LARGE, kept.KEPT = 0, folder
    forget_examples()
    encode, counts = ClassifyDataset.encode, []

    def counted(self: Any, examples: Any) -> Any:
        counts.append(len(examples))
        return encode(self, examples)

    ClassifyDataset.encode = counted  # type: ignore[method-assign]
    try:
        return finetune_in_process(values, run), sum(counts)
    finally:
        ClassifyDataset.encode = encode  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Texts of one to five windows with three classes."""
    folder, generator = tmp_path_factory.mktemp("task"), np.random.default_rng(0)
    files = {}
    for name, count in (("train", 20), ("dev", 5)):
        lines = []
        for _ in range(count):
            words = generator.choice(list(LETTERS), int(generator.integers(1, 50)))
            lines.append({"text": " ".join(words), "label": "pqr"[int(generator.integers(3))]})
        files[name] = str(write_lines(folder / f"{name}.jsonl", lines))
    return {**files, "tokenizer": write_tokenizer(folder), "sequence_length": 12, "labels": ["p", "q", "r"]}


def values_of(model: str, task: dict[str, Any], tensor: int, dropout: float) -> dict[str, Any]:
    more: dict[str, Any] = {"head_dropout": dropout, "retrospective": model == "ernie_doc"}
    more |= {"pooling": "mean"} if model == "nezha" and not dropout else {}
    values = task_values(model, "classify", **task, **more)
    values["model"] |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    values["optimizer"] = {"name": "adam", "learning_rate": 0.003, "eps": 1e-4}  # a small eps makes much of rounding
    values |= {
        "steps": 3,
        "global_batch": 8 if dropout else 4,  # dropout needs the same micro-batches at 1x4
        "micro_batch": 2,
        "log_every": 1,
        "validate_every": 2,
        "parallel": {"tensor": tensor},
    }
    return {**values, "best_by": "accuracy", "checkpoint": {"every_steps": 2, "keep": 2}}


@pytest.mark.parametrize(
    ("model", "dropout", "splits"),
    [
        rarer("nezha", 0.0, [(2, 1), (1, 2), (2, 2)]),
        ("ernie_doc", 0.0, [(2, 1), (1, 2), (2, 2)]),
        ("nezha", 0.1, [(1, 4)]),
        rarer("ernie_doc", 0.1, [(1, 4)]),
    ],
)
def test_losses_scores_and_predictions_are_the_same_at_every_split(
    ranks_in_float64, task, tmp_path, model, dropout, splits
) -> None:
    """Splits (tensor, data) against one process; with dropout over data-parallel ranks, as in pretraining."""
    found = {}
    for tensor, data in ((1, 1), *splits):
        run = tmp_path / f"{tensor}x{data}"
        run.mkdir()
        predictions = ranks_in_float64(tensor * data, finetune_in_process, values_of(model, task, tensor, dropout), run)
        assert all(one == predictions[0] for one in predictions)
        found[tensor, data] = [curve(run, name) for name in FIGURES], predictions[0], state_of(run, 3)
    curves, predictions, state = found[1, 1]
    assert [len(one) for one in curves] == [3, 3, 3, 2, 2]
    assert sorted(predictions) == list(range(5))
    for split in splits:
        curves_there, predictions_there, state_there = found[split]
        for name, one, other in zip(FIGURES, curves_there, curves, strict=True):
            assert one == pytest.approx(other, rel=1e-9), (split, name)
        for example, probabilities in predictions.items():
            assert predictions_there[example] == pytest.approx(probabilities, rel=1e-9), (split, example)
        agree(state_there, state)


def test_two_ranks_and_the_next_start_share_what_one_process_has_tokenised(ranks, task, tmp_path) -> None:
    """Losses, scores and predictions are bit for bit those of ranks that each hold all examples."""
    values, found = values_of("nezha", task, 1, 0.0), {}
    for name in ("in memory", "kept", "mapped"):
        run = tmp_path / name
        run.mkdir()
        if name == "in memory":
            (predictions, _), tokenised = ranks(2, finetune_in_process, values, run), 50
        else:
            (first, one), (second, other) = ranks(2, finetune_kept, values, run, tmp_path / "labelled")
            assert first == second
            predictions, tokenised = first, one + other
        found[name] = [curve(run, figure) for figure in FIGURES], predictions, tokenised
    assert found["kept"] == (*found["in memory"][:2], 25) and found["mapped"] == (*found["in memory"][:2], 0)


@pytest.mark.parametrize(("model", "splits"), [("ran", [(1, 2), (2, 1)]), ("led", [(1, 2)])])
def test_losses_and_generated_texts_are_the_same_at_every_split(model, splits, ranks_in_float64, tmp_path) -> None:
    """RAN and LED over several windows, by beams: splits (tensor, data) against one process."""
    generator, files = np.random.default_rng(0), {}
    for name, count in (("train", 16), ("dev", 5)):
        texts = [generator.choice(list(LETTERS), int(generator.integers(2, 16))).tolist() for _ in range(count)]
        lines = [{"source": " ".join(text), "target": " ".join(text[: 1 + len(text) % 4])} for text in texts]
        files[name] = str(write_lines(tmp_path / f"{name}.jsonl", lines))
    task = {**files, "tokenizer": write_tokenizer(tmp_path), "sequence_length": 20, "target_length": 4, "beams": 3}
    found = {}
    for tensor, data in ((1, 1), *splits):
        run = tmp_path / f"{tensor}x{data}"
        run.mkdir()
        values = task_values(model, "generate", **task)  # type: ignore[arg-type]
        values["model"]["initializer_range" if model == "ran" else "init_std"] = 0.3
        values["optimizer"] |= {"eps": 1e-4}  # a small eps makes much of rounding
        values |= {"steps": 3, "micro_batch": 2, "log_every": 1, "validate_every": 3, "parallel": {"tensor": tensor}}
        texts = ranks_in_float64(tensor * data, predict_in_process, values, run)
        assert all(one == texts[0] for one in texts)
        found[tensor, data] = [curve(run, name) for name in ("loss", "gradient_norm", "validation_rouge-l")], texts[0]
    curves, texts = found.pop((1, 1))
    assert [len(one) for one in curves] == [3, 3, 1] and len(texts) == 5 and len(set(texts.values())) > 2
    for split, (curves_there, texts_there) in found.items():
        assert texts_there == texts, split
        for one, other in zip(curves_there, curves, strict=True):
            assert one == pytest.approx(other, rel=1e-9), split


@pytest.mark.parametrize(
    ("model", "dropout", "splits"),
    [
        ("nezha", 0.1, [(1, 4)]),
        rarer("nezha", 0.1, [(1, 2)]),
        rarer("ernie_doc", 0.0, [(1, 2), (2, 1), (2, 2), (1, 4)]),
        rarer("nezha", 0.0, [(2, 1), (2, 2)]),
        rarer("ran", 0.0, [(1, 2), (2, 1)]),
        rarer("longformer", 0.0, [(1, 2), (2, 1)]),
        rarer("modernbert", 0.0, [(1, 2)]),
    ],
)
def test_negatives_are_those_of_the_global_batch_at_every_split(
    ranks_in_float64, tmp_path, model, dropout, splits
) -> None:
    """Vectors, losses and weights at splits (tensor, data) are those of one process."""
    generator, files = np.random.default_rng(0), {}
    for name, count in (("train", 16), ("dev", 6)):
        drawn = [generator.choice(list(LETTERS), int(generator.integers(2, 30))).tolist() for _ in range(count)]
        lines = [
            {"text": " ".join(one), "positive": " ".join(one[::-1]), "negative": " ".join(one[:2])} for one in drawn
        ]
        files[name] = str(write_lines(tmp_path / f"{name}.jsonl", lines))
    task = {
        **files,
        "tokenizer": write_tokenizer(tmp_path),
        "sequence_length": 12,
        "retrospective": model == "ernie_doc",
    }
    found = {}
    for tensor, data in ((1, 1), *splits):
        run = tmp_path / f"{tensor}x{data}"
        run.mkdir()
        values = task_values(model, "embed", **task)  # type: ignore[arg-type]
        if dropout:
            values["model"] |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        values["optimizer"] |= {"eps": 1e-4}
        values |= {"steps": 3, "micro_batch": 2, "log_every": 1, "validate_every": 3, "parallel": {"tensor": tensor}}
        vectors = ranks_in_float64(tensor * data, predict_in_process, values, run)
        assert all(one.keys() == vectors[0].keys() for one in vectors)
        figures = ("loss", "gradient_norm", "accuracy", "validation_ndcg@10")
        found[tensor, data] = [curve(run, name) for name in figures], vectors[0], state_of(run, 3)
    curves, vectors, state = found.pop((1, 1))
    assert [len(one) for one in curves] == [3, 3, 3, 1] and vectors[0].shape == (3, 32) and len(vectors) == 6
    for split, (curves_there, vectors_there, state_there) in found.items():
        for one, other in zip(curves_there, curves, strict=True):
            assert one == pytest.approx(other, rel=1e-9), split
        for number, one in vectors.items():
            np.testing.assert_allclose(vectors_there[number], one, rtol=0, atol=1e-6)  # they are float32
        agree(state_there, state)
