"""The kinds of data that a recipe can name, a row each."""

from collections.abc import Callable
from typing import Any, NamedTuple

from preprocessing.corpus import Corpus
from preprocessing.errors import UserError
from training.data.dataset import Dataset
from training.data.materialize import MaterializedSamples, is_materialized
from training.data.packed import Packed, PackedSettings
from training.data.readings import SegmentSettings
from training.data.samples import RowDataset, RowSettings, Samples
from training.data.segments import Segments
from training.data.settings import DataSettings
from training.data.stream import Stream, StreamSettings


class Kind(NamedTuple):
    settings: type[DataSettings]
    """Its `data` section."""
    open: Callable[[Any, int, str], Dataset[Any]]
    """(settings, seed, split) -> what such a section reads."""
    objective: str
    """What a model learns from it (`training.objectives`) unless the recipe names something else."""


def _drawn(dataset: Callable[[Corpus, Any, int], Dataset[Any]]) -> Callable[[Any, int, str], Dataset[Any]]:
    return lambda settings, seed, split: dataset(Corpus(settings.corpus, split), settings, seed)


def _rows(settings: RowSettings, seed: int, split: str) -> RowDataset[RowSettings]:
    """Drawn from a corpus, or as they were written to a folder with other settings and another seed."""
    if is_materialized(settings.corpus):
        return MaterializedSamples(settings.corpus, split)
    return Samples(Corpus(settings.corpus, split), settings, seed)


KINDS = {
    "rows": Kind(RowSettings, _rows, "masked_lm"),
    "packed": Kind(PackedSettings, _drawn(Packed), "masked_lm"),
    "segments": Kind(SegmentSettings, _drawn(Segments), "documents"),
    "stream": Kind(StreamSettings, _drawn(Stream), "causal_lm"),
}
"""By `data.kind`."""


def open_dataset(settings: DataSettings, seed: int, split: str) -> Dataset[Any]:
    """A split as the `data` section `settings` reads it.

    Raises `UserError` for an empty train split, a masking that would do nothing, and a folder of samples written with
    other settings than these.
    """
    dataset = KINDS[settings.kind].open(settings, seed, split)
    if split == "train" and len(dataset) == 0:
        raise UserError(f"{settings.corpus}: no documents in the train split; look at the corpus' report.md")
    dataset.check(settings, seed)
    return dataset
