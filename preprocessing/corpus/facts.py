"""Facts about a corpus that a run records, from its manifest: fingerprints, sizes and sources."""

import json
from pathlib import Path
from typing import Any


def corpus_facts(folder: Path) -> dict[str, Any]:
    """The fingerprints of the corpus and its tokenizer, and the numbers of documents and tokens.

    For a folder of materialised samples, these are the fingerprints of the corpus that the samples were drawn from.
    """
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    facts = {
        "fingerprint": manifest.get("fingerprint", manifest.get("corpus")),
        "tokenizer": manifest["tokenizer"]["fingerprint"],
    }
    if "fingerprint" in manifest:
        facts |= {name: sum(shard[name] for shard in manifest["shards"]) for name in ("documents", "tokens")}
    return facts


def corpus_card(folder: Path) -> dict[str, Any]:
    """The corpus section of a Hugging Face model card: `corpus_facts`, the dropped documents, and the sources."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {
        **corpus_facts(folder),
        "dropped": manifest.get("dropped", {}),
        "cleaning": manifest.get("statistics", {}).get("cleaning", []),
        "sources": [Path(source["path"]).name for source in manifest.get("sources", [])],
    }


def corpus_changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The facts that differ between two corpora, as `name old -> new`; empty if both are the same corpus."""
    if old.get("fingerprint") == new["fingerprint"]:
        return ""
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in old if name in new and old[name] != new[name])
