"""Whether a configuration describes the model that weights belong to, before memory is taken for it."""

import torch
from transformers import PretrainedConfig, PreTrainedModel

from reread.preprocessing.errors import UserError

_ROOM = 1 << 26
"""Numbers that a new head may have beside as many as there are: an embedding that the weights do not share."""


def check_size(head: type[PreTrainedModel], config: PretrainedConfig, numbers: int, where: str) -> None:
    """Raise `UserError` if the model has far more than the `numbers` that its weights, which lie at `where`, have.

    A config.json of a few bytes may say that a vocabulary has four million tokens. A configuration that contradicts
    itself passes, since building the model says so.
    """
    try:
        with torch.device("meta"):
            wanted = sum(parameter.numel() for parameter in head(config).parameters())
    except Exception:
        return
    if wanted > 2 * numbers + _ROOM:
        raise UserError(
            f"{where}: {numbers:,} numbers, but the configuration is of a model of {wanted:,} (vocab_size="
            f"{config.vocab_size}); take the config.json that belongs to the weights"
        )
