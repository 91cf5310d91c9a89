"""Scores of `answer`, in points: EM and F1 of SQuAD, TriviaQA, HotpotQA and CMRC2018, also DRCD's and DuReader's.

The gold of a question is the texts of its answers, of which the best match counts. A question without an answer has
`()`, and "" is the right prediction. The score is the mean over questions.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal, NamedTuple

from reread.training.scoring.gather import paired, points

Style = Literal["squad", "triviaqa", "hotpotqa", "cmrc"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SQUAD_DELETED = str.maketrans("", "", string.punctuation)
_TRIVIAQA_BLANKS = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))
# The list of cmrc2018_evaluate.py. It lacks ‘ and ASCII . , ( ) ?. It never deletes an ellipsis, which it holds as one
# item of two characters while it looks up one character at a time.
_CMRC_DELETED = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CMRC_UNIT = re.compile(
    r"""[\u4e00-\u9fa5]|(?:[^\s\u4e00-\u9fa5;@#$%&?!()\[\]{}<>"“,.]|\.(?![\u4e00-\u9fa5]|\Z)|,(?=\d))+|\S"""
)

_CMRC_OPENING = re.compile(r'(?:\A|(?<=[\u4e00-\u9fa5 (\[{<]))"')


def squad_normal(text: str) -> str:
    """The normal form of SQuAD: lower case, no ASCII punctuation, no articles, single blanks (evaluate-v1.1.py)."""
    return _without_articles(text.lower().translate(_SQUAD_DELETED))


def triviaqa_normal(text: str) -> str:
    """The normal form of TriviaQA: punctuation and four quotation marks become blanks (triviaqa_evaluation.py)."""
    return _without_articles(text.lower().translate(_TRIVIAQA_BLANKS))


def cmrc_normal(text: str) -> str:
    """The normal form of CMRC2018: lower case, stripped, no punctuation (cmrc2018_evaluate.py,
    `remove_punctuation`)."""
    return text.lower().strip().translate(_CMRC_DELETED)


@lru_cache(maxsize=1 << 14)
def cmrc_units(text: str) -> tuple[str, ...]:
    """The units of CMRC2018's F1: each character of U+4E00 to U+9FA5, and the words between them.

    The official script takes these words by nltk's word_tokenize, whose sentence model is a download of its own. This
    regular expression splits as its NLTKWordTokenizer does: ASCII punctuation is a unit of its own, except a full stop
    that does not end the run and a comma before a digit; other signs stay in their word. A quotation mark that opens
    is another unit than one that closes; here it becomes “, which the normal form deletes. The units of all
    10,720 answers of CMRC2018's dev file and of DRCD are those of NLTK 3.9; 3.10 also splits at a dash.
    """
    return tuple(_CMRC_UNIT.findall(_CMRC_OPENING.sub("“", cmrc_normal(text))))


def exact_match(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str], style: Style) -> float:
    """EM: the share of questions whose answer equals one of the gold answers in the style's normal form."""
    return _best(gold, predicted, _STYLES[style].normal, _equal)


def answer_f1(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str], style: Style) -> float:
    """F1 of an answer's units: words as a bag (squad, triviaqa), or the longest contiguous run in both (cmrc)."""
    units, shared = _STYLES[style].units, _STYLES[style].shared
    return _best(gold, predicted, units, lambda given, wanted: _f1(shared(given, wanted), given, wanted))


def compared(gold: str, given: str, style: Style) -> tuple[bool, int, int, int]:
    """Whether two answers are equal, and the units that they share, that `given` and that `gold` have."""
    rules = _STYLES[style]
    wanted, found = rules.units(gold), rules.units(given)
    return rules.normal(given) == rules.normal(gold), rules.shared(found, wanted), len(found), len(wanted)


def _best(
    gold: Mapping[str, Sequence[str]],
    predicted: Mapping[str, str],
    form: Callable[[str], Sequence[str]],
    match: Callable[[Sequence[str], Sequence[str]], float],
) -> float:
    """The mean over questions of the best `match` of an answer; answers with an empty form do not count (SQuAD 2.0)."""
    values: list[float] = []
    for answers, guess in paired(gold, predicted):
        given = None if guess is None else form(guess)
        wanted = [normal for normal in map(form, answers) if normal]
        if given is None:
            values.append(0.0)
        else:
            values.append(max(match(given, one) for one in wanted) if wanted else float(not given))
    return points(values)


def _equal(given: Sequence[str], wanted: Sequence[str]) -> float:
    return float(given == wanted)


def _in_both(given: Sequence[str], wanted: Sequence[str]) -> int:
    return (Counter(given) & Counter(wanted)).total()


def _unless_closed(given: Sequence[str], wanted: Sequence[str]) -> int:
    """HotpotQA's: a span is never right in part where the other is yes or no (hotpot_evaluate_v1.py)."""
    is_closed = any(len(one) == 1 and one[0] in ("yes", "no", "noanswer") for one in (given, wanted))
    return _in_both(given, wanted) if given == wanted or not is_closed else 0


def _in_run(given: Sequence[str], wanted: Sequence[str]) -> int:
    if given == wanted:
        return len(given)
    return SequenceMatcher(None, given, wanted, autojunk=False).find_longest_match(0, len(given), 0, len(wanted)).size


def _f1(shared: int, given: Sequence[str], wanted: Sequence[str]) -> float:
    """In [0, 1], of precision shared / |given| and recall shared / |wanted|."""
    return 2 * shared / (len(given) + len(wanted))


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text).split())


class _Style(NamedTuple):
    """A script's rules: normal form for EM, units for F1, and how many of them two answers share."""

    normal: Callable[[str], str]
    units: Callable[[str], Sequence[str]]
    shared: Callable[[Sequence[str], Sequence[str]], int]


_STYLES: dict[Style, _Style] = {
    "squad": _Style(squad_normal, lambda text: squad_normal(text).split(), _in_both),
    "hotpotqa": _Style(squad_normal, lambda text: squad_normal(text).split(), _unless_closed),
    "triviaqa": _Style(triviaqa_normal, lambda text: triviaqa_normal(text).split(), _in_both),
    "cmrc": _Style(cmrc_normal, cmrc_units, _in_run),
}
