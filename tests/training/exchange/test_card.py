"""The front matter of a model card: what the Hub reads of it, and nothing that nobody said or measured."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from reread.training.data.kinds import KINDS
from reread.training.exchange.card import TAG, Measured, front_matter, is_export, model_card, score_entries
from reread.training.exchange.run_export import _measured
from reread.training.models import model_spec
from reread.training.objectives import OBJECTIVES

SCORES = {"accuracy": 91.23456, "macro-f1": 90.0, "auc": 97.5}


def card_of(**known: Any) -> str:
    lengths = {"sequence_length": 512}
    return model_card(model_spec("nezha"), OBJECTIVES["classify"], "Fine-tuned.", {}, lengths=lengths, known=known)


def header(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---\n")[1]))


def test_what_nobody_said_is_not_in_the_front_matter() -> None:
    assert set(header(card_of())) == {"library_name", "pipeline_tag", "tags"}
    assert set(header(card_of(license="", language=[], datasets=[], base_model=""))) == set(header(card_of()))
    assert score_entries("run", "fill-mask", []) == {} == score_entries("run", "fill-mask", [Measured("f", "test", {})])


def test_the_hub_reads_all_of_the_front_matter() -> None:
    measured = [Measured("dev.tsv", "validation", SCORES), Measured("test.tsv", "test", {"accuracy": 89.0})]
    known = {"license": "mit", "language": ["zh"], "datasets": ["o/d"], "base_model": "o/m"}
    card = ModelCard(card_of(**known, **score_entries("mine", "text-classification", measured, ["o/d"])))
    data = card.data
    assert (data.license, data.language, data.datasets, data.base_model) == ("mit", ["zh"], ["o/d"], "o/m")
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("transformers", "text-classification", "mine")
    assert data.metrics == ["accuracy", "f1", "roc_auc"]  # type: ignore[attr-defined]
    name, results = model_index_to_eval_results(data.to_dict()["model-index"])
    assert name == "mine"
    assert [(one.dataset_name, one.dataset_type, one.dataset_split, one.metric_name) for one in results] == [
        ("dev.tsv", "o/d", "validation", "accuracy"),
        ("dev.tsv", "o/d", "validation", "macro-f1"),
        ("dev.tsv", "o/d", "validation", "auc"),
        ("test.tsv", "o/d", "test", "accuracy"),
    ]
    assert [one.metric_value for one in results] == [91.2346, 90.0, 97.5, 89.0]


def test_only_scores_of_this_checkpoint_read_as_in_training_are_told(tmp_path: Path) -> None:
    task = {"kind": "classify", "train": "t.tsv", "dev": "d/dev.tsv", "test": "d/test.tsv"}
    settings = KINDS["classify"].settings.parse(task, "test")
    entries = [
        (4, [], "d/dev.tsv", {"accuracy": 1.0}),
        (8, [], "d/dev.tsv", {"accuracy": 2.0, "loss": 0.5, "rows": 7.0}),
        (8, ["task.dev=d/test.tsv"], "d/test.tsv", {"accuracy": 3.0}),
        (8, ["task.predict=last"], "d/dev.tsv", {"accuracy": 4.0}),
    ]
    lines = [
        {"step": step, "overrides": overrides, "held_out": held_out, "time": 0, "figures": figures}
        for step, overrides, held_out, figures in entries
    ]
    (tmp_path / "evaluation.json").write_text(json.dumps(lines))
    kept: Any = SimpleNamespace(settings=SimpleNamespace(data=settings))
    assert list(_measured(tmp_path, kept, 8)) == [
        Measured("dev.tsv", "validation", {"accuracy": 2.0}),
        Measured("test.tsv", "test", {"accuracy": 3.0}),
    ]
    corpus = KINDS["rows"].settings.parse({"corpus": "corpora/zh"}, "test")
    lines = [{**lines[0], "held_out": "corpora/zh", "figures": {"masked_lm_loss": 2.0, "loss": 2.0, "documents": 5.0}}]
    (tmp_path / "evaluation.json").write_text(json.dumps(lines))
    kept.settings.data = corpus
    assert list(_measured(tmp_path, kept, 4)) == [Measured("zh", "validation", {"masked_lm_loss": 2.0})]
    (tmp_path / "evaluation.json").unlink()
    assert list(_measured(tmp_path, kept, 4)) == []


@pytest.mark.parametrize(
    "text", ["", "text", "---\n[1, 2]\n---\n", "---\ntags: 3\n---\n", "---\n: :\n---\n", "---\n" + "[" * 5000]
)
def test_a_readme_of_others_has_no_front_matter_and_is_no_export(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert front_matter(tmp_path).keys() <= {"tags"} and not is_export(tmp_path)
    (tmp_path / "README.md").write_text(card_of())
    assert is_export(tmp_path) and TAG in front_matter(tmp_path)["tags"]
