"""Runs of `reread train` as a user starts them: killed and resumed, on changed corpora, exported."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reread.pipeline.cli import _status_of_command
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.corpus.index import CorpusIndex, page_count
from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from reread.training.trainer import Trainer, train
from tests.conftest import rarer, train_values
from tests.elsewhere import run_elsewhere
from tests.forks import Job
from tests.runs import STEPS, assert_same_end, figures, finish, killed_twice, start, start_new_interpreters


def test_resume_is_exact_twice(sample_corpus, uninterrupted, tmp_path) -> None:
    """Kill -9 of the whole job at a random step, twice: the same samples, and bit for bit the same fp32 weights."""
    folder = tmp_path / "killed"
    output = killed_twice(folder, sample_corpus)
    assert "continuing from the checkpoint of step" in output
    assert figures(folder) == figures(uninterrupted)
    assert_same_end(folder, uninterrupted)


def test_a_changed_corpus_is_refused_with_what_differs(sample_corpus, uninterrupted, tmp_path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(uninterrupted, folder)
    other = tmp_path / "corpus"
    shutil.copytree(sample_corpus, other)
    manifest = Manifest.read(other)
    before = manifest.fingerprint
    first, (blocks, chunks, pages) = manifest.shards[0], manifest.index
    index = CorpusIndex(blocks[first.blocks :], chunks[first.blocks :], pages[page_count(first.bytes) :])
    replace(manifest, shards=manifest.shards[1:], index=index, lengths=None).write(other)
    with start(folder, other) as job:
        assert job.statuses() == [2], job.output
    output = job.output
    assert "the corpus changed since the run began" in output
    assert re.search(rf"fingerprint {before} -> \w+, documents \d+ -> \d+, tokens \d+ -> \d+\)", output)
    assert len([line for line in output.splitlines() if line.startswith("reread: ")]) == 1
    assert "Traceback" not in output


def test_a_finished_run_does_nothing_and_says_so(sample_corpus, uninterrupted) -> None:
    def written() -> list[tuple[Path, int]]:
        """Files with their times, but those that record the start of a command and the end of the attempt before."""
        files = (uninterrupted / "runs").rglob("*[st]*.json*")
        return sorted((one, one.stat().st_mtime_ns) for one in files if one.stem not in ("environment", "history"))

    before = written()
    assert "nothing to do: all 40 steps are done" in finish(start(uninterrupted, sample_corpus))
    assert written() == before


def test_a_mistake_in_the_model_is_one_line_from_many_processes(sample_corpus, tmp_path) -> None:
    with start(tmp_path, sample_corpus, "model.num_attention_heads=5") as job:
        assert job.statuses() == [2]
        output = job.output
    assert [line for line in output.splitlines() if "num_attention_heads" in line] == [
        "reread: train.model: hidden_size 32 is no multiple of num_attention_heads 5"
    ]


def test_torchrun_starts_the_same_run(sample_corpus, uninterrupted, tmp_path) -> None:
    process = start_new_interpreters(tmp_path / "run", sample_corpus, torchrun=True)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert output.count(f"step {STEPS}/{STEPS} 100%") == 1
    assert figures(tmp_path / "run") == figures(uninterrupted)


@pytest.mark.parametrize("tensor", [rarer(1), 2])
def test_export_matches_training(sample_corpus, uninterrupted, tmp_path, tensor) -> None:
    """The exported folder, loaded by transformers in a fresh process, gives the logits of the training model."""
    folder = tmp_path / "exported"
    shutil.copytree(uninterrupted, folder)
    if tensor == 2:  # a run of its own on two tensor ranks, so that its checkpoint is split
        finish(start(folder, sample_corpus, "parallel.tensor=2", "steps=5", "name=split"))
        run = folder / "runs" / "split"
    else:
        run = folder / "runs" / "tiny"
    finish(Job(folder, "export", str(run), processes=1))

    from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining

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
    run_elsewhere(tmp_path, script, run / "export", tmp_path / "expected.pt")


def test_a_damaged_or_missing_checkpoint_is_not_exported(uninterrupted, tmp_path) -> None:
    from reread.pipeline.run_folder.export import export

    shutil.copytree(uninterrupted / "runs" / "tiny", tmp_path / "run")
    with pytest.raises(UserError, match="no step 7; there are 35, 40"):
        export(tmp_path / "run", tmp_path / "out", 7)
    shard = tmp_path / "run" / "checkpoints" / "step-00000040" / "rank-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="step 40 is damaged"):
        export(tmp_path / "run", tmp_path / "out", 40)
    assert not (tmp_path / "out").exists()


def test_a_run_starts_from_an_exported_folder(sample_corpus, uninterrupted, tmp_path) -> None:
    """The next run begins with the weights that the first ended with, vocabulary padding and tied ones included."""
    from reread.pipeline.run_folder.export import export

    folder = export(uninterrupted / "runs" / "tiny", tmp_path / "start")
    values = train_values(sample_corpus, steps=1, init=str(folder), validate_every=1)
    values["optimizer"] = {"learning_rate": 1e-12}
    train(TrainSettings.parse(values, "test"), tmp_path)
    last = [
        line["validation_loss"] for line in read_metrics(uninterrupted / "runs" / "tiny") if "validation_loss" in line
    ]
    first = [line["validation_loss"] for line in read_metrics(tmp_path) if "validation_loss" in line]
    assert first == pytest.approx(last[-1:], rel=1e-4)  # the batch is cut by other processes


def error_line(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a failing command prints."""
    monkeypatch.setattr(sys, "argv", ["reread", *arguments])
    capsys.readouterr()
    assert _status_of_command(False) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["export", "RUN", "FILE/export"], r"FILE/\.export\.reread-tmp: Not a directory; give another path"),
        (
            ["convert", "RUN/export", "FILE/model"],
            r"FILE/\.model\.reread-tmp: Not a directory; give another path",
        ),
        (["export", "RUN", f"{'x' * 300}"], r"x{300}\S*: File name too long; check the path"),
        (
            ["report", "RUN", "--out", "FILE/page"],
            r"FILE/\.page\.reread-tmp: Not a directory; give another path",
        ),
        (["train", "x.yaml"], r"x\.yaml: Is a directory; give another path"),
        (["run", "quickstart", f"preprocess.output={'x' * 300}"], r"x{300}\S*: File name too long; check the path"),
        (["inspect", "c" * 300], r"c{300}/manifest\.json: cannot be read \(File name too long\)"),
    ],
    ids=["export", "convert", "long", "report", "folder", "output", "corpus"],
)
def test_a_path_that_cannot_be_used_is_one_line(
    arguments: list[str], line: str, uninterrupted, tmp_path, monkeypatch, capsys
) -> None:
    run = uninterrupted / "runs" / "tiny"
    (tmp_path / "file").touch()
    (tmp_path / "x.yaml").mkdir()
    if "RUN/export" in arguments:
        from reread.pipeline.run_folder.export import export

        export(run, tmp_path / "made")
    places = {"RUN/export": tmp_path / "made", "RUN": run, "FILE": tmp_path / "file"}
    monkeypatch.chdir(tmp_path)
    for name, place in places.items():
        arguments = [one.replace(name, str(place)) for one in arguments]
        line = line.replace(name, str(place))
    assert re.fullmatch(f"reread: {line}", error_line(arguments, monkeypatch, capsys))


@pytest.mark.parametrize("kilobytes", [16, 256])
def test_an_export_to_a_full_disk_is_one_line(kilobytes, uninterrupted, tmp_path, monkeypatch, capsys) -> None:
    """The disk is full in the middle of the weights, or of the tokenizer's files."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        line = error_line(["export", str(uninterrupted / "runs" / "tiny"), str(disk / "out")], monkeypatch, capsys)
        assert re.fullmatch(rf"reread: {disk}\S+: No space left on device; make room, then .*", line)
        assert not (disk / "out").exists()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_run_that_diverges_says_so_and_saves_no_weights_that_are_not_finite(sample_corpus, tmp_path, caplog) -> None:
    values = train_values(sample_corpus, steps=14, optimizer={"learning_rate": 100}, schedule={"decay": "constant"})
    with caplog.at_level("INFO", "reread"):
        train(TrainSettings.parse(values, "test"), tmp_path)
    (line,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert re.search(r"the last \d+ steps were skipped, gradient not finite: the model has diverged; .* lower", line)
    trainer = Trainer(TrainSettings.parse({**values, "steps": 15}, "test"), tmp_path, Mesh())
    trainer._load_checkpoint()
    for broken in (float("inf"), float("nan")):
        next(iter(trainer.assembly.masters.named_parameters()))[1].data[0, 0] = broken
        with pytest.raises(UserError, match="the weights are not finite at step 14, which is not saved"):
            trainer._save_checkpoint(trainer.objective.zeros())
    saved = CheckpointStore(tmp_path / "checkpoints", 2, Mesh()).read_full(14, "model.")
    assert all(tensor.isfinite().all() for tensor in saved.values())
