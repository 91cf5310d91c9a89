"""The `reread` command. Torch is imported only by the commands that train or convert, so help starts at once."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pipeline import commands
from pipeline.continuation import training_recipe
from pipeline.recipe import available_recipes, fine_tunes, finetuning_recipes, load_recipe, recipe_values
from pipeline.run_folder import version_of
from preprocessing.errors import UserError, one_line, writing
from training.parallel.place import place

app = typer.Typer(
    name="reread",
    help="Pretrain encoders that read long documents, Chinese and English: raw text in, a Hugging Face folder out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _begins(known: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """For the shell's completion: those of `known` that begin with what was typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in known() if name.startswith(incomplete)]

    return complete


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help=f"{', '.join(available_recipes())}, or a .yaml file",
        autocompletion=_begins(available_recipes),
    ),
]
FinetuningName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help=f"{', '.join(finetuning_recipes())}, or a .yaml file",
        autocompletion=_begins(finetuning_recipes),
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. steps=100")]

Slurm = Annotated[bool, typer.Option("--slurm", help="Submit it to Slurm as a chain of jobs")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --slurm: only print the scripts")]
Site = Annotated[Path | None, typer.Option(help="With --slurm: the cluster's settings; default: slurm/site.yaml")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"reread {version_of('reread')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit")
    ] = False,
) -> None:
    pass


@app.command()
def preprocess(
    recipe: RecipeName,
    overrides: Overrides = None,
    materialize: Annotated[
        Path | None, typer.Option(help="Also write every masked copy of every sample to this folder")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Only this stage, e.g. read or encode; without, all and the merge")
    ] = None,
    share: Annotated[
        str, typer.Option(metavar="I/N", help="With --stage: every N-th part from I on, for one of N machines")
    ] = "0/1",
) -> None:
    """Raw text -> a deduplicated, word-segmented, sharded corpus."""
    settings = load_recipe(recipe, overrides or [], "preprocess")
    if stage is None and share == "0/1":
        commands.preprocess(settings, materialize)
    elif stage is None or materialize is not None:
        raise UserError("--share goes with --stage, and --materialize without")
    else:
        commands.preprocess_share(settings, stage, share)


@app.command()
def peek(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...|RECIPE [KEY=VALUE]...", help="Raw text, or a recipe whose `input` is looked at"
        ),
    ],
    documents: Annotated[int, typer.Option(min=0, help="How many documents to print")] = 3,
    megabytes: Annotated[float, typer.Option(min=0.001, help="How much text to read, evenly from the files")] = 4.0,
) -> None:
    """Show raw text as `preprocess` would read, clean and tokenise it, and what it would drop; writes nothing."""
    from pipeline.peek import peek as show

    show(what, documents, megabytes)


@app.command()
def inspect(
    corpus: Annotated[
        str,
        typer.Argument(
            help="A corpus' folder or address, one written with --materialize, a run, or a model to fine-tune"
        ),
    ],
    overrides: Overrides = None,
    recipe: Annotated[
        str | None, typer.Option(help="Take `train.data` from this recipe; to fine-tune: the windows of its task")
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="How many samples to print")] = 3,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte against the manifest first")] = False,
) -> None:
    """Show samples with masked words, or with labels, spans and tags marked; prove that words are masked whole."""
    from pipeline.inspect_task import inspect_task, task_of

    if (task := task_of(Path(corpus), overrides or [], recipe)) is not None:
        if verify:
            raise UserError("--verify goes with a corpus; labelled examples have no manifest")
        inspect_task(task, samples)
    else:
        commands.inspect(corpus, overrides or [], recipe, samples, verify)


@app.command()
def train(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Pretrain; the same command again continues from the last checkpoint.

    `reread train from=RUN name=NEW steps=...`: a new run that begins where another one stands, with its recipe.
    """
    commands.train(training_recipe(recipe, overrides or []), sys.argv[1:])


@app.command()
def run(
    recipe: RecipeName, overrides: Overrides = None, slurm: Slurm = False, dry_run: DryRun = False, site: Site = None
) -> None:
    """Preprocess, train, export, report, and fine-tune by the recipe's `then`. What is done is not done again."""
    if slurm:
        from pipeline.slurm.submit import submit_recipe

        submit_recipe(recipe, overrides or [], site, dry_run)
        return
    _only_with_slurm(dry_run, site)
    from pipeline.chain import run as run_chain

    run_chain(recipe, overrides or [])


def _known_settings() -> list[str]:
    from pipeline.settings import all_sections

    return ["model", *(name for one in all_sections() for name in (one.path, *(key.name for key in one.keys)))]


def _only_with_slurm(dry_run: bool, site: Path | None) -> None:
    if dry_run or site:
        raise UserError(f"{'--dry-run' if dry_run else '--site'} goes with --slurm")


@app.command()
def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(min=1, max=1_000_000, help="GPUs in all")] = 8,
    gpu: Annotated[str, typer.Option(help="v100-16g, v100-32g, a100-40g, a100-80g, h100-80g, ...")] = "v100-32g",
    gpus_per_node: Annotated[int, typer.Option(min=1, max=1024, help="GPUs a machine")] = 8,
    network: Annotated[str, typer.Option(help="Between machines: ib100, eth25, 4xib100 (cards x Gbit/s)")] = "ib100",
    share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of a GPU's peak FLOP/s that is reached; MFU in a run's log")
    ] = 0.4,
) -> None:
    """Estimate memory on a GPU, the best split, time and disk of a recipe, before any of it exists."""
    from pipeline.chain import following
    from pipeline.estimate.hardware import cluster
    from pipeline.estimate.summary import print_estimate

    if fine_tunes(recipe_values(recipe, overrides or [], "train")):
        raise UserError(
            f"recipe {recipe}: fine-tunes a model, and `reread plan` only estimates pretraining; the log of the first "
            "steps shows the time left"
        )
    where = cluster(gpus, gpu, gpus_per_node, network)
    chosen = load_recipe(recipe, overrides or [], "train")
    print_estimate(chosen, where, share, [one.recipe for one in following(chosen)])


@app.command()
def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/quickstart")],
    overrides: Overrides = None,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the last")] = None,
) -> None:
    """Figures of a checkpoint on all held-out text or examples, or on others (data.corpus=..., task.dev=...)."""
    commands.evaluate(run_folder, overrides or [], step)


@app.command()
def finetune(
    recipe: FinetuningName,
    overrides: Overrides = None,
    slurm: Slurm = False,
    dry_run: DryRun = False,
    site: Site = None,
) -> None:
    """Fine-tune a model (init=RUN, an export or a converted model) on a task (task.train=FILE task.dev=FILE)."""
    if slurm:
        from pipeline.slurm.submit import submit_finetuning

        submit_finetuning(recipe, overrides or [], site, dry_run)
        return
    _only_with_slurm(dry_run, site)
    from pipeline.finetune import finetune as run_finetuning

    run_finetuning(recipe, overrides or [])


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="RUN|EXPORT", help="A fine-tuned run, or its export")],
    file: Annotated[Path, typer.Argument(help="Examples in a format of the task; labels are not needed")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="JSON lines; default: standard output")] = None,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the best")] = None,
) -> None:
    """Label documents of any length, one JSON line each."""
    commands.predict(model, file, overrides or [], out, step)


@app.command()
def ablate(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Train and evaluate each row of the recipe's `ablations`; print the paper's table beside ours."""
    from pipeline.ablation import ablate as ablate_recipe

    ablate_recipe(recipe, overrides or [])


@app.command()
def export(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, e.g. runs/quickstart")],
    output: Annotated[Path | None, typer.Argument(help="Default: RUN/export")] = None,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the last")] = None,
) -> None:
    """Checkpoint -> a Hugging Face folder with weights, tokenizer, modeling file and model card."""
    commands.export(run_folder, output, step)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A folder or weights file: PyTorch, safetensors, TF, Paddle")],
    output: Annotated[Path, typer.Argument(help="The Hugging Face folder to write")],
    model: Annotated[
        str, typer.Option(help="What to make: nezha, ernie_doc, transformer_xl, ran, longformer")
    ] = "nezha",
    length: Annotated[
        int | None, typer.Option(min=1, max=1 << 20, help="longformer: tokens to read; default: 4096")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 20, help="longformer: width of local attention, both sides; default: 512"),
    ] = None,
    positions: Annotated[
        str | None, typer.Option(help="longformer: copied (default) or random, for comparison")
    ] = None,
) -> None:
    """Released weights -> a Hugging Face folder that `reread train init=FOLDER` starts from."""
    from training.exchange.convert import convert as convert_weights

    options = {"length": length, "window": window, "positions": positions}
    with writing(output):
        convert_weights(source, output, model, **{name: value for name, value in options.items() if value is not None})


@app.command()
def report(
    run_folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, drawn over each other")],
    out: Annotated[
        Path | None, typer.Option(help="The page; default: RUN/report.html, of several runs ./report.html")
    ] = None,
) -> None:
    """Write one page about runs: losses, speed, faults, corpus, samples, scores; print the last figures."""
    from pipeline.report.page import print_figures, print_papers, write_report

    with writing(out or run_folders[0]):
        runs, _ = write_report(run_folders, out)
    print_figures(runs)
    print_papers(runs)


@app.command()
def recipes() -> None:
    """List the built-in recipes: those that pretrain, then those of `reread finetune`."""
    groups = {"to pretrain (reread run)": available_recipes(), "to fine-tune (reread finetune)": finetuning_recipes()}
    for title, names in groups.items():
        print(f"{title}:")
        for name in names:
            print(f"  {name:30} {recipe_values(name, [])['description']}")


@app.command()
def show(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe of `reread recipes`, or a .yaml file",
            autocompletion=_begins(lambda: [*available_recipes(), *finetuning_recipes()]),
        ),
    ],
    overrides: Overrides = None,
) -> None:
    """Print a recipe with all its values, and where each comes from: a file, its base, the command line, a default."""
    from pipeline.show import show as show_recipe

    show_recipe(recipe, overrides or [])


@app.command()
def settings(
    section: Annotated[
        str | None,
        typer.Argument(help="For example train.optimizer, masking or steps", autocompletion=_begins(_known_settings)),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="All sections, as in docs/settings.md")] = False,
) -> None:
    """What can be set: the sections of a recipe, or the keys of one with type, default and meaning."""
    from pipeline.settings import as_markdown, print_settings

    if markdown:
        print(as_markdown(), end="")
    else:
        print_settings(section)


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before its libraries are imported: nothing is ever downloaded
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("reread").setLevel(logging.INFO)
    logging.raiseExceptions = False  # what cannot continue on a full disk reports it
    here = place()
    quiet = here.rank != 0
    if quiet:  # its log file has the rest
        logging.getLogger().handlers[0].setLevel(logging.ERROR)
    status = _status_of_command(quiet)
    if here.launcher:
        # Threads of gloo may still release tensors; the interpreter's shutdown under them would abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _status_of_command(quiet: bool) -> int:
    """Run the command; a mistake, a file that cannot be used or an interruption is one line."""
    try:
        with one_line():
            app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        if not quiet:
            print("reread: interrupted; the same command continues from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    main()
