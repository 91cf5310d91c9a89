"""Tokenizers of converted and exported folders: copied from their source, with special tokens as in pretraining."""

import inspect
import json
import logging
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers.processors import TemplateProcessing
from transformers import PretrainedConfig

from reread.preprocessing.config import TokenizerSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.base import FILES, copy_tokenizer_files, read_backend
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.preprocessing.tokens.vocabulary import read_vocabulary
from reread.training.models.build import vocabulary_of

log = logging.getLogger("reread")

GPT2 = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
"""Names of the two files of GPT-2's BPE."""

DICT = "dict.txt"
"""fairseq's vocabulary: in each line a number of GPT-2's BPE, or a word that only pads, and how often it was there."""

CLASSES = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "bart": "BartTokenizer",
    "led": "LEDTokenizer",
}
"""model_type of a source -> the class of its tokenizer, if its files do not name it."""
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
"""The inputs that transformers' tokenizers can return; BERT's returns all."""

FRAMES = {
    "segments": ("$A {sep} {cls}", "$A {sep} $B:1 {sep}:1 {cls}"),
    "segments answer": ("$A {sep} {cls}", "$A {sep} $B {sep} {cls}"),
    "bare": ("$A", "$A $B:1"),
    "bare pair": ("$A", "$B:1 {sep}:1 $A"),
    "bare answer": ("$A", "$A {sep} $B:1"),
}
"""`ModelSpec.frame`, for heads of tasks with the kind of their pairs -> templates of one text and of two; other frames
keep the tokenizer's own. A question and its text are given to a tokenizer as transformers' pipeline does it: question
first, but text first where padding stands on the left."""

NAMES = ({"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]"}, {"pad": "<pad>", "cls": "<s>", "sep": "</s>"})
"""BERT's and RoBERTa's special tokens."""


def copy_tokenizer(sources: Sequence[Path], folder: Path, vocab_size: int, kind: str = "") -> Path | None:
    """Copy tokenizer files into `folder`, completed so that AutoTokenizer loads them; None if there are none.

    `kind` is the source's model_type.

    Raises `UserError` for more tokens than `vocab_size`, and for a vocabulary of GPT-2's numbers, ERNIE-Doc's or
    fairseq's, without the BPE that they number.
    """
    found = [source for source in sources if any((source / name).exists() for name in FILES)]
    if dictionary := next((source / DICT for source in sources if (source / DICT).is_file()), None):
        _write_bpe(dictionary, _of_fairseq(dictionary, vocab_size), folder)
        _write(folder / "tokenizer_config.json", {"tokenizer_class": CLASSES["roberta"]})
        _complete(folder, {})
        return folder
    if not found:
        log.info("no tokenizer in the converted folder: no %s beside the weights", " or ".join(FILES[:4]))
        return None
    source = found[0]
    vocabulary = source / "vocab.txt"
    tokens = read_vocabulary(vocabulary) if vocabulary.exists() else []
    if len(tokens) > vocab_size:
        raise UserError(f"{vocabulary}: {len(tokens)} tokens, but the configuration's vocab_size is {vocab_size}")
    if tokens and all(token.isdecimal() for token in tokens if not token.startswith("[")):
        _write_bpe(vocabulary, tokens, folder)
        return folder
    copy_tokenizer_files(source, folder)
    settings_path = folder / "tokenizer_config.json"
    settings = _read(settings_path)
    if tokens:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        settings.setdefault("tokenizer_class", "BertTokenizer")
        if "do_lower_case" not in settings:
            cased = sum(token.isascii() and token.isalpha() and not token.islower() for token in tokens)
            settings["do_lower_case"] = cased * 100 < len(tokens)
            log.info("do_lower_case %s: %d tokens have capitals", settings["do_lower_case"], cased)
    elif kind in CLASSES:
        settings.setdefault("tokenizer_class", CLASSES[kind])
    _write(settings_path, settings)
    if not (folder / "tokenizer.json").exists() and any(
        (folder / name).exists() for name in ("vocab.txt", "vocab.json")
    ):
        _complete(folder, settings)
    return folder


def _complete(folder: Path, settings: Mapping[str, Any]) -> None:
    """Add to a vocabulary what fine-tuning reads beside it: tokenizer.json and the names of special tokens.

    The source's own `settings` stay. Logs why if it cannot be made.
    """
    with tempfile.TemporaryDirectory() as temporary:
        made, lowercase = Path(temporary), settings.get("do_lower_case", True)
        try:
            load_tokenizer(folder, TokenizerSettings(path=folder, lowercase=lowercase)).save(made)
        except UserError as error:
            log.info("no tokenizer.json, which fine-tuning needs, can be made: %s", error)
            return
        shutil.copyfile(made / "tokenizer.json", folder / "tokenizer.json")
        names = {**_read(made / "tokenizer_config.json"), **_read(folder / "special_tokens_map.json")}
    named = {key: name for key, name in names.items() if key.endswith("_token")}
    _write(folder / "tokenizer_config.json", {**named, **settings})


def name_special_tokens(config: PretrainedConfig, folder: Path) -> None:
    """Set the ids of special tokens that are None in `config`, by BERT's names in the vocab.txt of `folder`."""
    vocabulary = folder / "vocab.txt"
    tokens = read_vocabulary(vocabulary) if vocabulary.exists() else []
    for role in ("cls", "sep"):
        field, name = f"{role}_token_id", f"[{role.upper()}]"
        if field in inspect.signature(type(config)).parameters and getattr(config, field) is None and name in tokens:
            setattr(config, field, tokens.index(name))


def _of_fairseq(dictionary: Path, vocab_size: int) -> list[str]:
    """The tokens by id: those that fairseq puts before the lines of dict.txt, the lines, and the mask's.

    Raises `UserError` for other lines than GPT-2's, and for more tokens than `vocab_size`."""
    lines = dictionary.read_text(encoding="utf-8", errors="replace").split("\n")
    tokens = [line.rpartition(" ")[0] for line in lines if line]
    if not all(token.isdecimal() or token.startswith("madeupword") for token in tokens):
        raise UserError(
            f"{dictionary}: not of GPT-2's BPE; put a tokenizer that transformers reads there instead of it"
        )
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *tokens, "<mask>"]
    if len(tokens) > vocab_size:
        raise UserError(f"{dictionary}: {len(tokens)} tokens with fairseq's own, but the model has {vocab_size} words")
    return tokens


def _write_bpe(vocabulary: Path, tokens: list[str], folder: Path) -> None:
    """Write the BPE of a vocabulary that has GPT-2's ids for tokens, as "13" for ".": ERNIE-Doc's and fairseq's."""
    pairs = [(vocabulary.with_name(names), vocabulary.with_name(merges)) for names, merges in GPT2]
    pair = next((pair for pair in pairs if all(path.exists() for path in pair)), None)
    if pair is None:
        raise UserError(f"{vocabulary}: numbers of GPT-2's BPE; put its encoder.json and vocab.bpe beside it")
    numbers: dict[str, int] = json.loads(pair[0].read_text(encoding="utf-8"))
    rows = {token: row for row, token in enumerate(tokens)}
    special = {token: row for token, row in rows.items() if not token.isdecimal()}
    known = {token: rows[str(number)] for token, number in numbers.items() if str(number) in rows}
    if len(known) + len(special) != len(tokens):
        raise UserError(f"{vocabulary}: {pair[0].name} lacks {len(tokens) - len(known) - len(special)} of its numbers")
    (folder / "vocab.json").write_text(json.dumps({**special, **known}, ensure_ascii=False), encoding="utf-8")
    shutil.copyfile(pair[1], folder / "merges.txt")


def frame_tokenizer(
    folder: Path, frame: str, inputs: Collection[str] = INPUTS, longest: int | None = None
) -> dict[str, int | None]:
    """Set the special tokens that the tokenizer in `folder` adds to those of training (a key of `FRAMES`).

    It returns those of INPUTS that are among `inputs`, and warns of more than `longest` tokens. A segment is
    "tokens [SEP] [CLS]", padded on the left, so that [CLS] is in the last position. Returns the ids of special tokens
    by their keys in a configuration; BERT's have no token of a text's begin and end.
    """
    if frame in FRAMES:
        _put_frame(folder, frame)
    _join_merges(folder / "tokenizer.json")
    path = folder / "tokenizer_config.json"
    settings = _read(path)
    if set(INPUTS) - set(inputs):
        settings["model_input_names"] = [name for name in settings.get("model_input_names", INPUTS) if name in inputs]
    if frame.startswith("segments"):
        settings["padding_side"] = "left"
    settings.pop("model_max_length", None)
    if longest is not None:
        settings["model_max_length"] = longest
    if settings != _read(path):
        _write(path, settings)
    return special_ids(folder)


def special_ids(folder: Path) -> dict[str, int | None]:
    """The ids of special tokens of the tokenizer in `folder`, by their keys in a configuration.

    The keys of begin and end are always there, None without such a token; the others only where there is one."""
    given = {**_read(folder / "special_tokens_map.json"), **_read(folder / "tokenizer_config.json")}
    vocabulary = vocabulary_of(folder)
    ids: dict[str, int | None] = {"bos_token_id": None, "eos_token_id": None}
    for role in ("pad", "cls", "sep", "bos", "eos"):
        name = given.get(f"{role}_token")
        name = name["content"] if isinstance(name, dict) else name
        known = [names[role] for names in NAMES if role in names]
        if found := [one for one in ([name] if name else known) if one in vocabulary]:
            ids[f"{role}_token_id"] = vocabulary[found[0]]
    if ids.get("cls_token_id") is not None and ids.get("cls_token_id") == vocabulary.get("<s>"):  # RoBERTa's are both
        ids |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids.get("sep_token_id")}
    return ids


def _put_frame(folder: Path, frame: str) -> None:
    """Rewrite the template in tokenizer.json."""
    path, settings_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    settings = _read(settings_path)
    if not path.exists() or settings.get("tokenizer_class") != "PreTrainedTokenizerFast":
        # The classes of BERT and RoBERTa ignore the template in tokenizer.json
        lowercase = settings.get("do_lower_case", True)
        load_tokenizer(folder, TokenizerSettings(path=folder, lowercase=lowercase)).save(folder)
        settings = _read(settings_path)
    if "cls_token" not in settings:
        return  # whole words, without a frame
    backend = read_backend(path)
    names = {role: settings[f"{role}_token"] for role in ("cls", "sep")}
    single, pair = (template.format(**names) for template in FRAMES[frame])
    backend.post_processor = TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, backend.token_to_id(name)) for name in names.values()]
    )
    values = _read(path)
    values["post_processor"] = json.loads(backend.to_str())["post_processor"]
    _write(path, values)


def _join_merges(path: Path) -> None:
    """Write the merges of a BPE's tokenizer.json as text, the only form that transformers 4.40's tokenizers read."""
    values = _read(path)
    merges = values.get("model", {}).get("merges")
    if merges and not isinstance(merges[0], str):
        values["model"]["merges"] = [" ".join(merge) for merge in merges]
        _write(path, values)


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return values


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2), encoding="utf-8")
