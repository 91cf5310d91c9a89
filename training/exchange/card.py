"""The model card, README.md of an exported folder: front matter that the Hub reads, the model's use, and figures."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from transformers import PretrainedConfig

from reread.training.models.spec import ModelSpec
from reread.training.models.usage import is_without_class, usage_of
from reread.training.objectives.objective import Objective

TAG = "reread"
"""Among the tags of an exported folder's README.md."""


def model_card(
    spec: ModelSpec,
    objective: type[Objective],
    summary: str,
    sections: Mapping[str, Mapping[str, Any]],
    examples: Sequence[str] = (),
    lengths: Mapping[str, Any] = {},
    cleaning: Sequence[str] = (),
    known: Mapping[str, Any] = {},
) -> str:
    """README.md of a model that learned `objective`, in Markdown.

    `summary` is a sentence; `sections` by title (final losses, corpus, recipe, ...) are printed as YAML, empty ones
    left out; `examples` are sentences with [MASK]; `lengths` has the numbers that the model's usage names, and the
    model's `task`; `cleaning` names the options of `preprocess.clean` that changed its text before the tokenizer read
    it; `known` are further entries of the front matter, such as `license`, of which empty ones are left out.
    """
    header: dict[str, Any] = {
        **{name: value for name, value in known.items() if value},
        "library_name": "sentence-transformers" if objective.card.tag == "sentence-transformers" else "transformers",
        "pipeline_tag": objective.card.pipeline,
        "tags": list(dict.fromkeys([TAG, spec.name, objective.card.tag])),
    }
    if examples and objective.card.pipeline == "fill-mask":
        header["widget"] = [{"text": text} for text in examples]
    windows = not in_transformers(spec.config_for(lengths))
    task = lengths.get("task", {})
    name = f"{objective.name}-{task['form']}" if task.get("form") in ("joined", "aligned", "marked") else objective.name
    code = _USE if windows else _USE_REREAD if is_without_class(name, windows) else _USE_TRANSFORMERS
    read = task.get("answer_length", 100), task.get("split") or "words", bool(task.get("characters"))
    example = usage_of(name, spec.frame, windows, *read)
    if name == "generate" and not task:
        example = "It has learned no task: `reread finetune generate init=this/folder` trains it."
    use = [code.replace("AUTO", objective.card.auto_class), example]
    if task.get("answers") is False:
        use.append("It has learned evidence and paragraphs alone (`task.answers`): its answers mean nothing.")
    if task.get("crf"):
        use.append(_CHAIN if windows else _CHAIN_TRANSFORMERS)
    usage = spec.usage.get(name, "")
    use.append(re.sub(r"\{(window_size|sequence_length)\}", lambda name: str(lengths[name[1]]), usage))
    if cleaning:
        use.append(f"Its text was cleaned before the tokenizer read it (`preprocess.clean`: {', '.join(cleaning)}).")
    if "nfkc" in cleaning:
        use.append(_NFKC)
    parts = [f"---\n{_yaml(header)}---", f"# {spec.name}", summary, *filter(None, use)]
    parts += [f"## {title}\n\n```yaml\n{_yaml(values)}```" for title, values in sections.items() if values]
    return "\n\n".join(parts) + "\n"


class Measured(NamedTuple):
    """The scores of a model on held-out text or examples."""

    name: str
    """Of the file or folder."""
    split: str
    scores: Mapping[str, float]


METRICS = {"em": "exact_match", "pearson": "pearsonr", "spearman": "spearmanr", "auc": "roc_auc"}
"""Our name of a score -> the Hub's, where they differ beyond a prefix such as `macro-`."""


def score_entries(
    run: str, pipeline: str, measured: Sequence[Measured], datasets: Sequence[str] = ()
) -> dict[str, Any]:
    """The front matter about scores, as the Hub reads them: `metrics` and `model-index`; empty without scores.

    `pipeline` is transformers' for the model, `datasets` what the Hub calls its data.
    """
    results = [
        {
            "task": {"type": pipeline},
            "dataset": {"name": one.name, "type": datasets[0] if datasets else one.name, "split": one.split},
            "metrics": [
                {"type": _metric(name), "name": name, "value": round(value, 4)} for name, value in one.scores.items()
            ],
        }
        for one in measured
        if one.scores
    ]
    if not results:
        return {}
    metrics = dict.fromkeys(_metric(name) for one in measured for name in one.scores)
    return {"metrics": list(metrics), "model-index": [{"name": run, "results": results}]}


def _metric(name: str) -> str:
    name = name.rpartition("-")[2] if name.endswith(("-f1", "-em", "-accuracy")) else name
    return METRICS.get(name, name)


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
_USE_REREAD = """transformers knows this model, but has no class with its head, which `reread predict` and `reread.load`
build:

```python
import reread

print(reread.load("this/folder").predict("A text."))
```"""


_CHAIN = """The tags of a text were learned as a chain (`crf` in config.json), whose best tags are not those that
are best alone:

```python
from itertools import pairwise

first = torch.tensor([word is not None and word != before for before, word in pairwise([None, *row.word_ids(0)])])
with torch.no_grad():
    tags = model.tags(model(**row).logits[0][first])
print([model.config.id2label[tag] for tag in tags.tolist()])
```"""
_CHAIN_TRANSFORMERS = """The tags of a text were learned as a chain (`crf` in config.json), whose `transitions`
transformers' class leaves out, so its tags are not the best ones; those of `reread predict` and `reread.load` are."""
_NFKC = """The tokenizer does not do that. This gives text the characters that it had in training:

```python
import re
import unicodedata

text = re.sub("[^，。！？：；（）～…．]+", lambda part: unicodedata.normalize("NFKC", part[0]), text)
text = re.sub("(?<=[0-9A-Za-z])．(?=[0-9A-Za-z])", ".", text)
```"""


def front_matter(folder: Path) -> dict[str, Any]:
    """The front matter of README.md in `folder`; empty if it has none that can be read."""
    try:
        found = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, IndexError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_export(folder: Path) -> bool:
    """Whether it is a folder of `reread export` or `convert`: README.md has our tag."""
    tags = front_matter(folder).get("tags")
    return isinstance(tags, list) and TAG in tags


def in_transformers(config: type[PretrainedConfig]) -> bool:
    """Whether a configuration, and so its model, is transformers' own."""
    return config.__module__.startswith("transformers.")
