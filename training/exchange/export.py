"""Writes a folder that transformers' Auto classes load with `from_pretrained`.

The code of a model that transformers does not have lies in the folder, for `trust_remote_code=True`.
"""

import copy
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from preprocessing.corpus import sync_folder
from preprocessing.errors import UserError
from training.checkpoint.files import remove, save_tensors
from training.exchange.tokenizer import frame_tokenizer
from training.models import ModelSpec, model_spec

AUTO_CLASSES = {
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForPreTraining": "ForPreTraining",
    "AutoModelForCausalLM": "ForCausalLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
}
"""transformers' Auto classes and how the class that each gives is called, after the model's name."""
ONE_TYPE = ("longformer",)
"""Models that take token types, but are pretrained with type 0 alone; RoBERTa may have no other."""
TAG = "reread"
"""Among the tags of an exported folder's README.md."""


def write_huggingface(
    folder: Path, model: PreTrainedModel, tokenizer_folder: Path | None, card: str, absent: Collection[str] = ()
) -> None:
    """Write weights, configuration, tokenizer, README.md and, unless transformers has it, the model's code to `folder`.

    `model` is whole and on CPU. Rows past `config.vocab_size` that pad the vocabulary are left out, and so are tied
    copies and the parameters named in `absent`, which a loader then initialises anew, saying so. The tokenizer frames a
    text as the model's pretraining did and gives what the model takes. The folder is made beside its place and renamed,
    so it is there whole or not at all; an earlier export there is replaced.
    Raises `UserError` if `folder` holds anything else.
    """
    code = set() if _in_transformers(type(model.config)) else _code_of(Path(inspect.getfile(type(model))))
    if folder.exists() and not _is_export(folder, code) and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder}: is there already and is no exported model; give another output or remove it")
    aside = folder.with_name(folder.name + ".tmp")
    remove(aside)
    aside.mkdir(parents=True)
    spec = _spec(model.config)
    save_tensors(_weights(model, spec, absent), aside / "model.safetensors", {"format": "pt"})
    for file in code:
        (aside / file.name).write_text(_flat(file.read_text(encoding="utf-8")), encoding="utf-8")
    for file in tokenizer_folder.glob("*.*") if tokenizer_folder else ():
        shutil.copyfile(file, aside / file.name)
    ids = {}
    if tokenizer_folder:
        inputs = set(inspect.signature(type(model).forward).parameters)
        if spec.name in ONE_TYPE:
            inputs.discard("token_type_ids")
        ids = frame_tokenizer(aside, spec.frame, inputs, spec.longest(model.config))
    (aside / "config.json").write_text(_config_json(model, ids), encoding="utf-8")
    (aside / "README.md").write_text(card, encoding="utf-8")
    _put_in_place(aside, folder)


def model_card(
    name: str, kind: str, summary: str, sections: Mapping[str, Mapping[str, Any]], examples: Sequence[str] = ()
) -> str:
    """README.md for a model of type `name` that learnt from data of `kind`, in Markdown.

    `summary` is a sentence; `sections` by title (final losses, corpus, recipe, ...) are printed as YAML, empty ones
    left out; `examples` are sentences with [MASK].
    """
    causal = kind == "stream"
    auto = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation" if causal else "fill-mask",
        "tags": [TAG, name, "causal-language-model" if causal else "masked-language-model"],
    }
    if examples and not causal:
        header["widget"] = [{"text": text} for text in examples]
    code = _USE_TRANSFORMERS if _in_transformers(model_spec(name).config) else _USE
    use = [code.replace("AUTO", auto), _USE_OF.get((name, kind), "")]
    parts = [f"---\n{_yaml(header)}---", f"# {name}", summary, *filter(None, use)]
    parts += [f"## {title}\n\n```yaml\n{_yaml(values)}```" for title, values in sections.items() if values]
    return "\n\n".join(parts) + "\n"


def _yaml(values: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(values, default=str))
    return yaml.safe_dump(plain, allow_unicode=True, sort_keys=False)


_USE = """The code of the model lies beside its weights:

```python
from transformers import AUTO, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("this/folder", trust_remote_code=True)
model = AUTO.from_pretrained("this/folder", trust_remote_code=True)
```"""
_USE_TRANSFORMERS = """transformers knows this model; no code comes with it and `trust_remote_code` is not needed:

```python
from transformers import AUTO, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = AUTO.from_pretrained("this/folder")
```"""
_USE_SEGMENTS = """A text of any length is read whole, twice over, so that its first token knows its last:

```python
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("this/folder", trust_remote_code=True).eval()
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]
with torch.no_grad():  # else the second pass keeps what gradients need, of the whole text
    read = model.read(ids)  # last_hidden_state [tokens, hidden], pooler_output [hidden], mems
```

To go segment by segment, give each call the `mems` that the call before returned; none begin a document. A segment is
its tokens, [SEP] and, in the last place, [CLS], which is how the tokenizer puts a single text."""
_USE_STREAM = """`logits` are log-probabilities of the next token. Memory goes from one piece of a text to the next. A
vocabulary of words has `<eos>` for the end of each line, and Segatron's `positions` need to know which tokens end a
sentence and which a paragraph, that is a line; other models leave the two arguments alone. Sentences are told here by
their stops, which is close to how the corpus tells them:

```python
import torch

ids, sentence_ends, paragraph_ends = [], [], []
eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
stops = set(tokenizer.convert_tokens_to_ids(list(".!?。！？"))) - {tokenizer.unk_token_id}
for line in filter(str.strip, text.splitlines()):
    tokens = tokenizer(line, add_special_tokens=False).input_ids
    ids += tokens + eos
    sentence_ends += [token in stops for token in tokens[:-1]] + [False] * len(eos) + [True]
    paragraph_ends += [False] * len(tokens[1:] + eos) + [True]

mems = None
with torch.no_grad():
    for start in range(0, len(ids), 150):
        piece, sentences, paragraphs = (
            torch.tensor([values[start : start + 150]]) for values in (ids, sentence_ends, paragraph_ends)
        )
        output = model(piece, mems=mems, sentence_ends=sentences, paragraph_ends=paragraphs)
        mems = output.mems
```"""
_USE_RAN = """A text of any length is read whole, in windows that hand on what they know; the tokenizer puts no special
tokens around it."""
_USE_RAN_STREAM = """`logits` are those of the next token. Memory goes from one piece of a text to the next. Windows
begin anew with each piece, so make them as long as in training (`sequence_length`), such as 512 tokens:

```python
import torch

ids = [token for line in filter(str.strip, text.splitlines()) for token in tokenizer(line).input_ids]
mems = None
with torch.no_grad():
    for piece in torch.tensor(ids).split(512):
        output = model(piece[None], mems=mems)
        mems = output.mems
```"""
_USE_LONGFORMER = """Name the tokens that a task turns on in `global_attention_mask` [batch, tokens], 1 for those that
see the whole text and are seen by it: the first for classification, those of the question for question answering."""
_USE_OF = {
    ("ernie_doc", "segments"): _USE_SEGMENTS,
    ("transformer_xl", "stream"): _USE_STREAM,
    ("ran", "rows"): _USE_RAN,
    ("ran", "stream"): _USE_RAN_STREAM,
    ("longformer", "packed"): _USE_LONGFORMER,
    ("longformer", "rows"): _USE_LONGFORMER,
}
"""By the name of a model and the kind of data that it learnt from."""


def _in_transformers(config: type[PretrainedConfig]) -> bool:
    return config.__module__.startswith("transformers.")


def _code_of(file: Path) -> set[Path]:
    """A module's file and those that it imports relatively."""
    imports = _RELATIVE.findall(file.read_text(encoding="utf-8"))
    files = (file.parents[len(dots) - 1] / f"{name.replace('.', '/')}.py" for dots, name in imports)
    return {file}.union(*map(_code_of, files))


def _flat(code: str) -> str:
    """A module whose relative imports are of files beside it: transformers knows no folders in a model's folder."""
    return _RELATIVE.sub(lambda match: f"from .{match[2].rpartition('.')[2]} import", code)


_RELATIVE = re.compile(r"^from (\.+)([\w.]+) import", re.MULTILINE)
"""Dots and module of a relative import."""


def _is_export(folder: Path, code: Collection[Path]) -> bool:
    """By the tag in its README.md, which earlier versions did not write, or by the model's code."""
    card = folder / "README.md"
    if code and all((folder / file.name).exists() for file in code):
        return True
    try:
        header = card.read_text(encoding="utf-8").split("---\n")[1]
        return TAG in yaml.safe_load(header)["tags"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, IndexError, KeyError, TypeError):
        return False


def _spec(config: PretrainedConfig) -> ModelSpec:
    """Where transformers has had a type of that name itself, ours begins with `reread_`."""
    return model_spec(config.model_type.removeprefix("reread_"))


def _weights(model: PreTrainedModel, spec: ModelSpec, absent: Collection[str]) -> dict[str, Tensor]:
    tied = model._tied_weights_keys or {}
    vocabulary = [pattern for pattern, kind in spec.tensor_plan.items() if kind == "vocabulary"]
    weights = {}
    for name, tensor in model.state_dict().items():
        if name in tied or name in absent:
            continue
        if any(fnmatchcase(known, pattern) for known in (name, name.rpartition(".")[0]) for pattern in vocabulary):
            weights[name] = tensor[: model.config.vocab_size].contiguous()
        else:
            weights[name] = tensor.contiguous()
    return weights


def _config_json(model: PreTrainedModel, ids: Mapping[str, int]) -> str:
    """`ids` of special tokens go over those that the model's configuration has."""
    config: PretrainedConfig = copy.deepcopy(model.config)
    config.update(dict(ids))
    config.architectures = [type(model).__name__]
    if _in_transformers(type(config)):
        return config.to_json_string()
    classes = vars(sys.modules[type(model).__module__])
    name = type(config).__name__.removesuffix("Config")
    config.auto_map = {"AutoConfig": f"{Path(inspect.getfile(type(config))).stem}.{name}Config"}
    for auto, suffix in AUTO_CLASSES.items():
        if name + suffix in classes:
            config.auto_map[auto] = f"{Path(inspect.getfile(type(model))).stem}.{name}{suffix}"
    return config.to_json_string()


def _put_in_place(aside: Path, folder: Path) -> None:
    for file in aside.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    sync_folder(aside)
    earlier = folder.with_name(folder.name + ".old")
    remove(earlier)
    if folder.exists():
        folder.rename(earlier)
    aside.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(earlier, ignore_errors=True)
