"""The table of stages, and what names them elsewhere."""

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.execution.stages import STAGES, stages_of
from tests.conftest import ROOT
from tests.raw_text import STAGES as STAGES_OF_RAW_TEXT


def settings(**changes: object) -> PreprocessSettings:
    values = {"input": {"paths": ["x"]}, "output": "y", "tokenizer": {"path": "z"}} | changes
    return PreprocessSettings.parse(values, "test")


def test_settings_decide_which_stages_are_needed() -> None:
    def names(**changes: object) -> list[str]:
        return [stage.name for stage in stages_of(settings(**changes))]

    assert names() == ["read", "duplicates", "encode"]
    assert names(dedup={"documents": False}, tokenizer={"train": {}}) == ["read", "vocabulary", "encode"]
    assert names(dedup={"near": {}})[1:4] == ["duplicates", "signatures", "near-duplicates"]
    everything = names(dedup={"paragraphs": True, "near": {}, "evaluation": "x.tsv"}, tokenizer={"train": {}})
    assert everything == list(STAGES)
    assert [name for name in everything if name not in ("evaluation", "vocabulary")] == STAGES_OF_RAW_TEXT


def test_the_slurm_script_names_every_stage() -> None:
    comment = (ROOT / "slurm" / "preprocess.sbatch").read_text(encoding="utf-8")
    alone = comment.partition("A stage that is one task, ")[2].partition(", has --array=0")[0].replace(" or ", ", ")
    assert alone.split(", ") == [name for name, stage in STAGES.items() if stage.is_one_task]
    named = comment.partition("# STAGE is ")[2].partition(", in this order")[0].replace(" or ", ", ").split(", ")
    assert named == [name for name, stage in STAGES.items() if not stage.is_one_task]
