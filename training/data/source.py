"""What a recipe's `data` section reads."""

from preprocessing.corpus import Corpus
from preprocessing.errors import UserError
from training.config import AnyData, DataSettings, PackedSettings, SegmentSettings, StreamSettings
from training.data.checks import check_masking
from training.data.materialize import MaterializedSamples, is_materialized
from training.data.packed import Packed
from training.data.samples import Samples
from training.data.segments import Segments
from training.data.stream import Stream

Source = Samples | Packed | MaterializedSamples | Segments | Stream


def open_source(settings: AnyData, seed: int, split: str) -> Source:
    """Rows, documents or text of a split; of rows also those that were written to a folder, which are the same.

    Raises `UserError` for an empty train split, a masking that would do nothing, and a folder of samples written with
    other settings than these.
    """
    if isinstance(settings, DataSettings) and is_materialized(settings.corpus):
        written = MaterializedSamples(settings.corpus, split)
        written.check(settings, seed)
        return written
    corpus = Corpus(settings.corpus, split)
    if split == "train" and corpus.documents == 0:
        raise UserError(f"{settings.corpus}: no documents in the train split; look at the corpus' report.md")
    if isinstance(settings, StreamSettings):
        return Stream(corpus, settings)
    source = drawn(corpus, settings, seed)
    check_masking(source)
    return source


def drawn(
    corpus: Corpus, settings: DataSettings | PackedSettings | SegmentSettings, seed: int
) -> Samples | Packed | Segments:
    """What is masked, drawn from the corpus when it is asked for."""
    if isinstance(settings, SegmentSettings):
        return Segments(corpus, settings, seed)
    return Packed(corpus, settings, seed) if isinstance(settings, PackedSettings) else Samples(corpus, settings, seed)
