"""What a run remembers of the corpus it was trained on."""

import json
from pathlib import Path
from typing import Any


def corpus_facts(folder: Path) -> dict[str, Any]:
    """Fingerprints of the corpus and its tokenizer, documents and tokens, from the manifest in `folder`.

    A folder of materialised samples gives the fingerprints of the corpus they were drawn from.
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
    """What a model card shows of the corpus in `folder`: `corpus_facts`, what was dropped, and names of sources."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {
        **corpus_facts(folder),
        "dropped": manifest.get("dropped", {}),
        "sources": [Path(source["path"]).name for source in manifest.get("sources", [])],
    }


def corpus_changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """`name old -> new` of the facts that differ; empty if it is the same corpus."""
    if old["fingerprint"] == new["fingerprint"]:
        return ""
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in old if name in new and old[name] != new[name])
