"""A target that is written of its source: what is learned, what each token sees, and how targets are found."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.generate import GenerateExample
from reread.preprocessing.tokens.wordpiece import WordPiece
from reread.training.assembly import head_of
from reread.training.config import TrainSettings
from reread.training.data.kinds import KINDS
from reread.training.models import model_spec
from reread.training.models.beams import beam_search
from reread.training.objectives.generate import GenerateObjective
from tests.tasks import SPECIAL, WORDS, dataset_of, number_of, objective_of, task_values, write_lines, write_tokenizer

CLS, SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
PAIRS = [("a b c d e f g h", "a b"), ("c", "d e f"), ("h g f e d c b a b c d e f", "q")]
"""Sources of several windows of 5 tokens, of less than one, and one that is cut."""
ROOM = 9


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def examples(pairs: Any = PAIRS) -> list[GenerateExample]:
    return [GenerateExample(str(number), f"a:{number}", *pair) for number, pair in enumerate(pairs)]


def values_of(tokenizer: Path, **more: Any) -> dict[str, Any]:
    return task_values("ran", "generate", tokenizer, **{"sequence_length": ROOM + 6, "target_length": 3, **more})


def objective(tokenizer: Path, **more: Any) -> GenerateObjective:
    found = objective_of(values_of(tokenizer, **more), examples())
    assert isinstance(found, GenerateObjective)
    return found


def ids(text: str) -> list[int]:
    return [number_of(letter) for letter in text.split()]


def of_row(model: Any, source: list[int], target: list[int]) -> Tensor:
    """Log-probabilities [L, V] behind each token of one row without padding, by the plain form of the model's call."""
    row, segments = [CLS, *source, SEP, *target], [0] * (len(source) + 2) + [1] * len(target)
    output = model(torch.tensor([row]), segment_ids=torch.tensor([segments]))
    return output.logits[0].log_softmax(-1)  # type: ignore[no-any-return]


def test_the_loss_is_the_mean_negative_log_probability_of_the_targets_tokens_and_its_end(tokenizer: Path) -> None:
    learned = objective(tokenizer)
    batch = list(learned.dataset.step_passes(0, 3, 2, 1, 0))
    assert len(batch) == 2  # two passes, with padding in the first
    totals = {name: float(value) for name, value in learned.counts(batch).items()}
    loss = sum(one.loss for one in learned.losses(batch, totals, 0))
    expected = []
    for source, target in PAIRS:
        shown, wanted = ids(source)[:ROOM], [*ids(target), SEP]
        found = of_row(learned.model, shown, ids(target))
        expected += [-found[len(shown) + 1 + place, token] for place, token in enumerate(wanted)]
    assert totals == {"predicted": len(expected)}
    assert loss.item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-12)


@pytest.mark.parametrize("length", [2, 3])
def test_no_token_sees_a_later_one_of_the_target_and_the_source_sees_none_of_it(tokenizer: Path, length: int) -> None:
    """By gradients. [CLS], a source of 3 and [SEP] are a window of 5 tokens; with a source of 2 the first token of the
    target is in theirs."""
    model = objective(tokenizer).model
    row = torch.tensor([[CLS, *range(5, 5 + length), SEP, 6, 7, 8, 9, 10, 11, SEP]])
    begin = length + 2
    segments = (torch.arange(row.shape[1]) >= begin).long()[None]
    words = model.ran.embeddings.table(row).detach().requires_grad_()
    logits = model(inputs_embeds=words, segment_ids=segments).logits
    for place in range(row.shape[1]):
        (gradient,) = torch.autograd.grad(logits[0, place].square().sum(), words, retain_graph=True)
        seen = gradient[0].abs().sum(-1) > 0
        assert not seen[max(begin, place + 1) :].any()
        assert seen[place] and (place < begin or seen[:begin].all())


def best_of_all(model: Any, source: list[int], most: int, letters: list[int]) -> list[int]:
    """The best target by scoring every one, token by token."""
    found: dict[tuple[int, ...], float] = {}
    for count in range(1, most + 1):
        for target in itertools.product(letters, repeat=count):
            logs = of_row(model, source, list(target))
            each = [logs[len(source) + 1 + place, token] for place, token in enumerate([*target, SEP])]
            found[target] = torch.stack(each if count < most else each[:-1]).mean().item()
    return list(max(found, key=lambda target: found[target]))


@pytest.mark.parametrize("most", [2, 3])
def test_enough_beams_find_the_best_of_all_targets(tokenizer: Path, most: int) -> None:
    """As many as there are targets without their last token: for two tokens, those of the vocabulary."""
    model, letters = objective(tokenizer).model, ids("a b c"[: 5 if most < 3 else 3])
    banned = [token for token in range(len(SPECIAL) + 27) if token not in letters]
    source = ids(PAIRS[0][0])
    row = torch.tensor([[CLS, *source, SEP]])
    beams = len(letters) ** (most - 1) + (most > 2) * len(letters) + 1
    found = model_search(model, row, most, beams, banned)[0]
    assert without_end(found) == best_of_all(model, source, most, letters)


def model_search(model: Any, row: Tensor, most: int, beams: int, banned: Any = ()) -> Tensor:
    given = {"beams": beams, "longest": most, "end": SEP, "banned": banned}
    return beam_search(lambda **inputs: model(**inputs).logits, row, (row != 0).long(), **given)


def without_end(tokens: Tensor) -> list[int]:
    return list(itertools.takewhile(lambda token: token != SEP, tokens.tolist()))


def test_one_beam_is_greedy_and_a_batch_changes_nothing(tokenizer: Path) -> None:
    model = objective(tokenizer).model
    sources = [ids(source) for source, _ in PAIRS]
    rows = torch.zeros(3, 2 + max(map(len, sources)), dtype=torch.long)
    for row, source in zip(rows, sources, strict=True):
        row[: len(source) + 2] = torch.tensor([CLS, *source, SEP])
    for number, source in enumerate(sources):
        target: list[int] = []
        while len(target) < 4 and SEP not in target:
            logs = of_row(model, source, target)[-1]
            logs[[] if target else SEP] = -torch.inf
            target.append(int(logs.argmax()))
        greedy = model_search(model, rows, 4, 1)[number]
        assert without_end(greedy) == [token for token in target if token != SEP]
        alone = model_search(model, rows[number : number + 1, : len(source) + 2], 4, 3)[0]
        assert without_end(alone) == without_end(model_search(model, rows, 4, 3)[number])


def test_equal_targets_have_an_order(tokenizer: Path) -> None:
    found = beam_search(
        lambda input_ids, **_: torch.zeros(len(input_ids), 8, dtype=torch.float64),
        *(torch.tensor([[CLS, 5, SEP]]), torch.ones(1, 3, dtype=torch.long)),
        **{"beams": 4, "longest": 3, "end": SEP, "banned": [0, 1, 2]},
    )
    assert without_end(found[0]) == [4]  # the first of the better beams ends: all means are equal


def test_predictions_are_texts_of_the_targets_and_marks_of_a_row_are_the_target(tokenizer: Path) -> None:
    learned = objective(tokenizer, beams=2)
    data = learned.held_out
    found = learned.predict(data)
    for number, (source, _) in enumerate(PAIRS):
        row = torch.tensor([[CLS, *ids(source)[:ROOM], SEP]])
        tokens = without_end(model_search(learned.model, row, 3, 2, [0, 1, 2, 4])[0])
        assert found[number] == " ".join([*SPECIAL, *WORDS][one] for one in tokens)
    title, row = list(data.preview())[2]
    assert title.endswith("window 1 of 1: target: q")
    (mark,) = data.marks(row)
    assert row["input_ids"][0, mark.first : mark.last + 1].tolist() == [*ids("q"), SEP]
    assert dict(data.coverage())["tokens read"].endswith("; 1 examples are cut")
    assert {name: [*values] for name, values in data.lengths().items()} == {
        "of a text": [8, 1, 13],
        "of a target": [2, 3, 1],
    }


def test_chinese_is_written_without_blanks(tmp_path: Path) -> None:
    vocabulary = [*SPECIAL, *"中国北京，", "gdp", "in", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    WordPiece(tmp_path / "vocab.txt", vocabulary, True).save(tmp_path)
    data = dataset_of(values_of(tmp_path), examples([("中国", "北京")]))
    tokens = [vocabulary.index(one) for one in ("中", "国", "，", "gdp", "in", "##s", "北", "[SEP]", "京")]
    assert data.decode(0, {(0, 0): np.array(tokens, float)}) == "中国，gdp ins北"


def test_what_is_wrong_with_a_target_or_a_length_is_one_line(tokenizer: Path, tmp_path: Path) -> None:
    def opened(lines: list[dict[str, Any]], split: str = "train", **more: Any) -> Any:
        file = str(write_lines(tmp_path / "a.jsonl", lines))
        values = values_of(tokenizer, train=file, dev=file, **more)
        return KINDS["generate"].open(TrainSettings.parse(values, "test").data, 0, split)

    good, long = {"source": "a b", "title": "c"}, {"source": "a b", "title": "c d e f"}
    for lines, line in (
        ([good, long, long], r"a\.jsonl:2: target has more than task\.target_length=3 tokens \(the first of 2 such"),
        ([good, {"source": "a", "target": "\u200b"}], r"a\.jsonl:2: target has no token; correct it"),
        ([good, {"source": "a", "target": " "}], r"a\.jsonl:2: target is empty"),
        ([good, {"source": " ", "target": "a"}], r"a\.jsonl:2: source is empty"),
        ([good, {"target": "a"}], r"a\.jsonl:2: .*text: field required"),
    ):
        with pytest.raises(UserError, match=line):
            opened(lines)
    with pytest.raises(UserError, match=r"sequence_length: 8 leaves no room for a source beside task\.target_length=5"):
        _ = opened([good], "validation", sequence_length=8, target_length=5).documents
    held_out = opened([good, long], "validation")  # is scored
    assert "1 of 2 targets have more tokens than task.target_length=3" in held_out.remarks()[-1]
    settings = TrainSettings.parse({**values_of(tokenizer), "model": {"type": "nezha"}}, "test")
    with pytest.raises(UserError, match=r"train\.data\.kind: generate, but nezha learns from "):
        head_of(model_spec("nezha"), GenerateObjective, settings.data)
    assert json.loads(json.dumps(held_out.written(0, "c"))) == {"target": "c"}
