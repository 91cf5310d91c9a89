"""A cache on a disk: its bound, files in use, several processes, one that is killed, and a disk that is full."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from reread.preprocessing.corpus import Corpus, retries
from reread.preprocessing.corpus.cache import SHARDS, Cache, CacheSettings, FullError
from reread.preprocessing.corpus.remote import RemoteCorpus
from reread.preprocessing.errors import UserError
from tests.conftest import ROOT
from tests.corpora import make_corpus
from tests.file_server import HANG, FileServer, serving

KB = 1024


def cache_of(folder: Path, size: int) -> Cache:
    return Cache(CacheSettings(folder=folder, size=size))


def of_bytes(value: int, size: int) -> Callable[[IO[bytes]], None]:
    return lambda file: file.write(bytes([value]) * size) and None


def add(cache: Cache, name: str, size: int) -> Path:
    path = cache.folder / "corpus" / SHARDS / name
    with cache.fetching(path):
        cache.add(path, size, of_bytes(7, size))
    return path


def names(cache: Cache) -> set[str]:
    return {path.name for path in (cache.folder / "corpus" / SHARDS).iterdir()}


def test_what_was_opened_longest_ago_is_deleted_first(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 39 * KB)
    for number, name in enumerate("abc"):
        os.utime(add(cache, name, 10 * KB), (number, number))
    assert cache.map(cache.folder / "corpus" / SHARDS / "a", 10 * KB) is not None  # opened last, in use no more
    add(cache, "d", 10 * KB)
    assert names(cache) == {"a", "c", "d"}


def test_what_is_mapped_is_not_deleted_and_stays_readable(tmp_path: Path) -> None:
    """Not by another job either, and what nobody deletes can still be unlinked by hand."""
    cache, other = cache_of(tmp_path, 40 * KB), cache_of(tmp_path, 40 * KB)
    path = add(cache, "a", 20 * KB)
    mapped = cache.map(path, 20 * KB)
    assert mapped is not None
    with pytest.raises(FullError):
        add(other, "b", 30 * KB)
    assert path.exists()
    values = np.frombuffer(mapped, np.uint8)
    del mapped  # an array of it holds it
    with pytest.raises(FullError):
        add(other, "b", 30 * KB)
    path.unlink()
    assert (values == 7).all()
    path = add(cache, "a", 20 * KB)
    del values
    add(other, "b", 30 * KB)
    assert names(cache) == {"b"} and cache.map(path, 20 * KB) is None


def test_the_size_counts_what_other_jobs_wrote(tmp_path: Path) -> None:
    """Each keeps to its own size."""
    large, small = cache_of(tmp_path, 100 * KB), cache_of(tmp_path, 40 * KB)
    for name in "abcd":
        add(large, name, 20 * KB)
    add(small, "e", 20 * KB)
    assert "e" in names(small) and len(names(small)) == 1
    for name in "fghijk":
        add(large, name, 20 * KB)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 100 * KB


def test_a_file_counts_before_its_blocks_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job that counts all files at that moment neither overlooks nor deletes it."""
    cache, other = cache_of(tmp_path, 40 * KB), cache_of(tmp_path, 40 * KB)
    allocate = os.posix_fallocate

    def between(*of: int) -> None:
        monkeypatch.setattr(os, "posix_fallocate", allocate)
        (cache.folder / ".used").unlink()
        with pytest.raises(FullError, match=r"20,\d\d\d of 40,960 bytes"):
            add(other, "b", 30 * KB)
        allocate(*of)

    monkeypatch.setattr(os, "posix_fallocate", between)
    add(cache, "a", 20 * KB)
    assert names(cache) == {"a"} and os.posix_fallocate is allocate


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 40 * KB)

    def fails(file: IO[bytes]) -> None:
        file.write(b"half")
        raise ValueError

    path = cache.folder / "corpus" / SHARDS / "a"
    for _ in range(5):
        with pytest.raises(ValueError), cache.fetching(path):
            cache.add(path, 20 * KB, fails)
    assert not names(cache)
    add(cache, "b", 30 * KB)


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or after a power failure it has its name, its size and zeros."""
    done: list[int | str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_ino), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replace"), replace(*paths)))
    cache = cache_of(tmp_path, 40 * KB)
    done.clear()
    path = add(cache, "a", KB)
    assert done == [(cache.folder / ".index").stat().st_ino, path.stat().st_ino, "replace"]


def test_a_file_of_another_size_is_replaced(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 40 * KB)
    path = add(cache, "a", KB)
    for content in (b"short", b""):
        path.write_bytes(content)
        assert cache.map(path, KB) is None
        assert cache.map(add(cache, "a", KB), KB) is not None


def test_what_the_cache_did_not_write_is_not_deleted(tmp_path: Path) -> None:
    """Neither beside its folder nor in it, whatever it is called."""
    cache = cache_of(tmp_path, 60 * KB)
    add(cache, "a", 20 * KB)
    corpus = cache.folder / "corpus" / SHARDS
    victim = tmp_path / "theirs.tar"
    others = [tmp_path / SHARDS / "x", tmp_path / "project" / SHARDS / "train-00000.tar", corpus / "mine", victim]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10 * KB))
        os.utime(path, (0, 0))
    (corpus / "a").unlink()
    (corpus / "a").symlink_to(victim)  # a name of the index
    (cache.folder / "linked").symlink_to(tmp_path / "project")
    for name in "bcdefgh":
        add(cache, name, 20 * KB)
    assert all(path.stat().st_size == 10 * KB for path in others)
    assert names(cache) == {"a", "mine", "g", "h"}
    assert cache.map(corpus / "a", 10 * KB) is None


def test_an_entry_of_the_index_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 50 * KB)
    add(cache, "a", 20 * KB)
    with (cache.folder / ".index").open("ab") as index:
        index.write(f"\ncorpus/{SHARDS}/trai".encode())
    for name in "bcd":
        add(cache, name, 20 * KB)
    assert names(cache) == {"c", "d"}


def test_a_process_that_holds_a_lock_for_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache, path = cache_of(tmp_path, 50 * KB), cache_of(tmp_path, 1).folder / ".lock"
    hold = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None and holder.stdout.readline() == "held\n"
        monkeypatch.setattr("reread.preprocessing.corpus.cache._LONG", 0.1)
        with caplog.at_level("INFO", logger="reread"), ThreadPoolExecutor(1) as waiting:
            added = waiting.submit(add, cache, "a", KB)
            while not caplog.messages:
                time.sleep(0.01)
            assert not added.done()
            holder.stdin.close()
    who = f"host {socket.gethostname()}, pid {holder.pid}"
    assert caplog.messages == [f"{path}: another process has held it for 0.1 s ({who}); waiting"]
    assert names(cache) == {"a"}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Two shards of about 110 kB."""
    (tmp_path / "corpus" / "tokenizer").mkdir(parents=True)
    (tmp_path / "corpus" / "tokenizer" / "vocab.txt").write_text("a\n")
    return make_corpus(tmp_path / "corpus", [900] * 70)


@pytest.fixture
def server(corpus: Corpus) -> Iterator[FileServer]:
    with serving(corpus.folder) as server:
        yield server


READER = """
import json, sys
import numpy as np
from reread.preprocessing.corpus.cache import CacheSettings
from reread.preprocessing.corpus.remote import RemoteCorpus
address, folder, pools = sys.argv[1:]
cut = lambda tokens: (np.array([*range(0, len(tokens), 12), len(tokens)]), int(pools))
corpus = RemoteCorpus(address, CacheSettings(folder=folder, size="1MB"), "train", cut)
corpus.use([(0, corpus.blocks)])
print("opened", flush=True)
print(json.dumps([int(corpus.document(number)[0].sum()) for number in range(corpus.documents)]))
"""


def reader(address: str, folder: Path, pools: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, address, str(folder), str(pools)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)


def sums(corpus: Corpus) -> list[int]:
    return [int(corpus.document(number)[0].sum()) for number in range(corpus.documents)]


@pytest.mark.slow
def test_of_two_processes_one_fetches_and_both_read(corpus: Corpus, server: FileServer, tmp_path: Path) -> None:
    server.open.clear()
    readers = [reader(server.address, tmp_path / "cache", pools=3) for _ in range(2)]
    for one in readers:
        assert one.stdout is not None and one.stdout.readline() == "opened\n"
    time.sleep(0.3)  # both ask for the same files, or one waits for the other
    server.open.set()
    found = [json.loads(one.communicate()[0]) for one in readers]
    assert found == [sums(corpus)] * 2
    assert len(server.shards_asked()) == 2
    for parts in server.shards_asked().values():
        assert all(stop <= start for (_, stop), (start, _) in pairwise(sorted(parts)))


@pytest.mark.slow
def test_a_process_killed_while_it_fetches_leaves_nothing_that_is_taken_for_a_file(
    corpus: Corpus, server: FileServer, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    server.faults = {"train-00000.tar": [HANG]}
    one = reader(server.address, cache)
    while "train-00000.tar" not in server.asked:
        assert one.poll() is None
        time.sleep(0.01)
    one.send_signal(signal.SIGKILL)
    one.wait()
    assert list(cache.glob(f"*/*/{SHARDS}/train-00000.tar.tmp"))
    assert not list(cache.glob(f"*/*/{SHARDS}/train-00000.tar"))
    there = RemoteCorpus(server.address, CacheSettings(folder=cache, size=1 << 20), "train", whole)
    assert sums(there) == sums(corpus)
    assert not list(cache.glob(f"*/*/{SHARDS}/*.tmp"))


@pytest.mark.parametrize("opened_before", [False, True])
def test_a_file_that_was_altered_in_the_cache_is_fetched_again_once(
    corpus: Corpus, server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, opened_before: bool
) -> None:
    """As by a power failure; also while another reader has it mapped."""
    settings = CacheSettings(folder=tmp_path / "cache", size=1 << 20)
    first = RemoteCorpus(server.address, settings, "train", whole)
    ids = first.document(0)[0]
    if not opened_before:
        assert sums(first) == sums(corpus)
        del first, ids
    (path,) = tmp_path.glob(f"cache/*/*/{SHARDS}/train-00000.tar")
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    there = RemoteCorpus(server.address, settings, "train", whole)
    before = len(server.asked["train-00000.tar"])
    with caplog.at_level("INFO", logger="reread"):
        assert sums(there) == sums(corpus)
    assert len(server.asked["train-00000.tar"]) == before + 1
    assert caplog.text.count(f"{path}: altered since it was kept there; fetched again") == 1
    if opened_before:
        assert sums(first) == sums(corpus) and ids.sum() == sums(corpus)[0]
    assert path.read_bytes() == (corpus.folder / "train-00000.tar").read_bytes()


def test_a_file_that_is_altered_where_it_comes_from_is_one_line(
    corpus: Corpus, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    settings = CacheSettings(folder=tmp_path / "cache", size=1 << 20, tries=3)
    sums(RemoteCorpus(server.address, settings, "train", whole))
    (path,) = tmp_path.glob(f"cache/*/*/{SHARDS}/train-00000.tar")
    for copy in (path, corpus.folder / "train-00000.tar"):
        with copy.open("r+b") as file:
            file.write(bytes(copy.stat().st_size))
    with pytest.raises(UserError, match=r"^http.*/train-00000.tar: altered since .*, after 3 tries; repair the server"):
        sums(RemoteCorpus(server.address, settings, "train", whole))


def whole(tokens: np.ndarray) -> tuple[np.ndarray, int]:
    return np.array([0, len(tokens)]), 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own for the index and one of the shards."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=232k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_is_one_line_unless_something_can_be_deleted(
    corpus: Corpus, server: FileServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    settings = CacheSettings(folder=small_disk / "cache", size=1 << 30, tries=3)
    there = RemoteCorpus(server.address, settings, "train", whole)
    there.use([(0, there.blocks)])
    first, last = there.document(0)[0].sum(), corpus.documents - 1
    with pytest.raises(UserError) as refused:
        there.document(last)
    line, shard = str(refused.value), f"{server.address}/train-00001.tar"
    assert line.startswith(f"data.cache: {Cache(settings).folder}: No space left on device, so {shard} cannot be kept")
    assert (
        refused.value.status == 2 and "after 3 tries; make room, give another folder, or lower data.cache.size" in line
    )
    assert line.endswith("bytes are free)") and "\n" not in line
    there._fetched.keep(set())  # the other one is in use no longer
    assert there.document(last)[0].sum() == corpus.document(last)[0].sum()
    there._fetched.keep(set())
    assert first == corpus.document(0)[0].sum() == there.document(0)[0].sum()


def test_files_that_are_all_in_use_are_one_line(
    corpus: Corpus, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another job has the same cache, which then is too small for both."""
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    size = 2 * sum(shard.bytes for shard in corpus.manifest.shards)
    settings = CacheSettings(folder=tmp_path / "cache", size=size, tries=3)
    there, other = RemoteCorpus(server.address, settings, "train", whole), Cache(settings)
    held = other.map(add(other, "of-another", size - 150 * KB), size - 150 * KB)
    there.use([(0, there.blocks)])
    with pytest.raises(UserError, match=r"are in use by this and other jobs, so http.*; raise data.cache.size"):
        sums(there)
    del held
    with suppress(FileNotFoundError):
        (other.folder / "corpus" / SHARDS / "of-another").unlink()
    assert sums(there) == sums(corpus)
