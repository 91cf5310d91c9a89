"""The cases of `make gpu`, in the order of what they decide; when time runs out those at the end are left out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.gpu import models
from benchmarks.gpu.models import BERT_128, BERT_512, NEZHA_128, NEZHA_512, steps
from benchmarks.gpu.operations import attention, compiled_update, graphs, own_kernels, products, update
from benchmarks.gpu.sides import Comparison, Place


@dataclass(frozen=True)
class Case:
    """Comparisons that one process makes."""

    name: str
    comparisons: Callable[[Place], Iterator[Comparison]]
    seconds: float = 45.0
    """It is ended after so many."""
    precision: Literal["best", "fp16"] = "best"
    """`best`: the one that `precision: auto` takes."""
    times: int = 1
    """Tokens of a micro-batch, as a multiple of the other cases'."""


CASES = (
    Case("steps 512", steps(BERT_512, NEZHA_512), 60.0),
    Case("steps 128", steps(BERT_128, NEZHA_128)),
    Case("large steps 512", steps(BERT_512, NEZHA_512), times=4),
    Case("large steps 128", steps(BERT_128, NEZHA_128), times=4),
    Case("attention", attention),
    Case("products", products, 30.0),
    Case("update", update, 30.0),
    Case("compiled static", steps(BERT_512, NEZHA_512, NEZHA_512.as_compiled("static"))),
    Case("compiled dynamic", steps(BERT_512, NEZHA_512, NEZHA_512.as_compiled("dynamic"))),
    Case("own kernels", own_kernels, 60.0),
    Case(
        "one kernel off",
        steps(
            BERT_512,
            NEZHA_512,
            *(NEZHA_512.but_without(kernel) for kernel in ("update", "residual", "gelu", "rotation", "all")),
        ),
        60.0,
    ),
    Case(
        "ernie-doc",
        steps(BERT_512, models.ERNIE_DOC, models.IN_ONE_KERNEL, models.ERNIE_DOC.but_without("shift")),
        90.0,
    ),
    Case("ran", steps(BERT_512, models.RAN, models.RAN.but_without("ran"))),
    Case("graphs", graphs, 30.0),
    Case("update compiled", compiled_update, 60.0),
    Case("longformer", steps(BERT_512, models.LONGFORMER, models.THEIR_LONGFORMER), 60.0),
    Case("bert", steps(BERT_512, models.HUB_BERT, models.THEIR_BERT)),
    Case("modernbert", steps(BERT_512, models.MODERNBERT, models.BY_A_MASK), 60.0),
    Case("fp16", steps(BERT_512, NEZHA_512), precision="fp16"),
    Case("skim", steps(BERT_512, models.SKIMMING)),
)
