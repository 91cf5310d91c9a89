"""`reread submit` and `narrow`: predictions as their task's owner takes them, HotpotQA's joint scores and stages."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from reread.preprocessing.errors import UserError, writing
from reread.preprocessing.files import write_atomically
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.formats.hotpotqa import Asked, asked_in
from reread.training.scoring.evidence import Fact, Measures, evidence, joint_scores, kept_paragraphs

log = logging.getLogger("reread")


def submit(predictions: Path, output: Path, sentences: Path | None, questions: Path | None, above: float) -> None:
    """Write {id: answer} of predicted answers or options; with evidence, {"answer": {id: answer}, "sp": {id: [[title,
    number], ..]}}, and print the scores of both if HotpotQA's file `questions` is given and has labels. The evidence
    is that of the predictions (`task.form=marked`), or comes from `sentences`, the predicted ranking of the sentences
    in that file."""
    if sentences is not None and questions is None:
        raise UserError("--sentences and --questions belong together: evidence is scores of the file's sentences")
    answers, found = dict[str, str](), dict[str, list[Fact]]()
    for name, location, line in _lines(predictions):
        answers[name] = _answer(line, location)
        if "evidence" in line:
            found[name] = _facts(line["evidence"], location)
    if found and sentences is not None:
        raise UserError(f"{predictions}: has evidence of its own; leave --sentences out")
    if not found and sentences is None:
        if questions is not None:
            raise UserError(f"{predictions}: has no evidence to score; give its --sentences, or leave --questions out")
        _write(output, answers)
        return
    asked = {} if questions is None else _asked(questions)
    if sentences is not None and questions is not None:
        found = _ranked(sentences, questions, asked, above)
    for kind, names in (("answer", answers), ("evidence", found)):
        if missing := [name for name in asked if name not in names]:
            log.warning("%s: %d of %d questions have no %s", questions, len(missing), len(asked), kind)
    _write(output, {"answer": answers, "sp": found})
    labelled = [one for one in asked.values() if one.answer is not None and one.supporting_facts is not None]
    if labelled and len(labelled) == len(asked):
        gold_answers = {one.id: [one.answer or ""] for one in labelled}
        gold_facts = {one.id: one.supporting_facts or [] for one in labelled}
        _print(joint_scores(gold_answers, gold_facts, answers, found))


def _ranked(sentences: Path, questions: Path, asked: dict[str, Asked], above: float) -> dict[str, list[Fact]]:
    """The evidence of each question, from predicted rankings of its sentences."""
    found = dict[str, list[Fact]]()
    for name, location, line in _lines(sentences):
        if name not in asked:
            raise UserError(f"{location}: id `{name}` is not in {questions}; predict for the same file")
        facts = list(asked[name].sentences)
        scores = _ranking(line, location, len(facts), questions)
        found[name] = evidence({fact: scores[number] for number, fact in enumerate(facts)}, above=above)
    return found


def narrow(questions: Path, ranking: Path, output: Path, most: int, above: float) -> None:
    """Write HotpotQA's file `questions` with the paragraphs alone that the predicted `ranking` of its paragraphs keeps,
    in the file's order, and with the supporting facts that are in these."""
    asked, kept = _asked(questions), dict[str, list[str]]()
    for name, location, line in _lines(ranking):
        if name not in asked:
            raise UserError(f"{location}: id `{name}` is not in {questions}; predict for the same file")
        context = asked[name].context
        scores = _ranking(line, location, len(context), questions)
        kept[name] = kept_paragraphs({title: scores[number] for number, (title, _) in enumerate(context)}, most, above)
    if missing := [name for name in asked if name not in kept]:
        raise UserError(f"{ranking}: no line for {len(missing)} of {len(asked)} questions, first `{missing[0]}`")
    values, lost, facts = [], 0, 0
    for one in asked.values():
        value = one.model_dump(by_alias=True, exclude_none=True)
        value["context"] = [[title, text] for title, text in one.context if title in kept[one.id]]
        if one.supporting_facts is not None:
            value["supporting_facts"] = [fact for fact in one.supporting_facts if fact[0] in kept[one.id]]
            facts += len(one.supporting_facts)
            lost += len(one.supporting_facts) - len(value["supporting_facts"])
        values.append(value)
    _write(output, values)
    count, before = (sum(len(one["context"]) for one in values), sum(len(one.context) for one in asked.values()))
    log.info("%s: %d of %d paragraphs; %d of %d supporting facts are left out", output, count, before, lost, facts)


def _asked(path: Path) -> dict[str, Asked]:
    source = LabelledFile(path, "rank")
    found = {asked.id: asked for _, asked in asked_in(source)}
    if source.mistakes:
        raise UserError(source.mistakes[0])
    return found


def _lines(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The id, the location and the values of each line of `reread predict`."""
    source, known = LabelledFile(path, "rank"), set[str]()
    for number, line in source.json_lines():
        location = source.location(number)
        if not isinstance(name := line.get("id"), str):
            raise UserError(f"{location}: no `id`; it is no line of `reread predict`")
        if name in known:
            raise UserError(f"{location}: id `{name}` stands there twice; predict again for the whole file")
        known.add(name)
        yield name, location, line
    if source.mistakes:
        raise UserError(source.mistakes[0])


def _answer(line: dict[str, Any], location: str) -> str:
    answer = line.get("answer", line.get("text"))
    if not isinstance(answer, str):
        raise UserError(f"{location}: neither an `answer` nor the `text` of an option; predict with such a task")
    return answer.lower() if answer in ("YES", "NO") else answer


def _facts(evidence: Any, location: str) -> list[Fact]:
    """Of a line's `evidence`, each once: two paragraphs may have one title."""
    try:
        return list(dict.fromkeys((str(one["title"]), int(one["sentence"])) for one in evidence))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{location}: `evidence` is no list of titles and sentences; predict again") from None


def _ranking(line: dict[str, Any], location: str, count: int, questions: Path) -> list[float]:
    """The scores of `count` passages in the file's order."""
    try:
        scores = {int(one["passage"]): float(one["score"]) for one in line["ranking"]}
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{location}: no `ranking` of passages; predict with a task of the kind rank, or with task.form=marked"
        ) from None
    if sorted(scores) != list(range(count)):
        raise UserError(f"{location}: {len(scores)} scores for {count} passages in {questions}; predict for that file")
    return [scores[number] for number in range(count)]


def _write(output: Path, values: Any) -> None:
    with writing(output):
        write_atomically(output, json.dumps(values, ensure_ascii=False).encode())


def _print(table: dict[str, Measures]) -> None:
    from reread.pipeline.display.terminal import print_wide

    result = Table("", *(name.replace("em", "EM").replace("f1", "F1") for name in Measures._fields))
    for name, measures in table.items():
        result.add_row(name, *(f"{value:.2f}" for value in measures))
    print_wide(result)
