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

_TAG_OF_CHARACTERS = """A tag for each word; the model reads words and their characters:

```python
import torch

words = "A text .".split()
row = tokenizer(words, is_split_into_words=True, return_tensors="pt")
row["characters"] = model.characters_of([words])
with torch.no_grad():
    tags = model.eval()(**row).logits[0].argmax(-1)
for word, tag in zip(words, tags.tolist()):
    print(word, model.config.id2label[tag])
```"""

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

_MARKED = """The answer, and the sentences that support it, from marks around question, titles and sentences:

```python
import torch

question, paragraphs = "What is this?", [("A title", ["This is a text.", "It is short."])]
asked = f"[q]{question}[/q]"
text = ""
for title, sentences in paragraphs:
    text += f"BEFORE_TITLE{title}AFTER_TITLE" + "".join(f"{sentence}AFTER_SENTENCE" for sentence in sentences)
row = tokenizer(ASKED_AND_TEXT, return_tensors="pt")
with torch.no_grad():
    output = model.eval()(**row)
kinds = output.kind_logits[0, POSITION_OF_CLS].softmax(-1)  # of a span, and of each of model.config.task["choices"]
marks = row.input_ids[0] == model.config.sentence_token_id
count = sum(len(sentences) for _, sentences in paragraphs)
evidence = output.mark_logits[0, marks, 0][:count] > 0  # of each sentence
first, last = output.start_logits[0].argmax(), output.end_logits[0].argmax()
print(kinds.tolist(), evidence.tolist(), tokenizer.decode(row.input_ids[0, first : last + 1]))
```

`reread predict` and `reread.load` choose the best span within the text, and evidence as in training."""

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

_JOINED = """One of several options, which all stand before the text:

```python
import torch

text, question, options = "This is a text.", "What is this?", ["a text", "a question"]
question = f"[question]{question}[/question]" + "".join(f"[ent]{option}[/ent]" for option in options)
row = tokenizer(QUESTION_AND_TEXT, return_tensors="pt")
with torch.no_grad():
    logits = model.eval()(**row).logits[0]
logits = logits[row.input_ids[0] == tokenizer.convert_tokens_to_ids("[ent]")]
print(options[logits.argmax()], logits.softmax(-1).tolist())
```"""

_ALIGNED = """One of several options. Windows move over the text and the options at the same tokens, after all of them
are cut to the shortest; a row is a window of the text and that of an option:

```python
import torch

text, options = "This is a text.", ["a text", "a question"]
task, cls, sep = model.config.task, tokenizer.cls_token_id, tokenizer.sep_token_id


def framed(window, other):  # a row and the types of its tokens
    FRAMED


parts = [tokenizer(part, add_special_tokens=False).input_ids for part in (text, *options)]
length = min(len(part) for part in parts)
length = min(length, task["longest"] or length)
room = (task["sequence_length"] - len(framed([], [])[0])) // 2
step = min(task["step"] or room, room)
begins = range(0, max(length - room, 0) + step, step)
memory = {}  # of a model that has one
for skims in [True, False] if task["retrospective"] else [False]:
    logits = []
    for begin in begins:
        first, *others = (part[begin : min(begin + room, length)] for part in parts)
        rows = [framed(first, other) for other in others]
        inputs = {"input_ids": torch.tensor([[ids for ids, _ in rows]])}
        if getattr(model.config, "type_vocab_size", 1) > 1:
            inputs["token_type_ids"] = torch.tensor([[types for _, types in rows]])
        with model.skimming() if skims else torch.no_grad():
            output = model.eval()(**inputs, **memory)
        memory = {"mems": output.mems} if getattr(output, "mems", None) else {}
        logits.append(output.logits[0])
p = logits[-1].softmax(-1) if task["predict"] == "last" else torch.stack(logits).softmax(-1).mean(0)
print(options[p.argmax()], p.tolist())
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

_WORD_STARTS = """import re

import torch

text = "A text."
words = list(re.finditer(r"UNIT", text))
begins = {word.start() for word in words}
row = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
offsets = row.pop("offset_mapping")[0].tolist()
starts = torch.tensor([[int(not begins.isdisjoint(range(*part))) for part in offsets]])
"""

_PHRASES = (
    """The most probable phrases of a text, with transformers' class for tags; its pipeline reads tags, not
phrases. `word_starts` says at which tokens words begin:

```python
"""
    + _WORD_STARTS
    + """with torch.no_grad():
    p = model.eval()(**row, word_starts=starts).logits[0].sigmoid()  # [tokens, words of the phrase - 1]
for number in p.flatten().argsort(descending=True).tolist()[:5]:
    token, more = divmod(number, p.shape[1])
    first = int(starts[0, :token].sum())
    if first + more < len(words):
        print(p[token, more].item(), text[words[first].start() : words[first + more].end()])
```"""
)

_COREFERENCE = (
    """The clusters of the mentions of a text, with the class that transformers keeps for another use.
`word_starts` says at which tokens words begin:

```python
"""
    + _WORD_STARTS
    + """with torch.no_grad():
    output = model.eval()(**row, word_starts=starts)
clusters = {}  # the number of each span -> its cluster
for number, antecedent in enumerate(output.antecedents[0].tolist()):
    clusters[number] = clusters[antecedent] if antecedent >= 0 else []
    clusters[number].append(number)
spans = [text[words[first].start() : words[last].end()] for first, last in output.spans[0].tolist()]
for number, cluster in clusters.items():
    if number == cluster[0] and len(cluster) > 1:
        print([spans[one] for one in cluster])
```"""
)

_GENERATE = """A target is written of its source:

```python
import re

import torch

task, text = model.config.task, "A text."
room = task["sequence_length"] - task["target_length"] - 3
ids = tokenizer(text, add_special_tokens=False, truncation=True, max_length=room).input_ids
row = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])
target = model.eval().write(row, banned=tokenizer.all_special_ids)[0]
written = tokenizer.decode(target, skip_special_tokens=True, clean_up_tokenization_spaces=False)
chinese = "[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"  # beside which a decoder puts blanks
print(re.sub(f"(?<={chinese}) | (?={chinese})", "", written))
```"""

_WRITTEN = """A target is written of its source, as generation_config.json says:

```python
import inspect
import re

import torch

text = "A text."
row = tokenizer(text, truncation=True, max_length=model.config.task["sequence_length"], return_tensors="pt")
if "global_attention_mask" in inspect.signature(model.forward).parameters:  # the first token is global
    row["global_attention_mask"] = (torch.arange(row.input_ids.shape[1]) == 0).long()[None]
target = model.eval().generate(**row)[0]
written = tokenizer.decode(target, skip_special_tokens=True, clean_up_tokenization_spaces=False)
chinese = "[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"  # beside which a decoder puts blanks
print(re.sub(f"(?<={chinese}) | (?={chinese})", "", written))
```"""

_EMBED = """A vector of length 1 for each text, by sentence-transformers (leave `trust_remote_code` out if no code lies
here):

```python
from sentence_transformers import SentenceTransformer

embedder = SentenceTransformer("this/folder", trust_remote_code=True)
vectors = embedder.encode(["A text.", "Another text."])
print(embedder.similarity(vectors, vectors))
```

`reread embed` and `reread.load` give the same."""

_FRAMED = {
    "": """between = [sep] * (2 if tokenizer.cls_token == "<s>" else 1)
    types = [0] * (1 + len(window) + len(between)) + [1] * (len(other) + 1)
    return [cls, *window, *between, *other, sep], types""",
    "segments": "return [*window, sep, *other, sep, cls], [0] * (len(window) + 1) + [1] * (len(other) + 1) + [0]",
    "bare": "return [*other, sep, *window], []",
}
"""`ModelSpec.frame` -> how two parts stand in a row (`training/data/tasks/windows.py`)."""

_UNITS = {"words": r"[^\W_\u3400-\u9fff]+|\S", "blanks": r"\S+", "characters": r"\S"}
"""`task.split` -> the pattern of a unit of text."""


class Usage(NamedTuple):
    code: str
    in_windows: bool = True
    """Whether a longer text is read in windows; otherwise the tokenizer cuts it."""
    in_transformers: bool = True
    """Whether a class of transformers has the head; otherwise only the code beside the weights has it."""


_USAGE = {
    "classify": Usage(_CLASSIFY),
    "tag": Usage(_TAG),
    "answer": Usage(_ANSWER),
    "answer-marked": Usage(_MARKED, in_transformers=False),
    "choose": Usage(_CHOOSE),
    "choose-joined": Usage(_JOINED, in_transformers=False),
    "choose-aligned": Usage(_ALIGNED, in_windows=False),
    "rank": Usage(_RANK, in_windows=False),
    "phrases": Usage(_PHRASES, in_transformers=False),
    "coreference": Usage(_COREFERENCE, in_transformers=False),
    "generate": Usage(_GENERATE, in_windows=False),
    "embed": Usage(_EMBED),
}

_OF_FRAME = {
    "ASKED_AND_TEXT": ("asked, text", "text, asked"),
    "BEFORE_TITLE": ("<t>", ""),
    "AFTER_TITLE": ("</t>", "[p]"),
    "AFTER_SENTENCE": ("[s]", "{tokenizer.sep_token}"),
    "POSITION_OF_CLS": ("0", "-1"),
}
"""What stands for these words of an example where the question comes first, and where the text does."""

_WINDOWS = """A text of any length is read whole: what is longer than a window is cut as in training, and the windows'
results are put together (`reading` in config.json)."""


def is_without_class(task: str, windows: bool) -> bool:
    """Whether no class that transformers can load has the head of a task; arguments as in `usage_of`."""
    return not windows and task in _USAGE and not _USAGE[task].in_transformers


def usage_of(
    task: str, frame: str, windows: bool = True, longest: int = 100, unit: str = "words", characters: bool = False
) -> str:
    """The example for a task, "" for other objectives; `choose-joined` is `choose` with its options in one row, and
    `choose-aligned` with windows of text and option at the same tokens; `answer-marked` is `answer` with evidence.

    `frame` is that of `ModelSpec`; `windows`, whether the exported model has code of its own, which reads long texts in
    windows; `longest`, the tokens of the longest answer; `unit`, what words are (`task.split`); `characters`, whether
    it reads those of words (`task.characters`)."""
    if task not in _USAGE or is_without_class(task, windows):
        return ""
    text_first = frame == "segments"
    code = _TAG_OF_CHARACTERS if characters else _USAGE[task].code
    if task == "generate" and not windows:  # a class of transformers, which has a decoder
        code = _WRITTEN
    use = code.replace("QUESTION_AND_TEXT", "text, question" if text_first else "question, text")
    for name, others in _OF_FRAME.items():
        use = use.replace(name, others[text_first])
    use = (
        use.replace("LONGEST", str(longest))
        .replace("UNIT", _UNITS[unit])
        .replace("FRAMED", _FRAMED[frame])
        .replace("TEXT_PART", str(int(not text_first)))
        .replace("JOINT", "{tokenizer.sep_token}" if windows else " ")
    )
    return f"{use}\n\n{_WINDOWS}" if windows and _USAGE[task].in_windows else use
