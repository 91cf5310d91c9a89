"""Mixtures of corpora, against each corpus read alone."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import UserError
from reread.training.data.kinds import KINDS, open_dataset
from reread.training.data.mixture import PERIOD, Interleaving, Mixture, apportion, part_seed
from tests.corpora import make_corpus

LENGTHS = {"a": [300] * 40, "b": [9, 700, 80, 33] * 12, "c": [2000, 150]}
SETTINGS: dict[str, dict[str, Any]] = {
    "rows": {"kind": "rows", "sequence_length": 64},
    "packed": {"kind": "packed", "sequence_length": 64},
    "segments": {"kind": "segments", "sequence_length": 64},
    "stream": {"kind": "stream", "sequence_length": 50},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("mixture")
    return {name: make_corpus(base / name, lengths).folder for name, lengths in LENGTHS.items()}


def settings_of(kind: str, folders: dict[str, Path], shares: dict[str, dict[str, float]], **more: Any) -> Any:
    corpora = [{"path": str(folders[name]), **share} for name, share in shares.items()]
    return KINDS[kind].settings.parse({**SETTINGS[kind], "corpora": corpora, **more}, "test")


def mixture_of(kind: str, folders: dict[str, Path], weights: dict[str, float], seed: int = 3, **more: Any) -> Any:
    settings = settings_of(kind, folders, {name: {"weight": weight} for name, weight in weights.items()}, **more)
    return open_dataset(settings, seed, "train")


def alone(kind: str, folder: Path, seed: int, **more: Any) -> Any:
    return open_dataset(KINDS[kind].settings.parse({**SETTINGS[kind], "corpus": folder, **more}, "test"), seed, "train")


def equal(some: dict[str, NDArray[Any]], others: dict[str, NDArray[Any]]) -> None:
    assert some.keys() == others.keys()
    for name, values in some.items():
        assert values.dtype == others[name].dtype and np.array_equal(values, others[name]), name


def test_each_period_has_each_corpus_as_often_as_its_weight_and_in_the_order_of_the_corpus() -> None:
    counts = apportion([5.0, 3.0, 0.004], PERIOD)
    assert counts.sum() == PERIOD
    exact = np.array([5.0, 3.0, 0.004]) / 8.004 * PERIOD
    assert (abs(counts - exact) < 1).all()
    interleaving = Interleaving(counts, 7)
    corpora, own = interleaving.locate(np.arange(3 * PERIOD))
    for period in range(3):
        assert np.bincount(corpora[period * PERIOD :][:PERIOD]).tolist() == counts.tolist()
    for corpus in range(3):
        assert np.array_equal(own[corpora == corpus], np.arange(3 * counts[corpus]))
    assert not np.array_equal(corpora[:PERIOD], corpora[PERIOD : 2 * PERIOD])
    # steps of 256 rows have the shares that independent draws would have
    first = (corpora.reshape(-1, 256) == 0).sum(axis=1)
    assert abs(first.std() / np.sqrt(256 * 5 / 8 * 3 / 8) - 1) < 0.1


def test_any_position_is_found_without_those_before_it() -> None:
    counts = apportion([2.0, 1.0], PERIOD)
    positions = np.random.default_rng(0).integers(0, 1 << 50, 200)
    together = Interleaving(counts, 5).locate(positions)
    for index in (0, 17, 199):
        corpora, own = Interleaving(counts, 5).locate(positions[index : index + 1])
        assert (corpora[0], own[0]) == (together[0][index], together[1][index])
    far = (1 << 50) // PERIOD * PERIOD
    corpora, own = Interleaving(counts, 5).locate(np.arange(far, far + PERIOD))
    for corpus in range(2):
        assert np.array_equal(own[corpora == corpus], far // PERIOD * counts[corpus] + np.arange(counts[corpus]))


def test_lanes_that_are_far_apart_draw_each_period_once() -> None:
    interleaving = Interleaving(apportion([2.0, 1.0], PERIOD), 5)
    lanes = np.arange(100) * PERIOD
    for step in range(3):
        interleaving.locate(lanes + step)
    assert interleaving._period.cache_info().misses == 100


@pytest.mark.parametrize("kind", ["rows", "packed"])
def test_a_row_of_a_mixture_is_the_row_of_its_corpus_alone(folders: dict[str, Path], kind: str) -> None:
    mixture = mixture_of(kind, folders, {"a": 2, "b": 1})
    parts = [alone(kind, folders[name], part_seed(3, number)) for number, name in enumerate("ab")]
    positions = np.concatenate([np.arange(700), 10**9 + np.arange(50)])
    corpora, own = mixture.interleaving.locate(positions)
    rows = mixture.rows(positions)
    for corpus, part in enumerate(parts):
        here = corpora == corpus
        assert here.any()
        equal({name: values[here] for name, values in rows.items()}, part.rows(own[here]))


def test_rows_are_drawn_at_once_from_corpora_of_any_form(tmp_path) -> None:
    """Several pools of several extents, a single document, and a corpus of one extent, far in the stream, too."""
    lengths = {"pools": [90, 300, 41] * 40, "single": [3000], "short": [200] * 9}
    folders = {name: make_corpus(tmp_path / name, given).folder for name, given in lengths.items()}
    form = {"pool_tokens": 4096, "copies": 3}
    mixture = mixture_of("rows", folders, dict.fromkeys(lengths, 1.0), **form)
    parts = [alone("rows", folder, part_seed(3, number), **form) for number, folder in enumerate(folders.values())]
    assert [part.order.pools > 1 for part in parts] == [True, False, False] and parts[0].order.extents > 4
    positions = np.concatenate([np.arange(600), 10**9 + np.arange(300)])
    corpora, own = mixture.interleaving.locate(positions)
    rows = mixture.rows_with_words(positions)
    for corpus, part in enumerate(parts):
        here = corpora == corpus
        equal({name: values[here] for name, values in rows.items()}, part.rows_with_words(own[here]))


def test_an_altered_page_of_one_of_several_corpora_is_named(tmp_path) -> None:
    folders = {name: make_corpus(tmp_path / name, [200] * 30).folder for name in ("whole", "altered")}
    shard = folders["altered"] / "train-00001.tar"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(UserError, match=r"altered/train-00001\.tar: altered since it was written"):
        mixture_of("rows", folders, dict.fromkeys(folders, 1.0))


def test_a_document_of_a_mixture_is_read_as_in_its_corpus_alone(folders: dict[str, Path]) -> None:
    mixture = mixture_of("segments", folders, {"a": 1, "b": 1})
    parts = [alone("segments", folders[name], part_seed(3, number)) for number, name in enumerate("ab")]
    positions = np.arange(300)
    corpora, own = mixture.interleaving.locate(positions)
    copies, documents = mixture.locate(positions)
    readings = mixture.read(copies, documents)
    for corpus, part in enumerate(parts):
        here = np.flatnonzero(corpora == corpus)
        expected = part.read(*part.locate(own[here]))
        last = [reading.segments - 1 for reading in expected]
        learns = np.ones(len(here), bool)
        equal(mixture.rows([readings[row] for row in here], last, learns), part.rows(expected, last, learns))


def test_weights_of_documents_are_parts_of_the_tokens(folders: dict[str, Path]) -> None:
    """Documents of c have 1075 tokens, those of b 205; both corpora give half of the text."""
    mixture = mixture_of("segments", folders, {"b": 1, "c": 1})
    corpora, own = mixture.interleaving.locate(np.arange(PERIOD))
    tokens = []
    for corpus, name in enumerate("bc"):
        lengths = np.array(LENGTHS[name])
        tokens.append(lengths[own[corpora == corpus] % len(lengths)].sum())  # a pass reads each document once
    assert abs(tokens[0] / tokens[1] - 1) < 0.01


def test_lanes_of_a_mixture_do_not_depend_on_how_they_are_split_or_resumed(folders: dict[str, Path]) -> None:
    mixture = mixture_of("segments", folders, {"a": 1, "b": 2, "c": 1})
    whole = mixture.lanes(6, range(6))
    parts = [mixture.lanes(6, range(2)), mixture.lanes(6, range(2, 6))]
    for _ in range(40):
        rows, cursors = next(whole)
        shares = [next(part) for part in parts]
        for name, values in rows.items():
            assert np.array_equal(values, np.concatenate([share[0][name] for share in shares])), name
    resumed, _ = next(mixture.lanes(6, range(6), cursors))
    expected, _ = next(whole)
    equal(resumed, expected)


def test_each_lane_of_a_stream_reads_one_corpus_as_its_lanes_alone_would(folders: dict[str, Path]) -> None:
    mixture = mixture_of("stream", folders, {"a": 5, "b": 2, "c": 1})
    parts = [alone("stream", folders[name], 0) for name in "abc"]
    counts, length = [5, 2, 1], 50
    lanes = np.arange(8)
    for step in (0, 1, 2, 1000, 10**9):
        rows = mixture.rows(mixture.start(lanes, 8, step, length), length)
        expected = [
            part.rows(part.start(np.arange(count), count, step, length), length)
            for part, count in zip(parts, counts, strict=True)
        ]
        equal(rows, {name: np.concatenate([one[name] for one in expected]) for name in rows})
    with pytest.raises(UserError, match=r"4 lanes .*too few to give c one of its own"):
        mixture.start(lanes[:4], 4, 0, length)


def test_epochs_are_passes_over_each_corpus(folders: dict[str, Path]) -> None:
    settings = settings_of("rows", folders, {"a": {"epochs": 1}, "b": {"epochs": 4}})
    mixture = open_dataset(settings, 0, "train")
    assert isinstance(mixture, Mixture)
    passes = mixture.counts / [len(part) for part in mixture.parts]
    assert passes[1] / passes[0] == pytest.approx(4, rel=1e-3)


def test_another_weight_is_another_order_and_another_folder_is_not(folders: dict[str, Path], tmp_path: Path) -> None:
    first = mixture_of("rows", folders, {"a": 2, "b": 1})
    assert first.fingerprint == mixture_of("rows", folders, {"a": 4, "b": 2}).fingerprint
    assert first.fingerprint != mixture_of("rows", folders, {"a": 3, "b": 1}).fingerprint
    assert first.fingerprint != mixture_of("rows", folders, {"a": 2, "b": 1}, seed=4).fingerprint
    (tmp_path / "moved").symlink_to(folders["a"])
    assert first.fingerprint == mixture_of("rows", {**folders, "a": tmp_path / "moved"}, {"a": 2, "b": 1}).fingerprint
    facts = first.facts()
    corpora = [Corpus(folders[name]) for name in "ab"]
    assert facts["tokens"] == sum(one.tokens for one in corpora)
    assert facts["documents"] == sum(one.documents for one in corpora)


def test_inspect_shows_the_shares(folders: dict[str, Path]) -> None:
    for kind, unit in (("rows", "rows"), ("packed", "rows"), ("segments", "tokens")):
        mixture = mixture_of(kind, folders, {"a": 3, "b": 1})
        shown = dict(mixture.statistics(list(mixture.counted(64))))
        assert f"75.00 % of {unit}" in shown["corpus a"] and f"25.00 % of {unit}" in shown["corpus b"]


def test_wrong_mixtures_are_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    def refused(match: str, **values: Any) -> None:
        with pytest.raises(UserError, match=match):
            open_dataset(KINDS["rows"].settings.parse(values, "data"), 0, "train")

    a, b = ({"path": str(folders[name])} for name in "ab")
    refused("data: corpora: give either `corpus` or `corpora`: neither is given")
    refused("both are given", corpus=folders["a"], corpora=[{**b, "weight": 1}])
    refused("give each corpus a `weight`, or each `epochs`", corpora=[{**a, "weight": 1}, {**b, "epochs": 1}])
    refused("give each corpus a `weight`, or each `epochs`", corpora=[a, b])
    refused("two corpora are named a; give one a `name`", corpora=[{**a, "weight": 1}, {**a, "weight": 1}])
    refused("wieght.*did you mean", corpora=[{**a, "wieght": 1}])
    refused("a has less than 1 in 65,536 of the rows", corpora=[{**a, "weight": 1e-6}, {**b, "weight": 1}])
    empty = make_corpus(tmp_path / "empty", [300], split="validation").folder
    refused("empty: no documents in the train split", corpora=[{**a, "weight": 1}, {"path": str(empty), "weight": 1}])
    manifest = Corpus(folders["b"]).manifest
    shutil.copytree(folders["b"], tmp_path / "other")
    replace(manifest, tokenizer={**manifest.tokenizer, "fingerprint": "another"}).write(tmp_path / "other")
    other = {"path": str(tmp_path / "other"), "weight": 1}
    refused("other was made with another tokenizer than", corpora=[{**a, "weight": 1}, other])
