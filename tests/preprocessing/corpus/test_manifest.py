"""No byte of a manifest or of a tokenizer changes unnoticed, and what cannot be is refused in one line."""

import copy
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from reread.preprocessing.corpus import Corpus, checksums
from reread.preprocessing.corpus.checksums import CHECKSUM, TOKENIZER_FILES, add_checksum
from reread.preprocessing.corpus.manifest import tokenizer_fault
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.work_plan import finished, write_record
from reread.preprocessing.files import write_atomically
from reread.training.data.kinds import open_dataset
from reread.training.data.materialize import materialize
from reread.training.data.rows.samples import RowSettings
from tests.corpora import VOCABULARY, make_corpus

OPTIONS: dict[str, Any] = {"sequence_length": 64, "copies": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A corpus with files of a tokenizer, and samples of it that were written out."""
    folder = tmp_path_factory.mktemp("manifest")
    corpus = make_corpus(folder / "corpus", [300, 20, 500, 90])
    (corpus.folder / "tokenizer").mkdir()
    (corpus.folder / "tokenizer" / "vocab.txt").write_text("{}")
    words = WordLevel({str(number): number for number in range(VOCABULARY)}, "1")
    Tokenizer(words).save(str(corpus.folder / "tokenizer" / "tokenizer.json"))  # read if the statistics are gone
    statistics = {"han_tokens": 0, "han_tokens_in_multi_token_words": 0}
    replace(corpus.manifest, statistics=statistics).write(corpus.folder)
    materialize(corpus.folder, folder / "samples", settings_of(corpus.folder), 0, 1, block_rows=8)
    return {"corpus": corpus.folder, "samples": folder / "samples"}


def settings_of(folder: Path) -> RowSettings:
    return RowSettings(corpus=folder, **OPTIONS)


def use(folder: Path) -> None:
    """What training and `inspect --verify` do."""
    source: Any = open_dataset(settings_of(folder), 0, "train")
    source.verify()
    source.rows(np.arange(8))


KINDS = pytest.mark.parametrize("kind", ["corpus", "samples"])


@KINDS
def test_special_ids_that_were_changed_are_refused(folders, tmp_path, kind) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / kind)
    use(folder)
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    assert values["tokenizer"]["mask"] == 4
    values["tokenizer"]["mask"] = 7
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=rf"^{path}: its checksum does not match its contents; .*reread preprocess"):
        use(folder)


@KINDS
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda tokenizer: (tokenizer / "vocab.txt").write_text("{ }"), "vocab.txt: altered since it was written"),
        (lambda tokenizer: (tokenizer / "vocab.txt").unlink(), "vocab.txt: missing"),
        (shutil.rmtree, "tokenizer.json: missing"),
        (
            lambda tokenizer: (tokenizer / "added_tokens.json").write_text("{}"),
            "added_tokens.json: was not there when it was written",
        ),
    ],
    ids=["altered", "missing", "no folder", "added"],
)
def test_a_tokenizer_that_was_changed_is_refused(
    folders, tmp_path, kind, change: Callable[[Path], object], line: str
) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / kind)
    (folder / "tokenizer" / ".nfs0001").write_text("a file system's own")
    use(folder)
    change(folder / "tokenizer")
    with pytest.raises(UserError, match=rf"^{folder}/tokenizer/{line}; copy it again, or run `reread preprocess"):
        use(folder)


@KINDS
@given(data=st.data())
def test_no_flipped_or_missing_byte_of_a_manifest_passes_unnoticed(folders, kind, data) -> None:
    folder = folders[kind]
    path = folder / "manifest.json"
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    bits = data.draw(st.integers(0, 255))  # 0: cut off here
    altered = whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :] if bits else whole[:place]
    try:
        if unlike(altered, whole):
            path.write_bytes(altered)
            with pytest.raises(UserError, match="manifest") as raised:
                use(folder)
            assert "\n" not in str(raised.value)
    finally:
        path.write_bytes(whole)


def unlike(altered: bytes, whole: bytes) -> bool:
    """White space says nothing in JSON."""
    try:
        return bool(json.loads(altered) != json.loads(whole))
    except (ValueError, RecursionError):
        return True


def places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each field."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@KINDS
@given(data=st.data())
def test_whatever_a_manifest_says_it_is_read_or_refused_in_one_line(folders, kind, data) -> None:
    """With a valid checksum, as an attacker would write it: what comes after the checksum must hold as well."""
    folder = folders[kind]
    path = folder / "manifest.json"
    whole = path.read_bytes()
    values = {name: value for name, value in json.loads(whole).items() if name not in (CHECKSUM, TOKENIZER_FILES)}
    changed: Any = copy.deepcopy(values)
    for _ in range(data.draw(st.integers(1, 2))):
        field = data.draw(st.sampled_from([*places(changed)] or [()]))
        inner = changed
        for key in field[:-1]:
            inner = inner[key]
        how = data.draw(st.sampled_from(["replace", "drop", "add", "number"]))
        if how == "drop":
            del inner[field[-1]]
        elif how == "add" and isinstance(inner, dict):
            inner[data.draw(st.text(max_size=5))] = data.draw(ANYTHING)
        elif how == "number":
            inner[field[-1]] = data.draw(st.integers(-3, 3000))
        else:
            inner[field[-1]] = data.draw(ANYTHING)
    if isinstance(changed.get("shards"), list) and data.draw(st.booleans()):
        changed["fingerprint"] = fingerprint_of(changed)
    try:
        write_atomically(path, add_checksum(folder, changed))
        use(folder)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    finally:
        path.write_bytes(whole)


def fingerprint_of(values: Any) -> Any:
    """That which the manifest would have, as far as it is one."""
    from reread.preprocessing.corpus import Manifest, Shard
    from reread.preprocessing.corpus.index import CorpusIndex

    try:
        shards = [Shard(**shard) for shard in values["shards"]]
        return Manifest(values["tokenizer"], values["dtype"], shards, CorpusIndex.of([], [], [])).fingerprint
    except (TypeError, KeyError, ValueError):
        return values.get("fingerprint")


@KINDS
@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"[]", b"3", b"null", b"\xff\xfe{}", b'{"version": 1e999}'])
def test_what_is_no_manifest_is_one_line(folders, tmp_path, kind, text) -> None:
    folder = shutil.copytree(folders[kind], tmp_path / kind)
    (folder / "manifest.json").write_bytes(text)
    with pytest.raises(UserError) as raised:
        use(folder)
    assert len(str(raised.value).splitlines()) == 1


def test_a_vocabulary_is_no_larger_than_a_model_takes() -> None:
    """Each dataset makes an array of it: of 16 GiB for 2^31 tokens."""
    tokenizer = {"fingerprint": "f", "type": "words", "vocab_size": 1 << 24}
    assert tokenizer_fault(tokenizer) == ""
    assert tokenizer_fault({**tokenizer, "vocab_size": 1 << 31}) == "tokenizer.vocab_size: 2147483648"


def test_the_corpus_of_a_run_is_opened_by_its_checksum(folders) -> None:
    """So that nothing is written down twice: what is read is what `write` was given."""
    manifest = Corpus(folders["corpus"]).manifest
    before = (folders["corpus"] / "manifest.json").read_bytes()
    manifest.write(folders["corpus"])
    assert (folders["corpus"] / "manifest.json").read_bytes() == before


def test_a_corpus_that_cannot_be_read_just_now_is_not_built_again(folders, tmp_path, monkeypatch) -> None:
    folder, identity = shutil.copytree(folders["corpus"], tmp_path / "corpus"), {"settings": {}}
    write_record(folder, identity)
    assert finished(folder, identity) is not None

    def stale(path: Path) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    with monkeypatch.context() as patched, pytest.raises(UserError, match=r"manifest\.json: cannot be read \(Stale"):
        patched.setattr(checksums, "open_file", stale)
        finished(folder, identity)
    (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes()[:-9])
    assert finished(folder, identity) is None  # it is proven damaged
