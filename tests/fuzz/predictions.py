"""Texts and files given to `reread predict`, and what is asked of them."""

import json
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import yaml

from reread.pipeline.commands.predict import predict
from reread.preprocessing.labelled.formats.table import FORMATS
from reread.training import prediction
from reread.training.data.kinds import KINDS
from tests.fuzz.common import Case, changed_bytes, changed_json, wild
from tests.preprocessing.labelled.test_hostile_files import BYTES, JSON
from tests.tasks import objective_of, task_values, write_tokenizer

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("ran", {"labels": ["u", "v"]}),
    "tag": ("nezha", {"labels": ["O", "B-p", "I-p"], "split": "words"}),
    "answer": ("longformer", {"question": "a?", "choices": ["b"], "no_answer": 0.0}),
    "choose": ("ernie_doc", {"question": "a?", "options": ["a", "b c"]}),
    "rank": ("nezha", {}),
    "phrases": ("ran", {}),
    "generate": ("ran", {"target_length": 4, "beams": 2}),
    "coreference": ("longformer", {"head_size": 8, "span_words": 4}),
    "embed": ("ernie_doc", {"retrospective": True}),
}
"""Task -> a model, each of which reads windows in a way of its own, and settings of the task."""
TEXT = "a b? c 天下\r\n\n It is so. d\te\u200b\n"
RANKED = [{"query": "a b?", "passages": ["c 天下", "It is."]}, {"query": "d", "passages": ["e", "f"], "id": "x"}]
LINES = [{"text": "a b? c 天下", "id": 1}, {"text": " It is.\n", "id": "x"}]


def prepare(folder: Path) -> Case:
    for kind, (model, task) in MODELS.items():
        values = task_values(model, kind, write_tokenizer(folder / kind), sequence_length=16, **task)
        values["model"]["num_hidden_layers"] = 1
        objective_of(values, []).model.float().save_pretrained(folder / kind)
    build, built = prediction.build_model, dict[tuple[Any, ...], Any]()

    def once(head: Any, config: Any, init: Path, seed: int) -> Any:
        """The model, which nothing changes, without the time to read it again."""
        key = (init, str({**config.to_dict(), "task": None, "reading": None}))
        if key not in built:
            built[key] = build(head, config, init, seed)
        return built[key]

    def case(random: Random) -> None:
        kind = random.choice(tuple(MODELS))
        form, data = _file(random, kind)
        path = folder / random.choice(("a.txt", "a.jsonl", "a"))
        path.write_bytes(data)
        settings = KINDS[kind].settings
        overrides = ["micro_batch=8"]
        if random.random() < 0.9:
            overrides.append(f"task.format={random.choice(tuple(FORMATS)) if random.random() < 0.1 else form}")
        if random.random() < 0.2:
            key = random.choice(sorted(settings.model_fields.keys() - settings.file_fields))
            overrides.append(f"task.{key}={yaml.safe_dump(wild(random))}")
        if random.random() < 0.7:
            overrides.append("task.wrong=skip")
        tokenizer = folder / kind / random.choice(("tokenizer.json", "tokenizer_config.json"))
        kept = tokenizer.read_bytes()
        if random.random() < 0.1:
            tokenizer.write_text(json.dumps(changed_json(random, json.loads(kept))))
        try:
            with patch("reread.training.prediction.build_model", once):
                predict(folder / kind, path, overrides, folder / "predicted", None, echo=random.random() < 0.5)
        finally:
            tokenizer.write_bytes(kept)

    return case


def _file(random: Random, kind: str) -> tuple[str, bytes]:
    """A format, and what a file of it may hold."""
    if random.random() < 0.4:
        data = changed_bytes(random, TEXT.encode())
        form = random.choice(("document-per-line", "document-per-file"))
        return form, data if random.random() < 0.3 else data.decode("utf-8", "ignore").encode()
    if (
        kind in ("rank", "phrases", "coreference", "generate", "embed") or random.random() < 0.6
    ):  # which have no format of their own
        lines = RANKED if kind == "rank" else LINES
        return "jsonl", b"".join(json.dumps(changed_json(random, line)).encode() + b"\n" for line in lines)
    named = [(form, json.dumps(values).encode()) for form, (task, values) in JSON.items() if task == kind]
    form, data = random.choice([*named, *((str(form), data) for (form, task), data in BYTES.items() if task == kind)])
    return form, changed_bytes(random, data)
