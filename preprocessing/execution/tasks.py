"""The part tasks of `reread preprocess`: each reads files of the work folder and leaves files there.

    read                   a part's input       -> cleaned text, a table of its documents, their keys
    duplicates             a range of the keys  -> the documents to drop
    paragraphs             a part's documents   -> the keys of their paragraphs   (dedup.paragraphs)
    duplicate-paragraphs   a range of the keys  -> the paragraphs to drop         (dedup.paragraphs)
    vocabulary             what is left         -> a trained vocabulary           (tokenizer.train)
    encode                 a part's documents   -> its shards in the corpus folder

`run_task(folder, stage, number)` needs nothing but the folder, is safe to repeat and may run in any process on any
machine that sees the folder. An attempt at a task writes in a folder of its own and moves what it made into place,
`<stage>/<number>.json` last: where that stands, the task is done. Attempts at one task, at once or one after the other,
leave the same bytes and never meet, so no lock is needed, which many a shared file system lacks.
"""

import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property, lru_cache, partial
from hashlib import md5
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from preprocessing.config import PreprocessSettings
from preprocessing.corpus import ShardWriter, explained, sync_folder, write_atomically
from preprocessing.execution.attempts import aside, move, synced, to_json
from preprocessing.input.readers import Problem, read
from preprocessing.input.sources import Piece
from preprocessing.text.clean import Cleaner
from preprocessing.text.dedup import dropped_places, later_occurrences, sort_keys, task_count
from preprocessing.text.words import WordSegmenter
from preprocessing.tokens.encode import Encoder, batches
from preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer, train_vocabulary

DOCUMENT = np.dtype([("high", "<u8"), ("bytes", "<u8"), ("source", "<u4")])
"""The upper half of the MD5 of a cleaned document, its size and the entry of `input` it came from: `paths`, then
`validation_paths`."""

LISTED_PROBLEMS = 1000
"""Of a part; the others, perhaps one for each line, are counted."""

_advance: Callable[[int], None] = lambda size: None  # noqa: E731
"""Called with bytes of text as they are worked off."""


def report_progress_to(advance: Callable[[int], None]) -> None:
    global _advance  # noqa: PLW0603
    _advance = advance


KEYS_OF = {"duplicates": "read", "duplicate-paragraphs": "paragraphs"}
"""The stage that leaves the keys in which a stage finds equal ones."""


class Work:
    """The work folder and what its tasks share; `plan.json` holds the settings and the number of parts."""

    def __init__(self, folder: Path) -> None:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        self.folder = folder
        self.output = folder.parent
        self.settings = PreprocessSettings.model_validate(plan["settings"])
        self.parts: int = plan["parts"]
        self.sources: list[dict[str, Any]] = plan["sources"]
        self._task_counts: dict[str, int] = {}

    @cached_property
    def cleaner(self) -> Cleaner:
        return Cleaner(self.settings.clean)

    @cached_property
    def words(self) -> WordSegmenter:
        return WordSegmenter(self.settings.words)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        settings = self.settings.tokenizer
        path = settings.path or self.folder / self.result("vocabulary", 0)["path"]
        return load_tokenizer(path, settings)

    def task_count(self, stage: str) -> int:
        """Known once the stages before are done."""
        if stage not in self._task_counts:
            self._task_counts[stage] = self._count_tasks(stage)
        return self._task_counts[stage]

    def _count_tasks(self, stage: str) -> int:
        if stage in KEYS_OF:
            return task_count(sum(result["keys"] for result in self.results(KEYS_OF[stage])))
        return 1 if stage == "vocabulary" else self.parts

    def size(self, stage: str) -> int:
        """Bytes of text a stage works off."""
        counted = self.sources if stage == "read" else self.results("read")
        return sum(entry["bytes"] for entry in counted)

    def path(self, stage: str, number: int, suffix: str) -> Path:
        return self.folder / stage / f"{number:05d}{suffix}"

    def is_done(self, stage: str, number: int) -> bool:
        return self.path(stage, number, ".json").exists()

    def missing(self, stage: str) -> list[int]:
        """The tasks of a stage that are not done, by one look into its folder."""
        names = set(os.listdir(self.folder / stage)) if (self.folder / stage).exists() else set()
        return [number for number in range(self.task_count(stage)) if f"{number:05d}.json" not in names]

    def result(self, stage: str, number: int) -> dict[str, Any]:
        return json.loads(self.path(stage, number, ".json").read_text(encoding="utf-8"))

    def results(self, stage: str) -> Iterator[dict[str, Any]]:
        for number in range(self.task_count(stage)):
            yield self.result(stage, number)

    def pieces(self, part: int) -> list[tuple[int, int, dict[str, Any]]]:
        """(entry of `input`, bytes, the values of a `Piece`) of each file, or stretch of one, that a part reads."""
        with (self.folder / "parts.jsonl").open(encoding="utf-8") as file:
            return json.loads(next(islice(file, part, None)))

    def documents(self, part: int) -> NDArray[Any]:
        """DOCUMENT [n]: the cleaned documents of a part, in source order, duplicates among them."""
        return np.load(self.path("read", part, ".documents.npy"))

    def held_out(self, documents: NDArray[Any]) -> NDArray[np.bool_]:
        """bool [n]: which documents [n] of a part's table are for the validation split."""
        by_share = documents["high"] < int(self.settings.validation_share * 2**64)
        return by_share | (documents["source"] >= len(self.settings.input.paths))

    def duplicates(self, part: int, count: int) -> NDArray[np.bool_]:
        """bool [count]: which documents of the part stood before."""
        return self._dropped("duplicates", part, count)

    def unique_documents(self, part: int) -> Iterator[tuple[int, str]]:
        """(number in the part, text) of each document that is no duplicate."""
        table = self.documents(part)
        dropped = self.duplicates(part, len(table)).tolist()
        with self.path("read", part, ".zst").open("rb") as file:
            stream = zstandard.ZstdDecompressor().stream_reader(file)
            for number, size in enumerate(table["bytes"].tolist()):
                data = stream.read(size)
                if not dropped[number]:
                    yield number, data.decode()

    def survivors(self, part: int) -> Iterator[tuple[int, str]]:
        """The same after the paragraphs found elsewhere are taken out; the text may be empty."""
        if not self.settings.dedup.paragraphs:
            yield from self.unique_documents(part)
            return
        minimum = self.settings.dedup.minimum_paragraph_characters
        dropped = self._dropped("duplicate-paragraphs", part, self.result("paragraphs", part)["paragraphs"])
        of_next_key = iter((~dropped).tolist())
        for number, text in self.unique_documents(part):
            kept = [line for line in text.split("\n") if len(line) < minimum or next(of_next_key)]
            yield number, "\n".join(kept)

    def _dropped(self, stage: str, part: int, count: int) -> NDArray[np.bool_]:
        if stage not in self.settings.stages():
            return np.zeros(count, bool)
        # By name: the listing of a folder on a network file system may be older than what stands in it.
        tasks = self.result(stage, 0)["tasks"]
        dropped = dropped_places([self.path(stage, number, ".npy") for number in range(tasks)], part, count)
        dropped[np.load(self.path(KEYS_OF[stage], part, ".repeated.npy"))] = True
        return dropped


def open_work(folder: Path) -> Work:
    return _open_work(folder, (folder / "plan.json").stat().st_mtime_ns)


def forget_work() -> None:
    """Free what `open_work` keeps for the next task."""
    _open_work.cache_clear()


@lru_cache(maxsize=1)
def _open_work(folder: Path, changed: int) -> Work:
    """One a process: dictionaries and vocabularies are loaded once."""
    return Work(folder)


def run_task(folder: Path, stage: str, number: int) -> None:
    """Do one task unless it is done; raises `UserError` for bad input that is refused and for a full disk."""
    work = open_work(folder)
    try:
        (folder / stage).mkdir(exist_ok=True)
        if work.is_done(stage, number):
            return
        with aside(work.path(stage, number, "")) as attempt:
            result = _TASKS[stage](work, number, attempt)
            for path in sorted(attempt.iterdir()):
                move(path, (work.output if path.suffix == ".tar" else folder / stage) / path.name)
            write_atomically(attempt / "result", to_json(result))
            sync_folder(work.output)
            sync_folder(folder / stage)
            move(attempt / "result", work.path(stage, number, ".json"))
            sync_folder(folder / stage)
    except OSError as error:
        raise explained(error, work.output) from None


def _save(path: Path, values: NDArray[Any]) -> None:
    with synced(path) as file:
        np.save(file, values)


def _read(work: Work, number: int, attempt: Path) -> dict[str, Any]:
    settings, cleaner = work.settings, work.cleaner
    digests, sizes, sources = bytearray(), array("Q"), array("I")
    counts: dict[int, Counter[str]] = {}
    problems: list[Problem] = []
    unreadable = 0

    def report(problem: Problem) -> None:
        nonlocal unreadable
        unreadable += 1
        if len(problems) < LISTED_PROBLEMS:
            problems.append(problem)

    compressor = zstandard.ZstdCompressor(level=1)
    with synced(attempt / f"{number:05d}.zst") as file, compressor.stream_writer(file, closefd=False) as stream:
        for source, left, piece in work.pieces(number):
            count = counts.setdefault(source, Counter())
            for document in read(Piece(**piece), settings.input, report):
                text = cleaner.clean(document.text)
                data = text.encode()
                count["documents_read"] += 1
                reason = cleaner.reason_to_drop(text)
                if reason is None:
                    stream.write(data)
                    digests += md5(data).digest()
                    sizes.append(len(data))
                    sources.append(source)
                else:
                    count[reason] += 1
                step = min(left, len(data))
                left -= step  # noqa: PLW2901
                _advance(step)
            _advance(left)
    table = np.empty(len(sizes), DOCUMENT)
    table["high"] = np.frombuffer(digests, ">u8")[::2]
    table["bytes"], table["source"] = sizes, sources
    _save(attempt / f"{number:05d}.documents.npy", table)
    return {
        "documents": len(table),
        **(_save_keys(attempt, number, digests) if settings.dedup.documents else {}),
        "bytes": int(table["bytes"].sum()),
        "sources": counts,
        "unreadable": unreadable,
        "problems": [problem._asdict() for problem in problems],
    }


def _paragraphs(work: Work, number: int, attempt: Path) -> dict[str, Any]:
    minimum = work.settings.dedup.minimum_paragraph_characters
    digests = bytearray()
    for _, text in work.unique_documents(number):
        for line in text.split("\n"):
            if len(line) >= minimum:
                digests += md5(line.encode()).digest()
        _advance(len(text.encode()))
    return {"paragraphs": len(digests) // 16, **_save_keys(attempt, number, digests)}


def _save_keys(attempt: Path, number: int, digests: bytearray) -> dict[str, int]:
    keys, repeated = sort_keys(digests)
    _save(attempt / f"{number:05d}.keys.npy", keys)
    _save(attempt / f"{number:05d}.repeated.npy", repeated)
    return {"keys": len(keys), "repeated": len(repeated)}


def _find(stage: str, work: Work, number: int, attempt: Path) -> dict[str, Any]:
    files = [work.path(KEYS_OF[stage], part, ".keys.npy") for part in range(work.parts)]
    tasks = work.task_count(stage)
    found = later_occurrences(files, number, tasks, attempt)
    _save(attempt / f"{number:05d}.npy", found)
    return {"dropped": len(found), "tasks": tasks}


def _vocabulary(work: Work, number: int, attempt: Path) -> dict[str, Any]:
    settings, train = work.settings.tokenizer, work.settings.tokenizer.train
    assert train is not None
    total = sum(result["bytes"] for result in work.results("read"))
    bound = int(min(1.0, train.sample_bytes / total) * 2**32)
    words = train.type == "words"

    def sample() -> Iterator[str]:
        for part in range(work.parts):
            table = work.documents(part)
            chosen = (table["high"] & 0xFFFFFFFF) < bound  # the MD5 is the dice
            if words:  # a word of held-out text alone must stay unknown
                chosen &= ~work.held_out(table)
            for document, text in work.survivors(part):
                if text and chosen[document]:
                    yield text
                    _advance(len(text.encode()))

    folder = attempt / "trained"
    path = train_vocabulary(sample(), train, settings.lowercase, folder, split_punctuation=settings.split_punctuation)
    return {"path": str("vocabulary" / path.relative_to(attempt))}


def _encode(work: Work, number: int, attempt: Path) -> dict[str, Any]:
    table = work.documents(number)
    held_out = work.held_out(table).tolist()
    sizes, sources = table["bytes"].tolist(), table["source"].tolist()
    counts: dict[int, Counter[str]] = {source: Counter() for source in sorted(set(sources))}
    for source in table["source"][work.duplicates(number, len(table))].tolist():
        counts[source]["duplicate documents"] += 1
    encoder = Encoder(work.tokenizer, work.words)
    writers: dict[str, ShardWriter] = {}
    for batch in batches(work.survivors(number)):
        encoded = encoder.encode([text for _, text in batch])
        for (document, text), (ids, flags) in zip(batch, encoded, strict=True):
            count = counts[sources[document]]
            if len(ids) == 0:
                count["no tokens" if text else "duplicate paragraphs only"] += 1
                continue
            split = "validation" if held_out[document] else "train"
            if split not in writers:
                path = attempt / f"{split}-{number:05d}.tar"
                writers[split] = ShardWriter(path, split, token_dtype(work.tokenizer))
            writers[split].add(ids, flags)
            count["documents"] += 1
            count["characters"] += len(text)
            count["tokens"] += len(ids)
        _advance(sum(sizes[document] for document, _ in batch))
    return {
        "shards": [asdict(writers[split].close()) for split in sorted(writers)],
        "sources": counts,
        "counts": encoder.counts,
        "word_tokens": encoder.word_tokens,
        "document_tokens": encoder.document_tokens,
        "unknown_characters": encoder.unknown_characters,
    }


def token_dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"


_TASKS: dict[str, Callable[[Work, int, Path], dict[str, Any]]] = {
    "read": _read,
    "duplicates": partial(_find, "duplicates"),
    "paragraphs": _paragraphs,
    "duplicate-paragraphs": partial(_find, "duplicate-paragraphs"),
    "vocabulary": _vocabulary,
    "encode": _encode,
}
