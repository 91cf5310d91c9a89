"""How many files and bytes lie in the folder of a corpus while it is made, and when those of a part may go."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.execution import stages, tasks, work_plan
from reread.preprocessing.execution.stages import STAGES
from reread.preprocessing.execution.task_file import array_of, text_of
from tests.raw_text import EVERY_STAGE, contents, make

EVERY: dict[str, Any] = {"dedup": {"near": {}, "paragraphs": True}}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Text of 8 parts of 60 kB, which compresses to 0.6 of it; no two documents are similar."""
    generator, han = random.Random(0), [chr(0x4E00 + number) for number in range(3000)]
    (tmp_path / "texts").mkdir()
    texts = ["\n".join("".join(generator.choices(han, k=200)) for _ in range(3)) for _ in range(260)]
    lines = "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    (tmp_path / "texts" / "all.jsonl").write_text(lines, encoding="utf-8")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set("".join(texts)) - {"\n"})]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("changes", "files"), [({}, 2), (EVERY, 4)])
def test_a_part_takes_two_files_and_its_text_goes_when_its_shard_is_there(
    large: Path, tmp_path: Path, changes: dict[str, Any], files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near-duplicates and paragraphs take one more each."""
    output, most, size = tmp_path / "corpus", Counter[str](), [0]
    move = tasks.move

    def seen(path: Path, target: Path) -> None:
        move(path, target)
        found = [one for one in output.rglob("*") if one.is_file()]
        for part, count in Counter(one.stem for one in found if one.parent.name in STAGES).items():
            most[part] = max(most[part], count)
        size.append(sum(one.stat().st_size for one in found))

    monkeypatch.setattr(tasks, "move", seen)
    manifest = make(large, output, part_bytes=60_000, **changes)
    corpus = sum(shard.bytes for shard in manifest.shards)
    parts = {f"{number:05d}" for number in range(1, 8)}  # the first tasks of other stages are called as part 0 is
    assert parts < set(most) and {most[part] for part in parts} == {files}
    assert max(size) < 1.2 * corpus, "1.6 if it stayed"


def test_an_attempt_whose_text_another_one_removes_ends_without_an_error(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one encodes the same part while this one is about to begin, and is done."""
    output, encoder = tmp_path / "corpus", stages.Encoder
    work = output / work_plan.WORK
    others: list[int] = []

    def first_another(*given: Any) -> stages.Encoder:
        others.append(len(others))
        if len(others) == 1:
            tasks.run_task(work, "encode", 0)
            for gone in ("documents", "keys"):
                with pytest.raises(FileNotFoundError):
                    array_of(work / "read" / "00000.npz", gone)
            with pytest.raises(FileNotFoundError), text_of(work / "read" / "00000.npz"):
                pass
        return encoder(*given)

    monkeypatch.setattr(stages, "Encoder", first_another)
    make(raw, output, **EVERY_STAGE)
    assert len(others) > 2
    assert contents(output) == reference
