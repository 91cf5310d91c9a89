"""RAN's convolution over characters, against its definition, and in a model that is trained, exported and predicts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.training.exchange.words import start_from_words
from reread.training.models.build import build_model
from reread.training.models.ran.characters_ran import REACH, RanCharacters, characters_of
from reread.training.models.ran.configuration_ran import RanConfig
from reread.training.models.ran.modeling_ran import RanForMaskedLM, RanForTokenClassification
from reread.training.objectives.tag import TagObjective
from reread.training.objectives.task import WindowReader
from tests.tasks import objective_of, task_values

WORDS = [("Aé", "b", "x" * 40), ("c",)]
LABELS = ["O", "B-X", "I-X"]


def example(number: int, words: tuple[str, ...]) -> TagExample:
    return TagExample(str(number), f"f:{number}", words, tuple("O" for _ in words), " ")


def sizes(**more: Any) -> dict[str, Any]:
    small = {"hidden_size": 12, "num_attention_heads": 2, "head_size": 4, "window_size": 3, "min_window_size": 1}
    return {"type": "ran", **small, **more}


def test_a_filter_is_the_maximum_of_its_products_over_a_word() -> None:
    torch.manual_seed(0)
    layer = RanCharacters(5).double()
    layer.draw()
    torch.nn.init.normal_(layer.bias)
    characters = characters_of([["Aé", None, "x" * 40]])
    assert characters.shape == (1, 3, 32)
    found = layer(characters)[0]
    filters = layer.weight.view(5, REACH, -1)
    for place, word in ((0, "Aé".encode()), (2, b"x" * 32)):
        table = [
            torch.zeros(30, dtype=torch.float64),
            *(layer.table[1 + byte] for byte in word),
            torch.zeros(30).double(),
        ]
        sums = [
            sum(filters[:, reach] @ table[begin + reach] for reach in range(REACH)) + layer.bias
            for begin in range(len(word))
        ]
        torch.testing.assert_close(found[place], torch.stack(sums).max(0).values, rtol=0, atol=1e-12)
    assert not found[1].any()
    torch.testing.assert_close(layer(characters_of([["Aé"]]))[0], found[:1], rtol=0, atol=0)  # padding changes nothing


@pytest.fixture
def start(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {' '.join([str(n + 1)] * 8)}\n" for n, word in enumerate(["b", "aé", "far", "C"])))
    examples = [example(number, words) for number, words in enumerate([*WORDS, ("often", "often")])]
    start_from_words(tmp_path / "start", sizes(character_filters=4), "tag", examples, size=7, path=path, seed=1)
    return tmp_path / "start"


def test_words_begin_with_their_vectors(start: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As written, else in lower case; what comes once without a vector is unknown; then the file's other words."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(start)
    table = build_model(RanForTokenClassification, RanConfig.from_pretrained(start), start, 0).get_input_embeddings()
    for word, value in {"Aé": 2, "b": 1, "far": 3, "C": 4}.items():
        assert table.weight[tokenizer.convert_tokens_to_ids(word)].unique().tolist() == [value]
    assert len(table.weight[tokenizer.convert_tokens_to_ids("often")].unique()) == 8
    assert tokenizer("c " + "x" * 40).input_ids == [tokenizer.unk_token_id] * 2


def test_rows_hold_what_the_exported_model_makes_of_words(start: Path) -> None:
    """Windows too: rows of training and of the exported model's own reading give the same tags' logits."""
    values = task_values("ran", "tag", start, labels=LABELS, characters=True, sequence_length=8, step=2)
    values["model"] |= {"hidden_size": 12, "character_filters": 4}
    words = ("Aé", "b", "zzz", "q", "far", "C", "often", "1", "2", "3", "4")
    objective = objective_of(values, [example(0, words), *(example(1 + n, one) for n, one in enumerate(WORDS))])
    assert isinstance(objective, TagObjective)
    dataset: Any = objective.dataset
    for index, one in enumerate(dataset.examples):
        ids = torch.tensor(dataset.documents[index].ids)[None].long()
        whole = objective.model(ids, characters=objective.model.characters_of([one.tokens])).logits[0]
        read: dict[Any, Any] = {}
        reader = WindowReader(objective)
        for rows in dataset.passes([index], 8, training=False):
            for row, logits in enumerate(reader.forward(rows).logits):
                read[0, int(rows["window"][row])] = logits.detach().numpy()[rows["attention_mask"][row] == 1]
        found: list[Any] = []
        dataset.decode(index, read, lambda logits, kept=found: (kept.append(logits), logits.argmax(-1))[1])
        torch.testing.assert_close(torch.from_numpy(found[0]), whole, rtol=0, atol=1e-12)


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(ValueError, match="would show the words to predict"):
        RanForMaskedLM(RanConfig(**{key: one for key, one in sizes(character_filters=4).items() if key != "type"}))
    with pytest.raises(ValueError, match="fewer than hidden_size 12"):
        RanConfig(hidden_size=12, character_filters=12)
    model = RanForTokenClassification(RanConfig(hidden_size=12, head_size=4, num_attention_heads=2, vocab_size=9))
    with pytest.raises(ValueError, match="`characters` are for a model with character_filters"):
        model(torch.ones(1, 2, dtype=torch.long), characters=torch.ones(1, 2, 3, dtype=torch.long))
    config = RanConfig(hidden_size=12, character_filters=4)
    with pytest.raises(UserError, match="which `tag` alone has"):
        TagObjective.check(config, type("Other", (), {"retrospective": False, "pooled_by": None, "kind": "phrases"})())
