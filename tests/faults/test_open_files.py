"""More shards than a process may have files open: 64 GB of text at Linux's usual limit of 1,024, at 128 here."""

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.corpus import Corpus, Manifest, ShardWriter
from reread.training.data import materialize
from reread.training.data.kinds import open_dataset
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.data.rows.packed import PackedSettings
from reread.training.data.rows.samples import RowSettings
from reread.training.data.rows.stream import StreamSettings
from tests.forks import Job, context
from tests.runs import write_recipe

LIMIT, SHARDS = 128, 200


@pytest.fixture(scope="module")
def many(sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training split of the sample corpus, with a stretch of text per shard."""
    folder = tmp_path_factory.mktemp("many") / "corpus"
    shutil.copytree(sample_corpus / "tokenizer", folder / "tokenizer")
    source, manifest = Corpus(sample_corpus), Manifest.read(sample_corpus)
    texts = [source.document(number) for number in range(source.documents)]
    ids, flags = (np.concatenate(part) for part in zip(*texts, strict=True))
    shards = []
    for number, stretch in enumerate(np.array_split(np.arange(len(ids)), SHARDS)):
        writer = ShardWriter(folder / f"train-{number:05d}.tar", "train", manifest.dtype)
        for document in np.array_split(stretch, 2):  # pairs need another document to draw from
            writer.add(ids[document], flags[document])
        shards.append(writer.close())
    Manifest.of(manifest.tokenizer, manifest.dtype, shards, statistics=manifest.statistics).write(folder)
    return folder


def few_files(rank: int = 0) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


def limited(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function`'s result in a process that may open few files."""
    receive, send = context().Pipe(duplex=False)
    process = context().Process(target=_limited, args=(send, function, arguments), daemon=True)
    process.start()
    send.close()
    try:
        return receive.recv()
    finally:
        process.kill()
        process.join()


def _limited(send: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    few_files()
    send.send(function(*arguments))


def draw(settings: Any) -> list[Any]:
    """The number of open files with rows from all over the corpus, and the rows."""
    source: Any = open_dataset(settings, 0, "train")
    source.verify()
    everywhere = np.arange(0, len(source), max(1, len(source) // 1000))
    if isinstance(settings, SegmentSettings):
        rows = source.at(np.zeros_like(everywhere), everywhere)
    elif isinstance(settings, StreamSettings):
        rows = source.rows(everywhere, 24)
    else:
        rows = source.rows(everywhere)
    return [len(os.listdir("/proc/self/fd")), {name: values.tolist() for name, values in rows.items()}]


@pytest.mark.parametrize("kind", ["rows", "pairs", "packed", "segments", "stream"])
def test_rows_of_more_shards_than_files_may_be_open(many, kind) -> None:
    settings = {
        "rows": RowSettings(corpus=many, sequence_length=32, next_sentence=False),
        "pairs": RowSettings(corpus=many, sequence_length=32),
        "packed": PackedSettings(kind="packed", corpus=many, sequence_length=64),
        "segments": SegmentSettings(kind="segments", corpus=many, sequence_length=32),
        "stream": StreamSettings(kind="stream", corpus=many, sequence_length=24),
    }[kind]
    files, rows = limited(draw, settings)
    assert files < 64
    assert rows == draw(settings)[1]


def written(corpus: Path, out: Path) -> list[Any]:
    """`draw` from materialised samples in many shards, and the number of shards."""
    settings = RowSettings(corpus=corpus, sequence_length=32, copies=2)
    materialize.SHARD_BLOCKS = 1
    materialize.materialize(corpus, out, settings, 0, 1, block_rows=32)
    return [*draw(settings.model_copy(update={"corpus": out})), len(list(out.glob("*.tar")))]


def test_materialised_samples_in_more_shards_than_files_may_be_open(many, tmp_path) -> None:
    files, rows, shards = limited(written, many, tmp_path / "samples")
    assert files < 64 and shards > LIMIT
    assert rows == draw(RowSettings(corpus=many, sequence_length=32, copies=2))[1]


def test_training_and_verifying_with_more_shards_than_files_may_be_open(many, tmp_path) -> None:
    write_recipe(tmp_path, many)
    overrides = ("parallel.processes=1", "global_batch=64", "steps=4")
    with Job(tmp_path, "train", "tiny.yaml", *overrides, processes=1, before=few_files) as job:
        assert job.statuses() == [0], job.output
    with Job(tmp_path, "inspect", str(many), "--verify", processes=1, before=few_files) as job:
        assert job.statuses() == [0], job.output
