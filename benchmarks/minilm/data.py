"""DATA: made once from texts as published and the folder of a BERT, packed, and unpacked by each run."""

import gzip
import json
import random
import shutil
import tarfile
import tempfile
from pathlib import Path

from benchmarks.harness import overrides
from benchmarks.training.from_scratch import write_documents

ARTICLES = "articles-training-byarticle-20181122.xml.xz"
TRUTH = "ground-truth-training-byarticle-20181122.xml.xz"
FEW_ARTICLES = "few-articles.jsonl"
HELD_OUT_REVIEWS = 1000


def review_files(data: Path) -> tuple[Path, Path]:
    """The reviews to learn from, and those that are held out."""
    return data / "reviews-train.jsonl.gz", data / "reviews-dev.jsonl.gz"


def prepare(data: Path, raw: Path, encoder: Path) -> None:
    """Make DATA, packed by gzip: the encoder in half precision, with a head of masked words from one seed, the labelled
    texts, and the corpus of the books."""
    data.mkdir(parents=True)
    _prepare_encoder(encoder, data / "encoder")
    for name in (ARTICLES, TRUTH):
        shutil.copyfile(raw / "en_hyperpartisan" / name, data / name)
    _prepare_few_articles(data)
    _prepare_reviews(data, raw / "en_imdb" / "train-5000.tar.xz")
    _prepare_books(data, sorted((raw / "en_books").glob("*.txt*")))
    for path in [data / "encoder" / "model.safetensors", *(data / "corpus").glob("*.tar")]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def unpack(data: Path, folder: Path) -> None:
    """The encoder, with its weights in float32, and the corpus."""
    import numpy as np
    from safetensors.numpy import load, save_file

    for name in ("encoder", "corpus"):
        shutil.copytree(data / name, folder / name)
        for path in (folder / name).glob("*.gz"):
            content = gzip.decompress(path.read_bytes())
            path.unlink()
            plain = path.with_suffix("")
            if plain.suffix == ".safetensors":
                save_file({key: one.astype(np.float32) for key, one in load(content).items()}, plain, {"format": "pt"})
            else:
                plain.write_bytes(content)


def _prepare_encoder(encoder: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModel
    from transformers.models.bert import BertConfig, BertForMaskedLM

    config = BertConfig.from_pretrained(encoder)
    torch.manual_seed(0)
    model = BertForMaskedLM(config)
    bert = {f"bert.{name}": one for name, one in AutoModel.from_pretrained(encoder).state_dict().items()}
    model.load_state_dict(bert, strict=False)
    with tempfile.TemporaryDirectory() as made:
        model.save_pretrained(made)
        weights = load_file(Path(made) / "model.safetensors")
        weights |= {name: one for name, one in bert.items() if name.startswith("bert.pooler.")}
        folder.mkdir()
        shutil.copyfile(Path(made) / "config.json", folder / "config.json")
    halved = {name: one.half().contiguous() for name, one in weights.items()}
    save_file(halved, folder / "model.safetensors", {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(encoder / name, folder / name)


def _prepare_few_articles(data: Path) -> None:
    """A held-out file that chooses nothing: the first articles of each label."""
    from reread.preprocessing.labelled.folds import Fold, fold_files

    with tempfile.TemporaryDirectory() as made:
        files = fold_files(Fold(data / ARTICLES, "classify", "semeval", {}, 2, 1), Path(made), has_dev=True)
        lines = files.test.read_text(encoding="utf-8").splitlines(keepends=True)
    few = [[one for one in lines if json.loads(one)["label"] == label][:4] for label in ("true", "false")]
    (data / FEW_ARTICLES).write_text("".join(few[0] + few[1]), encoding="utf-8")


def _prepare_reviews(data: Path, archive: Path) -> None:
    with tarfile.open(archive) as packed:
        members = sorted((one for one in packed if one.isfile()), key=lambda one: one.name)
        found = []
        for member in members:
            file = packed.extractfile(member)
            assert file is not None
            text = file.read().decode("utf-8").replace("<br />", " ")
            found.append({"text": text, "label": Path(member.name).parent.name})
    random.Random(0).shuffle(found)
    parts = found[HELD_OUT_REVIEWS:], found[:HELD_OUT_REVIEWS]
    for path, part in zip(review_files(data), parts, strict=True):
        with gzip.open(path, "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in part)


def _prepare_books(data: Path, books: list[Path]) -> None:
    from reread.pipeline.commands.preprocess import preprocess
    from reread.pipeline.recipe.load import load_recipe

    with tempfile.TemporaryDirectory() as made:
        train, held_out = write_documents(Path(made), books)
        values = {
            "input.paths": f"[{train}]",
            "input.validation_paths": f"[{held_out}]",
            "tokenizer.path": data / "encoder",
            "output": data / "corpus",
        }
        preprocess(load_recipe("continue-encoder", overrides(values), "preprocess"))
