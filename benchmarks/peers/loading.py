"""The same text read from a cold disk by us, megatron-core's indexed dataset, mosaicml-streaming and webdataset.

All read windows of 128 tokens in random order, 4 a step. Ours are masked rows with [CLS] and [SEP]; the others return
ids alone. megatron-core is a permutation of the windows of all documents, read by `IndexedDataset.get`, as its
GPTDataset does. mosaicml-streaming has a sample for each window, shuffled as it does by default. webdataset has a
sample for each document, cut into windows; shards and a buffer of 1,000 windows are shuffled, as its documentation has
it, and it resumes by reading what comes before. Costs are seconds of the clock; with a warm cache, CPU seconds. The
first batch is the median of so many openings, and they and resuming begin with a path.
"""

import gc
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.data.disk import Read, drop_cache, reading
from benchmarks.peers.sizes import BATCH, OPENINGS, POOL_TOKENS, RESUMED, STEPS, WINDOW

Batches = Callable[[Path, int], Iterator[Any]]
SHARD_DOCUMENTS = 10_000


def pools(folder: Path, seed: int) -> dict[str, float]:
    return _costs(folder, partial(rows, pool_tokens=POOL_TOKENS), folder / "ours")


def whole(folder: Path, seed: int) -> dict[str, float]:
    return _costs(folder, partial(rows, pool_tokens=None), folder / "ours")


def megatron(folder: Path, seed: int) -> dict[str, float]:
    return _costs(folder, _megatron_windows, folder / "megatron")


def mosaicml(folder: Path, seed: int) -> dict[str, float]:
    import_streaming()
    return _costs(folder, _mosaicml_windows, folder / "mosaicml")


def webdataset(folder: Path, seed: int) -> dict[str, float]:
    return _costs(folder, _webdataset_windows, folder / "webdataset")


def _costs(folder: Path, side: Batches, files: Path) -> dict[str, float]:
    def opened(step: int) -> Read:
        """The batches from a step on, opened on a cold disk, with the first drawn."""
        gc.collect()  # what is mapped stays in the cache
        drop_cache(files)
        return reading(lambda: _begun(side(files, step)))

    opened(0)  # imports are on no side of the comparison
    seconds = [opened(0).seconds for _ in range(OPENINGS - 1)]
    first = opened(0)
    cold = reading(partial(_draw, first.result))
    first = first._replace(result=None)
    resumed = opened(RESUMED).seconds
    _draw(side(files, 0))
    batches = _begun(side(files, 0))
    before = time.process_time()
    _draw(batches)
    warm = time.process_time() - before
    return {
        "first": median([*seconds, first.seconds]),
        "cold": cold.seconds,
        "warm": warm,
        "bytes": (first.bytes + cold.bytes) / (BATCH * (STEPS + 1)),
        "resume": resumed,
    }


def _begun(batches: Iterator[Any]) -> Iterator[Any]:
    next(batches)
    return batches


def _draw(batches: Iterator[Any]) -> None:
    drawn = sum(1 for _ in islice(batches, STEPS))
    assert drawn == STEPS


def rows(corpus: Path | str, step: int, pool_tokens: int | None, cache: dict[str, Any] | None = None) -> Iterator[Any]:
    """Our batches from a step on, of a folder, or of an address through a cache."""
    from reread.training.data.kinds import KINDS
    from reread.training.data.loader import rows_by_step
    from reread.training.data.rows.samples import RowSettings

    values = {"kind": "rows", "corpus": corpus, "sequence_length": WINDOW, "pool_tokens": pool_tokens, "cache": cache}
    settings = RowSettings.parse({**values, "next_sentence": False}, "data")
    return rows_by_step(KINDS["rows"].open(settings, 0, "train"), BATCH, range(BATCH), step)


def _megatron_windows(files: Path, step: int) -> Iterator[Any]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(files / "text"))
    windows = np.append(0, np.cumsum(-(-dataset.sequence_lengths // WINDOW)))
    order = np.arange(windows[-1])
    np.random.default_rng(0).shuffle(order)
    for begin in range(step * BATCH, len(order), BATCH):
        chosen = order[begin : begin + BATCH]
        documents = np.searchsorted(windows, chosen, side="right") - 1
        offsets = (chosen - windows[documents]) * WINDOW
        sizes = np.minimum(WINDOW, dataset.sequence_lengths[documents] - offsets)
        places = zip(documents.tolist(), offsets.tolist(), sizes.tolist(), strict=True)
        yield [dataset.get(*place).astype(np.int64) for place in places]  # `get` is a view that reads nothing


def import_streaming() -> Any:
    """mosaicml-streaming without torchvision, which only its images need, and which may not fit the CPU's torch."""
    import_module("transformers")  # it imports that, which looks for torchvision itself
    names = ["torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"]
    stubs = {name: types.ModuleType(name) for name in names}
    vars(stubs[names[1]])["VisionDataset"] = object
    vars(stubs[names[3]])["to_tensor"] = None
    sys.modules.update(stubs)
    return import_module("streaming")


def _mosaicml_windows(files: Path, step: int) -> Iterator[Any]:
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(files), shuffle=True, batch_size=BATCH)
    if step:
        dataset.load_state_dict(dataset.state_dict(step * BATCH, False))
    return in_batches(iter(dataset))


def _webdataset_windows(files: Path, step: int) -> Iterator[Any]:
    from webdataset import WebDataset

    def windows(samples: Iterator[Any]) -> Iterator[Any]:
        for sample in samples:
            ids = np.frombuffer(sample["ids"], np.uint16)
            for begin in range(0, len(ids), WINDOW):
                yield ids[begin : begin + WINDOW].astype(np.int64)

    shards = sorted(map(str, files.glob("*.tar")))
    dataset = WebDataset(shards, shardshuffle=100, seed=0).compose(windows).shuffle(1000)
    return islice(in_batches(iter(dataset)), step, None)


def in_batches(samples: Iterator[Any]) -> Iterator[Any]:
    while batch := list(islice(samples, BATCH)):
        yield batch


def write_megatron(folder: Path, seed: int) -> dict[str, float]:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    (folder / "megatron").mkdir()
    builder = IndexedDatasetBuilder(str(folder / "megatron" / "text.bin"), np.uint16)
    for ids in _documents(folder):
        builder.add_item(torch.from_numpy(ids.astype(np.int32)))
        builder.end_document()
    builder.finalize(str(folder / "megatron" / "text.idx"))
    return {}


def write_mosaicml(folder: Path, seed: int) -> dict[str, float]:
    with import_streaming().MDSWriter(out=str(folder / "mosaicml"), columns={"ids": "ndarray:uint16"}) as writer:
        for ids in _documents(folder):
            for begin in range(0, len(ids), WINDOW):
                writer.write({"ids": ids[begin : begin + WINDOW]})
    return {}


def write_webdataset(folder: Path, seed: int) -> dict[str, float]:
    from webdataset import ShardWriter

    (folder / "webdataset").mkdir()
    with ShardWriter(str(folder / "webdataset" / "%05d.tar"), maxcount=SHARD_DOCUMENTS, verbose=0) as writer:
        for number, ids in enumerate(_documents(folder)):
            writer.write({"__key__": f"{number:08d}", "ids": ids.tobytes()})
    return {}


def _documents(folder: Path) -> Iterator[Any]:
    ids, lengths = np.load(folder / "ids.npy", mmap_mode="r"), np.load(folder / "lengths.npy")
    for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
        yield np.array(ids[end - length : end])
