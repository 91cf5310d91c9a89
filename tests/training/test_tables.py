"""The names that settings and models accept, against the tables that say what they mean."""

from typing import get_args

import numpy as np

from reread.preprocessing import corpus
from reread.preprocessing.corpus import writer
from reread.training.config import OptimizerSettings
from reread.training.data.kinds import KINDS
from reread.training.models import MODELS, model_spec
from reread.training.objectives import OBJECTIVES
from reread.training.optim.build import OPTIMIZERS


def test_settings_name_the_optimisers_of_the_table() -> None:
    assert set(get_args(OptimizerSettings.model_fields["name"].annotation)) == set(OPTIMIZERS)


def test_heads_and_kinds_of_data_name_objectives_of_the_table() -> None:
    assert {name: objective.name for name, objective in OBJECTIVES.items()} == {name: name for name in OBJECTIVES}
    used = {name for model in MODELS for name in model_spec(model).heads}
    assert used == set(OBJECTIVES)
    assert {kind.objective for kind in KINDS.values()} == used
    assert {kind for objective in OBJECTIVES.values() for kind in objective.kinds} <= set(KINDS)


def test_kinds_of_data_have_settings_of_their_name() -> None:
    named = {name: get_args(kind.settings.model_fields["kind"].annotation) for name, kind in KINDS.items()}
    assert named == {name: (name,) for name in KINDS}


def test_every_flag_of_a_token_has_a_bit_of_its_own() -> None:
    flags = {name: int(value) for name, value in vars(writer).items() if isinstance(value, np.uint8)}
    assert {"CONTINUES_WORD", "SENTENCE_END", "PARAGRAPH_END"} <= set(flags)
    assert all(flag.bit_count() == 1 for flag in flags.values())
    assert len(set(flags.values())) == len(flags)
    assert set(flags) <= set(corpus.__all__)
