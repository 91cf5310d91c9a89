"""The same text read from a cold disk by us, megatron-core's indexed dataset and mosaicml-streaming.

    python benchmarks/data/cold_peers.py --folder FOLDER [--gigabytes 1] [--peers FOLDER]

FOLDER must be on a disk, with room for three times the text. All read windows of 128 tokens in random order, 16 a
step. Ours are masked rows with [CLS] and [SEP]; the others return ids alone. megatron-core is a permutation of the
windows of all documents, read by `IndexedDataset.get`, as its GPTDataset does. mosaicml-streaming has a sample for
each window, shuffled as it does by default; it is imported from --peers if given, for instance `pip install --no-deps
--target FOLDER mosaicml-streaming` and what it imports (a stub stands in for torchvision). Each side has processes of
its own, and the file system's cache is dropped before each.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import shutil
import time
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data.disk import drop_cache, reading
from benchmarks.harness import heading, in_process, parser, row
from benchmarks.random_corpus import random_corpus
from preprocessing.corpus import Corpus
from training.data.loader import rows_by_step
from training.data.samples import RowSettings, Samples

LENGTH, BATCH, RESUMED = 128, 16, 100_000
POOL_TOKENS = 1 << 24


def ours(folder: Path, step: int, pool_tokens: int | None) -> Iterator[Any]:
    settings = RowSettings(corpus=folder / "ours", pool_tokens=pool_tokens, next_sentence=False)
    return rows_by_step(Samples(Corpus(folder / "ours"), settings, 0), BATCH, range(BATCH), step)


def megatron(folder: Path, step: int, _: None) -> Iterator[Any]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(folder / "megatron" / "text"))
    windows = np.append(0, np.cumsum(-(-dataset.sequence_lengths // LENGTH)))
    order = np.arange(windows[-1])
    np.random.default_rng(0).shuffle(order)
    for begin in range(step * BATCH, len(order), BATCH):
        chosen = order[begin : begin + BATCH]
        documents = np.searchsorted(windows, chosen, side="right") - 1
        offsets = (chosen - windows[documents]) * LENGTH
        sizes = np.minimum(LENGTH, dataset.sequence_lengths[documents] - offsets)
        places = zip(documents.tolist(), offsets.tolist(), sizes.tolist(), strict=True)
        yield [dataset.get(*place).astype(np.int64) for place in places]  # `get` is a view that reads nothing


def import_streaming(peers: Path | None) -> Any:
    """mosaicml-streaming without torchvision, which only its images need."""
    import transformers  # noqa: F401  # looks for torchvision itself

    if peers is not None and str(peers) not in sys.path:
        sys.path.append(str(peers))
    names = ["torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"]
    stubs = {name: types.ModuleType(name) for name in names}
    vars(stubs[names[1]])["VisionDataset"] = object
    vars(stubs[names[3]])["to_tensor"] = None
    sys.modules.update(stubs)
    import streaming.base.util

    for name in names:
        del sys.modules[name]
    return streaming


def mosaicml(folder: Path, step: int, _: None) -> Iterator[Any]:
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(folder / "mosaicml"), shuffle=True, batch_size=BATCH)
    if step:
        dataset.load_state_dict(dataset.state_dict(step * BATCH, False))
    samples = iter(dataset)
    while batch := list(islice(samples, BATCH)):
        yield batch


SIDES = {
    "ours, whole": (ours, None),
    "ours, pools": (ours, POOL_TOKENS),
    "megatron-core": (megatron, None),
    "mosaicml-streaming": (mosaicml, None),
}


class Cost(NamedTuple):
    first: float
    first_bytes: int
    cold: float
    bytes: int
    warm: float


def measure(name: str, folder: Path, peers: Path | None, steps: int) -> Cost:
    """Seconds and bytes to the first batch and of `steps` steps, and seconds of the same steps once more."""
    side, argument = SIDES[name]
    imported(name, peers)
    drop_cache(folder)
    batches = side(folder, 0, argument)  # type: ignore[operator]
    first = reading(lambda: next(batches))
    cold = reading(lambda: sum(1 for _ in islice(batches, steps)))
    del batches
    batches = side(folder, 0, argument)  # type: ignore[operator]
    next(batches)
    warm = reading(lambda: sum(1 for _ in islice(batches, steps)))
    return Cost(first.seconds, first.bytes, cold.seconds, cold.bytes, warm.seconds)


def resume(name: str, folder: Path, peers: Path | None) -> float:
    """Seconds from opening to the batch of step 100,000."""
    side, argument = SIDES[name]
    imported(name, peers)
    drop_cache(folder)
    begin = time.perf_counter()
    next(side(folder, RESUMED, argument))  # type: ignore[operator]
    return time.perf_counter() - begin


def imported(name: str, peers: Path | None) -> None:
    """Imports are on no side of the comparison."""
    if name == "megatron-core":
        import megatron.core.datasets.indexed_dataset  # noqa: F401
    elif name == "mosaicml-streaming":
        import_streaming(peers)


def write_peers(folder: Path, peers: Path | None) -> None:
    """The text of `folder`/ours in both of their formats."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    corpus = Corpus(folder / "ours")
    (folder / "megatron").mkdir()
    builder = IndexedDatasetBuilder(str(folder / "megatron" / "text.bin"), np.uint16)
    columns = {"ids": "ndarray:uint16"}
    with import_streaming(peers).MDSWriter(out=str(folder / "mosaicml"), columns=columns) as writer:
        for number in range(corpus.documents):
            ids = corpus.document(number)[0]
            builder.add_item(torch.from_numpy(ids.astype(np.int32)))
            builder.end_document()
            for begin in range(0, len(ids), LENGTH):
                writer.write({"ids": ids[begin : begin + LENGTH].copy()})
    builder.finalize(str(folder / "megatron" / "text.idx"))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--gigabytes", type=float, default=1)
    arguments.add_argument("--peers", type=Path)
    arguments.add_argument("--steps", type=int, default=2000)
    options = arguments.parse_args()
    folder = options.folder / "peers"
    tokens = int(options.gigabytes * 1e9 / 3)
    lengths = np.random.default_rng(0).geometric(1 / 700, tokens // 700).tolist()
    try:
        random_corpus(folder / "ours", 30_000, lengths, shard_tokens=1 << 24)
        in_process(write_peers, folder, options.peers)
        heading("", "first batch: s, MB", "rows/s cold", "kB a row", "rows/s warm", "s to resume at step 100,000")
        for name in SIDES:
            cost = in_process(measure, name, folder, options.peers, options.steps)
            rows = options.steps * BATCH
            cells = f"{cost.first:.2f}, {cost.first_bytes / 1e6:.1f}", f"{rows / cost.cold:,.0f}"
            resumed = in_process(resume, name, folder, options.peers)
            row(name, *cells, f"{cost.bytes / rows / 1e3:.2f}", f"{rows / cost.warm:,.0f}", f"{resumed:.2f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
