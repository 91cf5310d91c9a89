"""The fuzzers by name."""

from tests.fuzz import checkpoints, labelled, manifests, models, predictions, raw, recipes, runs, states
from tests.fuzz.common import Prepare

TARGETS: dict[str, Prepare] = {
    "raw": raw.prepare,
    "labelled": labelled.prepare,
    "manifests": manifests.prepare,
    "checkpoints": checkpoints.prepare,
    "runs": runs.prepare,
    "states": states.prepare,
    "recipes": recipes.recipes,
    "addresses": recipes.addresses,
    "configs": models.configs,
    "tokenizers": models.tokenizers,
    "predictions": predictions.prepare,
}
