"""HotpotQA's scores, in points: of answers, of supporting facts, and of both together (Yang et al. 2018, section 5.2).

They are those of the owner's script, hotpot_evaluate_v1.py: means over questions of exact match, F1, precision and
recall. A joint precision, or recall, is the product of the two, from which a question's joint F1 is computed. A
question without a prediction counts 0.
"""

from collections.abc import Collection, Hashable, Mapping
from typing import NamedTuple, TypeVar

from reread.training.scoring.answers import Style, compared
from reread.training.scoring.gather import paired, points

Fact = tuple[str, int]
"""Title of a paragraph, and the number of a sentence in it, from 0."""
Sentence = TypeVar("Sentence", bound=tuple[Hashable, int])
"""A paragraph's name, and the number of a sentence in it."""


class Measures(NamedTuple):
    """Of one question, each from 0 to 1."""

    em: float = 0.0
    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0


def _measures(em: float, precision: float, recall: float) -> Measures:
    both = precision + recall
    return Measures(em, 2 * precision * recall / both if both > 0 else 0.0, precision, recall)


def answer_measures(gold: Collection[str], given: str | None, style: Style) -> Measures:
    """Of the gold answer that fits best; without one, "" is right. Where one of two answers is yes, no or noanswer,
    HotpotQA's other has to be the same."""
    if given is None:
        return Measures()
    if not gold:
        return Measures() if given else Measures(1.0, 1.0, 1.0, 1.0)
    return max((_answer_measures(one, given, style) for one in gold), key=lambda one: (one.f1, one.em))


def _answer_measures(gold: str, given: str, style: Style) -> Measures:
    is_equal, shared, found, wanted = compared(gold, given, style)
    return _measures(float(is_equal), shared / found, shared / wanted) if shared else Measures(float(is_equal))


def fact_measures(gold: Collection[Fact], given: Collection[Fact] | None) -> Measures:
    if given is None:
        return Measures()
    wanted, found = set(gold), set(given)
    shared = len(wanted & found)
    precision, recall = (shared / len(one) if one else 0.0 for one in (found, wanted))
    return _measures(float(wanted == found), precision, recall)


def joint_scores(
    answers: Mapping[str, Collection[str]],
    facts: Mapping[str, Collection[Fact]],
    predicted: Mapping[str, str],
    predicted_facts: Mapping[str, Collection[Fact]],
    style: Style = "hotpotqa",
) -> dict[str, Measures]:
    """The table of `answer`, `support` and `joint`, from gold and predictions by question.

    Raises `UserError` as `paired` does."""
    of_answers = [answer_measures(gold, given, style) for gold, given in paired(answers, predicted)]
    of_facts = [fact_measures(gold, given) for gold, given in paired(facts, predicted_facts)]
    joint = [
        _measures(answer.em * support.em, answer.precision * support.precision, answer.recall * support.recall)
        for answer, support in zip(of_answers, of_facts, strict=True)
    ]
    table = {"answer": of_answers, "support": of_facts, "joint": joint}
    return {name: Measures(*map(points, zip(*rows, strict=True))) for name, rows in table.items()}


def evidence(sentences: Mapping[Sentence, float], paragraphs: int | None = 2, above: float = 0.0) -> list[Sentence]:
    """The facts among `sentences`, which have logits, from exactly `paragraphs` paragraphs, or as many as there are:
    those with the best sentences, of each this sentence and the others `above` (Longformer's decoding: Beltagy et al.
    2020, appendix D.1). Without a number of paragraphs all sentences `above`."""
    if paragraphs is None:
        return [fact for fact, score in sentences.items() if score > above]
    best = dict[Hashable, float]()
    for (title, _), score in sentences.items():
        best[title] = max(score, best.get(title, score))
    chosen = sorted(best, key=lambda title: -best[title])[:paragraphs]
    return [
        fact for fact, score in sentences.items() if fact[0] in chosen and (score > above or score == best[fact[0]])
    ]


def kept_paragraphs(scores: Mapping[str, float], most: int, above: float) -> list[str]:
    """The titles of at most `most` paragraphs that score `above`, the best first; the best two in any case, since a
    question needs both."""
    order = sorted(scores, key=lambda title: -scores[title])
    return [title for number, title in enumerate(order[:most]) if number < 2 or scores[title] > above]
