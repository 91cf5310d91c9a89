"""Counts the gold answers that no prediction can be, and computes the highest possible scores."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np

from reread.preprocessing.labelled.tasks.answer import ELSEWHERE, AnswerExample
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.documents import TaskDocument
from reread.training.scoring.answers import answer_f1, exact_match
from reread.training.scoring.task_scores import scores

_DECLINED = {
    True: "without an answer, where task.no_answer=null",
    False: "without an answer, which this model cannot predict",
}
"""Whether `task.no_answer` is null -> why the model cannot predict that there is no answer."""


def within_reach(settings: AnswerSettings, examples: Sequence[AnswerExample], documents: Sequence[TaskDocument]) -> str:
    """How many gold answers cannot be predicted, why, and the resulting highest scores.

    The highest scores are those of predictions that are gold answers, or the longest pieces of them that can be
    predicted. All examples must be labelled.
    """
    lost, total = Counter[str](), 0
    gold: dict[str, list[str]] = {}
    best: dict[str, str] = {}
    for example, document in zip(examples, documents, strict=True):
        question = example.question_id or example.id
        answers = [answer.text for answer in example.answers or () if answer.start != ELSEWHERE]
        gold.setdefault(question, []).extend(answer.text for answer in example.answers or ())
        if example.answers and not answers:
            continue  # another text of its question may have one
        total += max(1, len(answers))
        # A question without an answer
        if not answers:
            if settings.may_decline:
                best[question] = ""
            else:
                lost[_DECLINED[settings.no_answer is None]] += 1
            continue
        # Of the others the best prediction: a whole answer, or else the piece with the highest F1
        pieces = {answer: _nearest(settings, example.text, document, answer) for answer in dict.fromkeys(answers)}
        whole = [piece for piece, reason in pieces.values() if not reason]
        lost.update(pieces[answer][1] for answer in answers if not any(_equal(answer, one, settings) for one in whole))
        best[question] = max(
            [*whole[:1]] or [piece for piece, _ in pieces.values()] + [best.get(question, "")],
            key=lambda piece: answer_f1({"": answers}, {"": piece}, settings.style),
        )
    # Questions about several texts, none of which has an answer
    if nowhere := sum(bool(answers) and question not in best for question, answers in gold.items()):
        lost["that no text of their question holds"] += nowhere
        total += nowhere
    # The line
    ceiling = scores(settings.kind, gold, best, style=settings.style)
    return reach_line("gold answers", lost, total, ceiling)


def reach_line(what: str, lost: Counter[str], total: int, ceiling: Mapping[str, float]) -> str:
    """How many of `total` cannot be predicted, by reason, and the highest possible scores."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in lost.most_common())
    return (
        f"{lost.total():,} of {total:,} {what} are out of reach{f' ({reasons})' if reasons else ''}; the best "
        f"possible scores are {', '.join(f'{name} {value:.2f}' for name, value in ceiling.items())}"
    )


def _nearest(settings: AnswerSettings, text: str, document: TaskDocument, answer: str) -> tuple[str, str]:
    """(answer, "") if it can be predicted; otherwise the longest piece of it that can, and the reason."""
    if answer in settings.choices or (not answer and settings.may_decline):
        return answer, ""
    if not answer:
        return "", _DECLINED[settings.no_answer is None]
    longest, found = -1, ("", "")
    for begin, stop in _occurrences(text, answer):
        tokens = np.flatnonzero((document.offsets[:, 1] > begin) & (document.offsets[:, 0] < stop))
        first, last = (int(tokens[0]), int(tokens[-1])) if len(tokens) else (0, -1)
        start, end = _longest_piece(document, first, last, settings.answer_length)
        piece = text[document.offsets[start, 0] : document.offsets[end, 1]] if end >= start else ""
        if _equal(answer, piece, settings):
            return piece, ""
        if stop - begin < len(answer):
            reason = "that the text does not hold"
        elif settings.longest is not None and stop > document.offsets[-1:, 1].max(initial=0):
            reason = f"past task.longest={settings.longest}"
        elif last - first >= settings.answer_length:
            reason = f"longer than task.answer_length={settings.answer_length}"
        elif (start, end) != (first, last):
            reason = f"in no window of task.sequence_length={settings.sequence_length}"
        else:
            reason = "that begin or end within a token"
        if end - start > longest:
            longest, found = end - start, (piece, reason)
    return found


def _equal(answer: str, prediction: str, settings: AnswerSettings) -> bool:
    return exact_match({"": [answer]}, {"": prediction}, settings.style) > 0


def _occurrences(text: str, answer: str) -> Iterator[tuple[int, int]]:
    """Each occurrence of the answer in the text; of one that is not in it, the longest run of its characters."""
    begin = text.find(answer)
    if begin < 0:
        run = SequenceMatcher(None, text, answer, autojunk=False).find_longest_match()
        yield run.a, run.a + run.size
    while begin >= 0:
        yield begin, begin + len(answer)
        begin = text.find(answer, begin + 1)


def _longest_piece(document: TaskDocument, first: int, last: int, most: int) -> tuple[int, int]:
    """The longest part of the tokens `first` to `last` that has at most `most` tokens and is in one window."""
    pieces = [(first, first - 1)]
    for number in range(document.windows):
        window = document.window(number)
        start = max(first, window.start)
        pieces.append((start, min(last, window.stop - 1, start + most - 1)))
    return max(pieces, key=lambda piece: piece[1] - piece[0])
