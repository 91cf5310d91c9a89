"""The `reread` command. Torch is imported only by the commands that train or convert, so help starts at once."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from reread.pipeline.options import WITH_SETTINGS, no_option, with_keys_of
from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes
from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.run_folder.folder import version_of
from reread.preprocessing.errors import LineFormatter, UserError, one_line
from reread.training.exchange.hub import stay_offline
from reread.training.models import MODELS
from reread.training.models.conversion import Conversion
from reread.training.parallel.process import this_process
from reread.training.run.files import find_run

app = typer.Typer(
    name="reread",
    help="Pretrain encoders that read long documents, Chinese and English: raw text in, a Hugging Face folder out.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _begins(known: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """For the shell's completion: the names in `known` that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in known() if name.startswith(incomplete)]

    return complete


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help=f"{', '.join(available_recipes())}, or a .yaml file",
        autocompletion=_begins(available_recipes),
        callback=no_option,
    ),
]
FinetuningName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help=f"{', '.join(finetuning_recipes())}, or a .yaml file",
        autocompletion=_begins(finetuning_recipes),
        callback=no_option,
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The name of a run, or its folder", callback=find_run)]
Average = Annotated[
    str | None,
    typer.Option(
        metavar="N|STEP,STEP,...",
        help="Average the weights of the last N checkpoints (up to --step), or of those at these steps",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings of the recipe to change, e.g. steps=100", callback=no_option
    ),
]

AllowPipe = Annotated[
    bool, typer.Option("--allow-pipe", help="Allow the command of a `pipe:` address to run on this machine")
]
Slurm = Annotated[bool, typer.Option("--slurm", help="Submit the work to Slurm as a chain of jobs")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --slurm: print the scripts and submit nothing")]
Site = Annotated[
    Path | None, typer.Option(help="With --slurm: the file of the cluster's settings; default: slurm/site.yaml")
]


def _as_run(given: str) -> str:
    """The folder of the run of this name; text that names no run, such as an address, is returned as it is."""
    run = find_run(Path(given))
    return given if run == Path(given) else str(run)


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


@app.command(context_settings=WITH_SETTINGS)
def preprocess(
    recipe: RecipeName,
    overrides: Overrides = None,
    materialize: Annotated[
        Path | None, typer.Option(help="Also write every masked copy of every sample to this folder")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Run only this stage, e.g. read or encode; default: all stages and the merge")
    ] = None,
    share: Annotated[
        str,
        typer.Option(
            metavar="I/N", help="With --stage: this machine is number I of N (from 0) and does every N-th part"
        ),
    ] = "0/1",
) -> None:
    """Make a deduplicated, word-segmented, sharded corpus from raw text."""
    from reread.pipeline.commands import preprocess as work

    settings = load_recipe(recipe, overrides or [], "preprocess")
    if stage is None and share == "0/1":
        work.preprocess(settings, materialize)
    elif stage is None or materialize is not None:
        raise UserError("--share needs --stage, and --materialize cannot be given with --stage; leave one out")
    else:
        work.preprocess_share(settings, stage, share)


@app.command()
def peek(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...|RECIPE [KEY=VALUE]...", help="Files of raw text, or a recipe whose `input` is read"
        ),
    ],
    documents: Annotated[int, typer.Option(min=0, help="How many documents to print")] = 3,
    megabytes: Annotated[
        float, typer.Option(min=0.001, help="Megabytes of text to read, spread evenly over the files")
    ] = 4.0,
) -> None:
    """Show raw text as `preprocess` would read, clean and tokenise it, and what it would drop; writes nothing."""
    from reread.pipeline.commands.peek import peek as work

    work(what, documents, megabytes)


@app.command()
def split(
    file: Annotated[Path, typer.Argument(help="Labelled examples in any format of a task; a folder of classes, too")],
    shares: Annotated[
        str, typer.Argument(metavar="[TRAIN/DEV/TEST]", help="Two shares, for train and dev, or three")
    ] = "80/10/10",
    label: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Spread each value of this field or column evenly over the files"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Keep records with the same value, such as an author's, in one file"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another number gives another division")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to write; default: beside FILE")] = None,
) -> None:
    """Divide labelled examples into NAME-train, NAME-dev and NAME-test of the same form; equal texts stay together."""
    from reread.pipeline.commands.split import split as work
    from reread.preprocessing.labelled.divide import By

    work(file, shares, By(label, group, seed), out)


@app.command(context_settings=WITH_SETTINGS)
def inspect(
    corpus: Annotated[
        str,
        typer.Argument(
            help="A corpus (folder or address), a folder of `preprocess --materialize`, a run, or a model to fine-tune",
            callback=_as_run,
        ),
    ],
    overrides: Overrides = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Take `train.data` from this recipe; with a model: show the windows of the recipe's task"),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="How many samples to print")] = 3,
    verify: Annotated[
        bool, typer.Option("--verify", help="First check every byte of the corpus against its checksums")
    ] = False,
    allow_pipe: AllowPipe = False,
) -> None:
    """Show samples with masked words, or with labels, spans and tags marked; prove that words are masked whole."""
    from reread.pipeline.commands.inspect import inspect as work

    work(corpus, overrides or [], recipe, samples, verify, allow_pipe)


@app.command(context_settings=WITH_SETTINGS)
def train(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Pretrain; the same command again continues from the last checkpoint.

    `reread train from=RUN name=NEW steps=...` starts a new run from the last checkpoint of another, with its recipe.
    """
    from reread.pipeline.commands.train import train as work

    work(recipe, overrides or [])


@app.command(context_settings=WITH_SETTINGS)
def run(
    recipe: RecipeName, overrides: Overrides = None, slurm: Slurm = False, dry_run: DryRun = False, site: Site = None
) -> None:
    """Preprocess, train, export, report, and fine-tune by the recipe's `then`; steps that are finished are skipped."""
    if slurm:
        from reread.pipeline.slurm.submit import submit_recipe

        submit_recipe(recipe, overrides or [], site, dry_run)
        return
    _only_with_slurm(dry_run, site)
    from reread.pipeline.commands.run import run as work

    work(recipe, overrides or [])


def _known_settings() -> list[str]:
    from reread.pipeline.recipe.sections import all_sections

    return ["model", *(name for one in all_sections() for name in (one.path, *(key.name for key in one.keys)))]


def _only_with_slurm(dry_run: bool, site: Path | None) -> None:
    if dry_run or site:
        raise UserError(f"{'--dry-run' if dry_run else '--site'} needs --slurm")


@app.command(context_settings=WITH_SETTINGS)
def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of GPUs in all")] = 8,
    gpu: Annotated[
        str, typer.Option(help="Kind of GPU: v100-16g, v100-32g, a100-40g, a100-80g, h100-80g, ...")
    ] = "v100-32g",
    gpus_per_node: Annotated[int, typer.Option(min=1, max=1024, help="Number of GPUs in each machine")] = 8,
    network: Annotated[
        str, typer.Option(help="Network between machines: ib100, eth25, 4xib100 (cards x Gbit/s)")
    ] = "ib100",
    share: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of a GPU's peak FLOP/s, which a run's log calls MFU, instead of times "
            "from the bytes and FLOPs of a step",
        ),
    ] = None,
    allow_pipe: AllowPipe = False,
) -> None:
    """Estimate a recipe's memory on a GPU, its best parallel split, its time and its disk space before it runs."""
    from reread.pipeline.commands.plan import plan as work

    work(recipe, overrides or [], (gpus, gpu, gpus_per_node, network), share, allow_pipe)


@app.command(context_settings=WITH_SETTINGS)
def evaluate(
    run_folder: RunFolder,
    overrides: Overrides = None,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the last")] = None,
    average: Average = None,
) -> None:
    """Evaluate a checkpoint on all held-out text or examples, or on others (data.corpus=..., task.dev=...)."""
    from reread.pipeline.commands.evaluate import evaluate as work

    work(run_folder, overrides or [], step, average)


@app.command(context_settings=WITH_SETTINGS)
def finetune(
    recipe: FinetuningName,
    overrides: Overrides = None,
    slurm: Slurm = False,
    dry_run: DryRun = False,
    site: Site = None,
) -> None:
    """Fine-tune a model (init=RUN, a folder or OWNER/NAME of the Hub) on a task (task.train=FILE task.dev=FILE)."""
    if slurm:
        from reread.pipeline.slurm.submit import submit_finetuning

        submit_finetuning(recipe, overrides or [], site, dry_run)
        return
    _only_with_slurm(dry_run, site)
    from reread.pipeline.commands.finetune import finetune as work

    work(recipe, overrides or [])


@app.command(context_settings=WITH_SETTINGS)
def predict(
    model: Annotated[
        Path, typer.Argument(metavar="RUN|EXPORT", help="A fine-tuned run, or its export", callback=find_run)
    ],
    file: Annotated[
        Path, typer.Argument(help="Examples in a format of the task, with or without labels; -: standard input")
    ],
    overrides: Overrides = None,
    echo: Annotated[bool, typer.Option("--echo", help="Write each text beside its prediction")] = False,
    out: Annotated[Path | None, typer.Option(help="File of JSON lines to write; default: standard output")] = None,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the best")] = None,
) -> None:
    """Predict for documents of any length; writes one JSON line for each."""
    from reread.pipeline.commands.predict import predict as work

    work(model, file, overrides or [], out, step, echo)


@app.command(context_settings=WITH_SETTINGS)
def embed(
    model: Annotated[Path, typer.Argument(metavar="RUN|EXPORT", help="A run, or an export", callback=find_run)],
    file: Annotated[Path, typer.Argument(help="Documents, or examples of a task, in a format of `reread predict`")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="NAME.npy, with the ids in NAME.ids.txt, or NAME.parquet")] = Path(
        "vectors.npy"
    ),
    normalize: Annotated[bool, typer.Option("--normalize", help="Divide each vector by its length")] = False,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the best or the last")] = None,
) -> None:
    """Write a vector for each document, of any length: the mean of its tokens' states."""
    from reread.pipeline.commands.embed import embed as work

    work(model, file, overrides or [], out, step, normalize)


@app.command()
def submit(
    predictions: Annotated[Path, typer.Argument(help="Lines of `reread predict`: answers, or options")],
    output: Annotated[Path, typer.Argument(help="The JSON file to write, as the task's owner takes it")],
    sentences: Annotated[
        Path | None, typer.Option(help="HotpotQA: predicted rankings of the sentences, if predictions lack evidence")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="HotpotQA: the owner's file, which is scored if labelled")
    ] = None,
    above: Annotated[float, typer.Option(help="Score from which a sentence is evidence")] = 0.0,
) -> None:
    """Write predictions in the form that a task's owner takes; HotpotQA's with evidence and joint scores."""
    from reread.pipeline.commands.submit import submit as work

    work(predictions, output, sentences, questions, above)


@app.command()
def narrow(
    questions: Annotated[Path, typer.Argument(help="HotpotQA's file")],
    ranking: Annotated[Path, typer.Argument(help="Predicted rankings of its paragraphs (`rank`, or task.form=marked)")],
    output: Annotated[Path, typer.Argument(help="The file to write, in the same form")],
    most: Annotated[int, typer.Option(help="Paragraphs of a question that are kept at most", min=2)] = 5,
    above: Annotated[float, typer.Option(help="Score that they need; the best two are kept in any case")] = -3.0,
) -> None:
    """Keep the paragraphs of HotpotQA's questions that a ranking keeps, for a second stage that reads only these."""
    from reread.pipeline.commands.submit import narrow as work

    work(questions, ranking, output, most, above)


@app.command(context_settings=WITH_SETTINGS)
def ablate(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Train and evaluate each row of the recipe's `ablations` and print our figures beside the paper's."""
    from reread.pipeline.commands.ablate import ablate as work

    work(recipe, overrides or [])


@app.command(context_settings=WITH_SETTINGS)
def export(
    run_folder: RunFolder,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OUTPUT] [card.KEY=VALUE]...",
            help="The folder to write, default: RUN/export; and what the model card says, e.g. card.license=apache-2.0",
            callback=no_option,
        ),
    ] = None,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; default: the last")] = None,
    average: Average = None,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Also push the folder to this repository on the Hub")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write graphs for onnxruntime (docs/serving.md)")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write the graphs with weights of 8 bits, and a task's scores on dev")
    ] = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder with weights, tokenizer, modeling file and model card."""
    from reread.pipeline.commands.export import export_and_push as work

    work(run_folder, given or [], step, push, average, onnx, int8)


@app.command()
@with_keys_of(Conversion)
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder or weights file: PyTorch, safetensors, TF, Paddle, fairseq, Megatron; or "
            "OWNER/NAME[@REVISION] of the Hub"
        ),
    ],
    output: Annotated[Path, typer.Argument(help="The Hugging Face folder to write")],
    model: Annotated[
        str, typer.Option(help=f"Type of model to make: {', '.join(MODELS)}; megatron: back to its form")
    ] = "nezha",
    **options: str | None,
) -> None:
    """Convert released weights to a Hugging Face folder that `reread train init=FOLDER` starts from."""
    from reread.pipeline.commands.convert import convert as work

    work(source, output, model, options)


@app.command()
def report(
    run_folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Names or folders of runs; the curves of several are drawn in the same charts",
            callback=lambda given: [find_run(one) for one in given],
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: RUN/report.html, or ./report.html for several runs")
    ] = None,
) -> None:
    """Write one page about runs: losses, speed, faults, corpus, samples, scores; print the last figures."""
    from reread.pipeline.commands.report import report as work

    work(run_folders, out)


@app.command()
def recipes() -> None:
    """List the built-in recipes, first for pretraining, then for `reread finetune`; `reread show` prints one."""
    from reread.pipeline.commands.recipes import recipes as work

    work()


@app.command(context_settings=WITH_SETTINGS)
def show(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe of `reread recipes`, a .yaml file, or a run",
            autocompletion=_begins(lambda: [*available_recipes(), *finetuning_recipes()]),
        ),
    ],
    overrides: Overrides = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Write the recipe to a new file, each key below its sentence"),
    ] = None,
) -> None:
    """Print a recipe with all its values and the source of each: a file, its base, the command line or a default.

    `--write FILE.yaml` writes a recipe of your own to begin with, whole, with what each key means.
    """
    from reread.pipeline.commands.show import show as work
    from reread.pipeline.commands.show import write as work_on_file

    if write is None:
        work(recipe, overrides or [])
    else:
        work_on_file(recipe, overrides or [], write)


@app.command()
def settings(
    section: Annotated[
        str | None,
        typer.Argument(help="For example train.optimizer, masking or steps", autocompletion=_begins(_known_settings)),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all sections as Markdown, as in docs/settings.md")
    ] = False,
) -> None:
    """List the sections of a recipe, or the keys of one section with type, default and meaning."""
    from reread.pipeline.commands.settings import as_markdown, print_settings

    if markdown:
        print(as_markdown(), end="")
    else:
        print_settings(section)


def main() -> None:
    stay_offline()  # before Hugging Face's libraries are imported: only `fetch` and `push` ask its Hub
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("reread").setLevel(logging.INFO)
    logging.raiseExceptions = False  # what cannot continue on a full disk reports it
    here = this_process()
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
