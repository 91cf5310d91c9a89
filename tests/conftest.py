"""What several test folders share: a small real corpus, made once by the project's own preprocessing."""

import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: threads of several workers on the same cores wait for each other, at 2.5 times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before Triton is imported: where no GPU is, its kernels run on numpy.
if not (os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd")):
    os.environ["TRITON_INTERPRET"] = "1"

# Looking for garbage among what tests import takes a fifth of the imports' time.
gc.disable()

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"

# The same examples every time, and no clock: REREAD_EXAMPLES=10000 searches for longer.
settings.register_profile(
    "reread",
    max_examples=int(os.environ.get("REREAD_EXAMPLES", "50")),
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("reread")


def pytest_configure(config: pytest.Config) -> None:
    """Let transformers, which is not imported yet, copy the code of exports to a folder of this session's."""
    os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="reread-modules-")
    config.add_cleanup(partial(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True))


rarer = partial(pytest.param, marks=pytest.mark.long)
"""A case of a parametrised test that `make test-long` runs and `make test` does not."""


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """The cases of a large matrix, such as all heads of all models: `make test` runs the first and then one in `every`,
    `make test-long` the others. A case of several values is a tuple."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [rarer(*case) if number % every else pytest.param(*case) for number, case in enumerate(values)]


SLOW = {"benchmarks", "distributed", "docs", "end_to_end", "faults", "fuzz", "gpu", "slurm"}
"""Folders whose tests start processes; `make test-fast` leaves them out, and tests marked `slow` one by one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as `slow` by their folder, and put those of Slurm first: they mostly wait, for longest of all."""
    for item in items:
        if _folder(item) in SLOW:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: _folder(item) != "slurm")


def pytest_collection_finish() -> None:
    """All is imported: from here on garbage is collected."""
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file to a worker, but one worker for the files that share a slow start: a Slurm, or `tests.elsewhere`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return shared_start(nodeid.split("::", maxsplit=1)[0])

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@cache
def shared_start(file: str) -> str:
    """The name of what a file of tests starts together with others, else its own."""
    if file.startswith("tests/slurm/"):
        return "tests/slurm"
    return "tests/elsewhere.py" if "from tests.elsewhere import" in (ROOT / file).read_text(encoding="utf-8") else file


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


def not_here(what: str, reason: str) -> None:
    """Skip the test, unless REREAD_REQUIRED names `what`: then it is a failure that it is not here."""
    required = what in os.environ.get("REREAD_REQUIRED", "").split()
    (pytest.fail if required else pytest.skip)(f"{what}: {reason}")


def extra(name: str, module: str) -> Any:
    """`module`, which `pip install 'reread[name]'` installs; `not_here` without it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        return not_here(name, f"the extra reread[{name}] is not installed ({error})")


def shared(path: str) -> Path:
    """`path` in ../shared/data, real text and vocabularies beside the project; skips the test where it is missing."""
    found = ROOT.parent / "shared" / "data" / path
    if not found.exists():
        pytest.skip(f"needs ../shared/data/{path}")
    return found


@pytest.fixture(scope="session")
def sample_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped sample text as a corpus with a small vocabulary of its own."""
    from reread.preprocessing.config import PreprocessSettings
    from reread.preprocessing.execution.build import build

    folder = tmp_path_factory.mktemp("sample") / "corpus"
    build(PreprocessSettings.parse({**preprocess_values(folder), "workers": 1}, "test"))
    return folder


def preprocess_values(output: Path) -> dict[str, Any]:
    """The `preprocess` section that makes `sample_corpus`, in `output`."""
    return {
        "input": {"paths": [str(ROOT / "pipeline" / "sample" / name) for name in ("zh", "en", "mixed")]},
        "output": str(output),
        "tokenizer": {"train": {"size": 3000}},
        "validation_share": 0.1,
        "part_bytes": 100_000,
    }


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw text in two forms with duplicates, a bad line and an empty file, and a vocabulary of its characters."""
    from tests.raw_text import write_raw

    folder = tmp_path_factory.mktemp("raw")
    write_raw(folder)
    return folder


@pytest.fixture(scope="session")
def reference(raw: Path) -> dict[str, bytes]:
    """The corpus of `raw` that every stage of `reread preprocess` leaves when nothing disturbs it."""
    from tests.raw_text import EVERY_STAGE, contents, make

    make(raw, raw / "reference", **EVERY_STAGE)
    return contents(raw / "reference")


@pytest.fixture(scope="session")
def uninterrupted(sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run (tests.runs) that nothing happened to; leave it as it is."""
    from tests.runs import finish, start

    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    finish(start(folder, sample_corpus))
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


def span_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The same with spans masked, and predicted from the tokens around them."""
    values = train_values(corpus, **changes)
    values["model"]["span_boundary"] = True
    values["data"]["masking"] = {"strategy": "span"}
    return values


def document_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The `train` section of a tiny ERNIE-Doc on `corpus`, dropout on; most documents have several segments."""
    model = {
        "type": "ernie_doc",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 48,
        "memory_length": 16,
    }
    data = {"kind": "segments", "corpus": str(corpus), "sequence_length": 48}
    optimizer = {"name": "adam", "learning_rate": 0.003, "eps": 1e-4}  # a small eps makes much of rounding
    return train_values(corpus, **{"model": model, "data": data, "optimizer": optimizer, **changes})


def stream_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The `train` section of a tiny Transformer-XL with Segatron positions on `corpus`, dropout on."""
    model = {
        "type": "transformer_xl",
        "d_model": 32,
        "d_embed": 32,
        "n_head": 4,
        "d_head": 8,
        "d_inner": 64,
        "n_layer": 2,
        "mem_len": 16,
        "cutoffs": [1000, 2000],
        "div_val": 2,
        "recurrence": "enhanced",
        "positions": "segatron-exact",
    }
    data = {
        "kind": "stream",
        "corpus": str(corpus),
        "sequence_length": 24,
        "evaluation_length": 8,
        "evaluation_memory": 32,
    }
    optimizer = {"name": "adam", "learning_rate": 0.003, "eps": 1e-4}  # a small eps makes much of rounding
    return train_values(corpus, **{"model": model, "data": data, "optimizer": optimizer, **changes})


def ran_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The `train` section of a tiny RAN on rows of several windows of `corpus`, dropout on."""
    model = {
        "type": "ran",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_size": 8,
        "window_size": 12,
        "min_window_size": 4,
    }
    data = {"corpus": str(corpus), "sequence_length": 48, "next_sentence": False, "special_tokens": False}
    optimizer = {"name": "adam", "learning_rate": 0.003, "eps": 1e-4}
    return train_values(corpus, **{"model": model, "data": data, "optimizer": optimizer, **changes})


def ran_stream_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The same model as a language model that hands its cells from segment to segment."""
    data = {
        "kind": "stream",
        "corpus": str(corpus),
        "sequence_length": 24,
        "evaluation_length": 24,
        "evaluation_memory": 48,
    }
    return ran_values(corpus, **{"data": data, **changes})


def ran_words_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """That language model with adaptive word vectors and softmax."""
    values = ran_stream_values(corpus, **changes)
    values["model"] |= {"cutoffs": [1000, 2000], "div_val": 2}
    return values


def longformer_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The `train` section of a tiny Longformer on packed rows of several windows of `corpus`, dropout on."""
    model = {
        "type": "longformer",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 49,
        "attention_window": 8,
    }
    data = {"kind": "packed", "corpus": str(corpus), "sequence_length": 48}
    optimizer = {"name": "adam", "learning_rate": 0.003, "eps": 1e-4}
    return train_values(corpus, **{"model": model, "data": data, "optimizer": optimizer, **changes})
