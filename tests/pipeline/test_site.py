"""What docs/hooks.py adds to mkdocs; `make docs` itself checks the links of all pages."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT, extra

HOOKS = ROOT / "docs" / "hooks.py"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    extra("docs", "mkdocs")
    spec = spec_from_file_location("hooks", HOOKS)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linked(hooks: ModuleType, text: str, source: str) -> str:
    return re.sub(hooks.LINK, lambda link: hooks.site_link(link, str(Path(source).parent)), text)


@pytest.mark.parametrize(
    ("source", "link", "on_site"),
    [
        ("README.md", "[the models](docs/models.md#choosing)", "[the models](models.md#choosing)"),
        ("README.md", "[Slurm](slurm/README.md)", "[Slurm](cluster.md)"),
        ("docs/design.md", "[Slurm](../slurm/README.md)", "[Slurm](cluster.md)"),
        ("docs/models.md", "[read](../README.md#long-documents)", "[read](index.md#long-documents)"),
        ("docs/models.md", "[a page](api.md)", "[a page](api.md)"),
        ("docs/models.md", "[below](#choosing)", "[below](#choosing)"),
        ("slurm/README.md", "[site.yaml](site.yaml)", "site.yaml"),
        ("docs/lab-log.md", "[peers](../benchmarks/peers/README.md)", "[peers](peers.md)"),
        ("README.md", "[a paper](https://arxiv.org/abs/1909.00204)", "[a paper](https://arxiv.org/abs/1909.00204)"),
        ("README.md", "[a text\nof two lines](docs/faults.md)", "[a text\nof two lines](faults.md)"),
    ],
)
def test_a_link_of_the_repository_is_one_of_the_site(hooks: ModuleType, source: str, link: str, on_site: str) -> None:
    """A file that is no page leaves its text."""
    assert linked(hooks, link, source) == on_site


def test_a_link_that_leads_nowhere_is_left_for_mkdocs_to_refuse(hooks: ModuleType) -> None:
    assert linked(hooks, "[gone](../nowhere.md)", "docs/models.md") == "[gone](../nowhere.md)"


def test_the_reference_has_every_function_of_the_library(hooks: ModuleType) -> None:
    import reread

    functions = {name for name in reread.__all__ if name[0].islower()}
    assert functions == {name.removeprefix("reread.") for name in hooks.REFERENCE if name.count(".") == 1}
