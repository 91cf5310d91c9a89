"""Raw text -> corpus: runs all stages, on one machine or a share of each on many, and merges their results.

The output depends on the input and the settings alone, never on the number of workers or machines or on interruptions.
Work in progress lies in OUTPUT/.work, and starting again does what is missing there. The folder is a corpus once it
holds `manifest.json`, which is written last. `preprocess.json` records what the corpus is made from.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from preprocessing.config import PreprocessSettings
from preprocessing.corpus import Manifest, WrittenShard
from preprocessing.errors import UserError, writing
from preprocessing.execution.attempts import temporary_folder
from preprocessing.execution.executor import Executor, ProcessExecutor, Share
from preprocessing.execution.report import write_report
from preprocessing.execution.stages import STAGES, Stage, stages_of, token_dtype
from preprocessing.execution.work import Work, forget_work, open_work
from preprocessing.execution.work_plan import (
    LOCK,
    WORK,
    Inputs,
    check_inputs,
    clear,
    finished,
    join,
    locked,
    prepare,
    write_record,
)
from preprocessing.files import move, to_json, write_atomically

log = logging.getLogger("reread")


def build(settings: PreprocessSettings) -> Manifest:
    """Make the corpus `settings.output`, or finish it, or return it if it is complete.

    Raises `UserError` if the folder was made from something else or is in use, the disk is full, a worker is killed
    twice, input is refused, or no document is left.
    """
    output = settings.output
    inputs = check_inputs(settings)
    with _writing_corpus(settings.output):
        if (manifest := _manifest_if_complete(settings, inputs)) is not None:
            return manifest
        with locked(output / LOCK):
            if (manifest := _manifest_if_complete(settings, inputs)) is not None:  # by another process in the meantime
                return manifest
            prepare(settings, inputs)
            work = _open(settings, inputs)
            try:
                with _executor(settings) as executor:
                    for stage in stages_of(settings):
                        executor.run(work, stage)
                        if stage.name == "read":
                            _check_any_document(work)
                manifest = _merge(work)
                _write(work, manifest, inputs.identity)
            except FileNotFoundError:  # without locks, another process may have been faster
                if (manifest := _manifest_if_complete(settings, inputs)) is None:
                    raise
            clear(output)
            (output / LOCK).unlink(missing_ok=True)
        return manifest


def build_share(settings: PreprocessSettings, stage: str, share: Share) -> None:
    """Do the share of a stage's tasks that is not done; shares may run at once on machines that see the same folder.

    Raises `UserError` as `build` does, and if an earlier stage is not complete. `build` finishes the corpus.
    """
    inputs = check_inputs(settings)
    with _writing_corpus(settings.output):
        if _manifest_if_complete(settings, inputs) is not None:
            return
        with locked(settings.output / LOCK, shared=True):
            join(settings, inputs)
            work = _open(settings, inputs)
            stages = {one.name: one for one in stages_of(settings)}
            if stage not in stages:
                raise UserError(f"--stage: `{stage}` is not a stage of these settings; they are {', '.join(stages)}")
            for before in takewhile(lambda one: one.name != stage, stages.values()):
                _check_complete(work, before, stage)
            with _executor(settings) as executor:
                executor.run(work, stages[stage], share)


def missing_stages(settings: PreprocessSettings) -> list[Stage]:
    """The stages that are not done, in order; the last one if only the merge is left, none if the corpus is complete.

    Makes the work plan if there is none. Raises `UserError` as `build` does, and while others work in the folder.
    """
    inputs = check_inputs(settings)
    with _writing_corpus(settings.output):
        if _manifest_if_complete(settings, inputs) is not None:
            return []
        with locked(settings.output / LOCK):
            prepare(settings, inputs)
            work = _open(settings, inputs)
            stages = stages_of(settings)
            first = next((number for number, stage in enumerate(stages) if stage.missing(work)), len(stages) - 1)
            return stages[first:]


@contextmanager
def _writing_corpus(output: Path) -> Iterator[None]:
    """`writing`, and a `UserError` if another process holds the lock."""
    try:
        with writing(output):
            yield
    except BlockingIOError:
        raise UserError(f"{output}: another `reread preprocess` is writing it; wait for it or stop it") from None
    finally:
        forget_work()


def _manifest_if_complete(settings: PreprocessSettings, inputs: Inputs) -> Manifest | None:
    manifest = finished(settings.output, inputs.identity)
    if manifest is not None:
        log.info("%s: complete, made from the same input and settings; nothing to do", settings.output)
    settings.output.mkdir(parents=True, exist_ok=True)
    return manifest


def _open(settings: PreprocessSettings, inputs: Inputs) -> Work:
    work = open_work(settings.output / WORK)
    work.words = inputs.words
    if inputs.tokenizer is not None:
        work.tokenizer = inputs.tokenizer
    return work


def _executor(settings: PreprocessSettings) -> Executor:
    if settings.executor == "processes":
        return ProcessExecutor(settings.workers)
    from preprocessing.execution.ray_executor import RayExecutor

    return RayExecutor(settings.workers)


def _check_complete(work: Work, stage: Stage, wanted: str) -> None:
    missing = stage.missing(work)
    if missing and (work.folder / stage.name).exists():
        # A client of NFS may show a folder as it was a minute ago, until it changes something there itself.
        with temporary_folder(work.folder / stage.name / "refresh"):
            missing = stage.missing(work)
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
        raise UserError(
            f"{work.output}: `{wanted}` needs all of `{stage.name}`, of which {listed} of "
            f"{stage.task_count(work):,} tasks are not done; run them first"
        )
    if stage.name == "read":
        _check_any_document(work)


def _check_any_document(work: Work) -> None:
    results = list(work.part_results("read"))
    if any(result["documents"] for result in results):
        return
    dropped = sum((_dropped(count) for count in _by_source(work, results)), Counter())
    problems = [problem for result in results for problem in result["problems"]]
    dropped["unreadable"] = sum(result["unreadable"] for result in results)
    first = "the first unreadable: {path}:{position}: {reason}; ".format(**problems[0]) if problems else ""
    raise UserError(
        f"{work.output}: no document is left (dropped {_listed(dropped)}); {first}look at `input.format`, "
        "`input.encoding` and the filters under `clean`"
    )


_TOTALS = ("documents_read", "documents", "characters", "tokens")


def _by_source(work: Work, results: Iterable[dict[str, Any]], name: str = "sources") -> list[Counter[str]]:
    """The sums of all counts under `name` for each entry of `input.paths` and `input.validation_paths`."""
    counts: list[Counter[str]] = [Counter() for _ in work.sources]
    for result in results:
        for source, count in result[name].items():
            counts[int(source)].update(count)
    return counts


def _dropped(count: Counter[str]) -> Counter[str]:
    return Counter({name: count[name] for name in sorted(count) if name not in _TOTALS})


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count) or "nothing"


def _merge(work: Work) -> Manifest:
    read, encoded = list(work.part_results("read")), list(work.part_results("encode"))
    shards = [
        WrittenShard.from_json(shard)
        for split in ("train", "validation")
        for result in encoded
        for shard in result["shards"]
        if shard["split"] == split
    ]
    if not shards:
        raise UserError(f"{work.output}: the tokenizer left no token of any document; is it one for this language?")
    counts = _by_source(work, [*read, *encoded])
    encodings = _by_source(work, read, "encodings")
    dropped = sum(map(_dropped, counts), Counter())
    dropped["unreadable"] = sum(result["unreadable"] for result in read)
    if work.settings.dedup.paragraphs:
        within_parts = sum(result["repeated"] for result in work.part_results("paragraphs"))
        across_parts = sum(result["dropped"] for result in STAGES["duplicate-paragraphs"].results(work))
        dropped["duplicate paragraphs"] = within_parts + across_parts
    totals = {name: sum(count[name] for count in counts) for name in _TOTALS}
    sums = {name: _sum(result[name] for result in encoded) for name in ("counts", "word_tokens", "document_tokens")}
    unknown = sum((Counter(result["unknown_characters"]) for result in encoded), Counter())
    return Manifest.of(
        work.tokenizer.describe(),
        token_dtype(work.tokenizer),
        shards,
        sources=[
            {
                **source,
                **{name: count[name] for name in _TOTALS},
                "dropped": {k: n for k, n in _dropped(count).items() if n},
                **({"encodings": dict(sorted(chosen.items()))} if chosen else {}),
            }
            for source, count, chosen in zip(work.sources, counts, encodings, strict=True)
        ],
        dropped={name: count for name, count in dropped.items() if count},
        statistics={
            **totals,
            "validation_documents": sum(one.shard.documents for one in shards if one.shard.split == "validation"),
            **sums.pop("counts"),
            **sums,
            "unknown_characters": dict(sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:20]),
            "word_boundaries": work.words.description,
        },
    )


def _sum(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sum of the counters, with keys in order; keys that are numbers are ordered by their value."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(sorted(total.items(), key=lambda item: (len(item[0]), item[0]) if item[0].isdigit() else (0, item[0])))


def _write(work: Work, manifest: Manifest, identity: dict[str, Any]) -> None:
    """Write all of the corpus folder except its shards; the manifest comes last."""
    output, statistics = work.output, manifest.statistics
    with temporary_folder(work.folder / "tokenizer") as folder:
        work.tokenizer.save(folder)
        move(folder, output / "tokenizer")
    problems = [problem for result in work.part_results("read") for problem in result["problems"]]
    if problems:
        write_atomically(output / "problems.jsonl", b"".join(to_json(problem) + b"\n" for problem in problems))
        count = manifest.dropped["unreadable"]
        listed = "they" if len(problems) == count else f"{len(problems):,} of them"
        log.warning("%d inputs could not be read; %s are listed in %s", count, listed, output / "problems.jsonl")
    for source in manifest.sources:
        if "encodings" in source:
            log.info("input: %s: encodings of the files: %s", source["path"], _listed(source["encodings"]))
    write_report(output, manifest)
    write_record(output, identity)
    manifest.write(output)
    if statistics["unknown_tokens"] > 0.01 * statistics["tokens"]:
        most_frequent = f", most often {' '.join(list(statistics['unknown_characters'])[:10])}"
        log.warning(
            "%.1f %% of the tokens are unknown to the vocabulary%s: is it the right one for this text?",
            100 * statistics["unknown_tokens"] / statistics["tokens"],
            "" if manifest.tokenizer["type"] == "words" else most_frequent,
        )
    if statistics["validation_documents"] == 0:
        log.warning("no document is held out; raise `validation_share` for a validation loss")
    elif statistics["validation_documents"] == statistics["documents"]:
        log.warning("every document is held out and none is left to train on; lower `validation_share`")
    log.info(
        "%s: %s documents, %s tokens in %d shards; dropped %s; see report.md there",
        output,
        f"{statistics['documents']:,}",
        f"{statistics['tokens']:,}",
        len(manifest.shards),
        _listed(manifest.dropped),
    )
