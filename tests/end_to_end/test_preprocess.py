"""`reread preprocess` as a whole: what it promises about its output, its interruptions and the user's mistakes."""

import errno
import json
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocessing import dedup
from preprocessing.build import build
from preprocessing.config import PreprocessSettings
from preprocessing.corpus import CONTINUES_WORD, Corpus, Manifest
from preprocessing.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / ".." / "shared" / "data"
WORDS = [
    "我们",
    "喜欢",
    "研究",
    "生命",
    "起源",
    "大厦",
    "天气",
    "今天",
    "明天",
    "历史",
    "文化",
    "图书馆",
    "银行",
    "经济",
    "发展",
    "问题",
    "学生",
    "老师",
    "城市",
    "火车",
]


def sentences(generator: random.Random, count: int) -> str:
    return "".join("".join(generator.choices(WORDS, k=8)) + "。" for _ in range(count))


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw text in two forms with duplicates, a bad line and an empty file, and a vocabulary of its characters."""
    folder = tmp_path_factory.mktemp("raw")
    write_raw(folder)
    return folder


def write_raw(folder: Path) -> None:
    generator = random.Random(0)
    texts = folder / "texts"
    texts.mkdir()
    documents = ["\n".join(sentences(generator, 3) for _ in range(4)) for _ in range(60)]
    for number in range(20):
        (texts / f"novel-{number:02d}.txt").write_text(documents[number], encoding="utf-8")
    (texts / "novel-98.txt").write_text("")
    (texts / "novel-99.txt").write_text(documents[3], encoding="utf-8")  # a duplicate
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents[15:]]  # 5 duplicates
    lines.insert(7, '{"text": ')
    (texts / "web.jsonl").write_text("\n".join(lines), encoding="utf-8")
    characters = sorted(set("".join(WORDS)) | {"。"})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")


def values(raw: Path, output: Path, **changes: Any) -> dict[str, Any]:
    return {
        "input": {"paths": [str(raw / "texts")]},
        "output": str(output),
        "tokenizer": {"path": str(raw / "vocab.txt")},
        "validation_share": 0.2,
        "part_bytes": 6_000,
        "workers": 1,
    } | changes


def make(raw: Path, output: Path, **changes: Any) -> Manifest:
    return build(PreprocessSettings.parse(values(raw, output, **changes), "test"))


@pytest.fixture(scope="module")
def corpus(raw: Path) -> Path:
    """A finished corpus, for tests that only look."""
    make(raw, raw / "corpus")
    return raw / "corpus"


@pytest.fixture(scope="module")
def reference(raw: Path) -> dict[str, bytes]:
    """What a run with every stage leaves when nothing disturbs it."""
    make(raw, raw / "reference", dedup={"paragraphs": True})
    return contents(raw / "reference")


def contents(corpus: Path) -> dict[str, bytes]:
    return {str(path.relative_to(corpus)): path.read_bytes() for path in sorted(corpus.rglob("*")) if path.is_file()}


def start(raw: Path, output: Path, **changes: Any) -> subprocess.Popen[str]:
    """`build` in a process of its own; a `UserError` ends it with one line and status 1."""
    code = (
        "import json, sys\n"
        "from preprocessing.build import build\n"
        "from preprocessing.config import PreprocessSettings\n"
        "from preprocessing.errors import UserError\n"
        "if __name__ == '__main__':\n"
        "    try: build(PreprocessSettings.parse(json.load(open(sys.argv[1])), 'test'))\n"
        "    except UserError as error: sys.exit(str(error))\n"
    )
    script, settings = output.with_suffix(".py"), output.with_suffix(".json")
    script.write_text(code)
    settings.write_text(json.dumps(values(raw, output, **changes)))
    return subprocess.Popen(
        [sys.executable, str(script), str(settings)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def kept_texts(raw: Path, corpus: Path, split: str = "train") -> list[str]:
    vocabulary = (raw / "vocab.txt").read_text(encoding="utf-8").split("\n")
    documents = Corpus(corpus, split)
    return ["".join(vocabulary[token] for token in documents.document(n)[0]) for n in range(documents.documents)]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.002)


def test_the_corpus_holds_every_unique_document_once_in_source_order(raw: Path, corpus: Path) -> None:
    manifest = Manifest.read(corpus)
    statistics = manifest.statistics
    assert (statistics["documents_read"], statistics["documents"]) == (66, 60)
    assert manifest.dropped == {"duplicate documents": 6, "unreadable": 2}
    texts = [path.read_text(encoding="utf-8") for path in sorted((raw / "texts").glob("novel-*.txt"))]
    for line in (raw / "texts" / "web.jsonl").read_text(encoding="utf-8").split("\n"):
        if line.endswith("}"):
            texts.append(json.loads(line)["text"])
    unique = list(dict.fromkeys(text.replace("\n", "") for text in texts if text))
    train, validation = kept_texts(raw, corpus), kept_texts(raw, corpus, "validation")
    assert [text for text in unique if text not in validation] == train
    assert [text for text in unique if text in validation] == validation
    assert 3 < len(validation) == statistics["validation_documents"] < 25
    assert sum(map(len, train + validation)) == statistics["tokens"] == statistics["characters"] - 60 * 3


def test_the_number_of_workers_changes_nothing(raw: Path, corpus: Path, tmp_path: Path) -> None:
    make(raw, tmp_path / "corpus", workers=2)
    one, two = contents(corpus), contents(tmp_path / "corpus")
    assert sum(name.endswith(".tar") for name in one) > 8
    assert one == two


def test_the_number_of_key_ranges_changes_nothing(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "KEYS_PER_RANGE", 7)
    make(raw, tmp_path / "corpus", dedup={"paragraphs": True})
    assert contents(tmp_path / "corpus") == reference


def test_nothing_but_the_corpus_is_left_in_the_folder(corpus: Path) -> None:
    shards = Manifest.read(corpus).shards
    assert all(shard.documents for shard in shards)
    images = {"word-lengths.png", "document-lengths.png"}
    expected = images | {"manifest.json", "preprocess.json", "tokenizer", "report.md", "problems.jsonl"}
    assert {path.name for path in corpus.iterdir()} == expected | {shard.name for shard in shards}


def test_a_report_and_two_pictures_tell_what_was_found(corpus: Path) -> None:
    report = (corpus / "report.md").read_text(encoding="utf-8")
    assert "| documents kept | 60 |" in report
    assert "| duplicate documents | 6 |" in report
    for image in ("word-lengths.png", "document-lengths.png"):
        assert f"]({image})" in report
        assert (corpus / image).read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_listed_with_file_and_position(corpus: Path) -> None:
    lines = (corpus / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    problems = {Path(problem["path"]).name: problem for problem in map(json.loads, lines)}
    assert set(problems) == {"novel-98.txt", "web.jsonl"}
    assert "not JSON" in problems["web.jsonl"]["reason"]
    assert problems["web.jsonl"]["position"]


def test_bad_input_is_refused_where_the_recipe_says_so(raw: Path, tmp_path: Path) -> None:
    inputs = {"paths": [str(raw / "texts")], "bad_input": "refuse"}
    with pytest.raises(UserError, match=r"novel-98\.txt.*empty|web\.jsonl.*not JSON"):
        make(raw, tmp_path / "corpus", input=inputs, workers=2)
    assert not (tmp_path / "corpus" / "manifest.json").exists()


def test_where_nothing_can_be_read_the_message_names_place_and_remedy(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "gb.txt").write_bytes("春天来了，河边的柳树发了芽。".encode("gb18030"))
    with pytest.raises(UserError, match=r"unreadable: 1.*gb\.txt:whole file: not utf-8.*input\.encoding=gb18030"):
        make(raw, tmp_path / "corpus", input={"paths": [str(tmp_path / "gb.txt")]})


def test_the_statistics_tell_whether_chinese_words_have_several_tokens(corpus: Path) -> None:
    statistics = Manifest.read(corpus).statistics
    splits = [Corpus(corpus, split) for split in ("train", "validation")]
    flags = [split.document(index)[1] for split in splits for index in range(split.documents)]
    continued = sum(np.count_nonzero(flag & CONTINUES_WORD) for flag in flags)
    assert statistics["tokens"] - statistics["words"] == continued
    assert 0.9 < statistics["han_tokens_in_multi_token_words"] / statistics["han_tokens"] <= 1


def test_paragraphs_that_stood_before_are_dropped_when_asked(raw: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    generator = random.Random(1)
    a, b, c, d = (sentences(generator, 3) for _ in range(4))
    documents = [f"{a}\n{b}", f"{a}\n今天\n{c}", f"{b}\n{c}", f"{d}\n今天\n{d}", f"{a}\n{b}"]
    for number, text in enumerate(documents):
        (texts / f"{number}.txt").write_text(text, encoding="utf-8")
    settings = {"paths": [str(texts)]}, {"paragraphs": True}
    manifest = make(raw, tmp_path / "c", input=settings[0], dedup=settings[1], validation_share=0.0, part_bytes=1_000)
    assert manifest.dropped == {"duplicate documents": 1, "duplicate paragraphs": 4, "duplicate paragraphs only": 1}
    assert kept_texts(raw, tmp_path / "c") == [a + b, "今天" + c, d + "今天"]


def test_a_dropped_document_does_not_hold_the_first_of_a_paragraph(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """Where only paragraphs are compared, whole duplicates lose all of theirs: the same text is left."""
    make(raw, tmp_path / "corpus", dedup={"documents": False, "paragraphs": True})
    shards = {name: data for name, data in reference.items() if name.endswith(".tar")}
    assert shards == {name: data for name, data in contents(tmp_path / "corpus").items() if name.endswith(".tar")}


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece", "bpe"])
def test_a_vocabulary_is_trained_from_what_is_left(raw: Path, tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {"tokenizer": {"train": {"type": kind, "size": 300}}, "part_bytes": 20_000}
    manifest = make(raw, tmp_path / "one", **settings)
    statistics = manifest.statistics
    assert manifest.tokenizer["type"] == kind
    assert (statistics["documents"], statistics["unknown_tokens"]) == (60, 0)
    assert Corpus(tmp_path / "one").documents > 30
    assert statistics["han_tokens_in_multi_character_words"] > 0.9 * statistics["han_tokens"]
    make(raw, tmp_path / "two", **settings, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_finished_corpus_is_returned_at_once(raw: Path, corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    with caplog.at_level(logging.INFO, "reread"):
        manifest = make(raw, corpus, workers=2)
    assert manifest == Manifest.read(corpus)
    assert "nothing to do" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before


def test_a_corpus_of_an_earlier_version_with_fewer_settings_is_the_same(
    raw: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    record = tmp_path / "corpus" / "preprocess.json"
    values = json.loads(record.read_text(encoding="utf-8"))
    del values["settings"]["clean"]["join_wrapped_lines"]
    record.write_text(json.dumps(values), encoding="utf-8")
    with caplog.at_level(logging.INFO, "reread"):
        make(raw, tmp_path / "corpus")
    assert "nothing to do" in caplog.text
    with pytest.raises(UserError, match="join_wrapped_lines was false, is true"):
        make(raw, tmp_path / "corpus", clean={"join_wrapped_lines": True})


def test_a_corpus_that_lost_a_shard_is_built_again(raw: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    (tmp_path / "corpus" / "train-00001.tar").unlink()
    make(raw, tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == contents(corpus)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clean": {"nfkc": False}}, r"clean\.nfkc was true, is false"),
        ({"part_bytes": 4_000}, r"part_bytes was 6000, is 4000"),
        ({"dedup": {"paragraphs": True}}, r"dedup\.paragraphs was false, is true"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    raw: Path, corpus: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=f"{named}.*another output folder"):
        make(raw, corpus, **changes)


def test_changed_input_and_vocabulary_are_refused_by_name(tmp_path: Path) -> None:
    write_raw(tmp_path)
    make(tmp_path, tmp_path / "corpus")
    path, vocabulary = tmp_path / "texts" / "novel-05.txt", tmp_path / "vocab.txt"
    for file, more, named in ((path, "好", r"novel-05\.txt was .* bytes"), (vocabulary, "好\n", "tokenizer")):
        before, stat = file.read_bytes(), file.stat()
        file.write_bytes(before + more.encode())
        with pytest.raises(UserError, match=named):
            make(tmp_path, tmp_path / "corpus")
        file.write_bytes(before)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    path.rename(path.with_name("novel-06b.txt"))
    with pytest.raises(UserError, match=r"novel-05\.txt is gone.*novel-06b\.txt is new"):
        make(tmp_path, tmp_path / "corpus")


def test_a_folder_with_other_files_is_left_alone(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        make(raw, tmp_path)
    assert (tmp_path / "thesis.doc").read_text() == "mine"


def test_an_output_that_cannot_be_written_is_named(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "corpus"):
        with pytest.raises(UserError, match=r"file.*: cannot be written"):
            make(raw, output)


def test_no_document_left_is_an_error_that_says_what_was_dropped(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no document is left .*too short: 66"):
        make(raw, tmp_path / "corpus", clean={"minimum_characters": 10_000})
    make(raw, tmp_path / "corpus")  # the mended settings may use the same folder


# -- interruptions ----------------------------------------------------------------------------------------------------


def test_killed_at_any_stage_and_started_again_the_bytes_are_the_same(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "corpus"
    settings: dict[str, Any] = {"dedup": {"paragraphs": True}, "workers": 2}
    for stage in ("read", "duplicates", "paragraphs", "duplicate-paragraphs", "encode"):
        process = start(raw, output, **settings)
        wait_for(lambda stage=stage: any((output / ".work" / stage).glob("*")), process)  # type: ignore[misc]
        process.kill()  # the parent alone: its workers must neither outlive it nor disturb the next run
        process.wait()
        assert not (output / "manifest.json").exists(), f"it was over before it was killed in {stage}"
    make(raw, output, **settings)
    assert contents(output) == reference


def test_a_relaunch_does_only_what_is_missing(raw: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    output = tmp_path / "corpus"
    process = start(raw, output, dedup={"paragraphs": True})
    done = output / ".work" / "read" / "00000.json"
    wait_for(done.exists, process)
    process.kill()
    process.wait()
    before = done.stat().st_ino
    process = start(raw, output, dedup={"paragraphs": True})
    wait_for((output / ".work" / "encode").exists, process)
    assert done.stat().st_ino == before
    process.communicate()
    assert process.returncode == 0
    assert contents(output) == reference


def children(parent: int) -> list[int]:
    """Process ids of the pool's workers (and of multiprocessing's resource tracker)."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def workers_of(parent: int) -> list[int]:
    return [pid for pid in children(parent) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers through /proc")


@needs_proc
def test_a_killed_worker_is_told_and_its_part_done_again(
    raw: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    process = start(raw, tmp_path / "corpus", dedup={"paragraphs": True}, workers=2)
    wait_for((tmp_path / "corpus" / ".work" / "read").exists, process)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "a worker process was killed" in errors
    assert contents(tmp_path / "corpus") == reference


@needs_proc
def test_workers_killed_again_and_again_end_the_run_with_one_line(raw: Path, corpus: Path, tmp_path: Path) -> None:
    process = start(raw, tmp_path / "corpus", workers=2)
    wait_for((tmp_path / "corpus" / ".work" / "read").exists, process)
    while process.poll() is None:
        for pid in workers_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "worker processes are being killed" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    make(raw, tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == contents(corpus)


@needs_proc
def test_workers_end_when_their_parent_is_killed(raw: Path, tmp_path: Path) -> None:
    process = start(raw, tmp_path / "corpus", workers=2)
    wait_for((tmp_path / "corpus" / ".work" / "read").exists, process)
    orphans = workers_of(process.pid)
    assert orphans
    process.kill()
    process.wait()
    while any(alive(pid) for pid in orphans):  # for ever, if they do not: the test's time limit tells
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_two_runs_on_one_folder_the_second_is_refused(raw: Path, tmp_path: Path) -> None:
    process = start(raw, tmp_path / "corpus")
    wait_for((tmp_path / "corpus" / ".work" / "read").exists, process)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(UserError, match="another `reread preprocess` is writing it"):
            make(raw, tmp_path / "corpus")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    process.communicate()
    assert process.returncode == 0


def limit_file_size(raw: Path, output: Path, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        make(raw, output)
    except UserError as error:
        sys.exit(str(error))


@pytest.mark.parametrize("size", [400, 4_000])
def test_a_write_that_fails_leaves_nothing_that_looks_whole(raw: Path, corpus: Path, tmp_path: Path, size: int) -> None:
    output = tmp_path / "corpus"
    process = multiprocessing.get_context("spawn").Process(target=limit_file_size, args=(raw, output, size))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert not (output / "manifest.json").exists()
    make(raw, output)
    assert contents(output) == contents(corpus)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize(("kilobytes", "workers"), [(16, 1), (100, 2), (150, 1)])
def test_a_full_disk_is_one_line_and_the_run_continues_with_more_room(
    raw: Path, corpus: Path, tmp_path: Path, kilobytes: int, workers: int
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    output = tmp_path / "corpus"
    try:
        with pytest.raises(UserError, match=rf"{output}: no space left to write .*{os.strerror(errno.ENOSPC)}"):
            make(raw, output, workers=workers)
        assert not (output / "manifest.json").exists()
        subprocess.run(["mount", "-o", "remount,size=20m", str(tmp_path)], check=True)
        make(raw, output, workers=workers)
        assert contents(output) == contents(corpus)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_chinese_novels(tmp_path: Path) -> None:
    if not SHARED.exists():
        pytest.skip("needs the novels of ../shared/data")
    settings = {
        "input": {"paths": [str(SHARED / "zh_novels"), str(SHARED / "zh_novels" / "红楼梦.txt.xz")]},
        "output": str(tmp_path / "corpus"),
        "tokenizer": {"path": str(SHARED / "vocab" / "bert-base-chinese.vocab.txt")},
        "workers": 1,
    }
    statistics = build(PreprocessSettings.parse(settings, "test")).statistics
    assert statistics["documents"] == 3
    assert 2_200_000 < statistics["tokens"] < 2_400_000
    assert 0.6 < statistics["han_tokens_in_multi_token_words"] / statistics["han_tokens"] < 0.85
