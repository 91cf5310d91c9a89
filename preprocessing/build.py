"""Raw text -> corpus: plans the part tasks of `tasks.py`, runs them on this machine and merges what they leave.

The output depends on the input and the settings alone, never on the number of workers or on interruptions. Work in
progress lies in OUTPUT/.work; a relaunch does what is missing there, and the folder is a corpus once it holds
`manifest.json`, which is written last. `preprocess.json` records what the corpus is made from.
"""

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from preprocessing.config import PreprocessSettings
from preprocessing.corpus import FORMAT_VERSION, Block, Manifest, Shard, explained, write_atomically
from preprocessing.errors import UserError
from preprocessing.executor import Executor
from preprocessing.report import write_report
from preprocessing.sources import Source, find_files, plan_parts
from preprocessing.tasks import Work, forget_work, locked, open_work, token_dtype
from preprocessing.tokenizer import Tokenizer, load_tokenizer
from preprocessing.words import WordSegmenter

log = logging.getLogger("reread")

WORK, LOCK, RECORD = ".work", ".lock", "preprocess.json"


def build(settings: PreprocessSettings) -> Manifest:
    """Make the corpus `settings.output`, or finish it, or return it if it is whole.

    Raises `UserError` where the folder was made from something else or is in use, the disk is full, a worker is killed
    twice, input is refused, or no document is left.
    """
    output = settings.output
    files = find_files(settings.input)
    words = WordSegmenter(settings.words)
    # Loaded here already: a mistake in a vocabulary should show before hours of work.
    given = settings.tokenizer
    tokenizer = load_tokenizer(given.path, given) if given.path else None
    identity = _identity(settings, files, words, tokenizer)
    try:
        if (manifest := _finished(output, identity)) is not None:
            log.info("%s: whole already, made from the same input and settings; nothing to do", output)
            return manifest
        output.mkdir(parents=True, exist_ok=True)
        with locked(output / LOCK, wait=False):
            _prepare(settings, files, identity)
            work = open_work(output / WORK)
            work.words = words
            if tokenizer is not None:
                work.tokenizer = tokenizer
            manifest = _run(work, settings.workers)
            shutil.rmtree(output / WORK)
            (output / LOCK).unlink()
        return manifest
    except BlockingIOError:
        raise UserError(f"{output}: another `reread preprocess` is writing it; wait for it or stop it") from None
    except OSError as error:
        raise explained(error, output) from None
    finally:
        forget_work()


def _identity(
    settings: PreprocessSettings, files: list[Source], words: WordSegmenter, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """All that determines the output."""
    values = _described(settings)
    if tokenizer is not None:
        values["tokenizer"]["path"] = tokenizer.describe()["fingerprint"]
    return {
        "format": FORMAT_VERSION,
        "settings": values,
        "words": words.description,
        "files": {file.path: f"{file.bytes} bytes, changed at {os.stat(file.path).st_mtime_ns}" for file in files},
    }


def _described(settings: PreprocessSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude={"output", "workers"})


def _finished(output: Path, identity: dict[str, Any]) -> Manifest | None:
    """The manifest of a corpus that is whole and made from the same; clears what a kill at the very end left."""
    if not (output / "manifest.json").exists():
        return None
    _check_same(output, identity)
    manifest = Manifest.read(output)
    for shard in manifest.shards:
        path = output / shard.name
        if not path.exists() or path.stat().st_size != shard.bytes:
            log.warning("%s: missing or truncated; the corpus is built again", path)
            return None
    shutil.rmtree(output / WORK, ignore_errors=True)
    return manifest


def _check_same(output: Path, identity: dict[str, Any]) -> None:
    path = output / RECORD
    if not path.exists():
        if any(entry.name not in (WORK, LOCK, f"{RECORD}.tmp") for entry in output.iterdir()):
            raise UserError(f"{output}: holds other files; choose an empty folder for the corpus")
        return
    old = json.loads(path.read_text(encoding="utf-8"))
    with suppress(ValidationError):  # an earlier version knew fewer settings; it did what their defaults say
        old["settings"] = _described(PreprocessSettings.model_validate({**old["settings"], "output": output}))
    differences = list(_differences(old, identity))
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise UserError(
            f"{output}: was begun with something else: {'; '.join(differences[:3])}{more}; "
            "choose another output folder, or delete this one"
        )


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            path = key if name in ("", "files", "settings") else f"{name}.{key}"
            if key not in new or key not in old:
                yield f"{path} is {'gone' if key in old else 'new'}"
            else:
                yield from _differences(old[key], new[key], path)
    elif old != new:
        yield f"{name} was {json.dumps(old, ensure_ascii=False)}, is {json.dumps(new, ensure_ascii=False)}"


def _prepare(settings: PreprocessSettings, files: list[Source], identity: dict[str, Any]) -> None:
    """Leave a work folder with the plan of this very corpus."""
    output, work = settings.output, settings.output / WORK
    record, manifest = output / RECORD, output / "manifest.json"
    begun = not manifest.exists() and any((work / "read").glob("*.json"))
    if begun or manifest.exists() or not record.exists():  # a run refused before its first part was done binds nobody
        _check_same(output, identity)
    if begun:
        return
    shutil.rmtree(work, ignore_errors=True)
    manifest.unlink(missing_ok=True)
    write_atomically(record, json.dumps(identity, ensure_ascii=False, indent=1).encode())
    _plan(settings, files, work)


def _plan(settings: PreprocessSettings, files: list[Source], work: Path) -> None:
    entries = [*settings.input.paths, *settings.input.validation_paths]
    held_out = range(len(settings.input.paths), len(entries))
    # A file found through two entries counts for the first of them, but is held out if one of them says so.
    entry_of: dict[str, int] = {}
    for number in (*held_out, *range(held_out.start)):
        # Only the paths matter: with the format stated, none is chosen, and logged, once more.
        only = {"paths": [entries[number]], "validation_paths": [], "format": "jsonl"}
        for file in find_files(settings.input.model_copy(update=only)):
            entry_of.setdefault(file.path, number)
    sources: list[dict[str, Any]] = [{"path": entry, "files": 0, "bytes": 0} for entry in entries]
    for file in files:
        sources[entry_of[file.path]]["files"] += 1
        sources[entry_of[file.path]]["bytes"] += file.bytes
    sizes = {file.path: file.bytes for file in files}
    (work / "parts").mkdir(parents=True)
    parts = plan_parts(files, settings.part_bytes)
    for number, pieces in enumerate(parts):
        values = [
            (entry_of[piece.path], (piece.end or sizes[piece.path]) - piece.start, asdict(piece)) for piece in pieces
        ]
        write_atomically(work / "parts" / f"{number:05d}.json", json.dumps(values).encode())
    plan = {"settings": settings.model_dump(mode="json"), "parts": len(parts), "sources": sources}
    write_atomically(work / "plan.json", json.dumps(plan, ensure_ascii=False, indent=1).encode())


def _run(work: Work, workers: int) -> Manifest:
    with Executor(workers) as executor:
        for stage in work.stages():
            executor.run(work, stage)
            if stage == "read":
                _check_any_document(work)
    manifest = _merge(work)
    _write(work, manifest)
    return manifest


def _check_any_document(work: Work) -> None:
    results = list(work.results("read"))
    if not any(result["documents"] for result in results):
        dropped = sum((_dropped(count) for count in _by_source(work, results)), Counter())
        problems = [problem for result in results for problem in result["problems"]]
        dropped["unreadable"] = len(problems)
        shutil.rmtree(work.folder)
        first = "the first unreadable: {path}:{position}: {reason}; ".format(**problems[0]) if problems else ""
        raise UserError(
            f"{work.output}: no document is left (dropped {_listed(dropped)}); {first}look at `input.format`, "
            "`input.encoding` and the filters under `clean`"
        )


_TOTALS = ("documents_read", "documents", "characters", "tokens")


def _by_source(work: Work, results: Iterable[dict[str, Any]]) -> list[Counter[str]]:
    """What was counted, for each entry of `input.paths` and `input.validation_paths`."""
    counts: list[Counter[str]] = [Counter() for _ in work.sources]
    for result in results:
        for source, count in result["sources"].items():
            counts[int(source)].update(count)
    return counts


def _dropped(count: Counter[str]) -> Counter[str]:
    return Counter({name: count[name] for name in sorted(count) if name not in _TOTALS})


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count) or "nothing"


def _merge(work: Work) -> Manifest:
    read, encoded = list(work.results("read")), list(work.results("encode"))
    shards = [
        Shard(**{**shard, "blocks": [Block(**block) for block in shard["blocks"]]})
        for split in ("train", "validation")
        for result in encoded
        for shard in result["shards"]
        if shard["split"] == split
    ]
    if not shards:
        raise UserError(f"{work.output}: the tokenizer left no token of any document; is it one for this language?")
    counts = _by_source(work, [*read, *encoded])
    dropped = sum(map(_dropped, counts), Counter())
    dropped["unreadable"] = sum(len(result["problems"]) for result in read)
    if "duplicate-paragraphs" in work.stages():
        dropped["duplicate paragraphs"] = sum(result["dropped"] for result in work.results("duplicate-paragraphs"))
    totals = {name: sum(count[name] for count in counts) for name in _TOTALS}
    sums = {name: _sum(result[name] for result in encoded) for name in ("counts", "word_tokens", "document_tokens")}
    unknown = sum((Counter(result["unknown_characters"]) for result in encoded), Counter())
    return Manifest(
        tokenizer=work.tokenizer.describe(),
        dtype=token_dtype(work.tokenizer),
        shards=shards,
        sources=[
            {
                **source,
                **{name: count[name] for name in _TOTALS},
                "dropped": {k: n for k, n in _dropped(count).items() if n},
            }
            for source, count in zip(work.sources, counts, strict=True)
        ],
        dropped={name: count for name, count in dropped.items() if count},
        statistics={
            **totals,
            "validation_documents": sum(shard.documents for shard in shards if shard.split == "validation"),
            **sums.pop("counts"),
            **sums,
            "unknown_characters": dict(sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:20]),
            "word_boundaries": work.words.description,
        },
    )


def _sum(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """Keys in order, those that are numbers by their size."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(sorted(total.items(), key=lambda item: (len(item[0]), item[0]) if item[0].isdigit() else (0, item[0])))


def _write(work: Work, manifest: Manifest) -> None:
    """The corpus folder but for its shards; the manifest comes last."""
    output, statistics = work.output, manifest.statistics
    shutil.rmtree(output / "tokenizer", ignore_errors=True)
    work.tokenizer.save(output / "tokenizer")
    problems = [problem for result in work.results("read") for problem in result["problems"]]
    if problems:
        lines = [json.dumps(problem, ensure_ascii=False) + "\n" for problem in problems]
        write_atomically(output / "problems.jsonl", "".join(lines).encode())
        log.warning("%d inputs could not be read; they are listed in %s", len(problems), output / "problems.jsonl")
    write_report(output, manifest)
    manifest.write(output)
    if statistics["unknown_tokens"] > 0.01 * statistics["tokens"]:
        often = f", most often {' '.join(list(statistics['unknown_characters'])[:10])}"
        log.warning(
            "%.1f %% of the tokens are unknown to the vocabulary%s: is it the right one for this text?",
            100 * statistics["unknown_tokens"] / statistics["tokens"],
            "" if manifest.tokenizer["type"] == "words" else often,
        )
    if statistics["validation_documents"] == 0:
        log.warning("no document fell to the held-out share; raise `validation_share` for a validation loss")
    elif statistics["validation_documents"] == statistics["documents"]:
        log.warning("every document fell to the held-out share and none is left to train on; lower `validation_share`")
    log.info(
        "%s: %s documents, %s tokens in %d shards; dropped %s; see report.md there",
        output,
        f"{statistics['documents']:,}",
        f"{statistics['tokens']:,}",
        len(manifest.shards),
        _listed(manifest.dropped),
    )
