"""config.json and the files of tokenizers."""

import json
from pathlib import Path
from random import Random

from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel, WordPiece

from reread.preprocessing.config import TokenizerSettings
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.training.models import MODELS, model_spec
from reread.training.models.build import model_config, vocabulary_of
from reread.training.prediction import task_of_export
from tests.fuzz.common import Case, changed_bytes, changed_json

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "天", "下", "ab"]


def configs(folder: Path) -> Case:
    kept = {}
    for name in sorted(MODELS):
        spec = model_spec(name)
        values = json.loads(spec.config(vocab_size=100).to_json_string(use_diff=False))
        kind, head = next(iter(spec.heads.items()))
        kept[name] = {**values, "architectures": [head.__name__], "reading": {"length": 64, "step": 8}, "kind": kind}

    def case(random: Random) -> None:
        name = random.choice(tuple(kept))
        data = json.dumps(changed_json(random, kept[name])).encode()
        if random.random() < 0.2:
            data = changed_bytes(random, data)
        (folder / "config.json").write_bytes(data)
        if random.random() < 0.5:
            spec = model_spec(name)
            model_config(spec, {}, 1, folder)
        else:
            task_of_export(folder)

    return case


def tokenizers(folder: Path) -> Case:
    numbers = {word: number for number, word in enumerate(WORDS)}
    kept = {"vocab.txt": "\n".join(WORDS).encode()}
    for name, model in {
        "wordpiece": WordPiece(numbers, unk_token="[UNK]"),
        "bpe": BPE(numbers, [("a", "b")], unk_token="[UNK]"),
        "words": WordLevel(numbers, "[UNK]"),
    }.items():
        one = Tokenizer(model)
        one.add_special_tokens(WORDS[:5])
        kept[name] = one.to_str().encode()

    def case(random: Random) -> None:
        name = random.choice(tuple(kept))
        data = kept[name]
        if name != "vocab.txt" and random.random() < 0.7:
            data = json.dumps(changed_json(random, json.loads(data))).encode()
        else:
            data = changed_bytes(random, data)
        path = folder / ("vocab.txt" if name == "vocab.txt" else "tokenizer.json")
        path.write_bytes(data)
        try:
            if random.random() < 0.3:
                vocabulary_of(folder)
            else:
                tokenizer = load_tokenizer(path, TokenizerSettings(path=path))
                tokenizer.encode("a ab 天下 z\n")
        finally:
            path.unlink()

    return case
