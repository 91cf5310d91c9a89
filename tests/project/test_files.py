"""The files that a published project has beside its code: citation, security, notices, changelog, GitHub's."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.pipeline.test_readme import names_of_all_tests

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
NOTICES = (ROOT / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
PAGES = ("CHANGELOG.md", "SECURITY.md", "THIRD_PARTY_NOTICES.md", "containers/README.md")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def packaged() -> dict[str, Any]:
    """What setup.py hands to setuptools."""
    with patch("setuptools.setup") as setup:
        exec(compile(text_of("setup.py"), ROOT / "setup.py", "exec"), {"__file__": str(ROOT / "setup.py")})
    return dict(setup.call_args.kwargs)


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", [*GITHUB.glob("ISSUE_TEMPLATE/[!c]*.yml")]),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_have_their_published_schema(schema: str, files: list[Path]) -> None:
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_citation_names_this_version_and_the_four_papers(packaged: dict[str, Any]) -> None:
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert (citation["cff-version"], citation["license"]) == ("1.2.0", packaged["license"])
    assert citation["version"] == packaged["version"]
    papers = {one["value"] for paper in citation["references"] for one in paper["identifiers"]}
    assert papers == {f"arXiv:{number}" for number in ("1909.00204", "2012.15688", "2306.06843", "2004.05150")}


def test_the_newest_release_of_the_changelog_is_the_version_with_the_date_of_its_citation(
    packaged: dict[str, Any],
) -> None:
    sections = re.findall(r"^## (.+)$", text_of("CHANGELOG.md"), re.MULTILINE)
    assert sections[0] == "Unreleased"
    dated = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})", section) for section in sections[1:]]
    assert all(dated)
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert dated[0] and dated[0].groups() == (packaged["version"], citation["date-released"])


def test_pages_point_to_files_and_tests_that_exist() -> None:
    tests = names_of_all_tests()
    for page in PAGES:
        text = text_of(page)
        targets = re.findall(r"\]\((?!http)([^)#]+)", text)
        absent = {target for target in targets if not ((ROOT / page).parent / target).exists()}
        assert not absent | (set(re.findall(r"`(test_\w+)`", text)) - tests), page
    promises = [line for line in text_of("SECURITY.md").splitlines() if line.startswith("| ")][1:]
    assert promises
    assert all(re.search(r"`test_\w+`", line.rsplit("|", 2)[1]) for line in promises)


def needed(packaged: dict[str, Any]) -> set[str]:
    """Names of the packages that setup.py asks for, with those of its extras."""
    lines = [*packaged["install_requires"], *(line for extra in packaged["extras_require"].values() for line in extra)]
    return {Requirement(line).name for line in lines}


def test_every_package_that_is_installed_has_its_licence_in_the_notices(packaged: dict[str, Any]) -> None:
    rows = dict(
        re.findall(r"^\| ([\w.-]+) \| ([^|]+) \| (?:everything|`)", text_of("THIRD_PARTY_NOTICES.md"), re.MULTILINE)
    )
    assert set(rows) == needed(packaged)
    for name, stated in rows.items():
        try:
            expression = metadata(name).get("License-Expression")
        except PackageNotFoundError:  # of an extra that is not installed
            continue
        assert expression in {None, stated}, name


def test_files_that_the_notices_name_exist() -> None:
    named = set(
        re.findall(r"`((?:pipeline|preprocessing|training|tests)/[\w./*]+)`", text_of("THIRD_PARTY_NOTICES.md"))
    )
    assert named
    assert not {one for one in named if not list(ROOT.glob(one.rstrip("/")))}


def test_every_package_has_a_version_in_the_constraints(packaged: dict[str, Any]) -> None:
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text_of("constraints.txt"), re.MULTILINE)}
    free = {"torch", "triton", "tensorflow-cpu"}  # TORCH says which torch and Triton; TensorFlow is not in CI
    assert {canonicalize_name(name) for name in needed(packaged)} - pinned == free


def scripts() -> list[Any]:
    """The `run` script of each step of each workflow."""
    found = []
    for path in WORKFLOWS:
        for job, of in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            runs = [step["run"] for step in of["steps"] if "run" in step]
            found += [pytest.param(run, id=f"{path.stem}-{job}-{at}") for at, run in enumerate(runs)]
    return found


@pytest.mark.parametrize("script", scripts())
def test_scripts_of_the_workflows_are_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "${{" not in script, "values reach a script by `env`, where nothing of them is read as shell"
    targets = set(re.findall(r"\bmake ([a-z-]+)", script))
    assert targets <= set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))


def test_the_workflow_of_changes_runs_what_a_change_must_pass() -> None:
    assert any(".ci/run" in script.values[0] for script in scripts())


@pytest.mark.parametrize(
    ("tag", "changelog", "line"),
    [
        ("v1.2.3", "## Unreleased\n\n## 1.2.3 - 2026-01-31\n", ""),
        ("v1.2.4", "## 1.2.3 - 2026-01-31\n", "::error::the tag is v1.2.4, setup.py says 1.2.3\n"),
        ("v1.2.3", "## 1.2.3 (unreleased)\n", "::error::CHANGELOG.md has no dated section of 1.2.3\n"),
        ("v1.2.3", "## 1.203 - 2026-01-31\n", "::error::CHANGELOG.md has no dated section of 1.2.3\n"),
    ],
)
def test_a_release_needs_a_tag_and_a_dated_section_of_its_version(
    tmp_path: Path, tag: str, changelog: str, line: str
) -> None:
    (tmp_path / "setup.py").write_text(re.sub(r'version="[^"]+"', 'version="1.2.3"', text_of("setup.py")))
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    (script,) = (one.values[0] for one in scripts() if "GITHUB_REF_NAME" in one.values[0])
    environment = {"PATH": "/usr/bin:/bin", "GITHUB_REF_NAME": tag}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1 if line else 0, line)


def test_no_release_is_published_where_the_repository_does_not_say() -> None:
    release = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8"))
    check, *_, publish = release["jobs"]["publish"]["steps"]
    assert publish["with"] == {"repository-url": "${{ vars.PUBLISH_URL }}"}
    done = subprocess.run(
        ["bash", "-e", "-c", check["run"]], env={"PUBLISH_URL": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stdout.startswith("::error::set this repository's variable PUBLISH_URL")
    assert done.stdout.count("\n") == 1
