"""Manifests and indexes of corpora and samples, with valid checksums, as an attacker would write them."""

import io
import json
from hashlib import md5
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from reread.preprocessing.corpus import INDEX, Corpus, Manifest, Shard
from reread.preprocessing.corpus.checksums import CHECKSUM, TOKENIZER_FILES, add_checksum
from reread.preprocessing.corpus.index import CorpusIndex
from reread.training.data.kinds import KINDS
from reread.training.data.materialize import materialize
from reread.training.data.rows.samples import RowSettings
from tests.corpora import VOCABULARY, make_corpus
from tests.fuzz.common import Case, changed_bytes, changed_json

SETTINGS: dict[str, dict[str, Any]] = {
    "rows": {"sequence_length": 64, "copies": 2},
    "packed": {"sequence_length": 64},
    "segments": {"sequence_length": 64},
    "stream": {"sequence_length": 16, "evaluation_length": 16, "evaluation_memory": 16},
}
NUMBERS = (0, 1, -1, 7, 2**16, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63))


def prepare(folder: Path) -> Case:
    corpus = make_corpus(folder / "corpus", [300, 20, 500, 90])
    (corpus.folder / "tokenizer").mkdir()
    words = WordLevel({str(number): number for number in range(VOCABULARY)}, "1")
    Tokenizer(words).save(str(corpus.folder / "tokenizer" / "tokenizer.json"))
    corpus.manifest.write(corpus.folder)
    settings = RowSettings.parse({"corpus": str(corpus.folder), **SETTINGS["rows"]}, "data")
    materialize(corpus.folder, folder / "samples", settings, 0, 1, block_rows=8)
    kept = {name: (folder / name / "manifest.json").read_bytes() for name in ("corpus", "samples")}
    index = (corpus.folder / INDEX).read_bytes()

    def case(random: Random) -> None:
        name = random.choice(("corpus", "corpus", "samples"))
        values = {key: one for key, one in json.loads(kept[name]).items() if key not in (CHECKSUM, TOKENIZER_FILES)}
        (corpus.folder / INDEX).write_bytes(index)
        if name == "corpus" and random.random() < 0.4:
            changed = changed_index(random, index)
            (corpus.folder / INDEX).write_bytes(changed)
            values["index"] = md5(changed).hexdigest()
        else:
            values = changed_json(random, values)
        if isinstance(values, dict):
            if random.random() < 0.8:
                values["fingerprint"] = _fingerprint(values)
            try:
                data = add_checksum(folder / name, values)
            except UnicodeEncodeError:  # half of a surrogate pair has no checksum
                return
        else:
            data = json.dumps(values).encode()
        (folder / name / "manifest.json").write_bytes(data)
        use(folder / name, "rows" if name == "samples" else random.choice(tuple(SETTINGS)))

    return case


def changed_index(random: Random, data: bytes) -> bytes:
    if random.random() < 0.2:
        return changed_bytes(random, data)
    with np.load(io.BytesIO(data)) as found:
        arrays = {name: found[name] for name in found.files}
    name = random.choice(tuple(arrays))
    array, how = arrays[name], random.randrange(6)
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays[name] = array[random.randint(0, len(array)) :]
    elif how == 2 and array.dtype.names is None:
        arrays[name] = array.astype(random.choice(("int8", "int64", "float64", "complex128", "U4")))
    elif how == 3:
        arrays[name] = random.choice((array[None], array.ravel(), np.concatenate([array, array])))
    else:
        whole = array.view(np.int64 if name == "blocks" else np.uint32).reshape(-1)
        for _ in range(random.choice((1, 2))):
            number = random.choice(NUMBERS)
            whole[random.randrange(whole.size)] = number if name == "blocks" else number % 2**32
    buffer = io.BytesIO()
    if random.random() < 0.1:
        np.savez_compressed(buffer, **arrays)
    else:
        np.savez(buffer, **arrays)
    return buffer.getvalue()


def _fingerprint(values: dict[str, Any]) -> Any:
    """That which the manifest would have, as far as it is one."""
    try:
        shards = [Shard(**shard) for shard in values["shards"]]
        return Manifest(values["tokenizer"], values["dtype"], shards, CorpusIndex.of([], [], [])).fingerprint
    except (TypeError, KeyError, ValueError):
        return values.get("fingerprint")


def use(folder: Path, kind: str) -> None:
    """What training, `inspect --verify` and `report` do."""
    settings = KINDS[kind].settings.parse({"kind": kind, "corpus": str(folder), **SETTINGS[kind]}, "data")
    dataset: Any = KINDS[kind].open(settings, 0, "train")
    dataset.verify()
    if kind in ("rows", "packed"):
        dataset.rows(np.arange(8))
    if folder.name == "corpus":
        corpus = Corpus(folder)
        for number in range(corpus.documents):
            corpus.document(number)
