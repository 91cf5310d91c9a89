"""What several test folders share: a small real corpus, made once by the project's own preprocessing."""

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def sample_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped sample text as a corpus with a small vocabulary of its own."""
    from preprocessing.build import build
    from preprocessing.config import PreprocessSettings

    folder = tmp_path_factory.mktemp("sample") / "corpus"
    values: dict[str, Any] = {
        "input": {"paths": [str(ROOT / "pipeline" / "sample" / name) for name in ("zh", "en", "mixed")]},
        "output": folder,
        "tokenizer": {"train": {"size": 3000}},
        "validation_share": 0.1,
        "part_bytes": 100_000,
        "workers": 1,
    }
    build(PreprocessSettings.parse(values, "test"))
    return folder


def train_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The `train` section of a tiny NEZHA on `corpus`, dropout on."""
    return {
        "model": {
            "type": "nezha",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_relative_position": None,
        },
        "data": {"corpus": str(corpus), "sequence_length": 48, "masking": {"strategy": "whole-word"}},
        "steps": 6,
        "global_batch": 8,
        "micro_batch": 2,
        "optimizer": {"learning_rate": 0.01},
        "schedule": {"warmup_steps": 2},
        "checkpoint": {"every_steps": 3, "keep": 2},
        "log_every": 1,
        "validate_every": 3,
        "validation_batches": 1,
        "peak_tflops": 1.0,
        **changes,
    }
