"""What a model with a masked-token head fills into sentences with [MASK]."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.tokens.base import SPECIAL_NAMES
from reread.training.exchange.export import write_tokenizer

Fill = list[tuple[str, float]]
"""The likeliest tokens and their probabilities."""


def framed_tokenizer(folder: Path, model: PreTrainedModel) -> Tokenizer:
    """The tokenizer in a folder, which puts special tokens around a text as `model` reads it.

    Raises `UserError` for a folder without one that can be read.
    """
    with tempfile.TemporaryDirectory(prefix="reread-") as temporary:
        try:
            write_tokenizer(Path(temporary), model, folder)
            return Tokenizer.from_file(str(Path(temporary) / "tokenizer.json"))
        except UserError:
            raise
        except Exception as error:  # `tokenizers` raises nothing narrower
            raise UserError(f"{folder}: not readable as a tokenizer ({first_line(error)})") from None


def fill_masks(
    model: PreTrainedModel, tokenizer: Tokenizer, sentences: Sequence[str], top: int = 5
) -> Iterator[tuple[str, Fill]]:
    """For each sentence with [MASK], the `top` tokens for the first mask with their probabilities.

    Raises `UserError` for a sentence without one, one that is too long, or a tokenizer without a token for it.
    """
    known = tokenizer.get_vocab()
    mask = next((name for name in SPECIAL_NAMES["mask"] if name in known), "[MASK]")
    for sentence in sentences:
        encoded = tokenizer.encode(sentence.replace("[MASK]", mask))
        if known.get(mask) not in encoded.ids:
            raise UserError(f"example `{sentence}`: holds no [MASK]")
        with torch.no_grad():
            try:
                logits = model(torch.tensor([encoded.ids], device=model.device)).logits
            except (IndexError, ValueError) as error:
                raise UserError(
                    f"example `{sentence[:60]}...`: {len(encoded.ids)} tokens ({first_line(error)}); shorten it"
                ) from None
        best = logits[0, encoded.ids.index(known[mask])].softmax(-1).topk(min(top, logits.shape[-1]))
        words = [str(tokenizer.id_to_token(int(token))) for token in best.indices]
        yield sentence, list(zip(words, best.values.tolist(), strict=True))
