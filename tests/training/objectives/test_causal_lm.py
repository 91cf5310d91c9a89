"""CausalLMObjective on held-out text, compared in float64 with independent loops over that text."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.random_corpus import write_corpus
from reread.preprocessing.corpus import CONTINUES_WORD, PARAGRAPH_END, SENTENCE_END
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.objectives.causal_lm import CausalLMObjective
from reread.training.parallel.mesh import Mesh
from tests.conftest import ran_stream_values, stream_values, thinned

VOCABULARY, LENGTH, MEMORY = 60, 8, 24
KINDS = {"transformer_xl": stream_values, "ran": ran_stream_values}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with 597 held-out tokens, not a multiple of the segment length, in documents of several lengths."""
    generator = np.random.default_rng(0)
    documents = []
    for length in (50, 3, 211, 1, 332):
        flags = (generator.random(length) < 0.4) * CONTINUES_WORD | (generator.random(length) < 0.1) * SENTENCE_END
        flags |= (generator.random(length) < 0.03) * PARAGRAPH_END
        documents.append((generator.integers(5, VOCABULARY, length), flags.astype(np.uint8)))
    folder = tmp_path_factory.mktemp("lm") / "corpus"
    return write_corpus(folder, {"train": documents[:1], "validation": documents}, VOCABULARY)


def objective_for(kind: str, corpus: Path, mesh: Mesh | None = None, **data: Any) -> Any:
    values = KINDS[kind](corpus, global_batch=4)
    values["data"] |= {"evaluation_length": LENGTH, "evaluation_memory": MEMORY, **data}
    if kind == "transformer_xl":
        values["model"] |= {"cutoffs": [20, 40], "same_length": True, "clamp_len": 20}
    settings = TrainSettings.parse(values, "test")
    dataset, held_out = (open_dataset(settings.data, settings.seed, split) for split in ("train", "validation"))
    spec = model_spec(kind)
    config = model_config(spec, settings.model, VOCABULARY, None)
    model = build_model(spec.heads["causal_lm"], config, None, settings.seed).double().eval()
    return CausalLMObjective(model, settings, mesh or Mesh(), dataset, held_out)


def text_of(objective: Any) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Ids and flags of all held-out text, concatenated."""
    documents = [objective.held_out.corpus.document(number) for number in range(objective.held_out.corpus.documents)]
    ids, flags = (np.concatenate(arrays) for arrays in zip(*documents, strict=True))
    return ids.astype(np.int64), flags


def everything(objective: Any) -> torch.Tensor:
    """The figures of all held-out text."""
    return objective.evaluate(objective.held_out, None)  # type: ignore[no-any-return]


@torch.no_grad()
def naive(objective: Any, begin: int, end: int, step: int = LENGTH) -> torch.Tensor:
    """-log p of the tokens begin + 1 ... end of the text, one segment after the other in a batch of one."""
    ids, flags = text_of(objective)
    losses, mems = [], None
    for start in range(begin, end, step):
        here = slice(start, min(start + step, end))
        arguments: dict[str, Any] = {}
        if hasattr(objective.model, "softmax"):
            ends = {"sentence_ends": SENTENCE_END, "paragraph_ends": PARAGRAPH_END}
            arguments = {name: torch.from_numpy(flags[None, here] & bit != 0) for name, bit in ends.items()}
            arguments["mem_len"] = MEMORY
        output = objective.model(torch.from_numpy(ids[None, here]), mems=mems, **arguments)
        probabilities = output.logits[0].double().softmax(-1)
        following = torch.from_numpy(ids[here.start + 1 : here.stop + 1])
        losses.append(-probabilities[torch.arange(len(following)), following].log())
        mems = output.mems
    return torch.cat(losses)


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(KINDS, 2))
def test_the_perplexity_of_one_lane_is_that_of_a_loop_over_the_whole_text(kind: str, corpus: Path, caplog: Any) -> None:
    """By default `reread evaluate` reads as papers do, and logs it."""
    objective = objective_for(kind, corpus)
    with caplog.at_level(logging.INFO, "reread"):
        sums = dict(zip(objective.figures, everything(objective).tolist(), strict=True))
    assert "1 lane reads all text, as for the figures of papers" in caplog.text
    ids, flags = text_of(objective)
    losses = naive(objective, 0, len(ids) - 1)
    words = int((flags[1:] & CONTINUES_WORD == 0).sum())
    assert (sums["predicted"], sums["words"]) == (len(ids) - 1, words) == (596, words)
    found = objective.summary(sums, 1)
    assert found["perplexity"] == pytest.approx(math.exp(float(losses.sum()) / words), rel=1e-10)
    assert found["token_perplexity"] == pytest.approx(math.exp(float(losses.mean())), rel=1e-10)
    several = objective_for(kind, corpus, evaluation_lanes=3)
    with caplog.at_level(logging.INFO, "reread"):
        other = dict(zip(objective.figures, everything(several).tolist(), strict=True))
    assert "3 lanes, each of which begins without memory" in caplog.text
    assert other["predicted"] == 596 and other["nll_sum"] != pytest.approx(sums["nll_sum"], rel=1e-4)
    parts = [naive(objective, lane * 597 // 3, min((lane + 1) * 597 // 3, 596)) for lane in range(3)]
    assert other["nll_sum"] == pytest.approx(float(torch.cat(parts).sum()), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(KINDS, 2))
def test_one_lane_is_the_same_bit_for_bit_on_any_number_of_processes(kind: str, corpus: Path) -> None:
    alone = everything(objective_for(kind, corpus))
    for ranks in (2, 3):
        shares = [
            everything(objective_for(kind, corpus, Mesh(r, ranks, data_rank=r, data_size=ranks))) for r in range(ranks)
        ]
        assert sorted(bool(share.any()) for share in shares) == [False] * (ranks - 1) + [True]
        assert torch.equal(sum(shares), alone)


def test_overlapping_sequences_count_each_token_once_with_its_context(corpus: Path) -> None:
    """Without a memory, whatever the number of processes; at the beginning of the text there is less before a token."""
    context = 21
    objective = objective_for("transformer_xl", corpus, evaluation_context=context, evaluation_lanes=3)
    ids, flags = text_of(objective)
    expected = []
    for first in range(0, len(ids) - 1, LENGTH):
        begin = max(first - context, 0)
        after = min(first + LENGTH, len(ids) - 1) - first
        expected.append(naive(objective, begin, first + after, step=context + LENGTH)[-after:])
    losses = torch.cat(expected)
    for ranks in (1, 3):
        shares = [
            everything(
                objective_for(
                    "transformer_xl", corpus, Mesh(r, ranks, data_rank=r, data_size=ranks), evaluation_context=context
                )
            )
            for r in range(ranks)
        ]
        sums = dict(zip(objective.figures, sum(shares).tolist(), strict=True))  # type: ignore[union-attr]
        assert sums["predicted"] == len(losses) == 596
        assert sums["words"] == int((flags[1:] & CONTINUES_WORD == 0).sum())
        assert sums["nll_sum"] == pytest.approx(float(losses.sum()), rel=1e-10)
        assert objective.summary(sums, 1)["bits_per_token"] == pytest.approx(float(losses.mean()) / math.log(2))
    some = dict(zip(objective.figures, objective.evaluate(objective.held_out, 2).tolist(), strict=True))
    assert some["predicted"] == 2 * 4 * LENGTH, "two steps of the global batch"
    chosen = torch.stack([expected[number].sum() for number in np.arange(8) * 75 // 8])
    assert some["nll_sum"] == pytest.approx(float(chosen.sum()), rel=1e-10), "from all over the text"


@pytest.mark.parametrize("kind", thinned(KINDS, 2))
def test_validation_counts_tokens_that_have_a_memory_behind_them(kind: str, corpus: Path) -> None:
    """Each lane's first tokens fill the memory and are not counted, unless shares are short; then all count."""
    objective = objective_for(kind, corpus)
    sums = dict(zip(objective.figures, objective.evaluate(objective.held_out, 2).tolist(), strict=True))
    expected = []
    for lane in range(4):
        begin = lane * 597 // 4
        expected.append(naive(objective, begin, begin + MEMORY + 2 * LENGTH)[MEMORY:])
    assert sums["predicted"] == 4 * 2 * LENGTH
    assert sums["nll_sum"] == pytest.approx(float(torch.cat(expected).sum()), rel=1e-10)
    assert (
        dict(zip(objective.figures, objective.evaluate(objective.held_out, 1000).tolist(), strict=True))["predicted"]
        == 596
    )
    nearly = dict(
        zip(objective.figures, objective.evaluate(objective.held_out, 18).tolist(), strict=True)
    )  # of 19 steps
    assert nearly["predicted"] == 596 - 4 * LENGTH
