"""The rows of the table of peers: who is measured, at what, and why we are not ahead where we are not."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.peers.environments import REQUIREMENTS

LOADING = {
    "first": "first batch",
    "cold": "cold rows",
    "warm": "warm rows",
    "bytes": "bytes a cold row",
    "resume": "resuming at step 100,000",
}
STEPS = {"step 128": "step at 128", "step 512": "step at 512"}
TRAINING = {**STEPS, "epoch 128": "epoch at 128", "epoch 512": "epoch at 512"}


@dataclass(frozen=True)
class Case:
    name: str
    environment: str
    """Its requirements/NAME.txt."""
    package: str
    """Whose version the table shows."""
    job: str
    ours: tuple[str, str]
    """Module and function of a side."""
    theirs: tuple[str, str]
    measures: Mapping[str, str]
    """What each cost is of."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Why a cost is not below the peer's."""
    folder: str = "."
    """Of what text.py prepares."""
    writer: tuple[str, str] | None = None
    """Writes the peer's form of the text there, once."""
    score: str | None = None
    """A figure of both sides that is no cost."""
    needs: str | None = None
    """A file without which the case is not run."""

    @property
    def peer(self) -> str:
        pins = dict(line.split("==") for line in (REQUIREMENTS / f"{self.environment}.txt").read_text().split())
        found = next(version for name, version in pins.items() if name.split("[")[0] == self.package)
        return f"{self.package} {found}"


_IDS_ALONE = "it returns ids, ours masks words"
_INDEX = "it reads the beginning of a shard; ours an index, and then each row from another place"
_BUFFER = "it shuffles 1,000 windows that it reads one after the other, ours a pool of 2^21 tokens"
_CHECKED = "it returns ids; of ours a fifth is checking pages when they are first read, and half masking whole words"
_FLAGS = "both read all of this text: its tokens have 2 bytes, ours 3, with the boundaries of words and sentences"


def _loading(name: str, peer: str, job: str, why: Mapping[str, str], ours: str = "pools") -> Case:
    """`peer` names the functions and the environment."""
    environment = {"megatron": "megatron-core", "mosaicml": "mosaicml-streaming"}.get(peer, peer)
    sides = ("loading", ours), ("loading", peer), LOADING
    return Case(name, environment, environment, job, *sides, why, "tokens", ("loading", f"write_{peer}"))


CASES = (
    Case(
        "bert",
        "transformers",
        "transformers",
        "BERT by its Trainer",
        ("ours", "bert"),
        ("transformers_trainer", "bert"),
        TRAINING,
    ),
    Case(
        "nezha",
        "transformers-4.40",
        "transformers",
        "NEZHA by its Trainer",
        ("ours", "nezha"),
        ("transformers_trainer", "nezha"),
        TRAINING,
    ),
    Case(
        "megatron-bert",
        "megatron-core",
        "megatron-core",
        "BertModel",
        ("ours", "bert"),
        ("megatron_bert", "bert"),
        STEPS,
    ),
    Case(
        "finetuning",
        "transformers",
        "transformers",
        "fine-tuning our export, random weights, by its Trainer",
        ("ours", "finetune"),
        ("transformers_trainer", "finetune"),
        {"epochs": "six epochs"},
        score="accuracy",
        needs="train.tsv",
    ),
    _loading("megatron-data", "megatron", "indexed dataset, beside our pools", {"warm": _IDS_ALONE}),
    _loading(
        "megatron-data-whole",
        "megatron",
        "the same, beside our order of the whole corpus",
        {"cold": _FLAGS, "warm": _CHECKED, "bytes": _FLAGS},
        "whole",
    ),
    _loading("mosaicml", "mosaicml", "StreamingDataset", {}),
    Case(
        "mosaicml-remote",
        "mosaicml-streaming",
        "mosaicml-streaming",
        "the same at an address: an S3 server on this machine, an empty cache",
        ("remote", "pools"),
        ("remote", "mosaicml"),
        {cost: label for cost, label in LOADING.items() if cost != "warm"},
        folder="tokens",
        writer=("loading", "write_mosaicml"),
    ),
    _loading(
        "webdataset", "webdataset", "documents and a buffer", {"first": _INDEX, "cold": _BUFFER, "bytes": _BUFFER}
    ),
    Case(
        "datatrove",
        "datatrove",
        "datatrove",
        "exact deduplication, tokens",
        ("ours", "preprocess"),
        ("preprocessing_peers", "datatrove"),
        {"duplicates": "until duplicates are known", "corpus": "whole"},
        {"duplicates": "ours cleans the text before, and stores it compressed; it reads once, datatrove twice"},
    ),
    *(
        Case(
            name,
            "tokenizers",
            "tokenizers",
            f"with {name}: words and ids alone, beside our whole command",
            ("ours", "preprocess"),
            ("preprocessing_peers", name),
            {"corpus": "whole"},
        )
        for name in ("jieba", "rjieba")
    ),
)
