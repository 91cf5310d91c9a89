"""Runs of `reread train` as a user starts them: killed and resumed, on changed corpora, exported."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from preprocessing.corpus import Manifest
from preprocessing.errors import UserError
from tests.conftest import ROOT, train_values
from tests.runs import STEPS, assert_same_end, figures, finish, killed_twice, start
from training.checkpoint.store import CheckpointStore
from training.config import TrainSettings
from training.metrics import read_metrics
from training.parallel.mesh import Mesh


def test_resume_is_exact_twice(sample_corpus, uninterrupted, tmp_path) -> None:
    """Kill -9 of the whole job at a random step, twice: the same samples, and bit for bit the same fp32 weights."""
    folder = tmp_path / "killed"
    output = killed_twice(folder, sample_corpus)
    assert "going on from the checkpoint of step" in output
    assert figures(folder) == figures(uninterrupted)
    assert_same_end(folder, uninterrupted)


def test_a_changed_corpus_is_refused_with_what_differs(sample_corpus, uninterrupted, tmp_path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(uninterrupted, folder)
    other = tmp_path / "corpus"
    shutil.copytree(sample_corpus, other)
    manifest = Manifest.read(other)
    before = manifest.fingerprint
    replace(manifest, shards=manifest.shards[1:]).write(other)
    process = start(folder, other)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "the corpus changed since the run began" in output
    assert re.search(rf"fingerprint {before} -> \w+, documents \d+ -> \d+, tokens \d+ -> \d+\)", output)
    assert len([line for line in output.splitlines() if line.startswith("reread: ")]) == 1
    assert "Traceback" not in output


def test_a_finished_run_does_nothing_and_says_so(sample_corpus, uninterrupted) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in (uninterrupted / "runs").rglob("*[st]*.json*"))
    assert "nothing to do: all 40 steps are done" in finish(start(uninterrupted, sample_corpus))
    after = sorted((path, path.stat().st_mtime_ns) for path in (uninterrupted / "runs").rglob("*[st]*.json*"))
    assert [one for one in after if "environment" not in one[0].name] == [
        one for one in before if "environment" not in one[0].name
    ]


@pytest.mark.parametrize("launcher", ["itself", "torchrun"])
def test_a_mistake_in_the_model_is_one_line_from_many_processes(sample_corpus, tmp_path, launcher) -> None:
    process = start(tmp_path, sample_corpus, "model.num_attention_heads=5", torchrun=launcher == "torchrun")
    output, _ = process.communicate(timeout=120)
    assert [line for line in output.splitlines() if "num_attention_heads" in line] == [
        "reread: train.model: hidden_size 32 is no multiple of num_attention_heads 5"
    ]
    assert process.returncode == (1 if launcher == "torchrun" else 2)  # torchrun has a status of its own


def test_torchrun_starts_the_same_run(sample_corpus, uninterrupted, tmp_path) -> None:
    output = finish(start(tmp_path / "run", sample_corpus, torchrun=True))
    assert output.count(f"step {STEPS}/{STEPS} 100%") == 1
    assert figures(tmp_path / "run") == figures(uninterrupted)


@pytest.mark.parametrize("tensor", [1, 2])
def test_export_matches_training(sample_corpus, uninterrupted, tmp_path, tensor) -> None:
    """The exported folder, loaded by transformers in a fresh process, gives the logits of the training model."""
    folder = tmp_path / "exported"
    shutil.copytree(uninterrupted, folder)
    if tensor == 2:  # a run of its own on two tensor ranks, so that its checkpoint is split
        finish(start(folder, sample_corpus, "parallel.tensor=2", "steps=41", "name=split"))
        run = folder / "runs" / "split"
    else:
        run = folder / "runs" / "tiny"
    command = [sys.executable, "-m", "pipeline.cli", "export", str(run)]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})

    from training.models.nezha import NezhaConfig, NezhaForPreTraining

    store = CheckpointStore(run / "checkpoints", 2, Mesh())
    step = store.latest()
    assert step is not None
    config = NezhaConfig(
        vocab_size=json.loads((sample_corpus / "manifest.json").read_text())["tokenizer"]["vocab_size"],
        **{key: value for key, value in train_values(sample_corpus)["model"].items() if key != "type"},
    )
    trained = NezhaForPreTraining(config).eval()
    trained.load_state_dict(store.read_full(step, "model."), strict=False)
    trained.tie_weights()
    ids = torch.arange(2 * 30).reshape(2, 30) % config.vocab_size
    with torch.no_grad():
        expected = trained(input_ids=ids).prediction_logits
    torch.save((ids, expected), tmp_path / "expected.pt")
    script = (
        "import sys, torch; from transformers import AutoModelForMaskedLM, AutoTokenizer\n"
        "ids, expected = torch.load(sys.argv[2])\n"
        "model = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()\n"
        "assert model.get_output_embeddings().weight is model.get_input_embeddings().weight\n"
        "logits = model(input_ids=ids).logits\n"
        "assert logits.shape == expected.shape, (logits.shape, expected.shape)\n"
        "assert torch.equal(logits, expected), (logits - expected).abs().max()\n"
        "assert AutoTokenizer.from_pretrained(sys.argv[1]).mask_token == '[MASK]'\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    environment.pop("PYTHONPATH", None)
    arguments = [sys.executable, "-c", script, str(run / "export"), str(tmp_path / "expected.pt")]
    subprocess.run(arguments, check=True, cwd=tmp_path, env=environment)


def test_a_damaged_or_missing_checkpoint_is_not_exported(uninterrupted, tmp_path) -> None:
    from pipeline.stages import export_stage

    shutil.copytree(uninterrupted / "runs" / "tiny", tmp_path / "run")
    with pytest.raises(UserError, match="none of step 7; there are 35, 40"):
        export_stage(tmp_path / "run", tmp_path / "out", 7)
    shard = tmp_path / "run" / "checkpoints" / "step-00000040" / "rank-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="step 40 is damaged"):
        export_stage(tmp_path / "run", tmp_path / "out", 40)
    assert not (tmp_path / "out").exists()


def test_a_run_starts_from_an_exported_folder(sample_corpus, uninterrupted, tmp_path) -> None:
    """What one run ended with is what the next begins with, vocabulary padding and tied weights included."""
    from pipeline.stages import export_stage
    from training.trainer import train

    folder = export_stage(uninterrupted / "runs" / "tiny", tmp_path / "start")
    values = train_values(sample_corpus, steps=1, init=str(folder), validate_every=1)
    values["optimizer"] = {"learning_rate": 1e-12}
    train(TrainSettings.parse(values, "test"), tmp_path)
    last = [
        line["validation_loss"] for line in read_metrics(uninterrupted / "runs" / "tiny") if "validation_loss" in line
    ]
    first = [line["validation_loss"] for line in read_metrics(tmp_path) if "validation_loss" in line]
    assert first == pytest.approx(last[-1:], rel=1e-4)  # the batch is cut by other processes
