"""A corpus at an address: its shards are fetched into a cache on this machine's disk, checked, and mapped there.

A corpus that is read by pools is fetched in stretches: the parts of shards, of about 3 MB, that make up the pools. A
page at the border of two stretches is in the files of both; it is copied if one of the files is in the cache already. A
corpus that is shuffled as a whole is fetched in whole shards.
"""

import json
import logging
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from hashlib import md5
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import IO, Any

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from reread.preprocessing.corpus.address import RemoteFolder, check_name
from reread.preprocessing.corpus.cache import SHARDS, Cache, CacheSettings
from reread.preprocessing.corpus.checksums import LARGEST, TOKENIZER_FILES, has_valid_checksum
from reread.preprocessing.corpus.index import INDEX, PAGE, CorpusIndex, page_count
from reread.preprocessing.corpus.lengths import LENGTHS, is_whole, lengths_bytes
from reread.preprocessing.corpus.manifest import Shard, index_bytes
from reread.preprocessing.corpus.maps import read_ahead
from reread.preprocessing.corpus.own_folder import open_own
from reread.preprocessing.corpus.reader import Corpus, whole_shards
from reread.preprocessing.corpus.retries import no_room, reason, retried, unreadable
from reread.preprocessing.corpus.shards import ShardFiles, Stretch
from reread.preprocessing.errors import DamagedError, UserError, first_line, writing
from reread.preprocessing.files import write_atomically

log = logging.getLogger("reread")

_LARGEST_INDEX = 1 << 31
_THREADS = 4
_TRIES_AHEAD = 3
"""Tries when fetching ahead. They are few because the shard stays locked for a process that needs it now."""

Cut = Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], int]]
"""Maps the tokens of each block [blocks] to the first block of each extent, with the end, [extents + 1], and the number
of pools."""


@lru_cache
def fetch_folder(address: str, settings: CacheSettings) -> Path:
    """The folder in the cache with the manifest, the index and the tokenizer of the corpus at an address.

    The manifest is requested once per process. Raises `UserError` if one of the files cannot be fetched.
    """
    source, cache = RemoteFolder(address), Cache(settings)
    manifest = _read(source, "manifest.json", LARGEST, settings.tries, has_valid_checksum)
    folder = cache.folder / md5(manifest).hexdigest()
    values = json.loads(manifest)
    try:
        most = {INDEX: min(_LARGEST_INDEX, index_bytes(values))} if "kind" not in values else {}
    except ValueError as error:
        raise DamagedError(
            f"{source.location('manifest.json')}: not the manifest of a corpus ({first_line(error)})"
        ) from None
    digests = {INDEX: values.get("index")}
    digests |= {f"tokenizer/{name}": digest for name, digest in values[TOKENIZER_FILES].items()}
    with writing(cache.folder), cache.fetching(folder):
        if (folder / "manifest.json").exists():
            return folder
        (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
        (folder / SHARDS).mkdir(exist_ok=True)
        for name, digest in digests.items():
            if digest is not None:  # samples have no index
                size = most.get(name, LARGEST)
                data = _read(source, check_name(address, name), size, settings.tries, _has_md5(digest))
                write_atomically(folder / name, data)
        write_atomically(folder / "manifest.json", manifest)
        cache.count_again()
    return folder


def _has_md5(digest: str) -> Callable[[bytes], bool]:
    return lambda data: md5(data).hexdigest() == digest


def _read(source: RemoteFolder, name: str, most: int, tries: int, is_right: Callable[[bytes], bool]) -> bytes:
    """The whole file, tried up to `tries` times; `is_right` verifies its bytes. Raises `UserError` in the end."""
    location = source.location(name)

    def once() -> bytes:
        try:
            data = source.read(name, most)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno == socket.EAI_NONAME:
                raise UserError(f"{location}: {reason(error)}; correct the address") from None
            raise
        if not is_right(data):
            raise DamagedError("altered since it was written (its checksum differs)")
        return data

    return retried(once, tries, location, lambda error: unreadable(location, error, tries))


class FetchedShards(ShardFiles):
    """Stretches of shards; each is fetched when it is asked for or mapped, and stays in use until it is released."""

    def __init__(self, source: RemoteFolder, cache: Cache, folder: Path, tries: int, stretches: list[Stretch]) -> None:
        super().__init__(folder / SHARDS, "")
        self._remedy = "delete it, and it is fetched again"
        self._source, self._cache, self._tries = source, cache, tries
        self._stretches = {stretch.name: stretch for stretch in stretches}
        order = [None, *self._stretches.values(), None]
        self._beside = {name: (order[number], order[number + 2]) for number, name in enumerate(self._stretches)}
        self._ahead: dict[str, Future[mmap.mmap]] = {}
        self._queue: deque[tuple[str, Future[mmap.mmap]]] = deque()
        self._threads: list[Thread] = []
        self._pool: set[str] = set()
        self._others: deque[str] = deque()
        """Files outside of the pool that are mapped, oldest first."""
        self.releases = 0
        self.spare = 0
        """Bytes that must stay free in the cache when a file is fetched ahead."""

    def map(self, name: str) -> mmap.mmap:
        if name not in self._maps:
            ahead = self._ahead.pop(name, None)
            if ahead is None and name not in self._pool:
                self._others.append(name)
                if len(self._others) > _others(len(self._pool)):
                    self._drop({self._others.popleft()})
            if ahead is not None and not ahead.cancel() and ahead.exception() is None:
                self._maps[name] = ahead.result()
            else:
                self._maps[name] = self._fetch(name)
                self.ask(())  # restarts threads that ended after a failure
        return self._maps[name]

    def ask(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._maps and name not in self._ahead:
                self._ahead[name] = Future()
                self._queue.append((name, self._ahead[name]))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while len(self._threads) < min(_THREADS, len(self._queue)):
            self._threads.append(Thread(target=self._fetch_ahead, name="fetch", daemon=True))
            self._threads[-1].start()

    def read(self, name: str, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        mapped = self.map(name)  # a file that is not in use could be deleted
        return [mapped[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]

    def open_lengths(self, documents: int, checksum: int) -> IO[bytes]:
        """lengths.npy, which is fetched unless the cache has it as it was written."""
        path, location, size = self.folder / LENGTHS, self._source.location(LENGTHS), lengths_bytes(documents)

        def write(file: IO[bytes]) -> None:
            def download() -> None:
                file.seek(0)
                found = 0
                for data in self._source.chunks(LENGTHS, 0, size):
                    file.write(data)
                    found = crc32(data, found)
                if found != checksum:
                    raise DamagedError("altered since it was written (its checksum differs)")

            retried(download, self._tries, location, lambda error: unreadable(location, error, self._tries))

        def once() -> IO[bytes]:
            with self._cache.fetching(path):
                if self._cache.has(path, size):
                    file = open_own(path)  # it may be deleted from now on
                    if is_whole(file, documents, checksum):
                        return file
                    file.close()
                    log.info("%s: altered since it was kept there; fetched again", path)
                path.unlink(missing_ok=True)
                self._cache.add(path, size, write)
                return open_own(path)

        return retried(once, self._tries, location, lambda error: no_room(self._cache, location, error, self._tries))

    def repair(self, name: str) -> None:
        stretch, path = self._stretches[name], self.folder / name
        with self._cache.fetching(self.folder / stretch.shard):
            if _first_wrong(stretch, stretch.start, self.map(name)) is not None:  # else another process was faster
                log.info("%s: altered since it was kept there; fetched again", path)
                # Written in place, since readers hold maps of it. If it was deleted by hand, the caller reports it.
                with suppress(FileNotFoundError), writing(self._cache.folder), open_own(path, "r+b") as file:
                    self._write(stretch, file, is_ahead=False)
                    file.flush()
                    os.fsync(file.fileno())

    def keep(self, pool: set[str]) -> None:
        """Release all files that are not in `pool`."""
        self._pool = pool
        self._others.clear()
        self._drop((self._ahead.keys() | self._maps.keys()) - pool)

    def _drop(self, names: set[str]) -> None:
        for name in names:
            self._maps.pop(name, None)
            if ahead := self._ahead.pop(name, None):
                ahead.cancel()
        self.releases += 1

    def _fetch_ahead(self) -> None:
        """Fetch the files in the queue. A failure ends the thread; `map` tries that file again when it is needed."""
        with suppress(IndexError):  # the queue is empty
            while True:
                name, future = self._queue.popleft()
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(self._fetch(name, is_ahead=True))
                    except Exception as error:
                        future.set_exception(error)
                        return

    def _fetch(self, name: str, *, is_ahead: bool = False) -> mmap.mmap:
        stretch, path = self._stretches[name], self.folder / name
        location = self._source.location(stretch.shard)

        def once() -> mmap.mmap:
            while (mapped := self._cache.map(path, stretch.size)) is None:
                # One process fetches from a shard at a time, so that a page at a border is not fetched twice.
                with self._cache.fetching(self.folder / stretch.shard):
                    if not self._cache.has(path, stretch.size):
                        self._add(path, stretch, is_ahead)
            read_ahead(mapped, 0, stretch.size)
            return mapped

        tries = 1 if is_ahead else self._tries  # without room to fetch ahead, it is fetched when it is needed
        return retried(once, tries, location, lambda error: no_room(self._cache, location, error, tries))

    def _add(self, path: Path, stretch: Stretch, is_ahead: bool) -> None:
        try:
            spare = self.spare if is_ahead else 0
            self._cache.add(path, stretch.size, lambda file: self._write(stretch, file, is_ahead), spare)
        except OSError:
            if not is_ahead:
                self.keep(self._pool)  # frees files outside of the pool for the next try
            raise

    def _write(self, stretch: Stretch, file: IO[bytes], is_ahead: bool) -> None:
        """Write the bytes of a stretch: pages that neighbouring files have are copied, the others downloaded."""
        before, after = self._beside[stretch.name]
        head = self._copied(stretch, before, stretch.start)
        done = stretch.start + len(head)
        tail = self._copied(stretch, after, max(done, after.start)) if after else b""
        stop = stretch.stop - len(tail)
        file.write(head)

        def download() -> None:
            nonlocal done
            for data in self._source.chunks(stretch.shard, done, stop):
                if (wrong := _first_wrong(stretch, done, data)) is not None:
                    raise DamagedError(f"altered since it was written (checksum of the page at byte {wrong})")
                file.write(data)
                done += len(data)

        location = self._source.location(stretch.shard)
        tries = min(self._tries, _TRIES_AHEAD) if is_ahead else self._tries
        retried(download, tries, location, lambda error: unreadable(location, error, tries))
        file.write(tail)

    def _copied(self, stretch: Stretch, other: Stretch | None, start: int) -> bytes:
        """The bytes from `start` on that `stretch` shares with `other`, if `other` is in the cache; else none."""
        if other is None or other.shard != stretch.shard:
            return b""
        stop = min(stretch.stop, other.stop)
        if stop <= start:
            return b""
        try:
            with open_own(self.folder / other.name) as file:
                data = os.pread(file.fileno(), stop - start, start - other.start)
        except OSError:
            return b""
        whole = len(data) == stop - start and _first_wrong(stretch, start, data) is None
        return data if whole else b""


def _others(pool: int) -> int:
    """How many files outside of the pool are kept mapped, for a pool of `pool` files."""
    return max(1, pool // 16)


def _first_wrong(stretch: Stretch, start: int, data: bytes | mmap.mmap) -> int | None:
    """The byte of the shard at which the first altered page of `data` begins; None if no page was altered.

    `data` begins at byte `start` of the shard, which is the beginning of a page.
    """
    for begin in range(0, len(data), PAGE):
        page = data[begin : begin + PAGE]
        if crc32(page) != stretch.sums[(start + begin - stretch.start) // PAGE]:
            return start + begin
    return None


class RemoteCorpus(Corpus):
    """A split of the corpus at an address, read through the cache of this machine.

    Call `check_room` before reading, which makes sure that the cache is large enough. Raises `UserError` as `Corpus`
    does, and if a file cannot be fetched.
    """

    def __init__(self, address: str, settings: CacheSettings, split: str, cut: Cut) -> None:
        self._address, self.cache, self._cut = address, settings, cut
        super().__init__(fetch_folder(address, settings), split)
        self.location = address

    def _open(self, shards: list[Shard], index: CorpusIndex) -> None:
        for shard in shards:
            check_name(self._address, shard.name)
        stretches = whole_shards(shards, index.pages)
        extents, pools = self._cut(index.blocks["tokens"])
        if pools > 1:
            stretches = cut_stretches(stretches, index.blocks, extents)
        source, cache = RemoteFolder(self._address), Cache(self.cache)
        files = FetchedShards(source, cache, self.folder, self.cache.tries, stretches)
        self._fetched, self._pools, self._fits = files, pools, True
        self._sizes = sorted(stretch.size for stretch in stretches)
        self._read_from(files, stretches, index)

    @property
    def held_out(self) -> int:
        """Bytes of the held-out split if this is the training split, since both are in the cache then; else 0."""
        return sum(shard.bytes for shard in self.manifest.shards if shard.split != self.split == "train")

    @property
    def beside(self) -> int:
        """Bytes that stay in the cache besides this split: the held-out text, the index and the tokenizer."""
        files = (*self.folder.iterdir(), *self.folder.glob("tokenizer/*"))
        return self.held_out + sum(path.stat().st_size for path in files)

    @property
    def whole(self) -> int:
        """Bytes of the split."""
        return sum(self._sizes)

    @property
    def at_once(self) -> int:
        """Bytes of the split that are in use at once: the current pool, the next one and a few other files."""
        most = -(-len(self._sizes) // self._pools)
        return self.whole if self._pools == 1 else 2 * sum(self._sizes[-most:]) + sum(self._sizes[-_others(most) :])

    def read_by_pools(self, spare: int) -> None:
        """Fetch one pool after another, since the cache holds only a part; fetching ahead leaves `spare` bytes free."""
        self._fits, self._fetched.spare = False, spare
        if self._pools > 1:
            folder = self.cache.folder
            log.info("%s: %s holds a part of it, %d pools are fetched in turn", self.location, folder, self._pools)

    @property
    def releases(self) -> int:
        return self._fetched.releases

    def use(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Fetch the files of these ranges of blocks, and release all others."""
        names = dict.fromkeys(name for first, stop in blocks for name in self._names_of(first, stop))
        self._fetched.keep(set(names))
        self._fetched.ask(names)

    def read_ahead(self, first: int, stop: int) -> None:
        self._fetched.ask(self._names_of(first, stop))

    def _count_chunks(self, longest: int) -> NDArray[np.uint32]:
        if self.manifest.lengths is None:
            if not self._fits:
                raise UserError(
                    f"{self._address}: its index has no chunks of {longest} tokens, so all of its shards would have to "
                    "be read first; set sequence_length to 128, 256, 512 or 1024, or data.cache.size to the size of "
                    "the whole corpus"
                )
            self._fetched.ask(self._names)
        return super()._count_chunks(longest)

    def _open_lengths(self, checksum: int) -> IO[bytes]:
        return self._fetched.open_lengths(self.manifest.documents, checksum)

    def verify(self) -> None:
        self.use([])
        super().verify()

    def _names_of(self, first: int, stop: int) -> list[str]:
        return [self._names[number] for number in dict.fromkeys(self._shard_of[first:stop])]


def check_room(corpora: Sequence[RemoteCorpus], size: int) -> None:
    """Raises `UserError` unless a cache of `size` bytes has room for all that is read at once of these corpora."""
    same: dict[Path, list[RemoteCorpus]] = {}
    for one in corpora:
        same.setdefault(one.folder, []).append(one)
    wholes = [ones[0].beside + ones[0].whole for ones in same.values()]
    if sum(wholes) <= size:
        return
    at_once = [ones[0].beside + sum(one.at_once for one in ones) for ones in same.values()]
    needed = sum(map(min, wholes, at_once))
    if needed > size:
        first = corpora[0]
        if len(corpora) > 1:
            need = f"{', '.join(str(one.location) for one in corpora)} need {needed:,} for the parts read at once"
        elif first._pools == 1:
            need = f"{first.location} needs {needed:,} for its whole {first.split} split, which is not read by pools"
        else:
            need = f"{first.location} needs {needed:,} for two of its {first._pools:,} pools and the held-out text"
        raise UserError(f"data.cache.size: {size:,} bytes, but {need}; raise it, or lower data.pool_tokens")
    for one in corpora:
        one.read_by_pools(sum(ones[0].held_out for ones in same.values()))


def cut_stretches(shards: list[Stretch], blocks: NDArray[Any], extents: NDArray[np.int64]) -> list[Stretch]:
    """The stretches of the shards, each of which holds the blocks of one extent in whole pages.

    `blocks` are the index's BLOCK rows [blocks] of all `shards`, `extents` [extents + 1] their first blocks.
    """
    names, last = ("ids_at", "flags_at", "offsets_at"), blocks["offsets_at"] + 8 * (blocks["documents"] + 1)
    stretches, first = [], 0
    for shard in shards:
        end = first + shard.blocks
        for begin, stop in pairwise([first, *extents[(extents > first) & (extents < end)].tolist(), end]):
            at = min(int(blocks[name][begin:stop].min()) for name in names) // PAGE
            pages = page_count(int(last[begin:stop].max()))
            bytes_at, bytes_stop = at * PAGE, min(pages * PAGE, shard.size)
            name, sums = f"{shard.name}.{bytes_at}-{bytes_stop}", shard.sums[at:pages]
            stretches.append(Stretch(name, shard.shard, bytes_at, bytes_stop, stop - begin, sums))
        first = end
    return stretches
