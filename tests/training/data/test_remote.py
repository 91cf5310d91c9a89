"""A corpus at an address gives the samples of the same corpus in a folder, through a cache that may hold a part."""

import base64
import ftplib
import shutil
import socket
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from filelock import FileLock

from reread.preprocessing.corpus import LENGTHS, Manifest, ShardWriter, remote, retries, write_lengths
from reread.preprocessing.corpus.index import PAGE
from reread.preprocessing.corpus.own_folder import own_folder
from reread.preprocessing.errors import UserError
from reread.training.data.dataset import Dataset
from reread.training.data.kinds import KINDS, open_dataset
from reread.training.data.materialize import materialize
from tests.corpora import SPECIAL
from tests.file_server import FileServer, serving

BLOCK, BLOCKS, SHARDS = 24_000, 8, 4
POOL = 4 * BLOCK
VOCABULARY = 1000
KINDS_OF_DATA = [
    {"kind": "rows"},
    {"kind": "rows", "next_sentence": False, "sequence_length": 256},
    {"kind": "packed"},
    {"kind": "segments"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 shards of 8 blocks, which have more than a page each and begin anywhere in one."""
    folder, generator = tmp_path_factory.mktemp("remote") / "corpus", np.random.default_rng(1)
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    shards = []
    for split, count in (("train", SHARDS), ("validation", 1)):
        for number in range(count):
            writer = ShardWriter(folder / f"{split}-{number:05d}.tar", split, "uint16", block_tokens=BLOCK)
            for _ in range((BLOCKS if split == "train" else 1) * BLOCK // 2000):
                flags = (generator.random(2000) < 0.1) * np.uint8(2)
                writer.add(generator.integers(5, VOCABULARY, 2000), flags)
            shards.append(writer.close())
    tokenizer = {"fingerprint": "tiny", "type": "wordpiece", "vocab_size": VOCABULARY, **SPECIAL}
    Manifest.of(tokenizer, "uint16", shards).write(folder)
    return folder


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    with serving(folder) as server:
        yield server


def corpus_bytes(folder: Path) -> int:
    return sum(shard.bytes for shard in Manifest.read(folder).shards)


def settings_of(corpus: Any, **values: Any) -> Any:
    """Two copies in pools of four blocks."""
    values = {"kind": "rows", "sequence_length": 512, "copies": 2, "pool_tokens": POOL, **values}
    values |= {"corpus": str(corpus)} if corpus is not None else {}
    return KINDS[values["kind"]].settings.parse(values, "data")


def opened(corpus: Any, **values: Any) -> Any:
    return KINDS[values.get("kind", "rows")].open(settings_of(corpus, **values), 0, "train")


def cache(folder: Path, size: int, **values: Any) -> dict[str, Any]:
    return {"cache": {"folder": str(folder), "size": size, "tries": 3, **values}}


def stretches_of(dataset: Dataset[Any], steps: int) -> Iterator[dict[str, np.ndarray]]:
    """Rows of a pass and some more, a few at a time."""
    size = -(-5 * len(dataset) // 4 // steps)
    for step in range(steps):
        positions = np.arange(step * size, (step + 1) * size)
        if dataset.settings.kind == "segments":
            readings = dataset.read(*dataset.locate(positions))  # type: ignore[attr-defined]
            rows = dataset.rows(readings, [0] * len(positions), np.ones(len(positions), bool))  # type: ignore[attr-defined]
            yield rows
        else:
            yield dataset.rows(positions)  # type: ignore[attr-defined]


def used(folder: Path) -> int:
    """Bytes of the files in the cache, while none is renamed, which would be counted under both names."""
    sizes = 0
    with FileLock(own_folder(folder) / ".lock"):
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # what failed is deleted at the moment
                sizes += path.stat().st_size if path.is_file() else 0
    return sizes


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert np.array_equal(values, other[name]), name


@pytest.mark.parametrize("kind", KINDS_OF_DATA, ids=str)
def test_rows_are_those_of_the_folder_with_a_cache_that_holds_a_part(
    folder: Path, server: FileServer, tmp_path: Path, kind: dict[str, Any]
) -> None:
    """A packed row goes on in the block after its own, which is of another pool."""
    size = 30 * PAGE
    assert size < corpus_bytes(folder)
    local, there = opened(folder, **kind), opened(server.address, **kind, **cache(tmp_path, size))
    assert there.order.pools == 8 and there.fingerprint == local.fingerprint and there.facts() == local.facts()
    for one, other in zip(stretches_of(local, 100), stretches_of(there, 100), strict=True):
        assert_equal(one, other)
        assert used(tmp_path) <= size
    assert there.tokenizer_folder.is_relative_to(tmp_path)


def test_corpora_of_a_mixture_share_a_cache(folder: Path, server: FileServer, tmp_path: Path) -> None:
    """Both at one address, read at different speeds; the cache holds a part of each."""

    def mixture(place: Any, **values: Any) -> Any:
        corpora = [{"path": str(place), "name": name, "weight": weight} for name, weight in (("a", 2), ("b", 1))]
        return opened(None, corpora=corpora, **values)

    size = 40 * PAGE
    near, far = mixture(folder), mixture(server.address, **cache(tmp_path, size))
    assert near.fingerprint == far.fingerprint
    for expected, found in zip(stretches_of(near, 40), stretches_of(far, 40), strict=True):
        assert_equal(expected, found)
        assert used(tmp_path) <= size


def test_corpora_of_a_mixture_share_the_size_of_the_cache(folder: Path, server: FileServer, tmp_path: Path) -> None:
    """Each has room alone. Nothing is fetched before all have; one corpus at two addresses is in the cache once."""
    with serving(folder) as same:
        corpora = [{"path": one.address, "name": name, "weight": 1} for one, name in ((server, "a"), (same, "b"))]
        opened(None, corpora=corpora, pool_tokens=None, **cache(tmp_path / "one", corpus_bytes(folder) * 5 // 4))
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tokenizer = {**Manifest.read(folder).tokenizer, "another": True}
    replace(Manifest.read(folder), tokenizer=tokenizer).write(other)
    with serving(other) as second:
        corpora = [{"path": one.address, "name": name, "weight": 1} for one, name in ((server, "a"), (second, "b"))]
        for one in (server, second):
            opened(one.address, **cache(tmp_path, 30 * PAGE))
        refused = rf"1,966,080 bytes, but {server.address}, {second.address} need [0-9,]+ for .*; raise it, or lower"
        with pytest.raises(UserError, match=refused):
            opened(None, corpora=corpora, **cache(tmp_path, 30 * PAGE))
        assert not second.shards_asked()
    assert not server.shards_asked()


@pytest.mark.parametrize("pool_tokens", [POOL, None])
def test_nothing_is_read_twice_in_passes_that_fit_into_the_cache(
    folder: Path, server: FileServer, tmp_path: Path, pool_tokens: int | None
) -> None:
    """Neither by another job, nor a page at the border of two stretches."""
    there = opened(server.address, pool_tokens=pool_tokens, **cache(tmp_path, 3 * corpus_bytes(folder)))
    for _ in stretches_of(there, 20):
        pass
    asked = server.shards_asked()
    assert sorted(asked) == [f"train-{number:05d}.tar" for number in range(SHARDS)]
    for parts in asked.values():
        assert all(stop <= start for (_, stop), (start, _) in pairwise(sorted(parts)))
    read = sum(stop - start for parts in asked.values() for start, stop in parts)
    shards = [shard for shard in Manifest.read(folder).shards if shard.split == "train"]
    assert read <= sum(shard.bytes for shard in shards)
    assert pool_tokens is not None or all(len(parts) == 1 for parts in asked.values())
    again = opened(server.address, pool_tokens=pool_tokens, **cache(tmp_path, 3 * corpus_bytes(folder)))
    assert_equal(again.rows(np.arange(9)), there.rows(np.arange(9)))
    assert read == sum(stop - start for parts in server.shards_asked().values() for start, stop in parts)
    assert [len(server.asked[name]) for name in ("manifest.json", "index.npz", "tokenizer/vocab.txt")] == [1, 1, 1]


def test_the_first_rows_need_the_first_pool_alone(folder: Path, server: FileServer, tmp_path: Path) -> None:
    there = opened(server.address, **cache(tmp_path, 3 * corpus_bytes(folder)))
    there.rows(np.arange(16))
    asked = [part for parts in server.shards_asked().values() for part in parts]
    assert 0 < sum(stop - start for start, stop in asked) <= 3 * 6 * PAGE  # four blocks, and the first of the next pool


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (["cut"], "not completed"),
        (["hang"], "no answer for 0.2 s"),
        ([500, 500], "500"),
        ([404], "not there"),
        (["flip"], "checksum of the page"),
    ],
    ids=str,
)
def test_what_fails_for_a_while_is_asked_for_again(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    faults: list[object],
    reason: str,
) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    if faults == ["hang"]:
        monkeypatch.setattr("reread.preprocessing.corpus.address.TIMEOUT", 0.2)
        monkeypatch.setattr(retries, "TIMEOUT", 0.2)
    with serving(folder) as server, caplog.at_level("INFO", logger="reread"):
        manifest = [] if faults == [404] else faults  # would be the user's mistake
        server.faults = {"train-00001.tar": list(faults), "manifest.json": list(manifest)}
        if faults == ["flip"]:
            reason, server.faults["index.npz"] = "checksum", list(faults)
        there = opened(server.address, pool_tokens=None, **cache(tmp_path, 3 * corpus_bytes(folder)))
        assert_equal(there.rows(np.arange(99)), opened(folder, pool_tokens=None).rows(np.arange(99)))
        assert not any(server.faults.values())
        assert f"{server.address}/train-00001.tar: " in caplog.text
        assert not manifest or f"{server.address}/manifest.json: " in caplog.text
    assert reason in caplog.text.lower() and caplog.text.count("trying again") >= len(faults) + len(manifest)


@pytest.mark.parametrize(
    ("fault", "reason", "status"),
    [
        (404, "not there", 2),
        (429, "429", 1),
        (500, "500", 1),
        ("cut", "completed", 1),
        ("flip", "checksum of the page", 2),
        ("whole", "range requests", 2),
    ],
    ids=str,
)
def test_what_goes_on_failing_is_one_line(
    folder: Path, server: FileServer, tmp_path: Path, fault: object, reason: str, status: int
) -> None:
    """The address, the shard, what is wrong and the way out; a job is requeued for what may pass."""
    server.faults, server.forever = {"train-00001.tar": [fault]}, {"train-00001.tar"}
    there = opened(server.address, **cache(tmp_path, 3 * corpus_bytes(folder)))
    with pytest.raises(UserError, match=reason) as refused:
        there.rows(np.arange(len(there)))
    line = str(refused.value)
    assert server.address in line and "\n" not in line and refused.value.status == status
    assert fault == "whole" or ("/train-00001.tar: " in line and "after 3 tries; repair the server" in line)
    assert not list(tmp_path.glob("*/*/shards/train-00001*"))


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_forbidden_is_asked_for_once(folder: Path, server: FileServer, tmp_path: Path, status: int) -> None:
    server.faults, server.forever = {"manifest.json": [status]}, {"manifest.json"}
    with pytest.raises(UserError, match=rf"/manifest.json: {status}, .*; get the right to read it") as refused:
        opened(server.address, **cache(tmp_path, 3 * corpus_bytes(folder), tries=20))
    assert refused.value.status == 2
    assert len(server.asked["manifest.json"]) == 1


def test_what_is_fetched_ahead_does_not_delay_the_line(folder: Path, server: FileServer, tmp_path: Path) -> None:
    """It gives up early and leaves the rest, since it holds the lock that whoever needs the shard waits for."""
    shards = [f"train-{number:05d}.tar" for number in range(SHARDS)]
    server.faults, server.forever = {name: [500] for name in shards}, set(shards)
    there = opened(server.address, **cache(tmp_path, 3 * corpus_bytes(folder), tries=20))
    with pytest.raises(UserError, match="after 20 tries"):
        there.rows(np.arange(9))
    assert sum(map(len, server.shards_asked().values())) <= 20 + remote._THREADS * 3


def test_fetching_ahead_goes_on_once_something_can_be_fetched(folder: Path, server: FileServer, tmp_path: Path) -> None:
    there = opened(server.address, **cache(tmp_path, 3 * corpus_bytes(folder)))
    (first, second), files = there.corpus._names[:2], there.corpus._fetched
    files._queue.append((second, waiting := Future()))  # its thread has ended
    files.map(first)
    assert len(waiting.result(timeout=60)) == files._stretches[second].size


@pytest.mark.parametrize("missing", ["manifest.json", "index.npz"])
def test_an_address_without_a_corpus_is_refused_at_once(
    folder: Path, server: FileServer, tmp_path: Path, missing: str
) -> None:
    server.faults, server.forever = {missing: [404]}, {missing}
    with pytest.raises(UserError, match=rf"^{server.address}/{missing}: not there; correct the address$"):
        opened(server.address, **cache(tmp_path, 3 * corpus_bytes(folder), tries=20))
    assert len(server.asked[missing]) == 1


def test_an_unknown_host_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unknown(*host: Any, **_: Any) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UserError, match=r"^http://typo/manifest.json: Name or service not known; correct the address$"):
        opened("http://typo", **cache(tmp_path, 1 << 20, tries=20))
    assert len(asked) == 1


def test_a_server_that_is_down_is_one_line_after_all_tries(server: FileServer, tmp_path: Path) -> None:
    """It may be starting."""
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/manifest.json: .*onnect.*, after 3 tries") as refused:
        opened("http://127.0.0.1:9", **cache(tmp_path, 1 << 20))
    assert refused.value.status == 1


@pytest.mark.parametrize(("command", "pool_tokens"), [("cat {}/", None), ("cat {}/{{}} | cat", POOL)])
def test_a_command_is_an_address(folder: Path, tmp_path: Path, command: str, pool_tokens: int | None) -> None:
    address = f"pipe:{command.format(folder)}"
    there = opened(address, pool_tokens=pool_tokens, **cache(tmp_path, 3 * corpus_bytes(folder)))
    assert_equal(there.rows(np.arange(99)), opened(folder, pool_tokens=pool_tokens).rows(np.arange(99)))


def test_a_command_that_fails_is_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    there = opened(f"pipe:test {{}} != train-00001.tar && cat {folder}/{{}}", **cache(tmp_path, 9_000_000))
    with pytest.raises(UserError, match=r"train-00001.tar: .*after 3 tries"):
        there.rows(np.arange(len(there)))


def test_what_needs_the_whole_corpus_needs_a_cache_for_it(folder: Path, server: FileServer, tmp_path: Path) -> None:
    part = cache(tmp_path, 30 * PAGE)
    refused = r"data.cache.size: 1,966,080 bytes.* its whole train split, which is not read by pools"
    with pytest.raises(UserError, match=refused):
        opened(server.address, pool_tokens=None, **part)
    values = {"kind": "stream", "corpus": server.address, **part}
    with pytest.raises(UserError, match=refused):
        open_dataset(KINDS["stream"].settings.parse(values, "data"), 0, "train")
    with pytest.raises(UserError, match=r"its index has no chunks of 197 tokens.*set sequence_length to 128, 256,"):
        opened(server.address, sequence_length=200, **part)
    with pytest.raises(UserError, match=r"needs [0-9,]+ for two of its 8 pools and the held-out text; raise it"):
        opened(server.address, **cache(tmp_path, 14 * PAGE))
    assert not server.shards_asked()
    whole = cache(tmp_path, 3 * corpus_bytes(folder))
    rows = opened(server.address, sequence_length=200, **whole).rows(np.arange(50))
    assert_equal(rows, opened(folder, sequence_length=200).rows(np.arange(50)))
    ours, theirs = (
        open_dataset(KINDS["stream"].settings.parse({**values, "corpus": str(place), **whole}, "data"), 0, "train")
        for place in (folder, server.address)
    )
    assert_equal(ours.rows(np.array([0, 400_000]), 64), theirs.rows(np.array([0, 400_000]), 64))


def test_all_bytes_are_verified_with_room_for_a_part(folder: Path, server: FileServer, tmp_path: Path) -> None:
    there = opened(server.address, **cache(tmp_path, 30 * PAGE))
    there.verify()
    assert {name for name, parts in server.shards_asked().items() if parts} == {
        f"train-{number:05d}.tar" for number in range(SHARDS)
    }


def test_addresses_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path) -> None:
    where = cache(tmp_path, 1 << 20)
    for address, given, message in [
        ("https://host/corpus", {}, r"cache: give `folder`, on this machine's own disk, and `size`"),
        ("https://me:secret@host/corpus", where, r"corpus: holds a password, which .*; put it into an environment var"),
        (
            "https://host/corpus?sig=${NOT_SET}",
            where,
            r"NOT_SET\}: NOT_SET is not set in the environment; `export NOT_SET",
        ),
        ("gopher://host/corpus", where, r"neither fsspec nor webdataset opens `gopher:`"),
        ("htp://host/corpus", where, r"did you mean `http`\?"),
    ]:
        with pytest.raises(UserError, match=message) as refused:
            opened(address, **given)
        assert "\n" not in str(refused.value)


SECRET = "s3cr3t/Wert+7=="
FORMS = {
    SECRET,
    quote(SECRET),
    quote(SECRET, safe=""),
    repr(SECRET)[1:-1],
    base64.b64encode(f"me:{SECRET}".encode()).decode(),
}


@pytest.fixture
def secret(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the server wants to be told, in an environment variable."""
    monkeypatch.setenv("REREAD_TEST", quote(SECRET, safe=""))
    server.secret = SECRET
    return "${REREAD_TEST}"


@pytest.mark.parametrize(
    "address", ["http://me:{}@{}", "http://{1}?sig={0}&v=1", "simplecache::http://{1}/{{}}?token={0}"]
)
def test_a_secret_is_taken_from_the_environment(
    folder: Path, server: FileServer, secret: str, tmp_path: Path, address: str
) -> None:
    """It stays `${NAME}` in all that is shown."""
    address = address.format(secret, server.address.removeprefix("http://"))
    there = opened(address, pool_tokens=None, **cache(tmp_path, 3 * corpus_bytes(folder)))
    assert_equal(there.rows(np.arange(9)), opened(folder, pool_tokens=None).rows(np.arange(9)))
    assert there.settings.model_dump(mode="json")["corpus"] == address == there.corpus.location


class QuotingError(Exception):
    """As of a library: it quotes what it was given."""


@pytest.mark.parametrize("kind", [QuotingError, ValueError, FileNotFoundError, PermissionError, TimeoutError, OSError])
def test_no_error_of_a_library_shows_a_secret(
    server: FileServer,
    secret: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    def refuse(path: str, *_: Any) -> None:
        raise kind(f"cannot open {path!r}, headers {sorted(FORMS)}")

    monkeypatch.setattr("fsspec.url_to_fs", lambda place, **_: (SimpleNamespace(cat_file=refuse), place))
    address = f"{server.address}?sig={secret}"
    with (
        caplog.at_level("INFO"),
        pytest.raises(UserError, match=r"/manifest.json\?sig=\$\{REREAD_TEST\}: ") as refused,
    ):
        opened(address, **cache(tmp_path, 1 << 20))
    shown = "".join(traceback.format_exception(refused.value)) + caplog.text
    assert not [form for form in FORMS if form in shown]


@pytest.mark.parametrize(
    "address", ["http://me:{}@127.0.0.1:9", "http://{}/corpus", "http://127.0.0.1/{}?sig={}", "ftps://{}/x"]
)
def test_a_secret_is_in_no_line_of_an_address_that_does_not_answer(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    with caplog.at_level("INFO"), pytest.raises(UserError, match="REREAD_TEST") as refused:
        opened(address.replace("{}", secret), **cache(tmp_path, 1 << 20))
    shown = "".join(traceback.format_exception(refused.value)) + caplog.text
    assert not [form for form in FORMS if form in shown]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"s3://bucket/corpus: cannot be opened here \(Install s3fs to access S3\)"):
        opened("s3://bucket/corpus", **cache(tmp_path, 1 << 20))


@pytest.mark.parametrize(
    ("scheme", "opener", "error", "status"),
    [
        ("hdfs", "fsspec.implementations.arrow.HadoopFileSystem", OSError("Unable to load libjvm\ndlopen failed"), 2),
        ("ftp", "fsspec.implementations.ftp.FTPFileSystem", ftplib.error_perm("530 Login incorrect"), 2),
        ("ftp", "fsspec.implementations.ftp.FTPFileSystem", ConnectionRefusedError(111, "Connection refused"), 1),
        ("reference", "fsspec.implementations.reference.ReferenceFileSystem", TypeError("missing 1 argument"), 2),
    ],
)
def test_what_cannot_be_opened_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, opener: str, error: Exception, status: int
) -> None:
    """hdfs without Java, an FTP server that refuses. The libraries connect when they are opened, before the tries."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(f"{opener}.__init__", refuse)
    with pytest.raises(UserError, match=rf"^{scheme}://host/corpus: cannot be opened here \(") as refused:
        opened(f"{scheme}://host/corpus", **cache(tmp_path, 1 << 20))
    assert "\n" not in str(refused.value) and refused.value.status == status


@pytest.mark.parametrize("name", ["../train.tar", "a b.tar", "$(touch x).tar", "x;y"])
def test_a_manifest_does_not_lead_elsewhere(tmp_path: Path, name: str) -> None:
    """Nor does a name in it run in the shell of a `pipe:`."""
    folder = tmp_path / "corpus"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "vocab.txt").write_text("a\n")
    writer = ShardWriter(folder / "train-00000.tar", "train", "uint16")
    writer.add(np.full(100, 7), np.zeros(100, np.uint8))
    written = writer.close()
    written = replace(written, shard=replace(written.shard, name=name))
    tokenizer = {"fingerprint": "tiny", "type": "wordpiece", "vocab_size": VOCABULARY, **SPECIAL}
    Manifest.of(tokenizer, "uint16", [written]).write(folder)
    with pytest.raises(UserError, match="which is not a file of a corpus; do not use it"):
        opened(f"pipe:cat {folder}", **cache(tmp_path / "cache", 1 << 20))


def test_samples_on_disk_are_read_from_a_folder(folder: Path, tmp_path: Path) -> None:
    one = settings_of(folder, copies=1, pool_tokens=None, sequence_length=512)
    materialize(folder, tmp_path / "samples", one, 0, 1)
    with pytest.raises(UserError, match="which are read from a folder of this machine; copy it, or give the corpus"):
        opened(f"pipe:cat {tmp_path / 'samples'}", **cache(tmp_path / "cache", 1 << 20))


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """A process asks for a manifest once."""
    yield
    remote.fetch_folder.cache_clear()


@pytest.fixture
def with_lengths(folder: Path, tmp_path: Path) -> Path:
    """The corpus with lengths.npy; its documents have 2000 tokens each."""
    copy, manifest = shutil.copytree(folder, tmp_path / "with-lengths"), Manifest.read(folder)
    checksum = write_lengths(copy, [np.full(manifest.documents, 2000)], manifest.documents)
    replace(manifest, lengths=checksum).write(copy)
    return copy


def test_rows_of_any_length_need_the_lengths_and_no_whole_corpus(
    with_lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is fetched when a length needs it, and again if it was altered in the cache or had to make room."""
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    part, size = cache(tmp_path / "cache", 30 * PAGE), (with_lengths / LENGTHS).stat().st_size
    with serving(with_lengths) as server, caplog.at_level("INFO", logger="reread"):
        opened(server.address, **part)
        assert LENGTHS not in server.asked
        server.faults[LENGTHS] = ["flip", 500]
        local, there = (opened(where, sequence_length=200, **part) for where in (with_lengths, server.address))
        assert server.asked[LENGTHS] == [(0, size), (0, 0), (0, size)] and not server.shards_asked()
        assert there.fingerprint == local.fingerprint and len(there) == len(local)
        for length, expected in ((200, 3), (180, 4)):
            opened(server.address, sequence_length=length, **part)
            assert len(server.asked[LENGTHS]) == expected
            (path,) = (tmp_path / "cache").glob(f"*/*/shards/{LENGTHS}")
            path.write_bytes(bytes(size))
        assert caplog.text.count(f"{path}: altered since it was kept there; fetched again") == 1
        for one, other in zip(stretches_of(local, 20), stretches_of(there, 20), strict=True):
            assert_equal(one, other)
            assert used(tmp_path / "cache") <= 30 * PAGE


def test_lengths_that_cannot_be_fetched_are_one_line(
    with_lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.0)
    with serving(with_lengths) as server:
        part = cache(tmp_path / "cache", 30 * PAGE)
        (with_lengths / LENGTHS).write_bytes(bytes((with_lengths / LENGTHS).stat().st_size))
        with pytest.raises(UserError, match=r"^http.*/lengths\.npy: altered since it .*, after 3 tries; repair"):
            opened(server.address, sequence_length=200, **part)
        (with_lengths / LENGTHS).unlink()
        with pytest.raises(UserError, match=r"^http.*/lengths\.npy: not there, after 3 tries; repair"):
            opened(server.address, sequence_length=200, **part)
    assert not [*(tmp_path / "cache").glob(f"*/*/shards/{LENGTHS}*")]
