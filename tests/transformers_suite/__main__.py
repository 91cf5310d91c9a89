"""`python -m tests.transformers_suite [MODEL]...`: transformers' suite on the models whose code is exported.

Prints for each model how many of the tests that apply passed, failed or are excluded, and why. The exit status is 1 if
a test failed, or passed although it is excluded.
"""

import logging
import os
import sys
import unittest
import warnings
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers

from tests.transformers_suite.models import MODELS, Model, test_case
from tests.transformers_suite.source import common


def main() -> int:
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_default_handler()  # and not the reports, which the suite reads
    transformers.utils.logging.add_handler(logging.NullHandler())
    suite = common()
    print(f"the tests that transformers {transformers.__version__} runs on its models")
    chosen = [model for model in MODELS if model.name in sys.argv[1:] or not sys.argv[1:]]
    passes = [_passes(suite, model) for model in chosen]
    return int(not all(passes))


def _passes(suite: Any, model: Model) -> bool:
    """Run the suite on `model` and print what it found."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(test_case(suite, model)).run(result)
    errors: dict[str, str] = {}
    for test, text in [*result.failures, *result.errors]:
        errors.setdefault(_name(test), f"{test}\n{text}")
    others = {_name(test) for test, _ in result.skipped} - errors.keys()
    failed = [name for name in errors if name not in model.excluded]
    needless = [name for name in model.excluded if name not in errors]
    passed = result.testsRun - len(others) - len(errors)
    print(f"{model.name}: {passed} passed, {len(failed)} failed, {len(model.excluded)} excluded", end=" ")
    print(f"({len(others)} do not apply)")
    for name, reason in model.excluded.items():
        print(f"  excluded: {name}: {reason}")
    for name in needless:
        print(f"  excluded, but does not fail: {name}")
    for name in failed:
        print(f"  failed: {errors[name]}")
    sys.stdout.flush()
    return not failed and not needless


def _name(test: Any) -> str:
    """Of a test, or of the test that a part belongs to."""
    return str(getattr(test, "test_case", test)._testMethodName)


if __name__ == "__main__":
    sys.exit(main())
