"""The part of a report about a fine-tuned model: classes, scores by class, confusion, baselines, the worst errors."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from reread.pipeline.display.scores import keep_baselines
from reread.pipeline.recipe.load import write_recipe
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.report.page import report
from reread.training.run.metrics import keep_mistakes
from tests.browser import CHROMIUM, browser
from tests.pipeline.commands import test_finetuning

folder = test_finetuning.folder  # a model, train.jsonl with 8 texts of class x and 4 of y, and tune.yaml

FOUND: dict[str, Any] = {
    "step": 6,
    "examples": 4,
    "wrong": 3,
    "classes": [["x", 2, 1, 1], ["y", 2, 3, 2]],
    "confusion": {"labels": ["x", "y"], "rows": [[1, 1], [0, 2]]},
    "worst": [{"id": "7", "text": "<script>alert(1)</script> & 中", "gold": "x (0.10)", "predicted": "y (0.90)"}],
}


@pytest.fixture
def tuned(folder: Path) -> Path:
    run = folder / "runs" / "tune"
    shutil.copytree(folder / "model", run / "model")
    write_recipe(finetune_recipe("tune.yaml", ["init=model"]), run / "recipe.yaml")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 6, "loss": 0.5, "validation_accuracy": 25.0}) + "\n")
    (run / "scores.json").write_text(json.dumps({"dev": {"accuracy": 25.0}}))
    return run


def page_of(run: Path) -> str:
    report([run], run / "report.html")
    return (run / "report.html").read_text(encoding="utf-8")


def rows(page: str, title: str) -> list[list[str]]:
    """The cells of the table below a title."""
    table = page[page.index(f"<h3>{title}") :].partition("</table>")[0]
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tr>")[1:]]


def test_the_report_of_a_fine_tuned_run_shows_what_was_computed(tuned: Path) -> None:
    keep_mistakes(tuned, "dev.jsonl", FOUND)
    keep_baselines(tuned, Path("dev.jsonl"), {"majority": {"accuracy": 75.0}})
    page = page_of(tuned)
    assert rows(page, "Classes: examples of each") == [["class", "train", "dev"], ["x", "8", "2"], ["y", "4", "2"]]
    assert rows(page, "Scores by class, dev.jsonl: 3 of 4 wrong, step 6")[1:] == [
        ["x", "2", "1", "1", "100.0", "50.0", "66.7"],
        ["y", "2", "3", "2", "66.7", "100.0", "80.0"],
    ]
    assert rows(page, "Gold classes (rows) and predicted ones") == [["", "x", "y"], ["x", "1", "1"], ["y", "0", "2"]]
    assert rows(page, "The worst errors")[1] == [
        "7",
        "&lt;script&gt;alert(1)&lt;/script&gt; &amp; 中",
        "x (0.10)",
        "y (0.90)",
    ]
    cells = [row for row in rows(page, "reread finetune, on held-out examples") if row[0] == "tune, baseline: majority"]
    assert cells == [["tune, baseline: majority", "75.00", "dev.jsonl"]]
    assert "<script" not in page
    train, dev = rows(page, "Lengths in tokens")[1:]
    assert rows(page, "Lengths in tokens")[0][2:] == ["50 %", "90 %", "95 %", "99 %", "largest", "mean"]
    assert (train[:2], dev[:2]) == (["train", "of a text"], ["dev", "of a text"])
    lengths = sorted(len(one["text"].split()) for one in test_finetuning.TEXTS)
    assert train[2:] == [*(str(lengths[place]) for place in (5, 10, 11, 11, 11)), f"{sum(lengths) / 12:.1f}"]


@pytest.mark.parametrize(
    "damage", ["", "null", "[]", '{"dev.jsonl": {"step": 1}}', '{"dev.jsonl": {"classes": [[1]]}}']
)
def test_damaged_files_are_left_out(damage: str, tuned: Path) -> None:
    for name in ("mistakes.json", "baselines.json"):
        (tuned / name).write_text(damage)
    (tuned.parents[1] / "train.jsonl").unlink()
    page = page_of(tuned)
    assert "keeps what it gets wrong" in page and "Classes: " not in page


def test_what_is_kept_is_that_of_the_last_evaluation_of_each_file(tuned: Path) -> None:
    for file, wrong in (("dev.jsonl", 3), ("test.jsonl", 2), ("dev.jsonl", 1)):
        keep_mistakes(tuned, file, {**FOUND, "wrong": wrong})
    page = page_of(tuned)
    assert "dev.jsonl: 1 of 4 wrong" in page and "test.jsonl: 2 of 4 wrong" in page and "3 of 4 wrong" not in page


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium (Debian's package chromium)")
def test_in_a_browser_the_tables_are_no_wider_than_a_phone(tuned: Path) -> None:
    labels = [f"class {number} of many" for number in range(20)]
    wide = {"labels": labels, "rows": [[5] * 20] * 20}
    worst = [{**FOUND["worst"][0], "text": "w" * 400, "gold": "g" * 300}] * 20
    keep_mistakes(tuned, "dev.jsonl", {**FOUND, "confusion": wide, "worst": worst})
    page_of(tuned)
    with browser(tuned / "profile") as page:
        for width in (390, 1440):
            page.show(tuned / "report.html", width)
            assert page.complaints == []
            assert page.value("document.documentElement.scrollWidth") == width
