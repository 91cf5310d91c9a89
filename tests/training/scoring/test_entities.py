"""Entities of tag sequences in both readings, and their scores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.errors import UserError
from reread.training.scoring.entities import Entity, entities, entity_scores, scheme_of, token_accuracy, token_f1

P01, P02, P12, L12, L13, L23, P23 = (
    Entity({"P": "PER", "L": "LOC"}[name[0]], int(name[1]), int(name[2]))
    for name in ["P01", "P02", "P12", "L12", "L13", "L23", "P23"]
)


@pytest.mark.parametrize(
    ("tags", "strict", "conlleval"),
    [
        ("B-PER I-PER O", [P02], [P02]),
        ("B-PER B-PER O", [P01, P12], [P01, P12]),
        ("O I-LOC I-LOC", [], [L13]),  # a stray I-
        ("B-PER I-LOC I-LOC", [P01], [P01, L13]),  # I- of another type
        ("B-PER I-PER I-LOC", [P02], [P02, L23]),
        ("B-PER I-PER B-LOC", [P02, L23], [P02, L23]),
        ("O B-LOC I-PER", [L12], [L12, P23]),
        ("O O O", [], []),
    ],
)
def test_bio_in_both_readings(tags, strict, conlleval) -> None:
    assert entities(tags.split()) == strict
    assert entities(tags.split(), rules="conlleval") == conlleval


@pytest.mark.parametrize(
    ("tags", "strict", "conlleval"),
    [
        ("B-PER E-PER S-LOC", [P02, L23], [P02, L23]),
        ("S-PER S-PER O", [P01, P12], [P01, P12]),
        ("B-PER I-PER O", [], [P02]),  # nothing ends it
        ("B-PER O O", [], [P01]),
        ("O I-LOC E-LOC", [], [L13]),  # nothing starts it
        ("O E-LOC O", [], [L12]),
        ("B-PER E-PER E-PER", [P02], [P02, P23]),
        ("B-PER E-PER I-PER", [P02], [P02, P23]),
        ("O B-LOC I-LOC", [], [L13]),
    ],
)
def test_bioes_in_both_readings(tags, strict, conlleval) -> None:
    assert entities(tags.split(), "BIOES") == strict
    assert entities(tags.split(), "BIOES", "conlleval") == conlleval


def test_the_two_readings_score_the_same_weak_tagger_differently() -> None:
    gold = {"1": ["B-PER", "I-PER", "O", "B-LOC", "I-LOC"]}
    predicted = {"1": ["I-PER", "I-PER", "O", "B-LOC", "I-LOC"]}
    assert entity_scores(gold, predicted) == (100, 50, 100 * 2 / 3)
    assert entity_scores(gold, predicted, rules="conlleval") == (100, 100, 100)
    stray = {"1": ["O", "O", "I-LOC", "B-LOC", "I-LOC"]}
    assert entity_scores(gold, stray).precision == 100
    assert entity_scores(gold, stray, rules="conlleval").precision == 50
    assert token_f1(gold, predicted) == 75
    assert token_accuracy(gold, predicted) == 80


def test_an_entity_counts_only_with_type_start_and_end() -> None:
    gold = {"1": ["B-PER", "I-PER", "I-PER", "B-LOC"]}
    for tags in ("B-LOC I-LOC I-LOC O", "B-PER I-PER O O", "O B-PER I-PER O"):
        assert entity_scores(gold, {"1": tags.split()}) == (0, 0, 0)
    assert entity_scores(gold, {"1": ["O"] * 4}) == (0, 0, 0)


def test_tags_that_were_never_predicted_are_wrong() -> None:
    gold = {"1": ["B-PER", "O", "B-LOC", "I-LOC"], "2": ["B-PER", "O"]}
    cut = {"1": ["B-PER", "O"]}  # the rest was not read; of text 2 nothing
    assert entity_scores(gold, cut) == (100, 100 / 3, 50)
    assert token_accuracy(gold, cut) == 100 * 2 / 6
    assert token_f1(gold, cut) == 100 * 2 / (1 + 4)
    assert entity_scores(gold, {"1": ["B-PER", "O", None, "I-LOC"]}).recall == pytest.approx(100 / 3)


def test_mistakes_are_one_line() -> None:
    with pytest.raises(UserError, match="3 tags are predicted for a text of 2 tokens"):
        token_f1({"1": ["O", "O"]}, {"1": ["O"] * 3})
    with pytest.raises(UserError, match="tag `PER` is neither O nor a type after B-, I- or M-, E- or S-"):
        entities(["PER"])
    with pytest.raises(UserError, match="tag `S-PER` is not of the scheme BIO"):
        entities(["S-PER"], "BIO")
    assert scheme_of(["O", "B-X", "I-X"]) == "BIO"
    assert scheme_of(["O", "S-X"]) == "BIOES"
    assert entities(["B-X", "M-X", "E-X", "O", "S-Y"], "BIOES") == [("X", 0, 3), ("Y", 4, 5)]


@st.composite
def texts(draw) -> list[list[tuple[str, int]]]:
    """Runs (type or O, length) of some texts."""
    run = st.tuples(st.sampled_from(["O", "PER", "LOC"]), st.integers(1, 4))
    return draw(st.lists(st.lists(run, min_size=1, max_size=6), min_size=1, max_size=6))


def written(runs: list[tuple[str, int]], scheme: str) -> list[str]:
    tags = []
    for name, length in runs:
        if name == "O":
            tags += ["O"] * length
        elif scheme == "BIO":
            tags += [f"B-{name}", *[f"I-{name}"] * (length - 1)]
        else:
            tags += [f"S-{name}"] if length == 1 else [f"B-{name}", *[f"I-{name}"] * (length - 2), f"E-{name}"]
    return tags


@given(texts(), st.sampled_from(["BIO", "BIOES"]))
def test_gold_tags_give_100_and_both_readings_agree_on_sound_tags(examples, scheme) -> None:
    gold = {f"{place}": written(runs, scheme) for place, runs in enumerate(examples)}
    spans = {}
    for place, runs in enumerate(examples):
        begin, spans[f"{place}"] = 0, []
        for name, length in runs:
            if name != "O":
                spans[f"{place}"].append((name, begin, begin + length))
            begin += length
    for reading in ("strict", "conlleval"):
        assert {name: entities(tags, scheme, reading) for name, tags in gold.items()} == spans
        expected = 100 if any(spans.values()) else 0
        assert entity_scores(gold, gold, scheme, reading) == (expected, expected, expected)
    assert token_accuracy(gold, gold) == 100
    assert token_f1(gold, gold) == (100 if any(spans.values()) else 0)


@pytest.mark.long
@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", "E-X", "S-Y"]), max_size=9))
def test_the_conlleval_reading_is_that_of_the_perl_script(tags) -> None:
    """startOfChunk and endOfChunk, written as conlleval.pl's conditions on two neighbouring tags."""
    found, start, before = [], None, ("O", "")
    for place, tag in enumerate([*tags, "O"]):
        now = (tag[0], tag[2:])
        letters = before[0] + now[0]
        ends = letters in ("BB", "BS", "BO", "IB", "IS", "IO") or before[0] in "ES"
        if start is not None and (ends or (before[0] != "O" and before[1] != now[1])):
            found.append((before[1], start, place))
            start = None
        starts = now[0] in "BS" or letters in ("EE", "EI", "SE", "SI", "OE", "OI")
        if starts or (now[0] != "O" and before[1] != now[1]):
            start = place
        before = now
    assert entities(tags, "BIOES", "conlleval") == found
