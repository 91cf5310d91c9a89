"""How exported models of the tasks are used: examples for their cards, in Markdown."""

from typing import NamedTuple

_CLASSIFY = """One text, or a pair as `tokenizer(text, second)`:

```python
import torch

with torch.no_grad():
    logits = model.eval()(**tokenizer("A text.", return_tensors="pt")).logits[0]
p = {"multi_label_classification": logits.sigmoid(), "regression": logits}.get(
    model.config.problem_type, logits.softmax(-1)
)
print({name: p[number].item() for number, name in model.config.id2label.items()})
```

`pipeline("text-classification", model=model, tokenizer=tokenizer)` gives the same."""

_TAG = """A tag for each token; the first token of a word has the word's:

```python
import torch

row = tokenizer("A text.", return_tensors="pt")
with torch.no_grad():
    tags = model.eval()(**row).logits[0].argmax(-1)
for token, tag in zip(tokenizer.convert_ids_to_tokens(row.input_ids[0]), tags.tolist()):
    print(token, model.config.id2label[tag])
```

`pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple")` gives entities."""

_ANSWER = """The answer stands in the text:

```python
import torch

question, text = "What is this?", "This is a text."
row = tokenizer(QUESTION_AND_TEXT, return_offsets_mapping=True, return_tensors="pt")
offsets = row.pop("offset_mapping")[0].tolist()
with torch.no_grad():
    output = model.eval()(**row)
outside = torch.tensor([part != TEXT_PART for part in row.sequence_ids(0)])
start, end = (x[0].masked_fill(outside, -1e9) for x in (output.start_logits, output.end_logits))
scores = (start[:, None] + end).where(torch.ones(len(start), len(start)).triu().tril(LONGEST - 1) > 0, -1e9)
first, last = divmod(scores.argmax().item(), len(start))
print(text[offsets[first][0] : offsets[last][1]])
```

transformers 4 also has `pipeline("question-answering", model=model, tokenizer=tokenizer)`."""

_CHOOSE = """One of several options:

```python
import torch

text, question, options = "This is a text.", "What is this?", ["a text", "a question"]
others = [f"{question}JOINT{option}" for option in options]
rows = tokenizer([text] * len(options), others, padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model.eval()(**{name: values[None] for name, values in rows.items()}).logits[0]
print(options[logits.argmax()], logits.softmax(-1).tolist())
```"""

_RANK = """The passages of a query, the best first:

```python
import torch

query, passages = "What is this?", ["This is a text.", "This is another one."]
cut = {"truncation": "only_second", "max_length": model.config.reading["length"]}
rows = tokenizer([query] * len(passages), passages, padding=True, return_tensors="pt", **cut)
with torch.no_grad():
    scores = model.eval()(**rows).logits[:, 0]
for place in scores.argsort(descending=True).tolist():
    print(scores[place].item(), passages[place])
```"""


class Usage(NamedTuple):
    code: str
    in_windows: bool = True
    """Whether a longer text is read in windows; otherwise the tokenizer cuts it."""


_USAGE = {
    "classify": Usage(_CLASSIFY),
    "tag": Usage(_TAG),
    "answer": Usage(_ANSWER),
    "choose": Usage(_CHOOSE),
    "rank": Usage(_RANK, in_windows=False),
}

_WINDOWS = """A text of any length is read whole: what is longer than a window is cut as in training, and the windows'
results are put together (`reading` in config.json)."""


def usage_of(task: str, frame: str, windows: bool = True, longest: int = 100) -> str:
    """The example for a task, "" for other objectives.

    `frame` is that of `ModelSpec`; `windows`, whether the exported model reads long texts in windows; `longest`, the
    tokens of the longest answer."""
    if task not in _USAGE:
        return ""
    text_first = frame == "segments"
    use = _USAGE[task].code.replace("QUESTION_AND_TEXT", "text, question" if text_first else "question, text")
    use = (
        use.replace("LONGEST", str(longest))
        .replace("TEXT_PART", str(int(not text_first)))
        .replace("JOINT", "{tokenizer.sep_token}" if windows else " ")
    )
    return f"{use}\n\n{_WINDOWS}" if windows and _USAGE[task].in_windows else use
