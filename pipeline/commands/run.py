"""`reread run`: preprocessing, pretraining and export, and the fine-tunings of the recipe's `then`; or a suite."""

from pathlib import Path

from reread.pipeline.commands.evaluate import evaluate
from reread.pipeline.commands.finetune import finetune
from reread.pipeline.commands.preprocess import preprocess
from reread.pipeline.display.scores import means, read_scores
from reread.pipeline.recipe.check import check_train
from reread.pipeline.recipe.load import load_recipe, override, write_recipe
from reread.pipeline.recipe.schema import Recipe, task_section, train_section
from reread.pipeline.recipe.shell import log_commands
from reread.pipeline.recipe.suite import suite_of
from reread.pipeline.recipe.then import FollowingRecipe, following
from reread.pipeline.report.page import print_papers, report, write_report
from reread.pipeline.report.suite import report_suite
from reread.pipeline.run_folder.export import export
from reread.pipeline.run_folder.train import train
from reread.preprocessing.errors import UserError, writing
from reread.training.data.kinds import check_held_out
from reread.training.parallel.process import this_process
from reread.training.run.files import RUNS, RunFile
from reread.training.run.metrics import read_evaluations
from reread.training.scoring.task_scores import chosen_score


def run(name: str, overrides: list[str]) -> None:
    """Preprocess, train, export, report, and fine-tune by `then`; steps that are finished are skipped."""
    if (suite := suite_of(name, overrides)) is not None:
        score(suite)
        return
    recipe = load_recipe(name, overrides, "train")
    log_commands(recipe)
    if recipe.train is not None:
        check_train(recipe)
    finetunings = following(recipe)
    if recipe.preprocess is not None and not this_process().launcher:
        preprocess(recipe)
    if recipe.train is None:
        return
    if recipe.published and not this_process().launcher:
        check_held_out(recipe.train.data, recipe.train.seed)
    train(recipe, ["train", name, *overrides])
    if this_process().rank != 0:
        return
    folder = export(RUNS / recipe.name, None)
    filled = report([RUNS / recipe.name])
    for sentence, words in (filled[max(filled)] if filled else {}).items():
        print(sentence, " ".join(f"{word} {probability:.2f}" for word, probability in words), sep="  ->  ")
    print(f"Hugging Face folder: {folder}")
    gains: list[str] = []
    for one in finetunings:
        print(f"fine-tuning: {one.recipe.name}")
        finetune(one.name, one.overrides)
        if one.random:
            gains += gain(one, random_start(name, overrides, recipe))
    if recipe.published and not evaluated(recipe):
        evaluate(RUNS / recipe.name, [], None)
    if recipe.then or recipe.published:
        runs = write_report([RUNS / recipe.name])[0]
        print_papers(runs)
    for line in gains:
        print(line)


def score(suite: Recipe) -> None:
    """Fine-tune a model on each task of a suite whose data exist, and print their table."""
    finetunings = following(suite)
    folder = RUNS / suite.name
    if RunFile.CHECKPOINTS.of(folder).exists():
        raise UserError(f"{folder}: is a run with a model of its own; give the suite another name with name=...")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_recipe(suite, RunFile.RECIPE.of(folder))
    for one in finetunings:
        print(f"fine-tuning: {one.recipe.name}")
        finetune(one.name, one.overrides)
    report_suite(folder)


def random_start(name: str, overrides: list[str], recipe: Recipe) -> Path:
    """The run of the same model with the random weights that training began with; it is made if it does not exist."""
    run = f"{recipe.name}-random"
    given = ["phases=[]", "train.steps=0", "train.parallel.processes=1", "then=[]", "published=[]", f"name={run}"]
    train(load_recipe(name, [*overrides, *given], "train"), [])
    return RUNS / run


def gain(pretrained: FollowingRecipe, start: Path) -> list[str]:
    """Train the task also from `start`. Returns a line for each split with both scores."""
    name, data = pretrained.recipe.name, task_section(pretrained.recipe)
    print(f"fine-tuning: {name}-random")
    finetune(pretrained.name, [*pretrained.overrides, f"name={name}-random", override("init", start)])
    score = chosen_score(data.scored_as)[0]
    measured, random = (read_scores(RUNS, run)[1] for run in (name, f"{name}-random"))
    return [
        f"what pretraining gains, {score} ({split}, {len(seeds)} seed{'s' * (len(seeds) > 1)}): "
        f"{means(random[split])[score]} from random weights, {means(seeds)[score]} pretrained"
        for split, seeds in measured.items()
    ]


def evaluated(recipe: Recipe) -> bool:
    """Whether the last checkpoint was evaluated on the recipe's own held-out text."""
    done = [one["step"] for one in read_evaluations(RUNS / recipe.name) if not one["overrides"]]
    return train_section(recipe).steps in done
