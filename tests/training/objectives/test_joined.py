"""Options in one row: the vocabulary's own tokens, and what an exported model reads in windows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.training.data.tasks.choose import MARKS
from reread.training.models import model_spec
from reread.training.models.build import build_model, copy_projections, model_config
from reread.training.models.longformer.spec import COPIED
from reread.training.objectives.choose import ChooseObjective
from tests.tasks import dataset_of, objective_of, task_values, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


EXAMPLE = ChooseExample(
    "a", "", " ".join("abcdefghij") + "\n" + " ".join("klmno" * 5), "t ?", ("p", "q r", "s"), 1, starts=(20,)
)


@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran"])
def test_an_exported_model_gives_options_the_means_of_its_windows(tokenizer: Path, model: str) -> None:
    values = task_values(model, "choose", tokenizer, form="joined", sequence_length=36)
    objective = objective_of(values, [EXAMPLE])
    data = objective.held_out
    found = objective.predict(data)[0]
    document = data.documents[0]
    assert document.windows > 1
    row = data.framing.row(document.ids.tolist(), [part.tolist() for part in document.options[0]], True)
    ids = torch.tensor([row.ids])
    types = {} if model == "ran" or not any(row.types) else {"token_type_ids": torch.tensor([row.types])}
    objective.model.config.sep_token_id = data.special["sep"]
    with torch.no_grad():
        logits = objective.model(input_ids=ids, **types).logits
    expected = logits[ids == data.own_tokens[2]].softmax(-1)
    assert np.allclose(found, expected.numpy(), rtol=1e-12)


def test_longformer_sees_question_and_options_from_everywhere(tokenizer: Path) -> None:
    objective = objective_of(task_values("longformer", "choose", tokenizer, form="joined"), [EXAMPLE])
    (rows,) = objective.dataset.passes([0], 1, training=True)
    marked = objective.model.global_tokens(torch.from_numpy(rows["input_ids"]).long())[0].tolist()
    first = rows["input_ids"][0].tolist().index(objective.dataset.special["sep"])
    assert marked == [place < first for place in range(len(marked))] and first > rows["places"].max()


def test_the_embedding_gets_rows_for_the_marks_and_keeps_the_others(tokenizer: Path, tmp_path: Path) -> None:
    values = task_values("nezha", "choose", tokenizer)
    data = dataset_of(values, [EXAMPLE])
    spec, head = model_spec("nezha"), model_spec("nezha").heads["choose"]
    sizes = {name: value for name, value in values["model"].items() if name != "type"}
    torch.manual_seed(0)
    start = head(model_config(spec, sizes, data.vocab_size, None, data.special))
    start.save_pretrained(tmp_path)
    config = model_config(spec, {"vocab_size": data.vocab_size + 4}, data.vocab_size + 4, tmp_path)
    with pytest.raises(UserError, match=r"does not fit train\.model"):
        build_model(head, config, tmp_path, 0)
    joined = dataset_of(task_values("nezha", "choose", tokenizer, form="joined"), [EXAMPLE])
    assert joined.own_tokens == list(range(data.vocab_size, data.vocab_size + 4)) and joined.vocab_size == 36
    ChooseObjective.configure(config, joined.settings)
    model = build_model(head, config, tmp_path, 0)
    ours, theirs = (one.get_input_embeddings().weight for one in (model, start))
    assert torch.equal(ours[:-4], theirs) and len(ours) == 36
    assert (ours[-4:].std(1) > 0).all() and (ours[-4:] - theirs.mean()).abs().max() < 6 * theirs.std()


def test_candidates_are_cut_between_their_marks_and_too_many_are_one_line(tokenizer: Path) -> None:
    values = task_values("nezha", "choose", tokenizer, form="joined", sequence_length=30, other_length=1)
    data = dataset_of(values, [EXAMPLE])
    marks = dict(zip(data.own_tokens, MARKS, strict=True))
    assert [marks.get(token, "") for token in data.documents[0].options[0][0].tolist()] == [
        *("[question]", "", "[/question]"),
        *("[ent]", "", "[/ent]") * 3,
    ]
    assert data.documents[0].unread == 2  # of the question and of the second option
    values["data"] |= {"sequence_length": 12, "other_length": None}
    with pytest.raises(UserError, match=r"12 leaves no room beside a question and its 3 options"):
        _ = dataset_of(values, [EXAMPLE]).documents


def test_global_tokens_may_share_projections_or_be_left_out(tokenizer: Path) -> None:
    """Shared ones are what `own` ones compute that are copies; without global tokens far texts change no option."""
    found = {}
    for how in ("own", "shared", "none"):
        values = task_values("longformer", "choose", tokenizer, form="joined", sequence_length=80)
        values["model"]["global_attention"] = how
        objective = objective_of(values, [EXAMPLE, replace(EXAMPLE, id="b", text=f"{EXAMPLE.text[:-1]}z")])
        if how == "own":
            copy_projections(objective.model, COPIED)
        found[how] = objective.predict(objective.held_out)
    assert np.allclose(found["own"][0], found["shared"][0], rtol=1e-12)
    assert not np.allclose(found["own"][0], found["own"][1]) and not np.allclose(found["own"][0], found["none"][0])
    assert np.array_equal(found["none"][0], found["none"][1])
    spec, config = model_spec("longformer"), objective.model.config
    assert (config.global_attention, spec.untrained(True, config), spec.untrained(False, config)) == (
        "none",
        COPIED,
        COPIED,
    )
    config.global_attention = "own"
    assert spec.untrained(True, config) == {}
    with pytest.raises(UserError, match=r"train\.model\.global_attention: input should be 'own', 'shared' or 'none'"):
        model_config(spec, {"global_attention": "shard"}, 40, None)
