"""Which text a run is evaluated on."""

from pathlib import Path

import pytest
import yaml

from benchmarks.random_corpus import random_corpus
from reread.pipeline.commands.ablate import ablate
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.evaluation import evaluate_run
from reread.training.trainer import train
from tests.conftest import train_values

REFUSAL = (
    r"/corpus: nothing is held out, .*\(preprocess\.validation_share\), or evaluate on other text "
    r"\(data\.corpus=FOLDER\)$"
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return random_corpus(tmp_path / "corpus", 1000, [200] * 8)


def test_text_that_was_learned_is_not_evaluated_as_if_held_out(corpus: Path, tmp_path: Path) -> None:
    """It is the same text wherever it lies; of another corpus with nothing held out all is read."""
    settings = TrainSettings.parse(train_values(corpus, steps=0), "test")
    (tmp_path / "run").mkdir()
    train(settings, tmp_path / "run")
    with pytest.raises(UserError, match=REFUSAL):
        evaluate_run(tmp_path / "run", settings)
    corpus.rename(tmp_path / "moved")
    other = random_corpus(tmp_path / "other" / "corpus", 1000, [300] * 8)  # the name is the tokenizer's
    of_other, of_moved = (
        settings.model_copy(update={"data": settings.data.model_copy(update={"corpus": place})})
        for place in (other, tmp_path / "moved")
    )
    with pytest.raises(UserError, match="/moved: nothing is held out"):
        evaluate_run(tmp_path / "run", of_moved)
    assert len(open_dataset(of_other.data, 0, "validation")) == 0
    assert evaluate_run(tmp_path / "run", of_other)["loss"] > 0


def test_ablations_without_held_out_text_are_refused_before_any_is_trained(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"name": "rows", "train": train_values(corpus), "ablations": [{"name": "a"}, {"name": "b"}]}
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reread.pipeline.commands.ablate.train", pytest.fail)
    with pytest.raises(UserError, match=REFUSAL):
        ablate("rows.yaml", [])
