"""The table of the kinds of data that a recipe can name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reread.preprocessing.corpus import Corpus
from reread.preprocessing.corpus.job import trusting
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.training.data.dataset import Dataset
from reread.training.data.materialize import MaterializedSamples, is_materialized
from reread.training.data.mixture import MixedRows, MixedSegments, MixedStream, Mixture, part_seed
from reread.training.data.order.order import cut_pools
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.data.rows.packed import Packed, PackedSettings
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.rows.segments import Segments
from reread.training.data.rows.stream import Stream, StreamSettings
from reread.training.data.settings import CorpusSettings, DataSettings
from reread.training.data.tasks.answer import AnswerDataset
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.choose import AlignedDataset, ChooseDataset, ChooseSettings, JoinedDataset
from reread.training.data.tasks.classify import ClassifyDataset, ClassifySettings
from reread.training.data.tasks.coreference import CoreferenceDataset, CoreferenceSettings
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.embed import EmbedDataset, EmbedSettings
from reread.training.data.tasks.generate import GenerateDataset, GenerateSettings
from reread.training.data.tasks.marked import MarkedDataset
from reread.training.data.tasks.phrases import PhrasesDataset, PhrasesSettings
from reread.training.data.tasks.rank import RankDataset, RankSettings
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.tag import TagDataset, TagSettings

if TYPE_CHECKING:
    from reread.preprocessing.corpus.remote import RemoteCorpus


class Kind(NamedTuple):
    settings: type[DataSettings]
    """The class of the `data` section."""
    open: Callable[[Any, int, str], Dataset[Any]]
    """(settings, seed, split) -> the dataset."""
    objective: str
    """Default objective (`reread.training.objectives`), if the recipe does not name one."""
    task: Callable[[Any], type[TaskDataset[Any, Any]]] | None = None
    """Settings -> the class of the dataset, if the data is a task."""


def _drawn(
    dataset: Callable[[Any, Any, int], Dataset[Any]], mixture: type[Mixture[Any]]
) -> Callable[[Any, int, str], Dataset[Any]]:
    """Datasets drawn from a corpus, or from each corpus of a mixture. A folder of finished rows is read instead, with
    the settings and the seed they were written with."""

    def open_all(settings: CorpusSettings, seed: int, split: str) -> Dataset[Any]:
        opened = zip(open_corpora(settings, split), settings.parts, strict=True)
        parts = [
            MaterializedSamples(one.folder, split) if corpus is None else dataset(corpus, one, part_seed(seed, number))
            for number, (corpus, one) in enumerate(opened)
        ]
        return mixture(parts, settings, seed, split) if settings.corpora else parts[0]

    return open_all


def _labelled(
    settings: type[TaskSettings],
    dataset: type[TaskDataset[Any, Any]],
    objective: str,
    **forms: type[TaskDataset[Any, Any]],
) -> Kind:
    """`forms` are the datasets of rows of another form, by the name of that (`task.form`)."""

    def dataset_of(given: TaskSettings) -> type[TaskDataset[Any, Any]]:
        return forms.get(getattr(given, "form", ""), dataset)

    def open_split(given: TaskSettings, seed: int, split: str) -> TaskDataset[Any, Any]:
        return dataset_of(given).open(given, seed, split)

    return Kind(settings, open_split, objective, dataset_of)


def open_corpora(settings: CorpusSettings, split: str) -> list[Corpus | None]:
    """A split of each corpus, in a folder or at an address through the cache that they share; None for finished rows.

    Raises `UserError` for a cache without room for all, and for finished rows at an address.
    """
    opened: list[Corpus | None] = []
    remote: list[RemoteCorpus] = []
    for one in settings.parts:
        if one.may_be_materialized and is_materialized(one.folder):
            if not isinstance(one.corpus, Path):
                raise UserError(
                    f"{one.corpus}: holds samples of `reread preprocess --materialize`, which are read from a folder "
                    "of this machine; copy it, or give the corpus that they were drawn from"
                )
            opened.append(None)
        elif isinstance(one.corpus, Path):
            opened.append(Corpus(one.corpus, split))
        else:
            remote.append(_at_address(one, split))
            opened.append(remote[-1])
    if remote and settings.cache is not None:
        from reread.preprocessing.corpus.remote import check_room

        check_room(remote, int(settings.cache.size))
    return opened


def _at_address(settings: CorpusSettings, split: str) -> "RemoteCorpus":
    from reread.preprocessing.corpus.remote import RemoteCorpus

    assert isinstance(settings.corpus, str) and settings.cache is not None
    pool_tokens = getattr(settings, "pool_tokens", None)
    return RemoteCorpus(settings.corpus, settings.cache, split, lambda tokens: cut_pools(tokens, pool_tokens))


KINDS = {
    "rows": Kind(RowSettings, _drawn(Samples, MixedRows), "masked_lm"),
    "packed": Kind(PackedSettings, _drawn(Packed, MixedRows), "masked_lm"),
    "segments": Kind(SegmentSettings, _drawn(Segments, MixedSegments), "documents"),
    "stream": Kind(StreamSettings, _drawn(Stream, MixedStream), "causal_lm"),
    "classify": _labelled(ClassifySettings, ClassifyDataset, "classify"),
    "tag": _labelled(TagSettings, TagDataset, "tag"),
    "answer": _labelled(AnswerSettings, AnswerDataset, "answer", marked=MarkedDataset),
    "choose": _labelled(ChooseSettings, ChooseDataset, "choose", aligned=AlignedDataset, joined=JoinedDataset),
    "rank": _labelled(RankSettings, RankDataset, "rank"),
    "phrases": _labelled(PhrasesSettings, PhrasesDataset, "phrases"),
    "coreference": _labelled(CoreferenceSettings, CoreferenceDataset, "coreference"),
    "generate": _labelled(GenerateSettings, GenerateDataset, "generate"),
    "embed": _labelled(EmbedSettings, EmbedDataset, "embed"),
}
"""`data.kind` -> its row."""


def open_dataset(settings: DataSettings, seed: int, split: str) -> Dataset[Any]:
    """Open a split with the `data` section `settings`.

    Raises `UserError` for an empty train split, for masking without effect, and for a folder of samples written with
    other settings; the last two are left to the process of a job that checks for all.
    """
    dataset = KINDS[settings.kind].open(settings, seed, split)
    if split == "train" and len(dataset) == 0:
        raise UserError(f"{settings.location}: no documents in the train split; look at the corpus' report.md")
    if not trusting():
        dataset.check(settings, seed)
    return dataset


def open_examples(settings: TaskSettings, examples: Sequence[Example]) -> TaskDataset[Any, Any]:
    """The examples of a task that a program has."""
    dataset = KINDS[settings.kind].task
    assert dataset is not None
    return dataset(settings)(settings, 0, examples)


def open_task(settings: TaskSettings, seed: int, split: str) -> TaskDataset[Any, Any]:
    """The examples of a split of a task, which may be none."""
    dataset = KINDS[settings.kind].task
    assert dataset is not None
    return dataset(settings).open(settings, seed, split)


def check_held_out(settings: DataSettings, seed: int) -> None:
    """Raises `UserError` if nothing is held out of the data, so that a run could not be evaluated on it."""
    if len(open_dataset(settings, seed, "validation")) == 0:
        raise nothing_held_out(settings)


def nothing_held_out(settings: DataSettings) -> UserError:
    return UserError(
        f"{settings.location}: nothing is held out, and figures on text that the model learned say little; hold some "
        f"out ({settings.held_out_by}), or evaluate on other text ({settings.other_text})"
    )
