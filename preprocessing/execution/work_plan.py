"""The work plan of a corpus: its settings and its input, cut into parts, in the work folder OUTPUT/.work.

Many machines may begin a corpus at once on a shared file system, on which locks may have no effect. Therefore the work
plan is written into a temporary folder, which is then renamed: the first one stays, and all of them are equal, since
the plan depends on input and settings alone.
"""

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from hashlib import md5
from pathlib import Path
from typing import IO, Any, NamedTuple

from pydantic import ValidationError

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import Manifest, format_version
from reread.preprocessing.corpus.lengths import open_lengths
from reread.preprocessing.errors import DamagedError, UserError
from reread.preprocessing.execution.attempts import remove_abandoned, temporary_folder
from reread.preprocessing.execution.evaluation import find_evaluation_files
from reread.preprocessing.execution.task_file import SUFFIX, result_of
from reread.preprocessing.files import move, sync_folder, synced, to_json, write_atomically
from reread.preprocessing.input.sources import InputFile, entries_of, find_files, plan_parts
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.extension import check_extensible, words_listed_in
from reread.preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger("reread")

VERSION = 9
"""The version of the work folder's format. Work that was begun with another version is begun again."""
WORK, LOCK, RECORD = ".work", ".lock", "preprocess.json"
_PATIENCE = 2.0
"""Seconds for which a lock that another process holds is waited for."""
RUN_SETTINGS = {"output", "workers", "executor"}
"""Settings that say where and how the work is done, and do not change the corpus."""


class Inputs(NamedTuple):
    """What a corpus is made from."""

    files: list[InputFile]
    words: WordSegmenter
    tokenizer: Tokenizer | None
    """That of `tokenizer.path`; None if the vocabulary is still to be trained."""
    identity: dict[str, Any]
    """Everything that determines the output, as JSON."""


def check_inputs(settings: PreprocessSettings) -> Inputs:
    """Find the input and load dictionaries and vocabulary, so that a mistake there shows before hours of work."""
    try:
        files = find_files(settings.inputs, settings.output)
    except UserError as error:
        if not (settings.output / "manifest.json").exists():
            raise
        raise UserError(f"{error}; `preprocess=null` uses {settings.output} as it is, without its raw text") from None
    evaluation = find_evaluation_files(settings.dedup.evaluation)
    words = WordSegmenter(settings.words)
    given = settings.tokenizer
    tokenizer = load_tokenizer(given.path, given) if given.path else None
    values = _identifying(settings)
    if tokenizer is not None:
        values["tokenizer"]["path"] = tokenizer.describe()["fingerprint"]
        if given.extend is not None:
            check_extensible(tokenizer)
    if isinstance(given.extend, Path):
        values["tokenizer"]["extend"] = md5("\n".join(words_listed_in(given.extend)).encode()).hexdigest()
    identity = {
        "format": format_version(settings.clean.simplify),
        "settings": values,
        "words": words.description,
        "files": {file.path: f"{file.bytes} bytes, changed at {file.changed}" for file in [*files, *evaluation]},
    }
    return Inputs(files, words, tokenizer, identity)


def _identifying(settings: PreprocessSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude=RUN_SETTINGS)


@contextmanager
def locked(path: Path, shared: bool = False) -> Iterator[None]:
    """Hold a lock on the file `path`, alone or shared; raises BlockingIOError if another process holds it for seconds:
    workers of a process that was killed hold it until they have ended, too.

    A lock ends with its process or machine. It only protects users from a mistake: on a file system without locks the
    work is still correct. The last process that holds the lock removes the file.
    """
    patient_until = time.monotonic() + _PATIENCE
    while True:
        with path.open("a+b") as file:
            has_locks = True
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > patient_until:
                    raise
                time.sleep(0.05)
                continue
            except OSError as error:
                if error.errno not in (ENOSYS, ENOLCK, EOPNOTSUPP):
                    raise
                log.warning("%s: no locks on this file system (%s): start each job once", path, error.strerror)
                has_locks = False
            if _is_at(file, path):  # else another process removed it, and we try again
                try:
                    yield
                finally:
                    with suppress(OSError):  # another process still shares the lock, and removes the file later
                        if has_locks:
                            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        if _is_at(file, path):
                            path.unlink()
                return


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def finished(output: Path, identity: dict[str, Any]) -> Manifest | None:
    """The manifest if the corpus is complete, else None; also removes work that a kill at the very end left behind.

    Raises `UserError` if the folder was made from something else than `identity`.
    """
    if not (output / "manifest.json").exists():
        return None
    _check_same(output, identity)
    try:
        manifest = Manifest.read(output)
        if manifest.lengths is not None:
            open_lengths(output, manifest.documents, manifest.lengths).close()
    except DamagedError as error:  # a file that cannot be read now may be intact, and raises another error
        log.warning("%s: the corpus is built again", error)
        return None
    for shard in manifest.shards:
        path = output / shard.name
        if not path.exists() or path.stat().st_size != shard.bytes:
            log.warning("%s: missing or truncated; the corpus is built again", path)
            return None
    clear(output)
    return manifest


def clear(output: Path) -> None:
    """Remove the work folder, and unfinished work plans."""
    for folder in output.glob(f"{WORK}*"):
        shutil.rmtree(folder, ignore_errors=True)


def prepare(settings: PreprocessSettings, inputs: Inputs) -> None:
    """Make sure that the work folder has the work plan of this corpus; no other process may work in the output folder.

    Raises `UserError` if other work was begun there. It is replaced, though, if it stopped before its first document;
    and if it differs only in a tokenizer that was not used yet, its finished tasks are kept.
    """
    output, work, manifest = settings.output, settings.output / WORK, settings.output / "manifest.json"
    # Continue work that was begun for this corpus
    is_there = work.exists()
    planned = _is_planned(work) and not manifest.exists()
    read = [path for stage in ("read", "encode") for path in (work / stage).glob(f"*{SUFFIX}")]
    begun = planned and any(result_of(path, "read")["documents"] for path in read)
    if begun and _is_reusable(work, inputs.identity):
        _renew(settings, inputs)
    if begun or manifest.exists() or not _record(output).exists():
        _check_same(output, inputs.identity)
    if begun or (planned and not any(_differences(_recorded(output), inputs.identity))):
        remove_abandoned(work)
        return
    # Else begin again, after removing damaged or useless work
    if manifest.exists():
        manifest.unlink()
        shutil.rmtree(output / "tokenizer", ignore_errors=True)
    if is_there:
        log.info("%s: holds no work that can be continued; beginning again", work)
        with temporary_folder(work) as old:
            os.replace(work, old)  # in one step, or a kill would leave half a work plan
    _install(settings, inputs)


def join(settings: PreprocessSettings, inputs: Inputs) -> None:
    """Find or make the work plan, while other processes may do the same.

    Raises `UserError` if the work in the folder was begun for something else.
    """
    output = settings.output
    if (output / "manifest.json").exists():
        raise UserError(
            f"{output}: a shard is missing or truncated, or the manifest is altered; run `reread preprocess` without "
            "--stage, which makes the corpus again"
        )
    if not _is_planned(output / WORK):
        if (output / WORK).exists():
            raise UserError(
                f"{output}: begun by another version of reread; run `reread preprocess` without --stage, which begins "
                "again"
            )
        if not _record(output).exists():
            _check_same(output, inputs.identity)
        _install(settings, inputs)
    _check_same(output, inputs.identity)
    remove_abandoned(output / WORK)


def _install(settings: PreprocessSettings, inputs: Inputs) -> None:
    """Make the work folder with the work plan, unless another process was faster."""
    with temporary_folder(settings.output / WORK) as folder:
        _write_work_plan(settings, inputs, folder)
        move(folder, settings.output / WORK)
    sync_folder(settings.output)


def _is_reusable(work: Path, identity: dict[str, Any]) -> bool:
    """Whether finished tasks are valid for `identity`, too: it differs only in a tokenizer that was not used yet."""
    old, new = ({**one, "settings": dict(one["settings"])} for one in (_recorded(work.parent), identity))
    tokenizers = [one["settings"].pop("tokenizer") for one in (old, new)]
    # `map_punctuation` cleans text according to the given vocabulary.
    is_read_by = new["settings"]["clean"]["map_punctuation"] and any(one["path"] for one in tokenizers)
    used = any(any((work / stage).glob(f"*{SUFFIX}")) for stage in ("vocabulary", "encode"))
    return old == new and not is_read_by and not used


def _renew(settings: PreprocessSettings, inputs: Inputs) -> None:
    """Write the new settings into the work folder: both files, the record first, as a kill may come between them."""
    work = settings.output / WORK
    plan = json.loads((work / "plan.json").read_text(encoding="utf-8"))
    write_record(work, inputs.identity)
    write_atomically(work / "plan.json", to_json({**plan, "settings": settings.model_dump(mode="json")}, indent=1))


def _is_planned(work: Path) -> bool:
    path = work / "plan.json"
    return path.exists() and json.loads(path.read_text(encoding="utf-8")).get("version") == VERSION


def _record(output: Path) -> Path:
    """The file that records what the work in progress, or else the corpus, is made from."""
    begun = output / WORK / RECORD
    return begun if begun.exists() else output / RECORD


def _recorded(output: Path) -> dict[str, Any]:
    recorded = json.loads(_record(output).read_text(encoding="utf-8"))
    with suppress(ValidationError):  # settings that an earlier version lacked have their defaults
        recorded["settings"] = _identifying(
            PreprocessSettings.model_validate({**recorded["settings"], "output": output})
        )
    return recorded


def write_record(folder: Path, identity: dict[str, Any]) -> None:
    write_atomically(folder / RECORD, to_json(identity, indent=1))


def _check_same(output: Path, identity: dict[str, Any]) -> None:
    """Raises `UserError` if the folder's record differs from `identity`, or if it has none but holds other files."""
    if not _record(output).exists():
        if any(entry.name != LOCK and not entry.name.startswith(WORK) for entry in output.iterdir()):
            raise UserError(f"{output}: holds other files; choose an empty folder for the corpus")
        return
    differences = list(_differences(_recorded(output), identity))
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise UserError(
            f"{output}: was begun with other input or settings: {'; '.join(differences[:3])}{more}; "
            "choose another output folder, or delete this one"
        )


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """The values that differ between two records, each as text with its name, its old and its new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            path = str(key) if name in ("", "files", "settings") else f"{name}.{key}"
            if key not in new or key not in old:
                yield f"{path} is {'gone' if key in old else 'new'}"
            else:
                yield from _differences(old[key], new[key], path)
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and len(old) == len(new)
        and all(isinstance(one, dict) for one in [*old, *new])
    ):
        for number, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, now, f"{name}.{number}")
    elif old != new:
        yield f"{name} was {json.dumps(old, ensure_ascii=False)}, is {json.dumps(new, ensure_ascii=False)}"


def _write_work_plan(settings: PreprocessSettings, inputs: Inputs, folder: Path) -> None:
    sources: list[dict[str, Any]] = [
        {"path": entry.path, "files": 0, "bytes": 0} for entry in entries_of(settings.inputs)
    ]
    for file in inputs.files:
        sources[file.entry]["files"] += 1
        sources[file.entry]["bytes"] += file.bytes
    entry_of = {file.path: file.entry for file in inputs.files}
    sizes = {file.path: file.bytes for file in inputs.files}
    parts = plan_parts(inputs.files, settings.part_bytes)
    with synced(folder / "parts.jsonl") as parts_file:  # one file, since ten thousand would take minutes to sync
        for pieces in parts:
            rows = [
                (entry_of[piece.path], (piece.end or sizes[piece.path]) - piece.start, asdict(piece))
                for piece in pieces
            ]
            parts_file.write(json.dumps(rows).encode() + b"\n")
    write_record(folder, inputs.identity)
    values = {"version": VERSION, "settings": settings.model_dump(mode="json"), "parts": len(parts), "sources": sources}
    write_atomically(folder / "plan.json", to_json(values, indent=1))
