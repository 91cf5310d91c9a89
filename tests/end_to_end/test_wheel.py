"""Installed from the wheel that its source distribution makes, in a folder that holds nothing."""

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

import reread
from tests.conftest import ROOT

FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "THIRD_PARTY_NOTICES.md", "CHANGELOG.md")
FOLDERS = ("reread", "pipeline", "preprocessing", "training", "slurm", "tests")
SOURCE = "https://source.example/reread"
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package lies, beside what it needs, which is not installed again."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in FILES:  # copied, for a build leaves files beside its source
        shutil.copyfile(ROOT / name, source / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
    subprocess.run(build, env={**os.environ, "REREAD_REPOSITORY": SOURCE}, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*PIP, "install", "--no-index", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def test_the_wheel_holds_one_package(installed: Path) -> None:
    metadata = f"reread-{reread.__version__}.dist-info"
    assert {path.name for path in installed.iterdir()} - {"bin"} == {"reread", metadata}
    folders = {"pipeline", "preprocessing", "slurm", "training"}
    assert {path.name for path in (installed / "reread").iterdir()} - {"__pycache__"} == folders | {
        "__init__.py",
        "__main__.py",
        "py.typed",
    }
    licenses = installed / metadata / "licenses"
    assert {path.name for path in licenses.iterdir()} == {"LICENSE", "THIRD_PARTY_NOTICES.md"}


def test_the_source_distribution_holds_what_builds_and_no_tests(installed: Path) -> None:
    (archive,) = installed.parent.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.split("/")[1] for name in tar.getnames() if "/" in name}
    made = {"PKG-INFO", "setup.cfg", "reread.egg-info"}
    assert held == ({*FILES, *FOLDERS} | made) - {"tests"}


def test_the_address_of_the_source_is_that_of_the_build(installed: Path) -> None:
    (found,) = distributions(name="reread", path=[str(installed)])
    addresses = dict(line.split(", ") for line in found.metadata.get_all("Project-URL") or [])
    assert addresses == {"Source": SOURCE, "Changelog": f"{SOURCE}/blob/main/CHANGELOG.md"}


def test_it_is_found_from_a_folder_that_holds_folders_of_its_names(installed: Path, tmp_path: Path) -> None:
    for name in ("pipeline", "preprocessing", "training", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the user's own')")
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    for command in (
        ["-m", "reread"],
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "reread"],
    ):
        arguments = [sys.executable, *command, "recipes"]
        done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "quickstart" in done.stdout, done.stderr


def test_importing_it_imports_nothing_that_takes_long(installed: Path, tmp_path: Path) -> None:
    script = "import sys, reread; print(reread.__version__, {'torch', 'transformers', 'pyarrow'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode().split() == [reread.__version__, "set()"]


def test_installed_from_its_wheel_the_quickstarts_find_their_sample(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    script = (
        "import pathlib, reread\n"
        "from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes\n"
        "from reread.pipeline.recipe.load import load_recipe\n"
        "from reread.preprocessing.input.sources import find_files\n"
        f"assert pathlib.Path(reread.__file__).is_relative_to({str(installed)!r})\n"
        "names = [name for name in available_recipes() if name.startswith('quickstart')]\n"
        "assert len(names) == 3\n"
        "assert 'nezha-xnli' in finetuning_recipes()\n"
        "for name in names: assert len(find_files(load_recipe(name, []).preprocess.inputs)) == 84, name\n"
        "assert (pathlib.Path(reread.__file__).parent / 'slurm' / 'pretrain.sbatch').exists()\n"
        "assert (pathlib.Path(reread.__file__).parent / 'pipeline' / 'report' / 'page.html.j2').exists()\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    command = [
        sys.executable,
        "-m",
        "reread",
        "preprocess",
        "quickstart",
        "workers=1",
        "tokenizer.train.size=500",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"input: {installed}/reread/pipeline/sample/zh, which the package brings" in done.stderr
    assert (tmp_path / "corpora" / "quickstart" / "manifest.json").exists()
