from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus
from reread.training.data.order.chunks import CorpusChunks, read_ids
from tests.corpora import make_corpus

LENGTHS = [*np.random.default_rng(2).integers(1, 700, 60).tolist(), 1, 110, 111, 125, 5000]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("chunks") / "corpus", LENGTHS)


def border(flags: np.ndarray, number: int, stride: int, window: int) -> int:
    """Where chunk `number` of a document begins according to the module's docstring."""
    if number == 0:
        return 0
    candidates = range(number * stride, number * stride - window, -1)
    for at in candidates:
        if flags[at - 1] & SENTENCE_END:
            return at
    for at in candidates:
        if not flags[at] & CONTINUES_WORD:
            return at
    return number * stride


@pytest.mark.parametrize("longest", [5, 16, 125, 509, 6000])
def test_chunks_fill_their_rows_and_leave_no_token_out(corpus: Corpus, longest: int) -> None:
    chunks = CorpusChunks(corpus, longest)
    window = max(1, longest // 8)
    stride = longest - window
    assert len(chunks) == sum(1 + max(0, -(-(n - longest) // stride)) for n in LENGTHS)
    places = chunks.locate(np.arange(len(chunks)))
    text, _, _ = chunks.bounds(places)
    ids_of = np.split(read_ids(corpus, text), np.cumsum(text.stop - text.start)[:-1])
    reads = [np.zeros(n, int) for n in LENGTHS]
    for row in range(len(chunks)):
        document, number = int(places.document[row]), int(places.chunk[row])
        ids, flags = corpus.document(document)
        n, first = len(ids), int(places.text.start[row])
        start, stop = int(text.start[row]) - first, int(text.stop[row]) - first
        if n <= longest:
            assert (start, stop) == (0, n)
        elif number * stride < n - longest:
            assert start == border(flags, number, stride, window) and stop - start == longest
        else:
            words = [at for at in range(n - longest, n - longest + window) if not flags[at] & CONTINUES_WORD]
            assert (start, stop) == (min(words, default=n - longest), n)
        assert np.array_equal(ids_of[row], ids[start:stop])
        reads[document][start:stop] += 1
    assert min(read.min() for read in reads) == 1 and max(read.max() for read in reads) <= 3


def test_a_chunk_is_the_same_in_any_order(corpus: Corpus) -> None:
    chunks = CorpusChunks(corpus, 61)
    indices = np.random.default_rng(0).permutation(len(chunks))
    shuffled = chunks.bounds(chunks.locate(indices))[0]
    ordered = chunks.bounds(chunks.locate(np.arange(len(chunks))))[0]
    assert np.array_equal(shuffled.start, ordered.start[indices])
    assert np.array_equal(shuffled.stop, ordered.stop[indices])


def test_what_is_kept_in_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    chunks = CorpusChunks(make_corpus(tmp_path / "corpus", [3] * 20_000), 125)
    assert len(chunks) == 20_000
    arrays = [value for value in vars(chunks).values() if isinstance(value, np.ndarray)]
    assert sum(array.size for array in arrays) < 100
