"""What fine-tuning and continuing a published encoder gives, by `reread` and by transformers: a BERT such as
all-MiniLM-L6-v2 on long articles, on reviews, and on books.

    python benchmarks/training/minilm.py DATA --prepare RAW --encoder FOLDER    # once, makes DATA
    python benchmarks/training/minilm.py DATA --out OUT [--minutes 3] [--only 'books-*'] [--toy]

RAW has the folders en_hyperpartisan, en_imdb and en_books, with files as published, or packed by xz. DATA is small, and
all that a machine without a network needs.

- **articles** (Hyperpartisan, in folds): the encoder itself on the first 512 tokens, by ours and by transformers'
  Trainer; as Longformer (`reread convert`) and as ERNIE-Doc on the first 2,048; bags of words.
- **reviews** (IMDB, a file held out, three seeds): the first 256 tokens, by ours and by the Trainer; bags of words.
- **books**: the encoder goes on with masked words, by the recipe `continue-encoder` and by a plain loop over
  transformers' model, on the same rows with the same masks, and with masks of single tokens, as the collator of
  run_mlm.py draws them. All begin with the same head, and are scored by transformers' model on held-out words.

Both sides have the same texts, epochs, batch, optimiser (AdamW, linear schedule with warm-up, clipping at 1) and, on a
GPU, bfloat16. No side chooses a checkpoint: the last one counts. Each side is a process, or several, and all run at the
same time, so seconds compare nothing. A line is appended to OUT/results.jsonl as a fold or seed ends, what a side
printed is in OUT/*.log, and the table is printed at the end; `--minutes` ends what is not done by then.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
import gzip
import json
import logging
import os
import random
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from multiprocessing import get_context
from typing import Any, NamedTuple

from benchmarks.harness import heading, parser, row
from benchmarks.training.finetuning import bag_of_words, by_trainer, labelled
from benchmarks.training.from_scratch import EACH, documents
from reread.preprocessing.errors import UserError, one_line

ARTICLES = "articles-training-byarticle-20181122.xml.xz"
TRUTH = "ground-truth-training-byarticle-20181122.xml.xz"
HELD_OUT_REVIEWS = 1000
RESULTS = "results.jsonl"


class Sizes(NamedTuple):
    folds: int = 5
    seeds: int = 3
    batch: int = 32
    rate: float = 1e-4
    article_epochs: int = 10
    review_epochs: int = 2
    steps: int | None = None
    """Of a fine-tuning; None: as many as its epochs have."""
    short: int = 512
    """Tokens that the encoder reads of an article, special tokens included; its positions end there."""
    long: int = 2048
    """Tokens that Longformer and ERNIE-Doc read."""
    window: int = 256
    review: int = 256
    book_steps: int = 1500
    book_rows: int = 64
    book_tokens: int = 128
    book_rate: float = 2e-4
    held_out_rows: int = 2048


TOY = Sizes(folds=2, seeds=1, batch=4, steps=2, short=64, long=512, window=32, review=32, book_steps=3)
TOY = TOY._replace(book_rows=4, book_tokens=32, held_out_rows=32)


class Job(NamedTuple):
    """What one process does."""

    data: Path
    unpacked: Path
    """The folder with the encoder and the corpus."""
    work: Path
    """A folder of its own, where it runs."""
    sizes: Sizes
    kernels: str
    repeats: Sequence[int]
    """Folds or seeds, from 0."""

    @property
    def encoder(self) -> Path:
        return self.unpacked / "encoder"


Figures = dict[str, float]
Found = Iterator[tuple[str, int, Figures]]
"""(row of the table, fold or seed, figures in points or nats)."""


# Ours


def ours_on_articles(job: Job) -> Found:
    reading = {"sequence_length": job.sizes.short, "longest": job.sizes.short - 2}
    yield from _ours_on_articles(job, job.encoder, reading, micro_batch=32)


def longformer(job: Job) -> Found:
    init = _converted(job, "longformer", length=job.sizes.long, window=job.sizes.window)
    yield from _ours_on_articles(job, init, {"sequence_length": job.sizes.long, "longest": job.sizes.long - 2}, 16)


def ernie_doc(job: Job) -> Found:
    init = _converted(job, "ernie_doc")
    reading = {"sequence_length": job.sizes.short, "longest": job.sizes.long - 2}
    yield from _ours_on_articles(job, init, reading, 32)


def _converted(job: Job, model: str, **options: int) -> Path:
    from reread.pipeline.commands.convert import convert

    convert(job.encoder, Path(model), model, options)
    return Path(model)


def _ours_on_articles(job: Job, init: Path, reading: dict[str, int], micro_batch: int) -> Found:
    for fold in job.repeats:
        values = {f"task.{name}": value for name, value in reading.items()}
        values |= {"finetune.epochs": job.sizes.article_epochs, "micro_batch": micro_batch}
        given = [*of_fold(job, fold), *_overrides(values)]
        yield "", fold, _finetuned(job, "long-hyperpartisan", init, given, "test")


def of_fold(job: Job, fold: int) -> list[str]:
    values = {
        "task.train": job.data / ARTICLES,
        "task.dev": job.data / "few-articles.jsonl",  # else a fold would choose, and not be learned from
        "finetune.folds": job.sizes.folds,
        "finetune.fold": fold + 1,
    }
    return _overrides(values)


def _overrides(values: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def ours_on_reviews(job: Job) -> Found:
    for seed in job.repeats:
        values = {
            "task.train": job.data / "reviews-train.jsonl.gz",
            "task.dev": job.data / "reviews-dev.jsonl.gz",
            "task.sequence_length": job.sizes.review,
            "task.longest": job.sizes.review - 2,
            "finetune.epochs": job.sizes.review_epochs,
            "micro_batch": 32,
            "seed": seed,
        }
        yield "", seed, _finetuned(job, "classify", job.encoder, _overrides(values), "dev")


def _finetuned(job: Job, recipe: str, init: Path, given: list[str], split: str) -> Figures:
    """Scores on a split of the run that `reread finetune` makes, without its baselines."""
    from reread.pipeline.recipe.task import finetune_recipe
    from reread.pipeline.run_folder.finetuning import train_all
    from reread.training.run.files import RUNS

    name = "run"
    values = {
        **_ours(job, name),
        "init": init,
        "global_batch": job.sizes.batch,
        "optimizer.learning_rate": job.sizes.rate,
        "checkpoint.keep": 1,
        **({"steps": job.sizes.steps} if job.sizes.steps else {}),
    }
    overrides = [*given, *_overrides(values)]
    (scores,) = train_all(finetune_recipe(recipe, overrides), recipe, overrides)[split]
    shutil.rmtree(RUNS / name)
    return {"accuracy": scores["accuracy"], "macro-f1": scores["macro-f1"]}


def _ours(job: Job, name: str) -> dict[str, Any]:
    """Settings of all our runs: one validation and one checkpoint, at the end."""
    return {
        "name": name,
        "activation_checkpointing": "false",
        "validate_every": 1 << 30,
        "checkpoint.every_steps": 1 << 30,
        "writers": "[]",
        "log_every": 50,
        **({"kernels": job.kernels} if job.kernels else {}),
    }


def ours_on_books(job: Job) -> Found:
    from transformers.models.bert import BertForMaskedLM

    from reread.pipeline.commands.train import train
    from reread.pipeline.run_folder.export import export
    from reread.training.run.files import RUNS

    train("continue-encoder", book_overrides(job))
    yield "", 0, held_out_words(job, BertForMaskedLM.from_pretrained(export(RUNS / "books", None)))


def book_overrides(job: Job) -> list[str]:
    values = {
        **_ours(job, "books"),
        "init": job.encoder,
        "data.corpus": job.unpacked / "corpus",
        "data.sequence_length": job.sizes.book_tokens,
        "data.separate_documents": "false",
        "steps": job.sizes.book_steps,
        "global_batch": job.sizes.book_rows,
        "micro_batch": job.sizes.book_rows,
        "optimizer.learning_rate": job.sizes.book_rate,
        "schedule.warmup_steps": job.sizes.book_steps // 10,
    }
    return _overrides(values)


def book_rows(job: Job, split: str) -> Any:
    """The rows of a split, by their positions in the stream that our run reads."""
    from reread.pipeline.recipe.load import load_recipe
    from reread.pipeline.recipe.schema import train_section
    from reread.training.data.kinds import open_dataset

    settings = train_section(load_recipe("continue-encoder", book_overrides(job), "train"))
    return open_dataset(settings.data, settings.seed, split)


# transformers'


def trainer_on_articles(job: Job) -> Found:
    for fold in job.repeats:
        train, test = fold_files_of(job, fold)
        options = _options(job, train, test, job.sizes.short, job.sizes.article_epochs)
        yield "", fold, _scores(by_trainer(options, padded=False, seed=0, cpu=False)[1], test)


def trainer_on_reviews(job: Job) -> Found:
    for seed in job.repeats:
        options = _reviews(job)
        yield "", seed, _scores(by_trainer(options, padded=False, seed=seed, cpu=False)[1], options.dev)


def loop_on_books(job: Job, tokens: bool = False) -> Found:
    """A plain loop over transformers' model, on our rows; with `tokens` masked by transformers' collator."""
    import numpy as np
    import torch
    from transformers import (
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        get_linear_schedule_with_warmup,
    )
    from transformers.models.bert import BertForMaskedLM

    sizes, device = job.sizes, _device()
    torch.manual_seed(0)
    model = BertForMaskedLM.from_pretrained(job.encoder).to(device)
    if not tokens:
        yield "before", 0, held_out_words(job, model)
    collator = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(job.encoder), mlm_probability=0.15)
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.01},
        {"params": [one for one in parameters if one.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=sizes.book_rate, betas=(0.9, 0.98), eps=1e-6, fused=device != "cpu")
    schedule = get_linear_schedule_with_warmup(optimizer, sizes.book_steps // 10, sizes.book_steps)
    data = book_rows(job, "train")
    model.train()
    for step in range(sizes.book_steps):
        rows = data.rows(np.arange(step * sizes.book_rows, (step + 1) * sizes.book_rows))
        if tokens:
            plain = np.where(rows["labels"] == -100, rows["input_ids"], rows["labels"]).tolist()
            batch = collator([{"input_ids": one, "attention_mask": [1] * len(one)} for one in plain])
        else:
            names = ("input_ids", "attention_mask", "labels")
            batch = {name: torch.from_numpy(rows[name]).long() for name in names}
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            loss = model(**{name: values.to(device, non_blocking=True) for name, values in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    yield "", 0, held_out_words(job, model)


def collator_on_books(job: Job) -> Found:
    yield from loop_on_books(job, tokens=True)


# Beside them


def words_on_articles(job: Job) -> Found:
    for fold in job.repeats:
        train, test = fold_files_of(job, fold)
        options = _options(job, train, test, job.sizes.short, 1)
        yield "whole articles", fold, _scores(bag_of_words(options, None), test)
        yield "", fold, _scores(bag_of_words(options, job.sizes.short - 2), test)


def words_on_reviews(job: Job) -> Found:
    options = _reviews(job)
    yield "whole reviews", 0, _scores(bag_of_words(options, None), options.dev)
    yield "", 0, _scores(bag_of_words(options, job.sizes.review - 2), options.dev)


def fold_files_of(job: Job, fold: int) -> tuple[Path, Path]:
    """The training and test examples that `reread finetune` has in this fold."""
    from reread.preprocessing.labelled.folds import Fold, fold_files

    of = Fold(job.data / ARTICLES, "classify", "semeval", {}, job.sizes.folds, fold + 1)
    files = fold_files(of, Path("folds"), has_dev=True)
    return files.train, files.test


def _reviews(job: Job) -> argparse.Namespace:
    train, dev = (job.data / f"reviews-{split}.jsonl.gz" for split in ("train", "dev"))
    return _options(job, train, dev, job.sizes.review, job.sizes.review_epochs)


def _options(job: Job, train: Path, dev: Path, length: int, epochs: int) -> argparse.Namespace:
    sizes = {"batch": job.sizes.batch, "rate": job.sizes.rate, "steps": job.sizes.steps}
    return argparse.Namespace(export=job.encoder, train=train, dev=dev, length=length, epochs=epochs, **sizes)


def _scores(predicted: list[str], test: Path) -> Figures:
    from sklearn.metrics import accuracy_score, f1_score

    right = [label for _, label in labelled(test)]
    return {
        "accuracy": 100 * float(accuracy_score(right, predicted)),
        "macro-f1": 100 * float(f1_score(right, predicted, average="macro")),
    }


def held_out_words(job: Job, model: Any) -> Figures:
    """Mean loss in nats, and accuracy in points, over held-out tokens of words that are masked whole, in fp32."""
    import numpy as np
    import torch

    data, device = book_rows(job, "validation"), _device()
    model = model.float().to(device).eval()
    loss = right = count = 0.0
    for first in range(0, min(job.sizes.held_out_rows, len(data)), 32):
        drawn = data.rows(np.arange(first, min(first + 32, len(data)))).items()
        rows = {name: torch.from_numpy(values).long().to(device) for name, values in drawn}
        chosen = rows["labels"] != -100
        with torch.no_grad():
            logits = model(rows["input_ids"], rows["attention_mask"]).logits[chosen]
        labels = rows["labels"][chosen]
        loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        right += float((logits.argmax(1) == labels).sum())
        count += len(labels)
    return {"loss": loss / count, "accuracy": 100 * right / count}


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class Side(NamedTuple):
    name: str
    """PART-WHO."""
    run: Callable[[Job], Found]
    repeats: str | None = None
    """Field of `Sizes`; None: one."""
    processes: int = 1
    """Which share its repeats."""


SIDES = (
    Side("articles-longformer", longformer, "folds", 2),
    Side("articles-ernie-doc", ernie_doc, "folds", 2),
    Side("articles-ours", ours_on_articles, "folds"),
    Side("articles-trainer", trainer_on_articles, "folds"),
    Side("books-ours", ours_on_books),
    Side("books-loop", loop_on_books),
    Side("books-tokens", collator_on_books),
    Side("reviews-ours", ours_on_reviews, "seeds"),
    Side("reviews-trainer", trainer_on_reviews, "seeds"),
    Side("articles-words", words_on_articles, "folds"),
    Side("reviews-words", words_on_reviews),
)


def run(options: argparse.Namespace) -> None:
    """Run the sides, each in its processes, until all are done or the minutes are over."""
    ends = time.monotonic() + 60 * options.minutes
    sizes = TOY if options.toy else Sizes()
    chosen = [side for side in SIDES if any(fnmatchcase(side.name, one) for one in options.only)]
    if not chosen:
        raise UserError(f"--only: there is no such side; there are {', '.join(side.name for side in SIDES)}")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    shares = []
    for side in chosen:
        repeats = range(getattr(sizes, side.repeats) if side.repeats else 1)
        shares += [(side, repeats[part :: side.processes]) for part in range(side.processes)]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(shares))))
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(dir=options.work) as made:
        unpack(options.data, Path(made))
        processes = {}
        for number, (side, repeats) in enumerate(shares):
            work = Path(made) / f"{number}"
            work.mkdir()
            job = Job(options.data.resolve(), Path(made), work, sizes, options.kernels, repeats)
            name = f"{side.name}-{repeats[0]}" if side.processes > 1 else side.name
            process = get_context("spawn").Process(target=_work, args=(side.name, job, out / f"{name}.log", out))
            process.start()
            processes[name] = process
        for process in processes.values():
            process.join(max(0.0, ends - time.monotonic()))
        for name, process in processes.items():
            if process.exitcode != 0:
                print(f"{name}: {'not done in time' if process.exitcode is None else 'failed'}, see {out / name}.log")
            process.kill()
            process.join()
    table(out)


def _work(name: str, job: Job, log: Path, out: Path) -> None:
    """A process: run the side and append what it finds."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(job.work)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    part, _, who = name.partition("-")
    began = time.perf_counter()
    for what, repeat, figures in next(side for side in SIDES if side.name == name).run(job):
        taken = time.perf_counter() - began
        kept = {"part": part, "side": f"{who}, {what}" if what else who, "repeat": repeat, **figures, "seconds": taken}
        with (out / RESULTS).open("a") as file:
            file.write(json.dumps({name: _short(value) for name, value in kept.items()}) + "\n")
        print(f"{kept}", flush=True)
        began = time.perf_counter()


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def table(out: Path) -> None:
    """Means of all results, with standard errors over folds and seeds, and differences from the Trainer's of the same
    repeats."""
    lines = (out / RESULTS).read_text().splitlines() if (out / RESULTS).exists() else []
    found: dict[tuple[str, str], dict[int, Figures]] = {}
    for line in map(json.loads, lines):
        found.setdefault((line["part"], line["side"]), {})[line["repeat"]] = line
    heading("", "side", "folds or seeds", "loss", "accuracy", "macro-F1", "accuracy less the Trainer's", "seconds each")
    for (part, side), by_repeat in sorted(found.items()):
        cells = [_mean([one[name] for one in by_repeat.values() if name in one]) for name in ("loss", "accuracy")]
        cells.append(_mean([one["macro-f1"] for one in by_repeat.values() if "macro-f1" in one]))
        rival = found.get((part, "trainer"), {})
        both = [one["accuracy"] - rival[repeat]["accuracy"] for repeat, one in by_repeat.items() if repeat in rival]
        cells.append("-" if side == "trainer" else _mean(both))
        row(part, side, len(by_repeat), *cells, f"{statistics.fmean(one['seconds'] for one in by_repeat.values()):.0f}")


def _mean(values: list[float]) -> str:
    """With its standard error."""
    if not values:
        return "-"
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"


def unpack(packed: Path, folder: Path) -> None:
    """The encoder, with its weights in float32, and the corpus."""
    import numpy as np
    from safetensors.numpy import load, save_file

    for name in ("encoder", "corpus"):
        shutil.copytree(packed / name, folder / name)
        for path in (folder / name).glob("*.gz"):
            data = gzip.decompress(path.read_bytes())
            path.unlink()
            plain = path.with_suffix("")
            if plain.suffix == ".safetensors":
                save_file({key: one.astype(np.float32) for key, one in load(data).items()}, plain, {"format": "pt"})
            else:
                plain.write_bytes(data)


# Preparation


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
    save_file(
        {name: one.half().contiguous() for name, one in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(encoder / name, folder / name)


def _prepare_few_articles(data: Path) -> None:
    """A held-out file that chooses nothing: the first articles of each label."""
    from reread.preprocessing.labelled.folds import Fold, fold_files

    with tempfile.TemporaryDirectory() as made:
        files = fold_files(Fold(data / ARTICLES, "classify", "semeval", {}, 2, 1), Path(made), has_dev=True)
        lines = files.test.read_text(encoding="utf-8").splitlines(keepends=True)
    few = [[one for one in lines if json.loads(one)["label"] == label][:4] for label in ("true", "false")]
    (data / "few-articles.jsonl").write_text("".join(few[0] + few[1]), encoding="utf-8")


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
    for split, part in (("dev", found[:HELD_OUT_REVIEWS]), ("train", found[HELD_OUT_REVIEWS:])):
        with gzip.open(data / f"reviews-{split}.jsonl.gz", "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in part)


def _prepare_books(data: Path, books: list[Path]) -> None:
    from reread.pipeline.commands.preprocess import preprocess
    from reread.pipeline.recipe.load import load_recipe

    texts = list(documents(books))
    with tempfile.TemporaryDirectory() as made:
        parts = {"held-out": texts[::EACH], "train": [one for number, one in enumerate(texts) if number % EACH]}
        files = {name: Path(made) / f"{name}.jsonl" for name in parts}
        for name, part in parts.items():
            lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in part)
            files[name].write_text("".join(lines), encoding="utf-8")
        values = {
            "input.paths": f"[{files['train']}]",
            "input.validation_paths": f"[{files['held-out']}]",
            "tokenizer.path": data / "encoder",
            "output": data / "corpus",
        }
        preprocess(load_recipe("continue-encoder", _overrides(values), "preprocess"))


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("data", type=Path, metavar="DATA")
    arguments.add_argument("--prepare", type=Path, metavar="RAW", help="make DATA from the folders in RAW")
    arguments.add_argument("--encoder", type=Path, help="the folder of a BERT, for --prepare")
    arguments.add_argument("--out", type=Path, default=Path("runs/minilm"))
    arguments.add_argument("--work", type=Path, help="where runs are written and removed; default: temporary files")
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--only", nargs="+", default=["*"], metavar="SIDE", help="sides, as 'books-*'")
    arguments.add_argument("--kernels", choices=("auto", "plain"), default="", help="`train.kernels` of our sides")
    arguments.add_argument("--toy", action="store_true", help="a few steps: figures without a meaning")
    options = arguments.parse_args()
    if options.prepare:
        if options.encoder is None:
            raise UserError("--prepare: give the folder of a BERT by --encoder, too")
        prepare(options.data.resolve(), options.prepare.resolve(), options.encoder.resolve())
    else:
        run(options)


if __name__ == "__main__":
    main()
