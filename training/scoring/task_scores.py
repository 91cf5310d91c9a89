"""The table of the scores of each kind of task: `reread evaluate` prints them, and one chooses the best checkpoint."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from reread.preprocessing.errors import UserError, nearest
from reread.training.scoring.answers import Style, answer_f1, exact_match
from reread.training.scoring.classification import (
    UndefinedError,
    accuracy,
    auc,
    exact_sets,
    macro_f1,
    matthews,
    mean_absolute_error,
    micro_f1,
    pearson,
    positive_f1,
    root_mean_square_error,
    spearman,
)
from reread.training.scoring.coreference import average, b_cubed, ceaf, muc
from reread.training.scoring.entities import Scheme, entity_f1, entity_scores, token_accuracy, token_f1
from reread.training.scoring.evidence import joint_scores
from reread.training.scoring.options import pac, qac
from reread.training.scoring.phrases import f1_at
from reread.training.scoring.ranking import mrr, ndcg, recall
from reread.training.scoring.written import equal, rouge_l, rouge_n

log = logging.getLogger("reread")


class Score(NamedTuple):
    """`function(gold, predicted, **needs)`; `needs` names its arguments beside the two mappings by id."""

    function: Callable[..., float]
    needs: tuple[str, ...] = ()
    higher_is_better: bool = True


def _auc(gold: Mapping[str, str], _: Mapping[str, str], positive: str, probabilities: Mapping[str, float]) -> float:
    return auc(gold, probabilities, positive)


def _conlleval_f1(gold: Mapping[str, Any], predicted: Mapping[str, Any], scheme: Scheme) -> float:
    return entity_f1(gold, predicted, scheme, "conlleval")


def _precision(gold: Mapping[str, Any], predicted: Mapping[str, Any], scheme: Scheme) -> float:
    return entity_scores(gold, predicted, scheme).precision


def _recall(gold: Mapping[str, Any], predicted: Mapping[str, Any], scheme: Scheme) -> float:
    return entity_scores(gold, predicted, scheme).recall


def _joint(gold: Mapping[str, Any], predicted: Mapping[str, Any], style: Style, table: str, measure: str) -> float:
    answers, facts = ({name: one[part] for name, one in gold.items()} for part in (0, 1))
    given, found = ({name: one[part] for name, one in predicted.items()} for part in (0, 1))
    value: float = getattr(joint_scores(answers, facts, given, found, style)[table], measure)
    return value


def _average(gold: Mapping[str, Any], predicted: Mapping[str, Any], style: Style) -> float:
    return (exact_match(gold, predicted, style) + answer_f1(gold, predicted, style)) / 2


SCORES: dict[str, dict[str, Score]] = {
    "classify-one": {
        "accuracy": Score(accuracy),
        "macro-f1": Score(macro_f1, ("labels",)),
        "positive-f1": Score(positive_f1, ("positive",)),
        "auc": Score(_auc, ("positive", "probabilities")),
        "matthews": Score(matthews),
    },
    "classify-set": {"micro-f1": Score(micro_f1), "accuracy": Score(exact_sets)},
    "classify-number": {
        "spearman": Score(spearman),
        "pearson": Score(pearson),
        "mae": Score(mean_absolute_error, higher_is_better=False),
        "rmse": Score(root_mean_square_error, higher_is_better=False),
    },
    "tag": {
        "entity-f1": Score(entity_f1, ("scheme",)),
        "entity-precision": Score(_precision, ("scheme",)),
        "entity-recall": Score(_recall, ("scheme",)),
        "entity-f1-conlleval": Score(_conlleval_f1, ("scheme",)),
        "token-f1": Score(token_f1),
        "token-accuracy": Score(token_accuracy),
    },
    "answer": {
        "f1": Score(answer_f1, ("style",)),
        "em": Score(exact_match, ("style",)),
        "average": Score(_average, ("style",)),
    },
    "answer-evidence": {
        f"{table}-{measure}".removeprefix("answer-"): Score(partial(_joint, table=table, measure=measure), ("style",))
        for table in ("joint", "answer", "support")
        for measure in ("f1", "em")
    },
    "evidence": {
        f"support-{measure}": Score(partial(_joint, table="support", measure=measure), ("style",))
        for measure in ("f1", "em")
    },
    "choose": {
        "accuracy": Score(accuracy),
        "qac": Score(lambda gold, predicted, groups: qac(gold, predicted), ("groups",)),
        "pac": Score(pac, ("groups",)),
    },
    "rank": {"ndcg@10": Score(ndcg), "mrr@10": Score(mrr), "recall@10": Score(recall)},
    "embed-similarity": {"spearman": Score(spearman), "pearson": Score(pearson)},
    "embed-retrieval": {
        "ndcg@10": Score(ndcg),
        "mrr@10": Score(mrr),
        "recall@10": Score(recall),
        "recall@100": Score(partial(recall, depth=100)),
    },
    "phrases": {f"f1@{depth}": Score(partial(f1_at, depth=depth)) for depth in (3, 1, 5)},
    "coreference": {"conll-f1": Score(average), "muc": Score(muc), "b3": Score(b_cubed), "ceaf-e": Score(ceaf)},
    "generate": {
        "rouge-l": Score(rouge_l),
        "rouge-1": Score(partial(rouge_n, size=1)),
        "rouge-2": Score(partial(rouge_n, size=2)),
        "em": Score(equal),
    },
}
"""Kind of task (`classify` is three, by what a label is, `answer` too, with evidence, without, or as evidence alone,
`embed` two, pairs with scores and queries with documents) ->
its scores by name, of which the first one chooses the best checkpoint unless the recipe names another."""


def scores(kind: str, gold: Mapping[str, Any], predicted: Mapping[str, Any], **given: Any) -> dict[str, float]:
    """The scores of the kind whose needs are all `given`, in the table's order and in points (those of numbers as in
    `classification`).

    By id, gold and prediction are a label (classify-one), a collection of labels (classify-set), a number
    (classify-number), a sequence of tags (tag), the texts of the answers and one text (answer), these with supporting
    facts (answer-evidence, evidence), the index of an option (choose), grades and scores of passages (rank;
    embed-retrieval, where those that were not found have -inf), numbers (embed-similarity), sequences of phrases
    (phrases), clusters of spans (coreference), or texts (generate).
    `given` may have:

    - classify-one: `labels`, all labels of the training data; for two labels also `positive`, the label whose F1 is
      computed, and `probabilities`, id -> the probability of that label;
    - tag: `scheme`, required;
    - answer, answer-evidence, evidence: `style`, required;
    - choose: `groups`, id -> the passage it belongs to.

    A score that is not defined for these texts, such as AUC if all have the same label, is left out and logged. Raises
    `UserError` as the scores do, and `TypeError` for an unknown name or if a need of the kind's first score is missing.
    """
    table = SCORES[kind]
    first = next(iter(table.values()))
    if missing := set(first.needs) - given.keys():
        raise TypeError(f"scores of `{kind}` need {sorted(missing)}")
    if unknown := given.keys() - {need for score in table.values() for need in score.needs}:
        raise TypeError(f"scores of `{kind}` do not take {sorted(unknown)}")
    found = {}
    for name, score in table.items():
        if given.keys() >= set(score.needs):
            try:
                found[name] = score.function(gold, predicted, **{need: given[need] for need in score.needs})
            except UndefinedError as error:
                log.info("%s: left out, since %s", name, error)
    return found


def formatted(name: str, value: float) -> str:
    """A score as text: points with two decimals, scores of numbers with four digits."""
    return f"{value:.4g}" if name in SCORES["classify-number"] else f"{value:.2f}"


def best_of(name: str, values: Sequence[float]) -> float:
    """The best of the values of a score."""
    lower = any(name in table and not table[name].higher_is_better for table in SCORES.values())
    return min(values) if lower else max(values)


def chosen_score(kind: str, name: str | None = None) -> tuple[str, Score]:
    """The score that chooses the best checkpoint: the one that the recipe names, or else the kind's first.

    Raises `UserError` if the kind has no score of that name.
    """
    table = SCORES[kind]
    name = next(iter(table)) if name is None else name
    if name not in table:
        raise UserError(f"train.best_by: `{kind}` has no score `{name}`; {nearest(name, table)}")
    return name, table[name]
