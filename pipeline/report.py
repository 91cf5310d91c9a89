"""The picture of a run's loss and its last figures."""

from pathlib import Path

from preprocessing.errors import UserError
from training.metrics import read_metrics


def report(run: Path) -> None:
    """Write RUN/loss.png (training and held-out loss against the step) and print first and last figures.

    Raises `UserError` if the run has logged nothing yet.
    """
    metrics = read_metrics(run)
    training = [line for line in metrics if "loss" in line]
    validation = [line for line in metrics if "validation_loss" in line]
    if not training and not validation:
        raise UserError(f"{run / 'metrics.jsonl'}: no step logged yet; is `{run}` a run folder?")
    picture = draw_losses(run / "loss.png", run.name, training, validation)
    if training:  # a run of no steps has held-out figures alone
        first, last = training[0], training[-1]
        parts = [f"loss {first['loss']:.3f} at step {first['step']} -> {last['loss']:.3f} at step {last['step']}"]
        shown = {"masked_lm_accuracy": "masked-token accuracy", "perplexity": "perplexity"}
        parts += [f"{label} {first[name]:.3f} -> {last[name]:.3f}" for name, label in shown.items() if name in last]
        print(f"{run}: {', '.join(parts)}")
    if validation:
        shown = {"masked_lm_loss": "masked-token loss", "perplexity": "perplexity"}
        held_out = {label: validation[-1].get(f"validation_{name}") for name, label in shown.items()}
        print("held out:", ", ".join(f"{label} {value:.3f}" for label, value in held_out.items() if value is not None))
    print(f"loss curve: {picture}")


def draw_losses(path: Path, title: str, training: list[dict], validation: list[dict]) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.plot([line["step"] for line in training], [line["loss"] for line in training], label="training loss")
    if validation:
        steps = [line["step"] for line in validation]
        axes.plot(steps, [line["validation_loss"] for line in validation], "o-", label="held-out loss")
    axes.set(xlabel="step", ylabel="loss, nats", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def fill_masks(folder: Path, sentences: list[str], top: int = 5) -> list[tuple[str, list[tuple[str, float]]]]:
    """For each sentence with [MASK], the `top` tokens for the first mask with their probabilities.

    Loads the exported folder as a user would: through transformers' Auto classes.
    """
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    # The code is the model's own file, which the export has put there
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
