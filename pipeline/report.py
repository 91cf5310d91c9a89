"""The picture of a run's loss and its last figures."""

from pathlib import Path
from typing import Any

from preprocessing.errors import UserError
from training.metrics import read_metrics

LABELS = {"masked_lm_loss": "masked-token loss", "masked_lm_accuracy": "masked-token accuracy"}
"""Labels of figures whose name with blanks is not enough."""

Lines = list[dict[str, Any]]


def report(run: Path) -> None:
    """Write RUN/loss.png (training and held-out losses against the step) and print first and last figures.

    Raises `UserError` if the run has logged nothing yet.
    """
    metrics = read_metrics(run)
    training, held_out = _lines_with("loss", metrics), _lines_with("validation_loss", metrics)
    if not training and not held_out:
        raise UserError(f"{run / 'metrics.jsonl'}: no step logged yet; is `{run}` a run folder?")
    picture = draw_losses(run / "loss.png", run.name, metrics)
    beside = losses_beside(metrics)
    if training:  # a run of no steps has held-out figures alone
        names = [_headline(training), "masked_lm_accuracy", "perplexity", *beside]
        print(f"{run}: {', '.join(_change(name, lines) for name in names if (lines := _lines_with(name, metrics)))}")
    if held_out:
        names = ["masked_lm_loss", "perplexity", *beside]
        last = {name: line[key] for name in names for line in held_out if (key := f"validation_{name}") in line}
        print("held out:", ", ".join(f"{_label(name)} {value:.3f}" for name, value in last.items()))
    print(f"loss curve: {picture}")


def draw_losses(path: Path, title: str, metrics: Lines) -> Path:
    """Draw the loss of predicted tokens, which every step has, and below it the other losses, where steps have them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [["loss"], beside] if (beside := losses_beside(metrics)) else [["loss"]]
    figure, grid = pyplot.subplots(len(panels), squeeze=False, sharex=True, figsize=(8, 1.5 + 3 * len(panels)))
    for axes, names in zip(grid[:, 0], panels, strict=True):
        for name in names:
            label = _label(_headline(metrics) if name == "loss" else name)
            for key, style, of in ((name, "-", "training"), (f"validation_{name}", "o-", "held out")):
                if lines := _lines_with(key, metrics):
                    steps, values = [line["step"] for line in lines], [line[key] for line in lines]
                    axes.plot(steps, values, style, label=f"{label}, {of}")
        axes.set(ylabel="nats")
        axes.grid(alpha=0.3)
        axes.legend()
    grid[0, 0].set(title=title)
    grid[-1, 0].set(xlabel="step")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def losses_beside(metrics: Lines) -> list[str]:
    """Names of the losses beside that of predicted tokens: the order of chunks, the next sentence."""
    names = {name.removeprefix("validation_") for line in metrics for name in line if name.endswith("_loss")}
    return sorted(names - {"loss", "masked_lm_loss"})


def _headline(metrics: Lines) -> str:
    return "masked_lm_loss" if _lines_with("masked_lm_loss", metrics) else "loss"


def _lines_with(name: str, metrics: Lines) -> Lines:
    return [line for line in metrics if name in line]


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def _change(name: str, lines: Lines) -> str:
    first, last = (f"{line[name]:.3f}" for line in (lines[0], lines[-1]))
    if name.endswith("loss"):
        return f"{_label(name)} {first} at step {lines[0]['step']} -> {last} at step {lines[-1]['step']}"
    return f"{_label(name)} {first} -> {last}"


def fill_masks(folder: Path, sentences: list[str], top: int = 5) -> list[tuple[str, list[tuple[str, float]]]]:
    """For each sentence with [MASK], the `top` tokens for the first mask with their probabilities.

    Loads the exported folder as a user would: through transformers' Auto classes.
    """
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    # trust_remote_code: the file is the one that the export wrote
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True, local_files_only=True).eval()
    filled = []
    for sentence in sentences:
        inputs = tokenizer(sentence.replace("[MASK]", tokenizer.mask_token), return_tensors="pt")
        place = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()
        if len(place) == 0:
            raise UserError(f"example `{sentence}`: holds no [MASK]")
        with torch.no_grad():
            probabilities = model(**inputs).logits[0, place[0, 0]].softmax(-1)
        best = probabilities.topk(top)
        words = [str(tokenizer.convert_ids_to_tokens(int(token))) for token in best.indices]
        filled.append((sentence, list(zip(words, best.values.tolist(), strict=True))))
    return filled
