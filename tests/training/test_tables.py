"""The names that settings and models accept, against the tables that say what they mean."""

from typing import Any, cast, get_args

import numpy as np

from reread.preprocessing import corpus
from reread.preprocessing.corpus import writer
from reread.training.config import OptimizerSettings
from reread.training.data.kinds import KINDS
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.classify import ClassifySettings
from reread.training.data.tasks.settings import TaskSettings
from reread.training.models import MODELS, model_spec
from reread.training.objectives import OBJECTIVES
from reread.training.optim.build import OPTIMIZERS
from reread.training.scoring.task_scores import SCORES


def test_settings_name_the_optimisers_of_the_table() -> None:
    assert set(get_args(OptimizerSettings.model_fields["name"].annotation)) == set(OPTIMIZERS)


def test_heads_and_kinds_of_data_name_objectives_of_the_table() -> None:
    assert {name: objective.name for name, objective in OBJECTIVES.items()} == {name: name for name in OBJECTIVES}
    assert {name for model in MODELS for name in model_spec(model).heads} == set(OBJECTIVES)
    # The claims of benchmarks/ add objectives of their own, where a test has imported them before.
    ours = {name for name, objective in OBJECTIVES.items() if objective.__module__.startswith("reread.")}
    assert {kind.objective for kind in KINDS.values()} == ours
    assert {kind for objective in OBJECTIVES.values() for kind in objective.kinds} <= set(KINDS)


def test_kinds_of_data_have_settings_of_their_name() -> None:
    named = {name: get_args(kind.settings.model_fields["kind"].annotation) for name, kind in KINDS.items()}
    assert named == {name: (name,) for name in KINDS}


def test_every_task_has_scores_and_each_row_of_scores_is_of_a_task() -> None:
    tasks = {name: kind.settings for name, kind in KINDS.items() if kind.settings.is_task}
    answers = get_args(ClassifySettings.model_fields["answer"].annotation)
    of_each: dict[str, list[dict[str, Any]]] = {"classify": [{"answer": one} for one in answers]}
    of_each["answer"] = [{"form": one} for one in get_args(AnswerSettings.model_fields["form"].annotation)]
    of_each["answer"].append({"form": "marked", "answers": False})
    of_each["embed"] = [{"measure": "similarity"}, {"measure": "retrieval"}]
    found = {
        cast(TaskSettings, settings.model_construct(kind=kind, **values)).scored_as
        for kind, settings in tasks.items()
        for values in of_each.get(kind, [{}])
    }
    assert found == set(SCORES)


def test_every_flag_of_a_token_has_a_bit_of_its_own() -> None:
    flags = {name: int(value) for name, value in vars(writer).items() if isinstance(value, np.uint8)}
    assert {"CONTINUES_WORD", "SENTENCE_END", "PARAGRAPH_END"} <= set(flags)
    assert all(flag.bit_count() == 1 for flag in flags.values())
    assert len(set(flags.values())) == len(flags)
    assert set(flags) <= set(corpus.__all__)
