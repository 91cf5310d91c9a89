"""`reread report`: one page about runs, from what their folders hold."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.pipeline.recipe.load import load_recipe, write_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.report import curves
from reread.pipeline.report.drawing import MOST_POINTS, Line, moving_average, thinned
from reread.pipeline.report.figures import FIGURES
from reread.pipeline.report.page import report
from reread.pipeline.report.points import Points, read_points
from reread.pipeline.report.runs import Run, read_run
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.objectives import OBJECTIVES
from reread.training.run.metrics import keep_evaluation, read_metrics
from reread.training.trainer import train
from tests.browser import CHROMIUM, browser
from tests.conftest import train_values

EXAMPLES = ["The ferry crosses the [MASK] every morning.", "船[MASK]好了。"]


def write_run(folder: Path, corpus: Path, lines: list[dict[str, float]], **changes: Any) -> Path:
    """A run folder that nothing has trained."""
    folder.mkdir(parents=True)
    values = {"name": "tiny", "train": train_values(corpus, **changes), "description": "a <b>tiny</b> one"}
    write_recipe(Recipe.parse(values, "test"), folder / "recipe.yaml")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def some_lines(steps: int = 60) -> list[dict[str, float]]:
    """An ERNIE-Doc's: the order is known in every third step."""
    lines: list[dict[str, float]] = []
    for step in range(1, steps + 1):
        masked = 6.0 - step / steps
        order = {"reorder_loss": 3.5, "reorder_accuracy": 0.1} if step % 3 == 0 else {}
        speed = {
            "tokens_per_second": 2e4,
            "mfu": 0.4,
            "data_wait_share": 0.01,
            "learning_rate": 1e-4,
            "gradient_norm": 1.0,
        }
        lines.append(
            {"step": step, "time": 1e9 + 60 * step, "loss": masked, "masked_lm_loss": masked, **order, **speed}
        )
    return [
        *lines,
        {"step": steps, "validation_loss": 5.5, "validation_masked_lm_loss": 5.5, "validation_reorder_loss": 3.4},
    ]


@pytest.fixture(scope="module")
def trained(sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of 4 steps with two checkpoints, evaluated and fine-tuned; leave it as it is."""
    folder = tmp_path_factory.mktemp("report") / "runs" / "tiny"
    folder.mkdir(parents=True)
    recipe = Recipe.parse(
        {
            "name": "tiny",
            "train": train_values(sample_corpus, steps=4, checkpoint={"every_steps": 2, "keep": 2}),
            "examples": EXAMPLES,
        },
        "test",
    )
    write_recipe(recipe, folder / "recipe.yaml")
    assert isinstance(recipe.train, TrainSettings)
    train(recipe.train, folder)
    keep_evaluation(folder, {"step": 4, "overrides": [], "held_out": str(sample_corpus)}, {"masked_lm_loss": 7.125})
    tuned = write_run(folder.parent / "tuned", sample_corpus, [], init=str(folder / "export"))
    (tuned / "scores.json").write_text('{"dev": {"accuracy": 71.5}}')
    return folder


@pytest.fixture(scope="module")
def reported(trained: Path) -> tuple[str, dict[int, Any]]:
    """The page of that run, and what its model fills in at each checkpoint."""
    filled = report([trained])
    return (trained / "report.html").read_text(encoding="utf-8"), filled


def page_of(*folders: Path, out: Path) -> str:
    report(list(folders), out)
    return out.read_text(encoding="utf-8")


def test_the_page_of_a_run_has_all_of_it_and_loads_nothing(reported: tuple[str, dict[int, Any]]) -> None:
    page, _ = reported
    assert not re.search(r"(src|href)=\"(?!#|data:)|url\((?!#)|@import|<script", page)
    figures = ["masked-token loss, nats", "learning rate", "gradient norm", "MFU, %", "time spent waiting for data, %"]
    assert re.findall(r"<h3>([^<]*)</h3>\n<svg", page)[:1] == figures[:1]
    for title in (*figures, "tokens per second", "steps over time", "documents by length", "words by length"):
        assert re.search(rf"<h3>{title}</h3>\s*<svg", page), title
    assert "duplicate documents" in page and "pipeline/sample/zh" in page
    assert page.count('<mark class="masked">') > 3
    assert "1 attempt, 0 faults" in page and "<dd>done</dd>" in page
    assert "7.1250" in page and "71.50" in page and "from tiny" in page


def test_every_logged_figure_is_the_objectives_or_has_its_chart_in_the_table(trained: Path) -> None:
    objective = OBJECTIVES["masked_lm"]
    computed = set(objective.summary(dict.fromkeys(objective.figures, 1.0), 1))
    logged = {name for line in read_metrics(trained) for name in line if not name.startswith("validation_")}
    assert logged - set(FIGURES) <= computed
    assert not computed & set(FIGURES)
    assert set(FIGURES) <= logged | {"mfu"}  # which the log leaves out if the device's peak is not known


def test_each_checkpoint_fills_in_the_examples_and_what_was_filled_in_is_kept(
    trained: Path, reported: tuple[str, dict[int, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, first = reported
    assert list(first) == [2, 4] and list(first[2]) == EXAMPLES
    shares = [share for _, share in first[4][EXAMPLES[0]]]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True) and 0 < sum(shares) < 1
    assert first[2] != first[4]
    run = tmp_path / "tiny"
    shutil.copytree(trained, run)
    shutil.rmtree(next((run / "checkpoints").glob("step-*2")))
    assert report([run], tmp_path / "page.html") == first
    assert "step 2<" in (tmp_path / "page.html").read_text()
    os.utime(run / "fills.json", (0, 0))  # of an earlier run in this folder
    assert list(report([run], tmp_path / "page.html")) == [4]
    losses = [line["loss"] for line in read_metrics(run) if "loss" in line]
    assert f"masked-token loss {losses[0]:.3f} at step 1 -> {losses[-1]:.3f} at step 4" in capsys.readouterr().out


def test_runs_are_drawn_over_each_other_with_the_difference_of_their_recipes(sample_corpus, tmp_path) -> None:
    one = write_run(tmp_path / "one", sample_corpus, some_lines())
    two = write_run(tmp_path / "two", sample_corpus, some_lines(30), optimizer={"learning_rate": 0.02})
    page = page_of(one, two, out=tmp_path / "page.html")
    table = page[page.index("How the recipes differ") : page.index("Losses and scores")]
    assert [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in table.split("<tr>")[2:]] == [
        ["train.optimizer.learning_rate", "0.01", "0.02"]
    ]
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert "var(--run-0)" in charts[0] and "var(--run-1)" in charts[0]
    assert "<script>" not in page and "a &lt;b&gt;tiny&lt;/b&gt; one" in page


def test_parts_of_a_loss_are_curves_of_their_own(sample_corpus: Path, tmp_path: Path, monkeypatch) -> None:
    """The order is known only in every third step, which must not make the loss a saw-tooth."""
    drawn: list[list[Line]] = []
    monkeypatch.setattr(curves, "line_chart", lambda lines, **_: drawn.append(lines))
    run = read_run(write_run(tmp_path / "run", sample_corpus, some_lines()), 0)
    assert [chart.title for chart in curves.loss_charts([run])] == [
        "masked-token loss, nats",
        "reorder loss",
        "reorder accuracy",
    ]
    assert [(line.held_out, len(line.points.x)) for line in drawn[0]] == [(False, 60), (True, 1)]
    assert drawn[0][0].points.y.tolist() == [pytest.approx(6.0 - step / 60) for step in range(1, 61)]
    assert drawn[1][0].points.x.tolist() == list(range(3, 61, 3)) and set(drawn[1][0].points.y) == {3.5}


def test_an_attempt_that_was_killed_is_a_fault_at_its_time_and_step(sample_corpus, tmp_path, monkeypatch) -> None:
    run = write_run(tmp_path / "run", sample_corpus, some_lines(20))
    events = [
        {"event": "start", "time": 1e9, "step": 0, "processes": 8},
        {"event": "end", "time": 1e9 + 600, "step": 14, "how": "killed or lost (computing)"},
        {"event": "start", "time": 1e9 + 660, "step": 10, "processes": 8},
        {"event": "end", "time": 1e9 + 1200, "step": 20, "how": "done"},
    ]
    (run / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "st')
    given: dict[str, Any] = {}
    monkeypatch.setattr(curves, "line_chart", lambda lines, **options: given.update(options, lines=lines))
    chart = curves.time_chart([read_run(run, 0)])
    assert chart is not None and chart.last == [(0, "2 attempts, 1 fault")]
    assert given["x_label"] == "minutes since the run began"
    assert given["marks"][0].faults == [(10.0, 14.0)] and given["marks"][0].starts == [11.0]
    (line,) = given["lines"]
    course = [(x, y) for x, y in zip(line.points.x, line.points.y, strict=True) if not np.isnan(y)]
    assert course == [
        *((float(n), n) for n in range(11)),
        (10.0, 14.0),
        *[(11.0, 10.0), *((float(n), n) for n in range(11, 21)), (20.0, 20.0)],
    ]


def test_what_is_not_there_leaves_a_sentence(tmp_path: Path, capsys) -> None:
    run = write_run(tmp_path / "run", tmp_path / "nowhere", [{"step": 0, "validation_loss": 2.0}], steps=0)
    page = page_of(run, out=tmp_path / "page.html")
    for sentence in (
        "No step has been logged yet.",
        "trained by a version that kept no times",
        "The corpus cannot be read here: ",
        "run: no samples, since ",
        "Nothing yet: sentences with [MASK]",
        "Not evaluated yet",
    ):
        assert sentence in page, sentence
    assert "held out: loss 2.000" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("null\n")])
def test_a_folder_without_metrics_or_with_damaged_ones_is_one_line(
    damage: Callable[[Path], Any], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", tmp_path, some_lines())
    damage(run / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics.jsonl: (no step logged yet; is|line 1 is not a line of metrics)"):
        report([run], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_damaged_files_beside_the_metrics_are_left_out(sample_corpus: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sample_corpus, some_lines())
    for name in ("evaluation.json", "fills.json", "environment.json", "corpus.json", "scores.json", "history.jsonl"):
        (run / name).write_bytes(b'{"5": [1, "\xff')
    assert "Not evaluated yet" in page_of(run, out=tmp_path / "page.html")


def test_half_of_a_surrogate_pair_is_shown_as_it_is_written(sample_corpus: Path, tmp_path: Path) -> None:
    """JSON can hold it, and no file of text can."""
    lines = [{"step": step, "time": 1e9 + step, "loss": 5.0, "\ud800": 1.0} for step in (1, 2)]
    run = write_run(tmp_path / "run", sample_corpus, lines)
    assert "\\ud800" in page_of(run, out=tmp_path / "page.html")


def test_what_was_dropped_has_its_reasons_and_examples(sample_corpus: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(sample_corpus, corpus)
    problem = {"path": "books/a.txt", "position": 12, "reason": "byte 7 is not UTF-8"}
    (corpus / "problems.jsonl").write_text(json.dumps(problem) + "\n{")
    manifest = Manifest.read(corpus)
    near = {"dropped": 1, "sizes": {"2": 1}, "examples": [{"similarity": 0.93, "kept": "one <b>", "dropped": "two"}]}
    evaluation = [{"path": "dev.tsv", "texts": 3, "short": 0, "dropped": 1, "examples": ["a text of it"]}]
    more = {
        "near_duplicates": near,
        "evaluation": evaluation,
        "cleaned": {"html": {"documents": 5, "characters": 9876}},
    }
    sources = [{**source, "encodings": {"utf-8": 1, "gb18030": 2}} for source in manifest.sources]
    dropped = {**manifest.dropped, "near-duplicates": 1, "too short": 4}
    changed = replace(manifest, statistics={**manifest.statistics, **more}, sources=sources, dropped=dropped)
    changed.write(corpus)
    page = page_of(write_run(tmp_path / "run", corpus, some_lines()), out=tmp_path / "page.html")
    for text in (
        *(
            "books/a.txt:12",
            "unreadable: byte 7 is not UTF-8",
            "near-duplicate, similarity 0.93",
            "two (kept: one &lt;b&gt;)",
        ),
        *(
            "holds text of dev.tsv",
            "a text of it",
            "<td>html</td>",
            "9,876",
            "(utf-8 1, gb18030 2)",
            "<td>too short</td>",
        ),
    ):
        assert text in page, text


def test_a_long_line_keeps_its_means_and_its_range() -> None:
    x = np.arange(1000.0)
    y = np.random.default_rng(0).random(1000)
    drawn = thinned(Points.of(x, y))
    means, values, low, high = drawn.x, drawn.y, drawn.low, drawn.high
    sizes = np.diff([*np.unique(np.linspace(0, 1000, MOST_POINTS, endpoint=False).astype(int)), 1000])
    assert len(means) == MOST_POINTS and sizes.sum() == 1000
    assert (means * sizes).sum() == pytest.approx(x.sum()) and (values * sizes).sum() == pytest.approx(y.sum())
    assert (low.min(), high.max()) == (y.min(), y.max()) and ((low <= values) & (values <= high)).all()
    assert moving_average(np.array([1.0, 2.0, 3.0, 7.0]), 3).tolist() == [1.5, 2.0, 4.0, 5.0]


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium (Debian's package chromium)")
def test_in_a_browser_nothing_is_reported_and_nothing_wider_than_the_window(trained, sample_corpus, tmp_path) -> None:
    other = write_run(tmp_path / ("long-name-" * 8), sample_corpus, some_lines(2000), seed=3)
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    page_of(trained, out=pages[0])
    page_of(trained, other, out=pages[1])
    with browser(tmp_path / "profile") as page:
        for path in pages:
            for width in (390, 1400):
                for dark in (False, True):
                    page.show(path, width, dark)
                    assert page.complaints == []
                    assert page.value("document.documentElement.scrollWidth") == width
                    ground = page.value("getComputedStyle(document.body).backgroundColor")
                    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
                    smallest = page.value(
                        "Math.min(...[...document.querySelectorAll('figure svg text')]"
                        ".map(text => text.getBoundingClientRect().height))"
                    )
                    assert smallest > 8  # pixels


def test_of_each_corpus_of_a_mixture_its_loss_is_shown() -> None:
    corpora = "data.corpora=[{path: a/zh, weight: 1}, {path: a/en, weight: 1}]"
    recipe = load_recipe("nezha-small", ["data.corpus=null", corpora], "train")
    line = {"step": 2, "time": 1.0, "loss": 3.0, "validation_loss": 3.0, "validation_zh_loss": 4.0}
    run = Run(Path("more"), 0, recipe, read_points([{**line, "validation_zh_masked_lm_accuracy": 0.1}]), [], [])
    assert run.figures == ["loss", "zh_loss"]
    assert [type(one) for one in run.manifests] == [str, str]


def test_the_recipe_shows_no_preprocessing_of_a_corpus_that_was_not_read() -> None:
    """As of a run that goes on from another one on other text."""
    shown = []
    for corpus in ("corpora/zh", "corpora/wiki"):
        given = ["preprocess.output=corpora/zh", f"train.data.corpus={corpus}"]
        shown.append(Run(Path("run"), 0, load_recipe("nezha-small", given), {}, [], []).settings)
    assert shown[0]["preprocess"]["output"] == "corpora/zh"
    assert shown[1].keys() == shown[0].keys() - {"preprocess"}
