"""How many files and bytes lie in the folder of a corpus while it is made, and when those of a part may go."""

import json
import logging
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.execution import stages, tasks, work_plan
from reread.preprocessing.execution.build import build_share, missing_stages
from reread.preprocessing.execution.executors.base import WHOLE, Share
from reread.preprocessing.execution.stages import STAGES
from reread.preprocessing.execution.task_file import TaskWriter, array_of, text_of
from reread.preprocessing.execution.work import Work
from tests.raw_text import EVERY_STAGE, contents, make, values
from tests.raw_text import STAGES as STAGES_OF_RAW_TEXT

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


@pytest.mark.parametrize(("changes", "files", "ratio"), [({}, 1, 1.15), (EVERY, 2, 1.2)])
def test_a_part_takes_one_file_or_two_and_what_nobody_reads_any_more_goes(
    large: Path, tmp_path: Path, changes: dict[str, Any], files: int, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near-duplicates take one more, and so do paragraphs afterwards."""
    output, most, size = tmp_path / "corpus", Counter[str](), [0]
    move = tasks.move

    def seen(path: Path, target: Path) -> None:
        move(path, target)
        found = [one for one in output.rglob("*") if one.is_file()]
        by_part = Counter(one.stem for one in found if one.parent.name in STAGES)
        for part, count in by_part.items():
            most[part] = max(most[part], count)
        most["all"] = max(most["all"], by_part.total())
        size.append(sum(one.stat().st_size for one in found))

    monkeypatch.setattr(tasks, "move", seen)
    manifest = make(large, output, part_bytes=60_000, **changes)
    corpus = sum(shard.bytes for shard in manifest.shards)
    parts = {f"{number:05d}" for number in range(1, 8)}  # the first tasks of other stages are called as part 0 is
    assert parts < set(most)
    assert {most[part] for part in parts} == {files + 1}, "for the moment in which one replaces the others"
    assert 8 * files < most["all"] <= 8 * files + 4
    assert max(size) < ratio * corpus, "1.6 if the text stayed"


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


@pytest.mark.parametrize(
    ("late", "until"),
    [
        ("signatures", "clusters"),
        ("signatures", "encode"),
        ("near-duplicates", "clusters"),
        ("clusters", "clusters"),
        ("paragraphs", "encode"),
    ],
)
def test_an_attempt_whose_files_go_while_it_works_ends_without_an_error(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str, until: str
) -> None:
    """Its machine was thought dead; others have done the same task meanwhile, and the stages up to `until`."""
    stage, others = STAGES[late], [STAGES[name] for name in STAGES_OF_RAW_TEXT]
    others = others[: others.index(STAGES[until]) + 1]
    begun: list[int] = []

    def after_others(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
        begun.append(number)
        if len(begun) == 1:
            for other in others:
                for missing in other.missing(work):
                    tasks.run_task(work.folder, other.name, missing)
                assert other.missing(work) == []
            assert not work.path(late, number).exists() or late == "clusters"
        return stage.function(work, number, writer)

    monkeypatch.setitem(STAGES, late, replace(stage, function=after_others))
    make(raw, tmp_path / "corpus", **EVERY_STAGE)
    assert begun[:2] == [0, 0]
    assert contents(tmp_path / "corpus") == reference


def test_a_stage_whose_files_are_gone_is_done(raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also for shares that are started again, and for the count of what is missing."""
    settings = PreprocessSettings.parse(values(raw, tmp_path / "corpus", **EVERY_STAGE), "test")
    before = STAGES_OF_RAW_TEXT[: STAGES_OF_RAW_TEXT.index("paragraphs")]
    for name in before:
        build_share(settings, name, WHOLE)
    files = contents(tmp_path / "corpus" / work_plan.WORK)
    assert not [name for name in files if name.startswith(("signatures", "near-duplicates"))]
    assert missing_stages(settings)[0].name == "paragraphs"
    with caplog.at_level(logging.INFO, "reread"):
        for name in before:
            build_share(settings, name, Share(1, 2))
    assert "finding near-duplicates: all parts are done already" in caplog.messages
    assert contents(tmp_path / "corpus" / work_plan.WORK) == files
