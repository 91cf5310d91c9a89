"""Turns raw text into a corpus: runs all stages, on one machine or a share of each on several, and merges the results.

The output depends on the input and the settings alone, never on the number of workers or machines or on interruptions.
Work in progress lies in OUTPUT/.work; when it is started again, only missing tasks are done. The folder is a corpus
once it holds `manifest.json`, which is written last. `preprocess.json` records what the corpus was made from.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError, escaped, writing
from reread.preprocessing.execution.attempts import temporary_folder
from reread.preprocessing.execution.executors.base import Executor, Share
from reread.preprocessing.execution.executors.processes import ProcessExecutor
from reread.preprocessing.execution.hints import warning_of_sample, warnings_of
from reread.preprocessing.execution.merge import by_source, dropped_of, listed, merge
from reread.preprocessing.execution.report import write_report
from reread.preprocessing.execution.stages import Stage, stages_of
from reread.preprocessing.execution.work import Work, forget_work, open_work
from reread.preprocessing.execution.work_plan import (
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
from reread.preprocessing.files import move, to_json, write_atomically
from reread.preprocessing.input.piece import most_frequent

log = logging.getLogger("reread")


def build(settings: PreprocessSettings) -> Manifest:
    """Make or finish the corpus in the folder `settings.output`; returns its manifest, also if it is complete already.

    Raises `UserError` if the folder was made from other input or settings or is in use, if the disk is full, if a
    worker is killed twice, if input is refused, or if no document is left.
    """
    output = settings.output
    inputs = check_inputs(settings)
    with _writing_corpus(settings.output):
        if (manifest := _manifest_if_complete(settings, inputs)) is not None:
            return manifest
        # The work folder, which another process may have finished in the meantime
        with locked(output / LOCK):
            if (manifest := _manifest_if_complete(settings, inputs)) is not None:
                return manifest
            prepare(settings, inputs)
            work = _open(settings, inputs)
            # Each stage does its missing tasks; mistakes in the input show right after reading.
            try:
                with _executor(settings) as executor:
                    for stage in stages_of(settings):
                        if stage.name == "read" and inputs.tokenizer is not None and stage.missing(work):
                            _warn(warning_of_sample(work))
                        executor.run(work, stage)
                        if stage.name == "read":
                            _check_any_document(work)
                            if (unreadable := _unreadable(work)) and unreadable.is_most:
                                _warn(unreadable.line)
                # The corpus, whose manifest is written last
                manifest = merge(work)
                _write(work, manifest, inputs.identity)
            except FileNotFoundError:  # without locks, another process may have been faster
                if (manifest := _manifest_if_complete(settings, inputs)) is None:
                    raise
            clear(output)
        return manifest


def build_share(settings: PreprocessSettings, stage: str, share: Share) -> None:
    """Do the missing tasks of one share of a stage; machines that see the same folder may each do a share at once.

    Raises `UserError` as `build` does, and if an earlier stage is not complete. `build` then finishes the corpus.
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
    """The stages from the first incomplete one on; the last stage if only the merge is left, none if nothing is.

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
    """Like `writing`; also raises `UserError` if another process holds the lock.

    That error counts as temporary (`may_pass`), so that a job which starts while `missing_stages` holds the lock is
    requeued.
    """
    try:
        with writing(output):
            yield
    except BlockingIOError as error:
        raise UserError(f"{output}: another `reread preprocess` is writing it; wait for it or stop it", error) from None
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
        work.given_tokenizer = inputs.tokenizer
    return work


def _executor(settings: PreprocessSettings) -> Executor:
    if settings.executor == "processes":
        return ProcessExecutor(settings.workers)
    from reread.preprocessing.execution.executors.ray_tasks import RayExecutor

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
            f"{work.output}: `{wanted}` needs all tasks of `{stage.name}`, but {listed} of "
            f"{stage.task_count(work):,} are not done; run them first"
        )
    if stage.name == "read":
        _check_any_document(work)


def _check_any_document(work: Work) -> None:
    results = list(work.part_results("read"))
    if any(result["documents"] for result in results):
        return
    dropped = sum((dropped_of(count) for count in by_source(work, results)), Counter())
    problems = [problem for result in results for problem in result["problems"]]
    dropped["unreadable"] = sum(result["unreadable"] for result in results)
    first = "the first unreadable: {path}:{position}: {reason}; ".format(**problems[0]) if problems else ""
    raise UserError(
        f"{work.output}: no document is left (dropped {listed(dropped)}); {first}check `input.format`, "
        "`input.encoding` and the filters under `clean`"
    )


class _Unreadable(NamedTuple):
    line: str
    """How much of the input could not be read, and the most frequent reason."""
    is_most: bool
    """Whether more than half of the input could not be read."""


def _unreadable(work: Work) -> _Unreadable | None:
    results = list(work.part_results("read"))
    if not (count := sum(result["unreadable"] for result in results)):
        return None
    total = count + sum(source["documents_read"] for source in by_source(work, results))
    reason = escaped(most_frequent(problem["reason"] for result in results for problem in result["problems"]))
    line = f"{count:,} of {total:,} inputs ({100 * count / total:.1f} %) could not be read"
    is_most = 2 * count > total
    return _Unreadable(f"{'most of the input is missing: ' if is_most else ''}{line}, most often: {reason}", is_most)


def _write(work: Work, manifest: Manifest, identity: dict[str, Any]) -> None:
    """Write all files of the corpus except its shards, the manifest last, and log what was made."""
    output, statistics = work.output, manifest.statistics
    with temporary_folder(work.folder / "tokenizer") as folder:
        work.tokenizer.save(folder)
        move(folder, output / "tokenizer")
    problems = [problem for result in work.part_results("read") for problem in result["problems"]]
    if problems:
        write_atomically(output / "problems.jsonl", b"".join(to_json(problem) + b"\n" for problem in problems))
    for source in manifest.sources:
        if "encodings" in source:
            log.info("input: %s: encodings of the files: %s", source["path"], listed(source["encodings"]))
    write_report(output, manifest)
    write_record(output, identity)
    manifest.write(output)
    log.info(
        "%s: %s documents, %s tokens, %s of them held out, in %d shards; dropped %s; see report.md there",
        output,
        *(f"{statistics[name]:,}" for name in ("documents", "tokens", "validation_tokens")),
        len(manifest.shards),
        listed(manifest.dropped),
    )
    for line in warnings_of(manifest, work.settings):
        _warn(line)
    if unreadable := _unreadable(work):
        which = "they" if len(problems) == manifest.dropped["unreadable"] else f"{len(problems):,} of them"
        _warn(f"{unreadable.line}; {which} are listed in {output / 'problems.jsonl'}")


def _warn(line: str | None) -> None:
    if line is not None:
        log.warning("%s", line)
