"""Runs of text that two texts share, beside the definition."""

import numpy as np
from hypothesis import given
from hypothesis.strategies import text

from reread.preprocessing.text.overlap import RUN, Lengths, RunFinder, collect
from tests.preprocessing.text.test_ngrams import reference_ngrams

LENGTHS = Lengths(words=3, characters=5)


def finder(*files: str, lengths: Lengths = LENGTHS) -> RunFinder:
    runs = []
    for number, content in enumerate(files):
        hashes, _ = collect([content], lengths)
        own = np.empty(len(hashes), RUN)
        own["hash"], own["file"] = hashes, number
        runs.append(own)
    return RunFinder(np.sort(np.concatenate(runs)), lengths)


def reference_runs(content: str) -> set[tuple[str, ...]]:
    words = {run for run in reference_ngrams(content, LENGTHS.words) if all(unit.isascii() for unit in run)}
    return words | {
        run for run in reference_ngrams(content, LENGTHS.characters) if not all(unit.isascii() for unit in run)
    }


@given(text("ab 一二", max_size=40), text("ab 一二", max_size=40))
def test_a_shared_run_is_found_and_nothing_else(evaluation: str, training: str) -> None:
    runs = reference_runs(evaluation)
    assert (collect([evaluation], LENGTHS)[1] == 0) == bool(runs)
    if runs:
        assert (finder(evaluation).find([training])[0] is not None) == bool(runs & reference_runs(training))


def test_the_first_run_of_each_text_is_named_with_its_file_and_its_text() -> None:
    found = finder("one two three", "四五六七八").find(
        ["x", "so One,  two; three. 四五六七八", "前面四五六七、八", "two three"]
    )
    assert [match and (match.file, match.excerpt) for match in found] == [
        None,
        (0, "One,  two; three. 四五六七八"),
        (1, "四五六七、八"),
        None,
    ]


def test_texts_too_short_for_a_run_are_counted() -> None:
    hashes, short = collect(["a b", "a b c", "一二三四", "", "一二三四五"], LENGTHS)
    assert len(hashes) == 2 and short == 3


def test_a_run_far_into_a_long_text_is_found() -> None:
    words = " ".join(f"w{number}" for number in range(50_000))
    assert finder("w49000 w49001 w49002").find(["a b c", words])[1] is not None
