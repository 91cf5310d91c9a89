"""Held-out figures of a mixture: of each corpus, and of all that was read."""

from pathlib import Path

import pytest

from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.data.mixture import part_seed
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer
from tests.conftest import document_values, rarer


@pytest.mark.parametrize("limit", [rarer(None), 3])
def test_figures_are_those_of_each_corpus_alone_and_of_all_text_together(
    sample_corpus: Path, tmp_path: Path, limit: int | None
) -> None:
    values = document_values(sample_corpus, seed=5)
    path = str(values["data"].pop("corpus"))
    corpora = [{"path": path, "name": name, "weight": 1} for name in ("one", "two")]
    settings = TrainSettings.parse({**values, "data": {**values["data"], "corpora": corpora}}, "test")
    objective = Trainer(settings, tmp_path, Mesh()).objective
    found = objective.held_out_summary(limit)
    sums, share = [], None if limit is None else 2
    for number, (name, data) in enumerate(zip(("one", "two"), settings.data.parts, strict=True)):
        alone = open_dataset(data, part_seed(5, number), "validation")
        objective.held_out = alone
        figures = objective.held_out_summary(share)
        assert {f"{name}_{figure}": value for figure, value in figures.items()}.items() <= found.items()
        objective.model.eval()
        sums.append(dict(zip(objective.figures, objective.evaluate(alone, share).tolist(), strict=True)))
        objective.model.train()
    predicted = [one["predicted"] for one in sums]
    assert sums[0] != sums[1]  # they are masked differently
    assert found["loss"] == pytest.approx(sum(one["masked_lm_sum"] for one in sums) / sum(predicted), rel=1e-12)
