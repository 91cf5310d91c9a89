"""Recipes, overrides and addresses."""

import copy
import errno
import socket
import string
from pathlib import Path
from random import Random
from unittest.mock import patch

import yaml

from reread.pipeline.recipe.load import apply_overrides, load_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.preprocessing.corpus.address import RemoteFolder, check_address, is_address
from reread.preprocessing.settings import _keys
from tests.conftest import ROOT
from tests.fuzz.common import Case, changed_bytes, changed_json, wild

RECIPES = sorted((ROOT / "pipeline" / "recipes").rglob("*.yaml"))
KEYS = sorted(_keys(Recipe))
ADDRESSES = (
    "https://user:secret@host.invalid/a?sig=1", "s3://bucket/{}?x=${NAME}", "pipe:cat {}", "file:///tmp/nothing",
    "memory://a", "zip://a::https://host.invalid/b", "gs://b/c", "hf://datasets/a/b", "ftp://host.invalid/a",
)  # fmt: skip


def recipes(folder: Path) -> Case:
    whole = load_recipe("quickstart", []).model_dump(mode="json")
    parsed = [yaml.safe_load(path.read_bytes()) for path in RECIPES]

    def case(random: Random) -> None:
        path = folder / "any.yaml"
        if random.random() < 0.3:
            path.write_bytes(changed_bytes(random, random.choice(RECIPES).read_bytes()))
            load_recipe(str(path), [])
        elif random.random() < 0.5:
            path.write_text(yaml.safe_dump(changed_json(random, random.choice(parsed))), encoding="utf-8")
            load_recipe(str(path), [])
        else:
            values = copy.deepcopy(whole)
            text = changed_bytes(random, str(wild(random))[:50].encode("utf-8", "replace")).decode("utf-8", "replace")
            apply_overrides(values, [f"{random.choice(KEYS)}={text}"], "train")
            Recipe.parse(values, "test")

    return case


def addresses(folder: Path) -> Case:
    def case(random: Random) -> None:
        address = random.choice(ADDRESSES)
        for _ in range(random.choice((0, 1, 2, 3))):
            at = random.randint(0, len(address))
            put = random.choice((*":/@?#[]{}%$&\\ \n\0\u0085\ud800é", "::", "://", "${A}", *string.ascii_lowercase[:5]))
            address = address[:at] + put + address[at + random.choice((0, 0, 1, 5)) :]
        if is_address(address):
            try:
                check_address(address)
            except ValueError:
                return
            unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            # A changed name may be that of a host that exists.
            with patch("socket.getaddrinfo", side_effect=unknown), patch("socket.socket.connect", side_effect=refused):
                RemoteFolder(address).location("manifest.json")

    return case
