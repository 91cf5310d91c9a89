"""The facts about its corpus that a run keeps."""

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
    """The corpus section of a model card: `corpus_facts`, what was dropped, and names of sources."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {
        **corpus_facts(folder),
        "dropped": manifest.get("dropped", {}),
        "cleaning": manifest.get("statistics", {}).get("cleaning", []),
        "sources": [Path(source["path"]).name for source in manifest.get("sources", [])],
    }


def corpus_changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The facts that differ, as `name old -> new`; empty if it is the same corpus."""
    if old["fingerprint"] == new["fingerprint"]:
        return ""
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in old if name in new and old[name] != new[name])
