"""The table of the kinds of data that a recipe can name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.training.data.dataset import Dataset
from reread.training.data.materialize import MaterializedSamples, is_materialized
from reread.training.data.mixture import MixedRows, MixedSegments, MixedStream, Mixture, part_seed
from reread.training.data.order.order import cut_pools
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.data.rows.packed import Packed, PackedSettings
from reread.training.data.rows.samples import RowDataset, RowSettings, Samples
from reread.training.data.rows.segments import Segments
from reread.training.data.rows.stream import Stream, StreamSettings
from reread.training.data.settings import CorpusSettings, DataSettings
from reread.training.data.tasks.answer import AnswerDataset
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.choose import ChooseDataset, ChooseSettings
from reread.training.data.tasks.classify import ClassifyDataset, ClassifySettings
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.rank import RankDataset, RankSettings
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.tag import TagDataset, TagSettings


class Kind(NamedTuple):
    settings: type[DataSettings]
    """The class of its `data` section."""
    open: Callable[[Any, int, str], Dataset[Any]]
    """(settings, seed, split) -> the dataset."""
    objective: str
    """Default objective (`reread.training.objectives`), if the recipe does not name one."""
    task: type[TaskDataset[Any, Any]] | None = None
    """Of a kind of task, the class of its dataset."""


def _drawn(
    dataset: Callable[[Any, Any, int], Dataset[Any]], mixture: type[Mixture[Any]]
) -> Callable[[Any, int, str], Dataset[Any]]:
    """Datasets drawn from a corpus, or from each corpus of a mixture."""

    def open_all(settings: CorpusSettings, seed: int, split: str) -> Dataset[Any]:
        corpora = zip(open_corpora(settings, split), settings.parts, strict=True)
        parts = [dataset(corpus, one, part_seed(seed, number)) for number, (corpus, one) in enumerate(corpora)]
        return mixture(parts, settings, seed, split) if settings.corpora else parts[0]

    return open_all


def _task(settings: type[TaskSettings], dataset: type[TaskDataset[Any, Any]], name: str) -> Kind:
    return Kind(settings, dataset.open, name, dataset)


def _rows(source: Corpus | MaterializedSamples, settings: RowSettings, seed: int) -> RowDataset[RowSettings]:
    """Rows drawn from a corpus, or those of a folder of samples, with the settings and seed they were written with."""
    return Samples(source, settings, seed) if isinstance(source, Corpus) else source


def open_corpora(settings: CorpusSettings, split: str) -> list[Corpus | MaterializedSamples]:
    """A split of each corpus, in a folder or at an address through the cache that they share, or of its samples.

    Raises `UserError` for a cache without room for all.
    """
    opened = [_open(one, split) for one in settings.parts]
    if settings.cache is not None:
        from reread.preprocessing.corpus.remote import RemoteCorpus, check_room

        check_room([one for one in opened if isinstance(one, RemoteCorpus)], int(settings.cache.size))
    return opened


def _open(settings: CorpusSettings, split: str) -> Corpus | MaterializedSamples:
    if isinstance(settings, RowSettings) and is_materialized(settings.folder):
        if isinstance(settings.corpus, Path):
            return MaterializedSamples(settings.corpus, split)
        raise UserError(
            f"{settings.corpus}: holds samples of `reread preprocess --materialize`, which are read from a folder of "
            "this machine; copy it, or give the corpus that they were drawn from"
        )
    if isinstance(settings.corpus, Path):
        return Corpus(settings.corpus, split)
    from reread.preprocessing.corpus.remote import RemoteCorpus

    assert settings.corpus is not None and settings.cache is not None
    pool_tokens = getattr(settings, "pool_tokens", None)
    return RemoteCorpus(settings.corpus, settings.cache, split, lambda tokens: cut_pools(tokens, pool_tokens))


KINDS = {
    "rows": Kind(RowSettings, _drawn(_rows, MixedRows), "masked_lm"),
    "packed": Kind(PackedSettings, _drawn(Packed, MixedRows), "masked_lm"),
    "segments": Kind(SegmentSettings, _drawn(Segments, MixedSegments), "documents"),
    "stream": Kind(StreamSettings, _drawn(Stream, MixedStream), "causal_lm"),
    "classify": _task(ClassifySettings, ClassifyDataset, "classify"),
    "tag": _task(TagSettings, TagDataset, "tag"),
    "answer": _task(AnswerSettings, AnswerDataset, "answer"),
    "choose": _task(ChooseSettings, ChooseDataset, "choose"),
    "rank": _task(RankSettings, RankDataset, "rank"),
}
"""`data.kind` -> its row."""


def open_dataset(settings: DataSettings, seed: int, split: str) -> Dataset[Any]:
    """Open a split with the `data` section `settings`.

    Raises `UserError` for an empty train split, for masking without effect, and for a folder of samples written with
    other settings.
    """
    dataset = KINDS[settings.kind].open(settings, seed, split)
    if split == "train" and len(dataset) == 0:
        raise UserError(f"{settings.place}: no documents in the train split; look at the corpus' report.md")
    dataset.check(settings, seed)
    return dataset


def open_examples(settings: TaskSettings, examples: Sequence[Example]) -> TaskDataset[Any, Any]:
    """The examples of a task that a program has."""
    dataset = KINDS[settings.kind].task
    assert dataset is not None
    return dataset(settings, 0, examples)


def check_held_out(settings: DataSettings, seed: int) -> None:
    """Raises `UserError` if nothing is held out of the data, so that a run could not be evaluated on it."""
    if len(open_dataset(settings, seed, "validation")) == 0:
        raise nothing_held_out(settings)


def nothing_held_out(settings: DataSettings) -> UserError:
    return UserError(
        f"{settings.place}: nothing of it is held out, and figures of text that was learned say little; hold some out "
        f"({settings.held_out_by}), or evaluate on other text ({settings.other_text})"
    )
