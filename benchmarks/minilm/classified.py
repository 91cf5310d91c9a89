"""Articles and reviews, classified: by the encoder, fine-tuned by ours and by transformers' Trainer; by Longformer and
ERNIE-Doc, as `reread convert` makes them of it; and by bags of words."""

import shutil
from pathlib import Path
from typing import Any

from benchmarks.harness import overrides
from benchmarks.minilm.data import ARTICLES, FEW_ARTICLES, review_files
from benchmarks.minilm.job import Figures, Found, Job
from benchmarks.training.finetuning import Finetuning, accuracy, bag_of_words, by_trainer, labelled


def articles_by_ours(job: Job) -> Found:
    yield from _articles_by_ours(job, job.encoder, job.sizes.short, job.sizes.short, 32)


def articles_by_longformer(job: Job) -> Found:
    init = _converted(job, "longformer", length=job.sizes.long, window=job.sizes.window)
    yield from _articles_by_ours(job, init, job.sizes.long, job.sizes.long, 16)


def articles_by_ernie_doc(job: Job) -> Found:
    yield from _articles_by_ours(job, _converted(job, "ernie_doc"), job.sizes.short, job.sizes.long, 32)


def articles_by_trainer(job: Job) -> Found:
    for fold in job.repeats:
        yield "", fold, _by_trainer(job, *fold_files(job, fold), job.sizes.short, job.sizes.article_epochs, seed=0)


def articles_by_words(job: Job) -> Found:
    for fold in job.repeats:
        files = fold_files(job, fold)
        yield "whole articles", fold, _by_words(job, *files, None)
        yield "", fold, _by_words(job, *files, job.sizes.short - 2)


def reviews_by_ours(job: Job) -> Found:
    train, dev = review_files(job.data)
    for seed in job.repeats:
        values = {
            "task.train": train,
            "task.dev": dev,
            "task.sequence_length": job.sizes.review,
            "task.longest": job.sizes.review - 2,
            "finetune.epochs": job.sizes.review_epochs,
            "micro_batch": 32,
            "seed": seed,
        }
        yield "", seed, _by_ours(job, "classify", job.encoder, values, "dev")


def reviews_by_trainer(job: Job) -> Found:
    for seed in job.repeats:
        yield "", seed, _by_trainer(job, *review_files(job.data), job.sizes.review, job.sizes.review_epochs, seed)


def reviews_by_words(job: Job) -> Found:
    files = review_files(job.data)
    yield "whole reviews", 0, _by_words(job, *files, None)
    yield "", 0, _by_words(job, *files, job.sizes.review - 2)


def fold_settings(job: Job, fold: int) -> dict[str, Any]:
    """What names the examples of a fold to `reread finetune`."""
    return {
        "task.train": job.data / ARTICLES,
        "task.dev": job.data / FEW_ARTICLES,  # else a fold would choose, and not be learned from
        "finetune.folds": job.sizes.folds,
        "finetune.fold": fold + 1,
    }


def fold_files(job: Job, fold: int) -> tuple[Path, Path]:
    """The training and test examples that `reread finetune` has in this fold."""
    from reread.preprocessing.labelled import folds

    of = folds.Fold(job.data / ARTICLES, "classify", "semeval", {}, job.sizes.folds, fold + 1)
    files = folds.fold_files(of, Path("folds"), has_dev=True)
    return files.train, files.test


def _converted(job: Job, model: str, **options: int) -> Path:
    from reread.pipeline.commands.convert import convert

    convert(job.encoder, Path(model), model, options)
    return Path(model)


def _articles_by_ours(job: Job, init: Path, row: int, most: int, micro_batch: int) -> Found:
    """By `init`, in rows or segments of `row` tokens, of an article `most`."""
    for fold in job.repeats:
        values = {
            **fold_settings(job, fold),
            "task.sequence_length": row,
            "task.longest": most - 2,
            "finetune.epochs": job.sizes.article_epochs,
            "micro_batch": micro_batch,
        }
        yield "", fold, _by_ours(job, "long-hyperpartisan", init, values, "test")


def _by_ours(job: Job, recipe: str, init: Path, values: dict[str, Any], split: str) -> Figures:
    """Scores on a split of the run that `reread finetune` makes, without its baselines."""
    from reread.pipeline.recipe.task import finetune_recipe
    from reread.pipeline.run_folder.finetuning import train_all
    from reread.training.run.files import RUNS

    given = {
        **job.run,
        "init": init,
        "global_batch": job.sizes.batch,
        "optimizer.learning_rate": job.sizes.rate,
        "checkpoint.keep": 1,
        **({"steps": job.sizes.steps} if job.sizes.steps else {}),
        **values,
    }
    (scores,) = train_all(finetune_recipe(recipe, overrides(given)), recipe, overrides(given))[split]
    shutil.rmtree(RUNS / given["name"])
    return {"accuracy": scores["accuracy"], "macro-f1": scores["macro-f1"]}


def _by_trainer(job: Job, train: Path, test: Path, length: int, epochs: int, seed: int) -> Figures:
    sizes = job.sizes
    given = Finetuning(job.encoder, train, test, length, epochs, sizes.batch, sizes.rate, sizes.steps)
    return _scores(by_trainer(given, padded=False, seed=seed, cpu=False)[1], test)


def _by_words(job: Job, train: Path, test: Path, longest: int | None) -> Figures:
    return _scores(bag_of_words(job.encoder, train, test, longest), test)


def _scores(predicted: list[str], test: Path) -> Figures:
    from sklearn.metrics import f1_score

    right = [label for _, label in labelled(test)]
    return {
        "accuracy": accuracy(predicted, test),
        "macro-f1": 100 * float(f1_score(right, predicted, average="macro")),
    }
