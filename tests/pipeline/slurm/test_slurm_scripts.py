"""What `reread run --slurm` submits, and what happens to a job that ends; without a Slurm."""

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.recipe.slurm import SlurmSettings, site_settings
from reread.pipeline.slurm.jobs import Job, preprocess_jobs, training_jobs
from reread.pipeline.slurm.scripts import SCRIPTS, render, submit_script
from reread.pipeline.slurm.submit import _first_error, _way_out, submit, submit_recipe
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.stages import STAGES

FOLDER = Path("runs/nezha/slurm")
NAMES = [*STAGES]


def chain(settings: SlurmSettings) -> list[Job]:
    arguments = ["nezha-base", "train.steps=10"]
    stages = [STAGES[name] for name in NAMES]
    return preprocess_jobs(settings, "nezha", stages, arguments) + training_jobs(settings, "nezha", arguments)


def rendered(name: str, **settings: Any) -> str:
    slurm = SlurmSettings.parse(settings, "test")
    return render(next(job for job in chain(slurm) if job.name == name), FOLDER)


def test_the_chain_is_every_stage_the_merge_training_and_export() -> None:
    jobs = chain(SlurmSettings())
    assert [job.name for job in jobs] == [*NAMES, "merge", "pretrain", "export"]
    assert preprocess_jobs(SlurmSettings(), "nezha", [], []) == []
    script = submit_script(jobs, FOLDER)
    first = 'submit evaluation\nsubmit read --dependency="afterok:${jobs[evaluation]}"\n'
    assert first + 'submit duplicates --dependency="afterok:${jobs[read]}"\n' in script
    assert 'submit pretrain --dependency="afterok:${jobs[merge]},singleton"' in script


@pytest.mark.parametrize("name", [*NAMES, "merge", "pretrain", "export"])
def test_rendered_scripts_are_whole(name: str) -> None:
    text = rendered(name, partition="v100", account="nlp", modules=["cuda/11.8"], options=["--constraint=v100"])
    header = text.split("\nset -")[0]
    for line in ("--partition=v100", "--account=nlp", "--constraint=v100", f"--chdir={Path.cwd()}", "--requeue"):
        assert f"#SBATCH {line}\n" in header
    assert header.count("#SBATCH --job-name=") == 1
    assert "module load cuda/11.8" in header
    assert "#SITE" not in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_nodes_and_gpus_stand_in_the_header() -> None:
    text = rendered("pretrain", nodes=10, hours=1.5, warning_seconds=120)
    for line in ("--nodes=10", "--ntasks-per-node=8", "--gpus-per-node=8", "--time=01:30:00", "--signal=B:USR1@120"):
        assert f"#SBATCH {line}\n" in text
    assert "set -- nezha-base train.steps=10\n" in text


def test_fewer_nodes_are_a_range() -> None:
    text = rendered("pretrain", nodes=10, minimum_nodes=8, cpus_per_task=4)
    assert "#SBATCH --nodes=8-10\n" in text
    assert "#SBATCH --mincpus=32\n" in text
    assert "#SBATCH --ntasks-per-node" not in text  # Slurm would give no more nodes than 8 nodes have processes


def test_preprocessing_has_its_own_size_and_partition() -> None:
    text = rendered("encode", partition="v100", preprocess={"array": 64, "cpus_per_task": 4, "partition": "cpu"})
    for line in ("--array=0-63", "--cpus-per-task=4", "--partition=cpu", "--time=12:00:00"):
        assert f"#SBATCH {line}\n" in text
    assert "set -- encode nezha-base train.steps=10\n" in text


@pytest.mark.parametrize("name", ["evaluation", "clusters", "vocabulary"])
def test_a_stage_of_one_task_is_an_array_of_one_job(name: str) -> None:
    text = rendered(name, preprocess={"array": 64})
    assert "#SBATCH --array=0-0\n" in text
    assert f"set -- {name} nezha-base train.steps=10\n" in text


def test_a_container_stands_before_reread_and_brings_its_own_environment() -> None:
    text = rendered("pretrain", container="apptainer exec --nv image.sif")
    assert "export CONTAINER='apptainer exec --nv image.sif'\n" in text
    assert "export PATH" not in text
    assert "export PATH" in rendered("pretrain")


def test_a_recipe_stands_over_the_site_and_the_command_line_over_both(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partition: v100\nnodes: 4\nhours: 12\n")
    recipe = tmp_path / "my.yaml"
    recipe.write_text("base: nezha-base\nslurm: {nodes: 10}\n")
    found = load_recipe(str(recipe), ["slurm.hours=6"], beneath={"slurm": site_settings(site)}).slurm
    assert found is not None
    assert (found.partition, found.nodes, found.hours) == ("v100", 10, 6)


def test_a_wrong_key_of_the_site_names_file_and_nearest_key(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partitoin: v100\n")
    with pytest.raises(UserError, match=rf"{site}: unknown key `partitoin`; did you mean `partition`\?"):
        site_settings(site)


def test_the_shipped_site_file_has_every_key_and_changes_nothing() -> None:
    text = (SCRIPTS / "site.yaml").read_text()
    for key in SlurmSettings.model_fields:
        assert f"# {key}:" in text
    assert site_settings(SCRIPTS / "site.yaml") == {}


def test_the_lines_for_nodes_of_amds_gpus_are_settings(tmp_path: Path) -> None:
    _, _, lines = (SCRIPTS / "site.yaml").read_text().partition("On nodes of four MI250X")
    settings = dict(re.findall(r"^# (\w+): (.+?)(?: {3,}.*)?$", lines, re.MULTILINE))
    site = tmp_path / "site.yaml"
    site.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    text = rendered("pretrain", nodes=8, **site_settings(site))
    for line in ("#SBATCH --gpus-per-node=8", "#SBATCH --ntasks-per-node=8", "export NCCL_SOCKET_IFNAME=hsn"):
        assert f"{line}\n" in text
    assert "export CONTAINER='apptainer exec --rocm " in text


def test_without_slurm_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="login node"):
        submit(chain(SlurmSettings()), tmp_path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["preprocess.output=corpora/new"], "corpora/zh/manifest.json: not there"),  # else known after preprocessing
        (["slurm.nodes=4", "train.global_batch=31"], "has 31 rows, fewer than the 32 data-parallel ranks of 4 nodes"),
        (["slurm.hours=0.05"], "warning_seconds is 300, not below the 180 s of hours"),
    ],
)
def test_what_would_fail_after_hours_is_refused_before(
    overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        submit_recipe("nezha-base", overrides, None, dry_run=True)


def test_phases_are_one_job_and_the_smallest_batch_has_a_row_for_each_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "base: nezha-base\nname: two\npreprocess: {input: {paths: [text.txt]}, tokenizer: {path: vocab.txt}}\n"
    phases = "- {steps: 9}\n- {steps: 5, data: {sequence_length: 512}, global_batch: 40}\n"
    Path("two.yaml").write_text(f"{text}train: {{steps: null}}\nphases:\n{phases}")
    Path("text.txt").write_text("One text.\n")
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\no\n")
    caplog.set_level("INFO", "reread")
    submit_recipe("two.yaml", ["slurm.nodes=5"], None, dry_run=True)
    shown = capsys.readouterr().out
    assert shown.count("#SBATCH --job-name=two\n") == shown.count("#SBATCH --nodes=5\n") == 1
    assert "one job trains the 2 phases, up to steps 9, 14" in caplog.text
    with pytest.raises(
        UserError, match="the smallest batch of train has 40 rows, fewer than the 48 data-parallel rank"
    ):
        submit_recipe("two.yaml", ["slurm.nodes=6"], None, dry_run=True)


def test_a_folder_with_a_space_is_one_value() -> None:
    text = render(chain(SlurmSettings())[0], Path("my runs/nezha"))
    assert "#SBATCH --output='my runs/nezha/evaluation-%A_%a.log'\n" in text


def test_submitted_from_inside_a_job_nothing_of_it_is_handed_on(tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/bash\nenv > {tmp_path}/seen\necho 12\n")
    sbatch.chmod(0o755)
    job = {"SLURM_ARRAY_JOB_ID": "99", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "100", "SLURM_MEM_PER_NODE": "100"}
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_RESTART_COUNT": "2",
        **job,
    }
    subprocess.run(["bash", "-c", submit_script(chain(SlurmSettings()), FOLDER)], env=environment, check=True)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert [line for line in seen if line.startswith("SLURM")] == ["SLURM_CONF=/etc/slurm.conf"]


def test_a_first_job_that_is_refused_shows_sbatchs_error_alone(tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/bash\necho 'sbatch: error: no' >&2\nexit 3\n")
    sbatch.chmod(0o755)
    command = ["bash", "-c", submit_script(chain(SlurmSettings()), FOLDER)]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "sbatch: error: no\n")


def test_sbatchs_error_is_shown_without_the_lines_that_a_site_adds() -> None:
    account = "Batch job submission failed: Invalid account or account/partition combination specified"
    errors = f"sbatch: your project has 12 hours left\nsbatch: error: {account}\n"
    assert _first_error(errors) == account
    assert "account" not in _way_out(errors) and "slurm.partition" not in _way_out(errors)


@pytest.mark.slow
def test_a_start_is_trained_exported_and_converted_first(
    sample_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [f"train.data.corpus={sample_corpus}", "preprocess=null"]
    submit_recipe("longformer-small", overrides, None, dry_run=True)
    shown = capsys.readouterr().out
    order = ["start-pretrain", "start-export", "convert", "pretrain", "export"]
    assert f"# Submits longformer-small: {' -> '.join(order)}." in shown
    assert f"set -- roberta-small data.corpus={sample_corpus}\n" in shown
    assert "set -- runs/roberta-small/export models/longformer-small-start --model longformer --length 512" in shown
    assert not any(tmp_path.iterdir())


def test_a_dry_run_shows_every_stage_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("INFO", "reread"):
        submit_recipe("nezha-base", [], None, dry_run=True)
    assert "auto: chosen when the job starts, for its GPUs; `reread plan nezha-base --gpus 8 " in caplog.text
    stages = ["read", "duplicates", "encode", "merge", "pretrain", "export"]
    assert f"# Submits nezha-base: {' -> '.join(stages)}." in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


def supervisor() -> Any:
    spec = importlib.util.spec_from_file_location("supervise", SCRIPTS / "supervise.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ends(
    *statuses: int, asked: bool = True, checkpoint: int | None = 100, step: int | None = 120
) -> list[dict[str, Any]]:
    return [{"status": status, "asked": asked, "step": step, "checkpoint": checkpoint} for status in statuses]


@pytest.mark.parametrize(
    ("attempts", "again"),
    [
        (ends(0), False),
        (ends(2), False),  # a mistake
        (ends(75), True),
        (ends(143), True),  # SIGTERM came before Python could answer
        (ends(137), True),
        (ends(1, 137), True),
        (ends(1, 137, 1), False),
        (ends(1, 75, 1, 75, 1), False),  # to be stopped between is no progress
        (ends(1, 1, checkpoint=None) + ends(1), True),  # a checkpoint has come
        (ends(75, 143, asked=False), True),
        (ends(75, 143, 75, asked=False), False),  # srun ended them after another's fault
    ],
)
def test_a_job_is_requeued_until_three_faults_come_without_a_checkpoint(
    attempts: list[dict[str, Any]], again: bool
) -> None:
    assert supervisor().decide(attempts)[0] is again


def test_the_reason_names_the_steps() -> None:
    reason = supervisor().decide(ends(1, step=119) + ends(137, 1))[1]
    assert "3 faults without a new checkpoint, at steps 119, 120, 120; the last checkpoint is of step 100" in reason


def test_only_whole_lines_of_the_same_job_are_earlier_attempts(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    assert supervisor().earlier(path, "7") == []
    attempts = [{"job": job, **attempt} for job, attempt in zip(("7", "7_1"), ends(1, 75), strict=True)]
    lines = [json.dumps(attempt) for attempt in attempts]
    path.write_text("\n".join([*lines, lines[0][:20], lines[0]]) + "\n")
    assert supervisor().earlier(path, "7") == [attempts[0]] * 2


def test_a_task_of_an_array_goes_by_its_own_name() -> None:
    own_job = supervisor().own_job
    assert own_job({"SLURM_JOB_ID": "12"}) == "12"
    assert own_job({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1"}) == "12_1"


@pytest.mark.parametrize(
    "settings",
    [
        {"partition": "v100\n#SBATCH --account=other"},
        {"account": "a\rb"},
        {"qos": "high\ntouch owned"},
        {"options": ["--constraint=v100", "--comment=x\ntouch owned"]},
        {"modules": ["cuda\ntouch owned"]},
        {"container": "run\x1b"},
        {"preprocess": {"partition": "cpu\ntouch owned"}},
    ],
)
def test_no_setting_becomes_a_line_of_its_own_in_a_script(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^test: \S+: is one line, without control characters such as") as raised:
        rendered("pretrain", **settings)
    assert "\n" not in str(raised.value)


def test_a_working_folder_with_a_line_end_in_its_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a\ntouch owned"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="has no control characters in its name; rename it") as raised:
        rendered("pretrain")
    assert "\n" not in str(raised.value)
