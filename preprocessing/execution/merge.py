"""The manifest of a corpus, merged from the results of all tasks."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from reread.preprocessing.corpus import Manifest, WrittenShard, format_version, write_lengths
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.evaluation import EXAMPLES
from reread.preprocessing.execution.stages import STAGES, token_dtype
from reread.preprocessing.execution.work import Work

_TOTALS = ("documents_read", "documents", "characters", "tokens")


def by_source(work: Work, results: Iterable[dict[str, Any]], name: str = "sources") -> list[Counter[str]]:
    """[entries of `input`]: the sums of the counts that the results have under `name` for each entry."""
    counts: list[Counter[str]] = [Counter() for _ in work.sources]
    for result in results:
        for source, count in result[name].items():
            counts[int(source)].update(count)
    return counts


def dropped_of(count: Counter[str]) -> Counter[str]:
    """The dropped documents of a source by reason, in alphabetical order."""
    return Counter({name: count[name] for name in sorted(count) if name not in _TOTALS})


def listed(counts: dict[str, int]) -> str:
    """The counts above 0 as text: `empty: 3, too short: 12`."""
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count) or "nothing"


def merge(work: Work) -> Manifest:
    """The manifest of the corpus, of which lengths.npy is written; raises `UserError` if it has no token."""
    # The shards, in the order of their splits
    read, encoded = list(work.part_results("read")), list(work.part_results("encode"))
    of_part = [
        (part, WrittenShard.from_json(shard))
        for split in ("train", "validation")
        for part, result in enumerate(encoded)
        for shard in result["shards"]
        if shard["split"] == split
    ]
    shards = [one for _, one in of_part]
    if not shards:
        raise UserError(f"{work.output}: the tokenizer left no token of any document; is it one for this language?")
    # Documents, tokens and dropped documents by source, and in all
    counts = by_source(work, [*read, *encoded])
    encodings = by_source(work, read, "encodings")
    dropped = sum(map(dropped_of, counts), Counter())
    dropped["unreadable"] = sum(result["unreadable"] for result in read)
    if work.settings.dedup.paragraphs:
        within_parts = sum(result["repeated"] for result in work.part_results("paragraphs"))
        across_parts = sum(result["dropped"] for result in STAGES["duplicate-paragraphs"].results(work))
        dropped["duplicate paragraphs"] = within_parts + across_parts
    # Statistics
    validation = [one.shard for one in shards if one.shard.split == "validation"]
    totals = {name: sum(count[name] for count in counts) for name in _TOTALS}
    sums = {name: _sum(result[name] for result in encoded) for name in ("counts", "word_tokens", "document_tokens")}
    unknown = sum((Counter(result["unknown_characters"]) for result in encoded), Counter())
    # All of it by its names in the manifest
    lengths = (work.array("encode", part, one.shard.split) for part, one in of_part)
    return Manifest.of(
        {**work.tokenizer.describe(), **work.new_rows},
        token_dtype(work.tokenizer),
        shards,
        version=format_version(work.settings.clean.simplify),
        lengths=write_lengths(work.output, lengths, sum(one.shard.documents for one in shards)),
        sources=[
            {
                **source,
                **{name: count[name] for name in _TOTALS},
                "dropped": {k: n for k, n in dropped_of(count).items() if n},
                **({"encodings": dict(sorted(chosen.items()))} if chosen else {}),
            }
            for source, count, chosen in zip(work.sources, counts, encodings, strict=True)
        ],
        dropped={name: count for name, count in dropped.items() if count},
        statistics={
            **totals,
            "validation_documents": sum(shard.documents for shard in validation),
            "validation_tokens": sum(shard.tokens for shard in validation),
            **sums.pop("counts"),
            **sums,
            "unknown_characters": dict(sorted(unknown.items(), key=lambda item: (-item[1], item[0]))[:20]),
            "word_boundaries": work.words.description,
            "cleaning": [
                name for name, on in work.settings.clean.model_dump().items() if on is True and name != "as_is"
            ],
            "cleaned": _cleaned(read),
            **({"near_duplicates": work.result("clusters", 0)} if work.settings.dedup.near else {}),
            **({"evaluation": _evaluation(work, read)} if work.settings.dedup.evaluation else {}),
        },
    )


def _sum(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sum of the counters, sorted by key; keys that are numbers are sorted by their value."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(sorted(total.items(), key=lambda item: (len(item[0]), item[0]) if item[0].isdigit() else (0, item[0])))


def _cleaned(read: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """The numbers of documents and characters that each option of `clean` changed."""
    total: dict[str, Counter[str]] = {}
    for result in read:
        for option, counts in result["cleaned"].items():
            total.setdefault(option, Counter()).update(counts)
    return {option: dict(total[option]) for option in sorted(total)}


def _evaluation(work: Work, read: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluation files, each with the numbers of its texts, of texts too short to be found, and of dropped
    documents, and with a few examples."""
    files = [{**file, "dropped": 0, "examples": []} for file in work.result("evaluation", 0)["files"]]
    for result in read:
        for file, count in result["contaminated"].items():
            files[int(file)]["dropped"] += count
        for file, excerpt in result["contaminated_examples"]:
            if len(files[file]["examples"]) < EXAMPLES:
                files[file]["examples"].append(excerpt)
    return files
