"""The recipes of images, which no test here can build: linted, read, and their script run without installing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDER = ROOT / "containers"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
DEFINITION = (FOLDER / "reread.def").read_text(encoding="utf-8")
NEWER = re.findall(r"^TORCH \?= (torch==\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0]
INDEXES = {"TORCH_INDEX": "https://torch.example/simple", "PACKAGE_INDEX": "https://packages.example/simple"}


def sections() -> dict[str, list[str]]:
    """Name -> lines of each section of reread.def; those before the first are its header."""
    found: dict[str, list[str]] = {"header": []}
    name = "header"
    for line in DEFINITION.splitlines():
        if line.startswith("%"):
            name = line[1:]
            assert name not in found, "Apptainer joins sections of the same name; write one"
            found[name] = []
        elif line and not line.startswith("#"):
            found[name].append(line.strip())
    return found


def test_the_dockerfile_has_nothing_that_hadolint_finds() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", FOLDER / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_definition_has_sections_that_apptainer_knows() -> None:
    found = sections()
    known = {"setup", "files", "post", "environment", "startscript", "runscript", "test", "labels", "help", "arguments"}
    assert set(found) - {"header"} <= known
    header = dict(line.split(": ") for line in found["header"])
    assert set(header) == {"Bootstrap", "From"}
    assert header["From"] == re.findall(r"^FROM (\S+)$", DOCKERFILE, re.MULTILINE)[0]


@pytest.mark.parametrize("section", ["post", "environment", "runscript", "test"])
def test_scripts_of_the_definition_are_shell(section: str) -> None:
    script = "\n".join(sections()[section])
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_build_arguments_are_the_same_and_have_no_default() -> None:
    arguments = re.findall(r"^ARG (\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(re.findall(r"^ARG ", DOCKERFILE, re.MULTILINE)) == len(arguments), "an ARG with a default"
    assert arguments == re.findall(r"\{\{ (\w+) \}\}", DEFINITION) == ["GPU", *INDEXES]
    assert "arguments" not in sections()
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE) == arguments


def test_both_images_get_what_the_package_is_built_from() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    given = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    files = dict(line.split() for line in sections()["files"])
    assert files == {name: f"/opt/reread/{name}" for name in given}
    assert not {name for name in given if not (ROOT / name).exists()}
    folders = {"containers", "pipeline", "preprocessing", "reread", "slurm", "training"}
    assert given == folders | {"LICENSE", "README.md", "THIRD_PARTY_NOTICES.md", "constraints.txt"} | {
        "pyproject.toml",
        "setup.py",
    }


def install(folder: Path, installed: str, **arguments: str) -> tuple[int, list[str], list[str]]:
    """install.sh with a pip that only notes its arguments: its status, what pip was told, and the last lines."""
    told = folder / "told"
    (folder / "python").write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo "{installed}" && exit\nshift 2; echo "$*" >> "{told}"\n', encoding="utf-8"
    )
    (folder / "reread").write_text("#!/bin/sh\necho reread 0\n", encoding="utf-8")
    for name in ("python", "reread"):
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **arguments}
    command = ["bash", FOLDER / "install.sh"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, told.read_text().splitlines() if told.exists() else [], done.stderr.splitlines()


@pytest.mark.parametrize("absent", ["GPU", *INDEXES])
def test_a_build_without_an_argument_stops_with_one_line_that_names_it(tmp_path: Path, absent: str) -> None:
    arguments = {name: value for name, value in {"GPU": "v100", **INDEXES}.items() if name != absent}
    status, told, lines = install(tmp_path, "2.10.0+cu126 for CUDA 12.6", **arguments)
    assert (status, told) == (2, [])
    (line,) = lines
    assert line.startswith(f"reread: give the build argument {absent}, ")


def test_each_kind_of_gpu_gets_its_torch_from_its_index(tmp_path: Path) -> None:
    for gpu, wanted, installed in (
        ("v100", "torch==2.10.0+cu126", "2.10.0+cu126 for CUDA 12.6"),
        ("newer", NEWER, NEWER.removeprefix("torch==") + "+cu130 for CUDA 13.0"),
        ("newer", NEWER, NEWER.removeprefix("torch==") + " for CUDA 13.0"),
    ):
        folder = tmp_path / installed
        folder.mkdir()
        status, told, lines = install(folder, installed, GPU=gpu, **INDEXES)
        assert (status, lines) == (0, [])
        assert [line.split()[-1] for line in told] == ["wheel", wanted, ".[train]"]
        indexes = [line.split()[line.split().index("--index-url") + 1] for line in told]
        assert indexes == [INDEXES["PACKAGE_INDEX"], INDEXES["TORCH_INDEX"], INDEXES["PACKAGE_INDEX"]]


@pytest.mark.parametrize(
    ("installed", "line"),
    [
        ("torch==2.14.1 for CUDA 13.0", f"torch==2.14.1 for CUDA 13.0 is installed, not {NEWER}"),
        (f"{NEWER}1 for CUDA 13.0", f"{NEWER}1 for CUDA 13.0 is installed, not {NEWER}"),
        (
            f"{NEWER}+cpu for CUDA None",
            f"{NEWER} came from TORCH_INDEX as a build for CPU; give an index that has builds for CUDA",
        ),
    ],
)
def test_an_image_with_another_torch_is_not_built(tmp_path: Path, installed: str, line: str) -> None:
    status, _, lines = install(tmp_path, installed.removeprefix("torch=="), GPU="newer", **INDEXES)
    assert (status, lines) == (2, [f"reread: {line}"])


def test_the_container_of_a_cluster_is_the_image_that_is_built_here() -> None:
    site = (ROOT / "slurm" / "site.yaml").read_text(encoding="utf-8")
    command = re.findall(r"^# container: (.*?)(?: {2,}.*)?$", site, re.MULTILINE)[0]
    assert f"`container: {command}`" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert command.split()[-1] in DEFINITION
