"""Installed from its wheel, in a folder that holds nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PARTS = ("setup.py", "pyproject.toml", "README.md", "pipeline", "preprocessing", "training", "slurm")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package lies, beside what it needs, which is not installed again."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in PARTS:  # copied, for a build leaves files beside its source
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, source / name)
    build = ["wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([*PIP, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*PIP, "install", "--no-index", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def test_installed_from_its_wheel_the_quickstarts_find_their_sample(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    script = (
        "import pathlib, pipeline.commands as commands\n"
        "from pipeline.recipe import available_recipes, finetuning_recipes, load_recipe\n"
        "from preprocessing.input.sources import find_files\n"
        f"assert pathlib.Path(commands.__file__).is_relative_to({str(installed)!r})\n"
        "names = [name for name in available_recipes() if name.startswith('quickstart')]\n"
        "assert len(names) == 3\n"
        "assert 'nezha-xnli' in finetuning_recipes()\n"
        "for name in names: assert len(find_files(load_recipe(name, []).preprocess.inputs)) == 84, name\n"
        "assert (pathlib.Path(commands.__file__).parents[1] / 'slurm' / 'pretrain.sbatch').exists()\n"
        "assert (pathlib.Path(commands.__file__).parent / 'report' / 'page.html.j2').exists()\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    command = [
        sys.executable,
        "-m",
        "pipeline.cli",
        "preprocess",
        "quickstart",
        "workers=1",
        "tokenizer.train.size=500",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"input: {installed}/pipeline/sample/zh, of the package: this folder has none" in done.stderr
    assert (tmp_path / "corpora" / "quickstart" / "manifest.json").exists()
