"""The work folder OUTPUT/.work: the work plan, and the files that tasks write for those of later stages.

plan.json                      the settings, the number of parts, the entries of `input`
parts.jsonl                    the files and byte ranges that each part reads
vocabulary/trained/            a trained vocabulary
STAGE/00000.npz                all else that a task has made (`task_file`), which is done once this file exists

A part has two of these files at most, since the last task that reads a file removes it: `clusters` those of signatures
and near-duplicates, `encode` those of its part. They have the result of their task, and, for later stages:

evaluation                     `runs`: the runs of text in evaluation sets
read                           the cleaned text of a part's documents; `documents`: a table of them (`DOCUMENT`);
                               `keys`: their sorted keys; `repeated`: those that repeat an earlier one of the part
duplicates                     `found`: documents that repeat one of an earlier part, for a section of the key space
signatures                     `keys`: the sorted MinHash band keys of a part's documents; `signatures`: theirs;
                               `edges`: near-duplicates within the part
near-duplicates                `edges`: near-duplicates of different parts, for a section of the key space
clusters                       `found`: documents that are dropped as near-duplicates
paragraphs, duplicate-paragraphs      the same as read (keys, repeated) and duplicates, for paragraphs
encode                         the results of read and paragraphs for the same part
                               `train`, `validation`: the tokens of each document of the part's shards
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.execution.task_file import SUFFIX, array_of, result_of, text_of
from reread.preprocessing.text.clean import Cleaner
from reread.preprocessing.text.dedup import Load, listed_in
from reread.preprocessing.text.minhash import MinHash
from reread.preprocessing.text.overlap import Lengths, Match, RunFinder
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.punctuation import marks_to_map
from reread.preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer

DOCUMENT = np.dtype([("high", "<u8"), ("bytes", "<u8"), ("source", "<u4")])
"""The upper half of the MD5 of a cleaned document, its size in bytes, and the entry of `input` that it came from."""
SHORTEST_PARAGRAPH = 20
"""Shorter paragraphs, in characters, are never dropped as duplicates."""


class Work:
    """A work folder, with the dictionaries, vocabularies and settings that the tasks of a process share."""

    def __init__(self, folder: Path) -> None:
        work_plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        self.folder = folder
        self.output = folder.parent
        self.settings = PreprocessSettings.model_validate(work_plan["settings"])
        self.parts: int = work_plan["parts"]
        self.sources: list[dict[str, Any]] = work_plan["sources"]
        """The entries of `input`, each with its path, its number of files and their bytes."""
        self._key_counts: dict[str, int] = {}

    def new_cleaner(self) -> Cleaner:
        """A cleaner whose counts are zero."""
        return Cleaner(self.settings.clean, self._marks)

    @cached_property
    def _marks(self) -> dict[str, str]:
        given = self.settings.clean.map_punctuation and self.settings.tokenizer.path
        return marks_to_map(self.given_tokenizer) if given else {}

    def evaluation_runs(self, texts: Iterable[str]) -> Sequence[Match | None]:
        """[texts]: the first run of text of an evaluation set in each text; None if there is none."""
        found = list(texts)
        return self._run_finder.find(found) if self.settings.dedup.evaluation else [None] * len(found)

    @cached_property
    def _run_finder(self) -> RunFinder:
        return RunFinder(self.array("evaluation", 0, "runs"), self.run_lengths)

    @cached_property
    def run_lengths(self) -> Lengths:
        return Lengths(self.settings.dedup.evaluation_words, self.settings.dedup.evaluation_characters)

    @cached_property
    def minhash(self) -> MinHash:
        near = self.settings.dedup.near
        assert near is not None
        return MinHash(near.similarity, near.ngram)

    @cached_property
    def words(self) -> WordSegmenter:
        return WordSegmenter(self.settings.words)

    @cached_property
    def given_tokenizer(self) -> Tokenizer:
        """The tokenizer of `tokenizer.path`, which is not None."""
        settings = self.settings.tokenizer
        assert settings.path is not None
        return load_tokenizer(settings.path, settings)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the corpus, once the stage `vocabulary` is done if there is one."""
        settings = self.settings.tokenizer
        if settings.train is None and settings.extend is None:
            return self.given_tokenizer
        return load_tokenizer(self.folder / self.result("vocabulary", 0)["path"], settings)

    @property
    def new_rows(self) -> dict[str, list[list[int]]]:
        """What the manifest says of tokens that are new in the vocabulary of `tokenizer.path`: nothing for none."""
        return {} if self.settings.tokenizer.extend is None else {"new": self.result("vocabulary", 0)["new"]}

    def path(self, stage: str, number: int) -> Path:
        """The file of a task."""
        return self.folder / stage / f"{number:05d}{SUFFIX}"

    def result(self, stage: str, number: int) -> dict[str, Any]:
        """What a task has returned."""
        try:
            return result_of(self.path(stage, number), stage)
        except FileNotFoundError:
            return result_of(self.path("encode", number), stage)

    def array(self, stage: str, number: int, name: str) -> NDArray[Any]:
        """An array that a task has made, as a view of its file."""
        return array_of(self.path(stage, number), name)

    def arrays(self, stage: str, tasks: int, name: str) -> list[Load]:
        """What opens this array of each of the tasks."""
        # By name: the listing of a folder on a network file system may lag behind its contents.
        return [partial(self.array, stage, number, name) for number in range(tasks)]

    def part_results(self, stage: str) -> Iterator[dict[str, Any]]:
        """The results of the tasks of a stage that has one task for each part."""
        for part in range(self.parts):
            yield self.result(stage, part)

    def key_count(self, stage: str) -> int:
        """The number of keys that the tasks of `stage` have written; all of them must be done."""
        if stage not in self._key_counts:
            self._key_counts[stage] = sum(result["keys"] for result in self.part_results(stage))
        return self._key_counts[stage]

    def pieces(self, part: int) -> list[tuple[int, int, dict[str, Any]]]:
        """(entry of `input`, size in bytes, the fields of a `Piece`) for each file or byte range that a part reads."""
        with (self.folder / "parts.jsonl").open(encoding="utf-8") as file:
            return json.loads(next(islice(file, part, None)))

    def documents(self, part: int) -> NDArray[Any]:
        """DOCUMENT [n]: the cleaned documents of a part in source order, including duplicates."""
        return self.array("read", part, "documents").copy()

    def held_out(self, documents: NDArray[Any]) -> NDArray[np.bool_]:
        """bool [n]: which of `documents` [n], rows of a part's table, belong to the validation split."""
        by_share = documents["high"] < int(self.settings.validation_share * 2**64)
        return by_share | (documents["source"] >= sum(len(section.paths) for section in self.settings.inputs))

    def is_held_out(self, digest: bytes, source: int) -> bool:
        """Whether a document belongs to the validation split, by the MD5 of its text and its entry of `input`."""
        table = np.zeros(1, DOCUMENT)
        table["high"], table["source"] = int.from_bytes(digest[:8], "big"), source
        return bool(self.held_out(table)[0])

    def duplicates(self, part: int, count: int) -> NDArray[np.bool_]:
        """bool [count]: which documents of the part repeat an earlier one."""
        if not self.settings.dedup.documents:
            return np.zeros(count, bool)
        return self._dropped("duplicates", "read", part, count)

    def near_duplicates(self, part: int, count: int) -> NDArray[np.bool_]:
        """bool [count]: which documents of the part are dropped in favour of a near-duplicate."""
        return listed_in(self.arrays("clusters", 1 if self.settings.dedup.near else 0, "found"), part, count)

    def texts(self, part: int, dropped: NDArray[np.bool_] | None = None) -> Iterator[tuple[int, str]]:
        """(index in the part, text) of each cleaned document, without those that are `dropped` [documents]."""
        sizes = self.documents(part)["bytes"].tolist()
        is_left = [True] * len(sizes) if dropped is None else (~dropped).tolist()
        with text_of(self.path("read", part)) as file:
            stream = zstandard.ZstdDecompressor().stream_reader(file)
            for number, size in enumerate(sizes):
                data = stream.read(size)
                if is_left[number]:
                    yield number, data.decode()

    def unique_documents(self, part: int) -> Iterator[tuple[int, str]]:
        """(index in the part, text) of each document, without duplicates and near-duplicates."""
        count = len(self.documents(part))
        return self.texts(part, self.duplicates(part, count) | self.near_duplicates(part, count))

    def survivors(self, part: int) -> Iterator[tuple[int, str]]:
        """The `unique_documents`, without paragraphs that repeat an earlier one; the text may be empty."""
        if not self.settings.dedup.paragraphs:
            yield from self.unique_documents(part)
            return
        dropped = self._dropped(
            "duplicate-paragraphs", "paragraphs", part, self.result("paragraphs", part)["paragraphs"]
        )
        is_kept = iter((~dropped).tolist())  # one for each paragraph long enough to have a key
        for number, text in self.unique_documents(part):
            kept = [line for line in text.split("\n") if len(line) < SHORTEST_PARAGRAPH or next(is_kept)]
            yield number, "\n".join(kept)

    def _dropped(self, stage: str, keys_of: str, part: int, count: int) -> NDArray[np.bool_]:
        """bool [count]: which documents or paragraphs of the part repeat an earlier one, by the results of `stage`."""
        tasks = self.result(stage, 0)["tasks"]
        dropped = listed_in(self.arrays(stage, tasks, "found"), part, count)
        dropped[self.array(keys_of, part, "repeated").copy()] = True
        return dropped


def open_work(folder: Path) -> Work:
    """The work folder; dictionaries and vocabularies that were loaded for the last task are kept."""
    return _open_work(folder, (folder / "plan.json").stat().st_mtime_ns)


def forget_work() -> None:
    """Free the dictionaries and vocabularies that `open_work` keeps for the next task."""
    _open_work.cache_clear()


@lru_cache(maxsize=1)
def _open_work(folder: Path, changed: int) -> Work:
    """The last work folder of this process is kept, so that dictionaries and vocabularies are loaded once."""
    return Work(folder)
