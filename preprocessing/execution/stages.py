"""The stages of `reread preprocess`, in order: what a task of each stage does, and how many tasks it has.

A task reads files of the work folder and writes files into it; `reread.preprocessing.execution.work` lists them.
"""

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from reread.preprocessing.config import PreprocessSettings, VocabularySettings
from reread.preprocessing.corpus import ShardWriter
from reread.preprocessing.execution.evaluation import Contaminated, collect_runs, find_evaluation_files
from reread.preprocessing.execution.near import find_clusters, find_pairs, find_signatures
from reread.preprocessing.execution.progress import advance
from reread.preprocessing.execution.task_file import SUFFIX, TaskWriter
from reread.preprocessing.execution.work import DOCUMENT, SHORTEST_PARAGRAPH, Work
from reread.preprocessing.input.piece import Piece
from reread.preprocessing.input.read import Problem, read
from reread.preprocessing.text.dedup import later_occurrences, sort_keys, task_count
from reread.preprocessing.tokens.encode import Encoder, batches
from reread.preprocessing.tokens.extension import extend_by_list, extend_from_text
from reread.preprocessing.tokens.tokenizer import Tokenizer
from reread.preprocessing.tokens.vocabulary import train_vocabulary

LISTED_PROBLEMS = 1000
"""The most problems that are listed for a part; further ones, perhaps one for each line, are only counted."""


def _add(counts: Counter[str], name: str) -> None:
    counts[name] += 1


class Unreadable:
    """Counts what could not be read, and lists the first `LISTED_PROBLEMS` problems."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: list[Problem] = []

    def report(self, problem: Problem) -> None:
        self.count += 1
        if len(self.listed) < LISTED_PROBLEMS:
            self.listed.append(problem)


def _read(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Read, clean and filter the documents of part `number`; write their text, a table of them and their keys."""
    settings, cleaner = work.settings, work.new_cleaner()
    digests, sizes, sources = bytearray(), array("Q"), array("I")
    counts: dict[int, Counter[str]] = {}
    contaminated = Contaminated()
    encodings: dict[int, Counter[str]] = {}
    unreadable = Unreadable()

    def cleaned() -> Iterator[tuple[tuple[int, bytes], str]]:
        """((entry of `input`, text in UTF-8), text) of each document that no filter drops."""
        for source, left, piece in work.pieces(number):
            count = counts.setdefault(source, Counter())
            add = partial(_add, encodings.setdefault(source, Counter()))
            section = settings.inputs[piece["section"]]
            for document in read(Piece(**piece), section, unreadable.report, add):
                text = cleaner.clean(document.text)
                data = text.encode()
                count["documents_read"] += 1
                if reason := cleaner.reason_to_drop(text):
                    count[reason] += 1
                else:
                    yield (source, data), text
                step = min(left, len(data))
                left -= step  # noqa: PLW2901
                advance(step)
            advance(left)

    # Write the text batch by batch, without training documents that contain text of evaluation sets
    compressor = zstandard.ZstdCompressor(level=3)
    with writer.text() as file, compressor.stream_writer(file, closefd=False) as stream:
        for batch in batches(cleaned()):
            matches = work.evaluation_runs(text for _, text in batch)
            for ((source, data), _), match in zip(batch, matches, strict=True):
                digest = md5(data).digest()
                if match is not None and not work.is_held_out(digest, source):
                    counts[source]["evaluation text"] += 1
                    contaminated.count(match)
                    continue
                stream.write(data)
                digests += digest
                sizes.append(len(data))
                sources.append(source)
    # A table of the documents, for the later stages
    table = np.empty(len(sizes), DOCUMENT)
    table["high"] = np.frombuffer(digests, ">u8")[::2]
    table["bytes"], table["source"] = sizes, sources
    writer.save("documents", table)
    return {
        "documents": len(table),
        **(_save_keys(writer, digests) if settings.dedup.documents else {}),
        "bytes": int(table["bytes"].sum()),
        "sources": counts,
        "cleaned": cleaner.changed,
        "contaminated": contaminated.files,
        "contaminated_examples": contaminated.examples,
        "encodings": encodings,
        "unreadable": unreadable.count,
        "problems": [problem._asdict() for problem in unreadable.listed],
    }


def _paragraphs(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Save the keys of all paragraphs of part `number` that are long enough to be deduplicated."""
    digests = bytearray()
    for _, text in work.unique_documents(number):
        for line in text.split("\n"):
            if len(line) >= SHORTEST_PARAGRAPH:
                digests += md5(line.encode()).digest()
        advance(len(text.encode()))
    return {"paragraphs": len(digests) // 16, **_save_keys(writer, digests)}


def _save_keys(writer: TaskWriter, digests: bytearray) -> dict[str, int]:
    keys, repeated = sort_keys(digests)
    writer.save("keys", keys)
    writer.save("repeated", repeated)
    return {"keys": len(keys), "repeated": len(repeated)}


def _find_duplicates(keys_of: str, work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Save which texts repeat one of an earlier part, for the ranges of keys of task `number`."""
    tasks = task_count(work.key_count(keys_of))
    found = later_occurrences(work.arrays(keys_of, work.parts, "keys"), number, tasks, writer.folder)
    writer.save("found", found)
    return {"dropped": len(found), "tasks": tasks}


def _vocabulary(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Train a vocabulary on a sample of the deduplicated text, or extend the given one; returns its path in the work
    folder, and the old ids of the tokens that are new."""
    settings, train = work.settings.tokenizer, work.settings.tokenizer.train
    total = sum(result["bytes"] for result in work.part_results("read"))
    bound = int(min(1.0, (train or VocabularySettings()).sample_bytes / total) * 2**32)
    words = train is None or train.type == "words"

    def sample() -> Iterator[str]:
        for part in range(work.parts):
            table = work.documents(part)
            chosen = (table["high"] & 0xFFFFFFFF) < bound  # sampled by the hash of the text
            if words:  # a word that occurs only in held-out text must stay unknown, or as it is
                chosen &= ~work.held_out(table)
            for document, text in work.survivors(part):
                if text and chosen[document]:
                    yield text
                    advance(len(text.encode()))

    folder, new = writer.folder / "trained", {}
    if train is not None:
        marks = settings.split_punctuation
        path = train_vocabulary(sample(), train, settings.lowercase, folder, split_punctuation=marks)
    else:
        if isinstance(settings.extend, Path):
            made = extend_by_list(work.given_tokenizer, settings.extend, folder)
        else:
            assert settings.extend is not None
            made = extend_from_text(work.given_tokenizer, sample(), work.words, settings.extend, folder)
        path, new = made.path, {"new": made.pieces}
    return {"path": str("vocabulary" / path.relative_to(writer.folder)), **new}


def _encode(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Encode the documents of part `number` that are kept; writes a shard for each split, and saves the tokens of each
    document under the name of its split."""
    table = work.documents(number)
    held_out = work.held_out(table).tolist()
    sizes, sources = table["bytes"].tolist(), table["source"].tolist()
    # Count the documents that the stages before have dropped
    counts: dict[int, Counter[str]] = {source: Counter() for source in sorted(set(sources))}
    for name, is_dropped in (
        ("duplicate documents", work.duplicates(number, len(table))),
        ("near-duplicate documents", work.near_duplicates(number, len(table))),
    ):
        for source in table["source"][is_dropped].tolist():
            counts[source][name] += 1
    # Encode the others in batches, and add each to the shard of its split
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
                path = writer.folder / f"{split}-{number:05d}.tar"
                writers[split] = ShardWriter(path, split, token_dtype(work.tokenizer))
            writers[split].add(ids, flags)
            count["documents"] += 1
            count["characters"] += len(text)
            count["tokens"] += len(ids)
        advance(sum(sizes[document] for document, _ in batch))
    shards = [writers[split].close().to_json() for split in sorted(writers)]
    for split in sorted(writers):
        writer.save(split, writers[split].lengths)
    return {
        "shards": shards,
        "sources": counts,
        "counts": encoder.counts,
        "word_tokens": encoder.word_tokens,
        "document_tokens": encoder.document_tokens,
        "unknown_characters": encoder.unknown_characters,
    }


def token_dtype(tokenizer: Tokenizer) -> str:
    """The smallest unsigned integer type that holds all ids."""
    return "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"


def _finds_near(settings: PreprocessSettings) -> bool:
    return settings.dedup.near is not None


def _finds_paragraphs(settings: PreprocessSettings) -> bool:
    return settings.dedup.paragraphs


@dataclass(frozen=True)
class Stage:
    """A stage; one row of the table below."""

    name: str
    """The name for `--stage`; also that of its folder in the work folder."""
    title: str
    """The name in the log and the progress bar."""
    function: Callable[[Work, int, TaskWriter], dict[str, Any]]
    """Does task `number`: writes its arrays, text and other files, and returns its result."""
    is_needed: Callable[[PreprocessSettings], bool] = lambda settings: True
    """Whether the settings ask for this stage."""
    keys_of: str = ""
    """The stage whose keys this one compares; it then has a task for each section of the key space."""
    is_one_task: bool = False
    """Whether there is one task for the whole corpus, instead of one for each part or section of the key space."""
    last_reader: str = ""
    """The stage whose tasks are the last to read files of this one, and remove them: each that of its part, of which it
    keeps the result, or one task all of them."""

    def task_count(self, work: Work) -> int:
        """The number of tasks, which is known once the stages before are done."""
        if self.keys_of:
            return task_count(work.key_count(self.keys_of))
        return 1 if self.is_one_task else work.parts

    def is_done(self, work: Work, number: int) -> bool:
        """Whether a task is done; its file may have been removed since."""
        if work.path(self.name, number).exists() or self.is_over(work):
            return True
        return bool(self.last_reader) and work.path(self.last_reader, number).exists()

    def is_over(self, work: Work) -> bool:
        """Whether all tasks are done and their files removed."""
        reader = STAGES.get(self.last_reader)
        return reader is not None and reader.is_one_task and work.path(reader.name, 0).exists()

    def missing(self, work: Work) -> list[int]:
        """The numbers of the tasks that are not done; lists each folder once."""
        if self.is_over(work):
            return []
        # In this order, or a file that goes meanwhile would be in neither
        folders = [work.folder / name for name in (self.name, self.last_reader) if name]
        names = {name for folder in folders if folder.exists() for name in os.listdir(folder)}
        return [number for number in range(self.task_count(work)) if f"{number:05d}{SUFFIX}" not in names]

    def results(self, work: Work) -> Iterator[dict[str, Any]]:
        for number in range(self.task_count(work)):
            yield work.result(self.name, number)

    def size(self, work: Work) -> int:
        """The bytes of text that the stage processes."""
        if self.name == "evaluation":
            return sum(file.bytes for file in find_evaluation_files(work.settings.dedup.evaluation))
        return sum(entry["bytes"] for entry in (work.sources if self.name == "read" else work.part_results("read")))


_STAGES = (
    Stage(
        "evaluation",
        "reading evaluation sets",
        collect_runs,
        lambda settings: bool(settings.dedup.evaluation),
        is_one_task=True,
    ),
    Stage("read", "reading and cleaning", _read, last_reader="encode"),
    Stage(
        "duplicates",
        "finding duplicate documents",
        partial(_find_duplicates, "read"),
        lambda settings: settings.dedup.documents,
        keys_of="read",
    ),
    Stage("signatures", "hashing n-grams", find_signatures, _finds_near, last_reader="clusters"),
    Stage(
        "near-duplicates",
        "finding near-duplicates",
        find_pairs,
        _finds_near,
        keys_of="signatures",
        last_reader="clusters",
    ),
    Stage("clusters", "joining near-duplicates to clusters", find_clusters, _finds_near, is_one_task=True),
    Stage("paragraphs", "reading paragraphs", _paragraphs, _finds_paragraphs, last_reader="encode"),
    Stage(
        "duplicate-paragraphs",
        "finding duplicate paragraphs",
        partial(_find_duplicates, "paragraphs"),
        _finds_paragraphs,
        keys_of="paragraphs",
    ),
    Stage(
        "vocabulary",
        "making the vocabulary",
        _vocabulary,
        lambda settings: settings.tokenizer.train is not None or settings.tokenizer.extend is not None,
        is_one_task=True,
    ),
    Stage("encode", "encoding", _encode),
)
STAGES = {stage.name: stage for stage in _STAGES}
"""Every stage by its name, in order; the merge into a corpus follows the last one."""


def stages_of(settings: PreprocessSettings) -> list[Stage]:
    """The stages that these settings need, in order."""
    return [stage for stage in _STAGES if stage.is_needed(settings)]
