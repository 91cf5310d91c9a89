"""The page of peers, made from their results: a short table of ratios, and a full one with each side's costs."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.sizes import BATCH, HEADS, INNER, LAYERS, OPENINGS, STEPS, TOKENS, WIDTH, WINDOW

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).with_name("README.md")
Results = dict[str, Any]


def ratios(result: Results, cost: str) -> list[float]:
    """How many times less ours takes, round by round."""
    return [theirs[cost] / ours[cost] for ours, theirs in zip(result["ours"], result["theirs"], strict=True)]


def short(results: Results) -> str:
    lines = ["| peer | job | ours takes so many times less (median, range) | where it does not |", "|---|---|---|---|"]
    for case in CASES:
        result = results["cases"].get(case.name, {"not run": "left out of this run"})
        if "not run" in result:
            lines.append(f"| {case.peer} | {case.job} | not run | {result['not run']} |")
            continue
        found = {cost: ratios(result, cost) for cost in case.measures}
        cells = [f"{label} {_spread(found[cost])}" for cost, label in case.measures.items()]
        behind: dict[str, list[str]] = {}
        for cost, why in _reasons(case, result).items():
            behind.setdefault(why, []).append(case.measures[cost])
        reasons = "; ".join(f"{', '.join(labels)}: {why}" for why, labels in behind.items())
        lines.append(f"| {case.peer} | {case.job}{_score(case, result)} | {'; '.join(cells)} | {reasons} |")
    return "\n".join(lines) + "\n"


def behind_in(case: Case, result: Results) -> list[str]:
    """The costs in which the median round is not ahead."""
    return [cost for cost in case.measures if median(ratios(result, cost)) < 1]


def _reasons(case: Case, result: Results) -> dict[str, str]:
    """Why these costs are behind."""
    return {cost: case.why.get(cost, "not known") for cost in behind_in(case, result)}


def page(results: Results) -> str:
    lines = [
        "# Peers",
        "",
        "Made by `make peers`. Each peer has an environment of its own with the versions that `benchmarks/peers/"
        "requirements` pins; the sides of a row take turns, a process each, on one thread. Costs are CPU seconds, "
        "child processes included; of a cold disk, a first batch and resuming, seconds of the clock. "
        "Other work on the machine adds to both: trust ratios more than costs.",
        "",
        f"- {results['machine']}. Text: {results['text']}.",
        f"- Training: {LAYERS} layers x {WIDTH}, {HEADS} heads, {INNER} inside, fp32, {TOKENS:,} tokens a step, full "
        "rows, AdamW. At such a width 63 % of a forward pass is the head, which ours computes on the predicted tokens "
        "alone; in a base model it is 16 %, so the ratio is lower there. Ours is NEZHA, with BERT's learned positions "
        "beside BERT, and with clipped distances beside NEZHA. The collator of transformers 4.40 takes each Chinese "
        "character as a word, that of 5 each stretch without a space. megatron-core has its layers without "
        "TransformerEngine.",
        "- Fine-tuning: 300 texts of mixed lengths, cut at 256 tokens, the peer's padded to the longest of a batch. "
        "Six epochs from random weights teach little: accuracy is near the share of one class on both sides.",
        f"- Loading: windows of {WINDOW} tokens, {BATCH} a step, {STEPS * BATCH:,} rows. Ours are masked rows, by "
        "pools of 2^21 tokens or in an order of the whole corpus; the others return ids alone, and webdataset resumes "
        f"by reading what comes before. A first batch (the median of {OPENINGS}) and resuming include opening. At an "
        "address both ask one server, moto's S3: ours by http, mosaicml-streaming by its S3 client, and the bytes of a "
        "row are what the cache then holds.",
        "- Preprocessing: datatrove finds exact duplicates and writes ids. Ours also cleans and finds words and "
        "sentences. jieba and rjieba find words, and `tokenizers` ids and offsets, of text that nobody deduplicates or "
        "writes.",
        "",
        "## In short",
        "",
        "The models are small, where computing the head on predicted tokens alone gains most. On an H100 a base model "
        "is behind transformers' BERT ([lab log](../../docs/lab-log.md#on-a-gpu)).",
        "",
        *short(results).splitlines(),
        "",
        "## In full",
        "",
        "| peer | job | cost | ours, median (range) | the peer's | ratio | why, where ours is behind |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        result = results["cases"].get(case.name, {"not run": "left out of this run"})
        if "not run" in result:
            lines.append(f"| {case.peer} | {case.job} | not run: {result['not run']} | | | | |")
            continue
        reasons = _reasons(case, result)
        for cost, label in case.measures.items():
            unit = "bytes" if cost == "bytes" else "s"
            cells = [_spread([one[cost] for one in result[side]]) for side in ("ours", "theirs")]
            cells += [_spread(ratios(result, cost)), reasons.get(cost, "")]
            name = f"{case.peer} | {case.job}{_score(case, result)}"
            lines.append(f"| {name} | {label}, {unit} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _score(case: Case, result: Results) -> str:
    if case.score is None:
        return ""
    ours, theirs = (_spread([one[case.score] for one in result[side]]) for side in ("ours", "theirs"))
    return f" ({case.score} {ours}; theirs {theirs})"


def _spread(values: list[float]) -> str:
    """Median, and the range in brackets, in three digits."""

    def number(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"

    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def publish(results: Results) -> None:
    """Write the page and the results that it is made from."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
