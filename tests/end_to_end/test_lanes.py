"""Runs of models with memory as a user starts them: killed and resumed, evaluated, ablated, exported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from benchmarks.random_corpus import write_corpus
from reread.pipeline.commands.ablate import ablate
from reread.preprocessing.corpus import SENTENCE_END
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.evaluation import evaluate_run
from reread.training.run.metrics import read_evaluations, read_metrics
from reread.training.run.model import read_run_model
from reread.training.run.restore import restore_model
from tests.conftest import document_values, rarer, stream_values
from tests.elsewhere import run_elsewhere
from tests.forks import Job
from tests.runs import STEPS, assert_same_end, final_tensors, finish, killed_twice, start

KINDS = {"documents": document_values, "stream": stream_values}
AUTO = {"documents": "AutoModelForMaskedLM", "stream": "AutoModelForCausalLM"}


def values_of(kind: str, corpus: Path) -> dict[str, Any]:
    """Settings of model, data and optimizer for `start`, with dropout.

    With some seeds (0 is one) the stream's model loses the thread of a long text after so few steps.
    """
    values = KINDS[kind](corpus, seed=1)
    return {name: values[name] for name in ("model", "data", "optimizer", "seed")}


def figures(folder: Path) -> list[dict[str, float]]:
    """The figures of each step, without those that depend on the clock."""
    clock = ("time", "tokens_per_second", "seconds_per_step", "data_wait_share", "mfu", "seconds_left")
    return [
        {name: value for name, value in line.items() if name not in clock}
        for line in read_metrics(folder / "runs" / "tiny")
    ]


def reread(folder: Path, *arguments: str) -> str:
    """Run a command in `folder` and return its output."""
    return finish(Job(folder, *arguments, processes=1))


@pytest.fixture(scope="module", params=["documents", rarer("stream")])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def uninterrupted(kind: str, sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(kind) / "run"
    finish(start(folder, sample_corpus, **values_of(kind, sample_corpus)))
    return folder


def test_resume_is_exact_twice(kind: str, sample_corpus: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """Kill -9 of the whole job at a random step, twice: weights, memories and cursors are equal bit for bit."""
    folder = tmp_path / "killed"
    output = killed_twice(folder, sample_corpus, **values_of(kind, sample_corpus))
    assert "continuing from the checkpoint of step" in output
    assert len([line for line in figures(folder) if "loss" in line]) == STEPS
    assert figures(folder) == figures(uninterrupted)
    expected = final_tensors(uninterrupted)
    memories = [name for name in expected if name.startswith("memory.")]
    assert any(expected[name].any() for name in memories)
    assert ("cursors" in expected) == (kind == "documents")
    assert_same_end(folder, uninterrupted)


def test_evaluate_prints_figures_of_held_out_text(kind: str, uninterrupted: Path) -> None:
    output = reread(uninterrupted, "evaluate", "runs/tiny")
    lines = [line.split() for line in output.splitlines()]
    printed = {line[0]: float(line[1]) for line in lines if len(line) == 2 and line[0].isidentifier()}
    figure = {"documents": "masked_lm_loss", "stream": "token_perplexity"}[kind]
    assert {"loss", figure} <= printed.keys()
    validation = [line for line in figures(uninterrupted) if "validation_loss" in line][-1]
    # of all of it; validation during the run reads a part
    assert printed["loss"] == pytest.approx(validation["validation_loss"], rel=0.2)
    (kept,) = read_evaluations(uninterrupted / "runs" / "tiny")
    assert (kept["step"], kept["overrides"]) == (STEPS, [])
    assert kept["figures"]["loss"] == pytest.approx(printed["loss"], abs=1e-4)


@pytest.mark.parametrize("size", [None, 120])
def test_a_corpus_in_another_vocabulary_is_not_evaluated(
    kind: str, uninterrupted: Path, tmp_path: Path, size: int | None
) -> None:
    """Refused where the weights do not fit, and where they do but the figures would mean nothing."""
    run = uninterrupted / "runs" / "tiny"
    settings = TrainSettings.parse(yaml.safe_load((run / "recipe.yaml").read_text())["train"], "test")
    size = size or open_dataset(settings.data, settings.seed, "train").vocab_size
    document = np.arange(5, 105), np.full(100, SENTENCE_END, np.uint8)
    other = write_corpus(tmp_path / "other", {"train": [document], "validation": [document]}, size)
    data = settings.data.model_copy(update={"corpus": other})
    with pytest.raises(UserError, match=r"other: made with another vocabulary than the corpus .*tiny was trained on"):
        evaluate_run(run, settings.model_copy(update={"data": data}))


@pytest.mark.parametrize(("change", "fault"), [(-1, "do not fit train.model"), (1, "lacks")])
def test_a_checkpoint_of_another_size_is_not_evaluated(kind: str, uninterrupted: Path, change: int, fault: str) -> None:
    run = uninterrupted / "runs" / "tiny"
    settings = TrainSettings.parse(yaml.safe_load((run / "recipe.yaml").read_text())["train"], "test")
    layers = {"documents": "num_hidden_layers", "stream": "n_layer"}[kind]
    size = {"documents": "intermediate_size", "stream": "d_inner"}[kind]
    with pytest.raises(UserError, match=fault):
        evaluate_run(run, changed(settings, layers, settings.model[layers] + change))
    with pytest.raises(UserError, match=r"dense\.bias.* do not fit train\.model"):
        evaluate_run(run, changed(settings, size, 48))


def changed(settings: TrainSettings, name: str, value: int) -> TrainSettings:
    return settings.model_copy(update={"model": {**settings.model, name: value}})


def test_the_exported_folder_remembers_as_the_trained_model(kind: str, uninterrupted: Path, tmp_path: Path) -> None:
    """Two segments, the second with the first one's mems, in a fresh process with transformers alone."""
    output = reread(uninterrupted, "export", "runs/tiny", str(tmp_path / "exported"))
    assert "exported to" in output
    run = uninterrupted / "runs" / "tiny"
    settings = TrainSettings.parse(yaml.safe_load((run / "recipe.yaml").read_text())["train"], "test")
    kept = read_run_model(run, settings)
    trained: Any = restore_model(run, kept)[0].eval()
    ids = torch.arange(2 * 2 * 24).reshape(2, 2, 24) * 7 % kept.config.vocab_size
    ends = {"sentence_ends": ids % 5 == 0, "paragraph_ends": ids % 25 == 0} if kind == "stream" else {}
    inputs = [{"input_ids": ids[k], **{name: values[k] for name, values in ends.items()}} for k in (0, 1)]
    with torch.no_grad():
        first = trained(**inputs[0])
        second = trained(**inputs[1], mems=first.mems)
    name = "prediction_logits" if kind == "documents" else "logits"
    expected = [first[name], second[name], *second.mems]
    torch.save((inputs, expected), tmp_path / "expected.pt")
    script = (
        "import sys, torch, transformers\n"
        "inputs, expected = torch.load(sys.argv[2])\n"
        "auto = getattr(transformers, sys.argv[3])\n"
        "model = auto.from_pretrained(sys.argv[1], trust_remote_code=True).eval()\n"
        "assert 'reread' not in sys.modules\n"
        "with torch.no_grad():\n"
        "    first = model(**inputs[0])\n"
        "    second = model(**inputs[1], mems=first.mems)\n"
        "    forgetful = model(**inputs[1])\n"
        "for a, b in zip([first.logits, second.logits, *second.mems], expected, strict=True):\n"
        "    assert torch.equal(a, b), (a - b).abs().max()\n"
        "assert not torch.allclose(forgetful.logits, second.logits)\n"
        "assert transformers.AutoTokenizer.from_pretrained(sys.argv[1]).mask_token == '[MASK]'\n"
    )
    run_elsewhere(tmp_path, script, tmp_path / "exported", tmp_path / "expected.pt", AUTO[kind])


def test_ablate_prints_one_table_and_trains_nothing_twice(sample_corpus: Path, tmp_path: Path) -> None:
    train = document_values(sample_corpus, steps=3, validate_every=100)
    train["checkpoint"] = {"every_steps": 3, "keep": 1}
    rows = [
        {"name": "whole", "published": {"IMDB": 93.14}},
        {
            "name": "no memory",
            "overrides": ["model.recurrence=none", "data.retrospective=false", "data.reorder_chunks=1"],
        },
    ]
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump({"name": "pair", "train": train, "ablations": rows}))
    output = reread(tmp_path, "ablate", "pair.yaml")
    assert output.count("done: 3 steps") == 2
    table = [line for line in output.splitlines() if "│" in line or "┃" in line]
    assert "paper: IMDB" in table[0]
    kept = json.loads((tmp_path / "runs" / "pair-ablation.json").read_text(), parse_constant=pytest.fail)
    assert list(kept) == ["whole", "no memory"]
    for name, published in (("whole", "93.14"), ("no memory", "-")):
        cells = next([cell.strip() for cell in line.strip("│").split("│")] for line in table if name in line)
        assert cells[:2] == [name, published]
        assert f"{kept[name]['loss']:.4f}" in cells
    assert "-" in cells[2:]  # nothing was reordered
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    assert len(trained) == 2
    again = reread(tmp_path, "ablate", "pair.yaml")
    assert "done: 3 steps" not in again and again.count("nothing to do: all 3 steps are done") == 2
    assert [line for line in again.splitlines() if "│" in line or "┃" in line] == table
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")} == trained


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"name": "b", "overrides": ["data.retrospektive=false"]}, "did you mean `train.data.retrospective`"),
        ({"name": "A!"}, "the same run folder"),
    ],
)
def test_ablations_that_cannot_be_are_refused_before_any_is_trained(
    second: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"name": "pair", "train": document_values(tmp_path), "ablations": [{"name": "a"}, second]}
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.setattr("reread.pipeline.commands.ablate.train", pytest.fail)
    with pytest.raises(UserError, match=message):
        ablate(str(tmp_path / "pair.yaml"), [])
