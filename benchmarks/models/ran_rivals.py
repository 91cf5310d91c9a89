"""RAN's Figure 5 and Table 5: classifiers of long texts by RAN's window, and beside BERT, Longformer and a BiLSTM.

    python benchmarks/models/ran_rivals.py [--length 2048] [--window 256] [--windows 64 128 256 512 1024]
        [--width 768] [--layers 12] [--rows 2] [--memory 2048] [--dropout 0.1] [--rounds 3]
        [--device cuda --dtype bfloat16]

All read the same rows of random tokens, without padding; a step of training ends with Adam's. The milliseconds of a
text are the seconds of an epoch of 1,000 texts. Sizes are those of the papers: RAN has 2 layers and 12 heads, each as
wide as the model; transformers' BERT and Longformer have `--layers`, heads of 64 columns and positions for the length;
the BiLSTM has 2 layers and is 300 wide at most. On CPU all run on one thread.

Of each window the largest batch is taken: on a GPU the largest that fits into its memory, on CPU the largest whose step
keeps tensors of at most `--memory` MB beside weights, gradients and Adam's moments. `faster` and `less memory` are
beside RAN with `--window`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LongformerConfig, LongformerForSequenceClassification
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertForSequenceClassification

from benchmarks.harness import (
    COST_COLUMNS,
    Cost,
    Step,
    allocated,
    attention_parser,
    compare,
    heading,
    in_turns,
    keep_freed_memory,
    step_cost,
)
from reread.preprocessing.errors import one_line
from reread.training.models.ran import RanConfig, RanForSequenceClassification

CLASSES = 11
"""arXiv's, on which the paper compares."""
MOST = 4096
"""Texts of a step."""
PASSES = ("training", "prediction")


class BiLstm(nn.Module):
    """Max-pooled states of a bidirectional LSTM, as transformers' classifiers are called."""

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width // 2, 2, batch_first=True, bidirectional=True, dropout=dropout)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        states, _ = self.layers(self.words(input_ids))
        logits = self.classifier(states.amax(1))
        return SimpleNamespace(logits=logits, loss=F.cross_entropy(logits, labels))


def ran(window: int, options: argparse.Namespace) -> nn.Module:
    config = RanConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        num_hidden_layers=2,
        num_attention_heads=12,
        head_size=options.width,
        window_size=window,
        num_labels=CLASSES,
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout,
    )
    return RanForSequenceClassification(config)


def encoder(kind: str, options: argparse.Namespace) -> nn.Module:
    sizes = {
        "vocab_size": options.vocabulary,
        "hidden_size": options.width,
        "intermediate_size": 4 * options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": max(1, options.width // 64),
        "max_position_embeddings": options.length + 2,
        "num_labels": CLASSES,
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": options.dropout,
    }
    if kind == "BERT":
        return BertForSequenceClassification(BertConfig(**sizes))
    windows = [min(512, options.length)] * options.layers
    return LongformerForSequenceClassification(LongformerConfig(**sizes, attention_window=windows, pad_token_id=1))


def sides(options: argparse.Namespace) -> dict[str, Callable[[], nn.Module]]:
    """Table 5's models by name."""
    return {
        "RAN": partial(ran, options.window, options),
        "BERT": partial(encoder, "BERT", options),
        "Longformer": partial(encoder, "Longformer", options),
        "BiLSTM": partial(BiLstm, options.vocabulary, min(300, options.width), options.dropout),
    }


def rows(count: int, options: argparse.Namespace) -> dict[str, Tensor]:
    """The first `count` texts; the same for all sides."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, options.vocabulary, (count, options.length), generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return {"input_ids": ids.to(options.device), "labels": labels.to(options.device)}


def steps(model: nn.Module, count: int, options: argparse.Namespace) -> tuple[Step, Step]:
    """A step of training and a prediction of `count` texts."""
    model.to(options.device, getattr(torch, options.dtype))
    optimizer, given = torch.optim.Adam(model.parameters()), rows(count, options)

    def train() -> None:
        model.train()
        optimizer.zero_grad()
        model(**given).loss.backward()
        optimizer.step()

    def predict() -> None:
        model.eval()
        with torch.no_grad():
            model(**given)

    train()  # makes gradients and moments, which do not count as the step's
    return train, predict


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, if all smaller ones do; 0 if 1 does not."""
    good, bad = 0, most + 1
    while bad - good > 1:
        middle = min(max(1, 2 * good), (good + bad) // 2) if bad == most + 1 else (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def fits(window: int, options: argparse.Namespace, count: int) -> bool:
    """Whether a step of `count` texts fits into memory."""
    try:
        train, _ = steps(ran(window, options), count, options)
        if options.device == "cpu":
            return allocated(train)[1] / 2**20 <= options.memory
        train()
    except torch.OutOfMemoryError:
        return False
    finally:
        if options.device != "cpu":
            torch.cuda.empty_cache()
    return True


def report(made: Mapping[str, tuple[Callable[[], nn.Module], int]], rival: str, options: argparse.Namespace) -> None:
    """A row for each pass of each side, which is a model and the texts of its step, in turns."""

    def cost(side: str, number: int) -> Cost:
        make, count = made[side]
        found = step_cost(steps(make(), count, options)[number], options.device)
        return Cost(found.seconds / count, found.megabytes)

    heading("pass", "side", "ms a text (s of 1,000)", *COST_COLUMNS[1:])
    for number, name in enumerate(PASSES):
        found = in_turns({side: partial(cost, side, number) for side in made}, options.rounds)
        compare((name,), found, rival)


def figure(options: argparse.Namespace) -> None:
    """Figure 5."""
    bound = f"{options.memory:,} MB of a step's tensors" if options.device == "cpu" else "the GPU's memory"
    print(f"\nRAN by its window, with the largest batch within {bound}:\n")
    made = {}
    for window in sorted({options.window, *options.windows}):
        if count := largest(partial(fits, window, options), MOST):
            made[f"window {window}, {count} texts"] = (partial(ran, window, options), count)
        else:
            print(f"window {window}: not one text fits\n")
    rival = next((side for side in made if side.startswith(f"window {options.window},")), next(iter(made), ""))
    if made:
        report(made, rival, options)


def table(options: argparse.Namespace) -> None:
    """Table 5."""
    makers = sides(options)
    counts = {name: sum(one.numel() for one in make().parameters()) / 1e6 for name, make in makers.items()}
    print(f"\nBeside other models, {options.rows} texts a step, million parameters in brackets:\n")
    made = {f"{name} ({counts[name]:.1f})": (make, options.rows) for name, make in makers.items()}
    report(made, next(iter(made)), options)


@one_line()
def main() -> None:
    parser = attention_parser(__doc__, rounds=3, rows=2)
    parser.set_defaults(dropout=0.1)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12, help="BERT's and Longformer's")
    parser.add_argument("--windows", type=int, nargs="*", default=[64, 128, 256, 512, 1024], help="Figure 5's")
    parser.add_argument("--window", type=int, default=256, help="RAN's in Table 5")
    parser.add_argument("--memory", type=int, default=2048, help="MB of the tensors of a step on CPU")
    parser.add_argument("--vocabulary", type=int, default=30522)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(
        f"Classifiers, {options.width} wide, of texts of {options.length:,} tokens; dropout {options.dropout}, "
        f"{options.device}, {options.dtype}"
    )
    table(options)
    if options.windows:
        figure(options)


if __name__ == "__main__":
    main()
