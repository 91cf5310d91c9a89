"""Facts about a corpus that a run records, from its manifest: fingerprints, sizes and sources."""

from pathlib import Path
from typing import Any

from reread.preprocessing.corpus.manifest import Manifest


def corpus_facts(manifest: Manifest) -> dict[str, Any]:
    """The fingerprints of the corpus and its tokenizer, and the numbers of documents and tokens."""
    return {
        "fingerprint": manifest.fingerprint,
        "tokenizer": manifest.tokenizer["fingerprint"],
        "documents": sum(shard.documents for shard in manifest.shards),
        "tokens": sum(shard.tokens for shard in manifest.shards),
    }


def corpus_card(manifest: Manifest) -> dict[str, Any]:
    """The corpus section of a Hugging Face model card: `corpus_facts`, the dropped documents, and the sources."""
    return {
        **corpus_facts(manifest),
        "dropped": manifest.dropped,
        "cleaning": manifest.statistics.get("cleaning", []),
        "sources": [Path(source["path"]).name for source in manifest.sources],
    }


def corpus_changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The facts that differ between two corpora, as `name old -> new`; empty if both are the same corpus."""
    if old.get("fingerprint") == new["fingerprint"]:
        return ""
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in old if name in new and old[name] != new[name])
