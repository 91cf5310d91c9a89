"""The files by which sentence-transformers loads an exported folder, and the pooling that those of others name."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import UserError
from reread.training.exchange.card import in_transformers
from reread.training.models import model_spec

log = logging.getLogger("reread")

POOLING = Path("1_Pooling/config.json")
MODULES = "modules.json"
WHOLE = 1 << 30
"""`max_seq_length` where a text of any length is read: more tokens than any text has."""
_MODES = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
"""`task.pooling` -> its field in `POOLING`."""
_OTHERS = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
"""The ends of the names of further fields."""


def write_sentence_transformers(folder: Path, config: Any, task: Mapping[str, Any]) -> None:
    """Write modules.json and what it names: encoder, pooling, normalisation; `task` is that of config.json.

    A class of ours reads a text of any length in windows and returns one state, the vector, which is pooled as a [CLS]
    is. A class of transformers reads one window of a text."""
    plain = in_transformers(type(config))
    length = task["sequence_length"] if plain else _whole(config, task)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (path, name) in enumerate(
            [("", "Transformer"), (POOLING.parent.name, "Pooling"), ("2_Normalize", "Normalize")]
        )
    ]
    mode = _MODES[task["pooling"] if plain else "cls"]
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        **{name: name == mode for name in (*_MODES.values(), *(f"pooling_mode_{end}" for end in _OTHERS))},
        "include_prompt": True,
    }
    files = {
        Path(MODULES): modules,
        POOLING: pooling,
        Path("sentence_bert_config.json"): {"max_seq_length": length, "do_lower_case": False},
        Path("config_sentence_transformers.json"): {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    (folder / "2_Normalize").mkdir()
    for path, values in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(values, indent=2), encoding="utf-8")
    read = f"the first {length:,} tokens of a text" if length < WHOLE else "texts of any length whole"
    log.info("modules.json is for sentence-transformers, which reads %s", read)


def _whole(config: Any, task: Mapping[str, Any]) -> int:
    """Tokens that are read of a text with its special ones."""
    if task["longest"] is None:
        return WHOLE
    frame = model_spec(config.model_type.removeprefix("reread_")).frame
    return int(task["longest"]) + (0 if frame == "bare" else 2)


def pooling_of(folder: Path) -> str | None:
    """`task.pooling` as the files of sentence-transformers in a folder have it; None without them.

    Raises `UserError` for a pooling that is neither the mean nor [CLS]."""
    if not (folder / MODULES).is_file() or not (folder / POOLING).is_file():
        return None
    try:
        values = json.loads((folder / POOLING).read_text(encoding="utf-8"))
        named = values.get("pooling_mode") or [key for key in values if key.startswith("pooling_mode_") and values[key]]
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / POOLING}: cannot be read ({error}); say how to pool by task.pooling") from None
    names = {**{field: ours for ours, field in _MODES.items()}, "cls": "cls", "mean": "mean"}
    found = [names.get(str(one)) for one in ([named] if isinstance(named, str) else named)]
    if len(found) != 1 or found[0] is None:
        raise UserError(
            f"{folder / POOLING}: pools by {named}, and reread by the mean or [CLS]; choose by task.pooling"
        )
    return found[0]
