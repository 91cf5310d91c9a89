"""What all sides read, made once from raw text, or from the sample that ships if none is given.

documents.jsonl  documents of about 10,000 characters, an eighth of them twice: for preprocessing
vocab.txt        the given vocabulary, or one trained on them
text.jsonl       as much of them as an epoch reads
corpus           our corpus of text.jsonl
rows-L.npz       the first step that our trainer draws from it, in rows of L tokens
tokens           random ids in documents of 700 tokens: our corpus of them, and ids.npy with lengths.npy
train.tsv        labelled texts, and dev.tsv, if they are given
runs/peers       a small NEZHA with random weights, and its export
"""

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.data.preprocess import documents_of, preprocess, short, write_json_lines
from benchmarks.harness import overrides
from benchmarks.peers.ours import train_settings
from benchmarks.peers.sizes import BATCH, LENGTHS, RESUMED, STEPS, TOKENS, WINDOW
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.corpus import Corpus
from reread.training.data.kinds import open_dataset

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "pipeline" / "sample"
EPOCH_CHARACTERS = 5_000
TRAIN_TEXTS, DEV_TEXTS = 300, 300
NO_LIMIT = float("inf")


def prepare(
    folder: Path, texts: list[str], vocabulary: Path | None, labelled: tuple[Path, Path] | None, megabytes: float
) -> None:
    """Raises `UserError` for text that cannot be read."""
    folder.mkdir(parents=True)
    documents = _so_many(list(short(list(documents_of(texts or [str(SAMPLE)])))), megabytes * 8 / 9)
    write_json_lines(folder / "documents.jsonl", iter(documents + documents[::8]), NO_LIMIT)
    few = "\n".join(documents)[:EPOCH_CHARACTERS].split("\n")
    write_json_lines(folder / "text.jsonl", iter(["\n".join(few)]), NO_LIMIT)
    if vocabulary is None:
        preprocess(folder / "documents.jsonl", None, folder / "trained", 0)
        vocabulary = next((folder / "trained").rglob("vocab.txt"))
    (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())
    preprocess(folder / "text.jsonl", folder / "vocab.txt", folder / "corpus", 1)
    for length in LENGTHS:
        dataset = open_dataset(train_settings(folder, length).data, 0, "train")
        np.savez(folder / f"rows-{length}.npz", **dataset.rows(np.arange(TOKENS // length)))
    _random_tokens(folder / "tokens")
    if labelled:
        for name, path, count in zip(("train.tsv", "dev.tsv"), labelled, (TRAIN_TEXTS, DEV_TEXTS), strict=True):
            with path.open(encoding="utf-8") as file:
                (folder / name).write_text("".join(islice(file, count + 1)), encoding="utf-8")
        _random_model(folder)


def _so_many(documents: list[str], megabytes: float) -> list[str]:
    """So many megabytes of different documents: the given ones, then new ones of lines drawn from all of them."""
    lines = [line for document in documents for line in document.split("\n")]
    generator, found, size = random.Random(0), [], 0
    while size < megabytes * 1e6:
        number = len(found)
        new = number >= len(documents)
        found.append("\n".join([f"{number}", *generator.choices(lines, k=20)]) if new else documents[number])
        size += len(found[-1].encode())
    return found


def _random_tokens(folder: Path) -> None:
    rows = BATCH * (RESUMED + STEPS)
    lengths = np.random.default_rng(0).geometric(1 / 700, rows * WINDOW // 700)
    random_corpus(folder / "ours", 30_000, lengths.tolist(), shard_tokens=1 << 24)
    corpus = Corpus(folder / "ours")
    np.save(folder / "ids.npy", np.concatenate([corpus.document(number)[0] for number in range(len(lengths))]))
    np.save(folder / "lengths.npy", lengths)


def _random_model(folder: Path) -> None:
    values = {"name": "peers", "data.corpus": folder / "corpus", "steps": 0, "global_batch": 8, "micro_batch": 8}
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    given = overrides({**values, **{f"model.{name}": size for name, size in sizes.items()}, "parallel.processes": 1})
    for command in (["train", "nezha-base", *given], ["export", "runs/peers"]):
        subprocess.run([sys.executable, "-m", "reread", *command], cwd=folder, check=True)
