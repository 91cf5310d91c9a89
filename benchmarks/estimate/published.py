"""`reread plan` against figures of other people's runs, with the shares that it takes from one step on an H100.

    python benchmarks/estimate/published.py

BERT-large's sequences a second (NVIDIA's DeepLearningExamples, short DLE; DeepSpeed's post), Horovod's scaling over 512
GPUs, and which micro-batches fitted. Nothing is fitted to any of them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import math
import statistics
from dataclasses import replace
from typing import Any

import torch

from benchmarks.harness import heading, row
from reread.pipeline.estimate.arrangement import Estimator
from reread.pipeline.estimate.hardware import GIB, Cluster, cluster, gpu_named, network_named
from reread.pipeline.estimate.speed import exposed_seconds, ring
from reread.training.config import TrainSettings
from reread.training.models import model_spec
from reread.training.models.build import model_config

BERT = {"type": "nezha", "position_type": "parametric_absolute", "hidden_act": "gelu"}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
PYTORCH, TENSORFLOW = "DLE PyTorch 21.11", "DLE TensorFlow 20.06"
PUBLISHED = [  # source, GPU, GPUs, of them a machine, network, length, micro-batch, accumulation, sequences a second
    (PYTORCH, "v100-32g", 1, 8, "ib100", 128, 64, 128, 224),
    (PYTORCH, "v100-32g", 8, 8, "ib100", 128, 64, 128, 1746),
    (TENSORFLOW, "v100-32g", 1, 8, "ib100", 128, 64, 1024, 168.6),
    (TENSORFLOW, "v100-32g", 8, 8, "ib100", 128, 64, 128, 1443),
    (TENSORFLOW, "v100-32g", 1, 8, "ib100", 512, 8, 4096, 31.2),
    (TENSORFLOW, "v100-32g", 8, 8, "ib100", 512, 8, 512, 255.6),
    (f"{TENSORFLOW}, DGX-2", "v100-32g", 16, 16, "8xib100", 128, 64, 64, 3081.7),
    (f"{TENSORFLOW}, DGX-2", "v100-32g", 16, 16, "8xib100", 512, 8, 256, 577.8),
    ("DLE TensorFlow 19.08, DGX-2H", "v100-32g", 512, 16, "8xib100", 128, 64, 2, 86674),
    ("DLE TensorFlow 19.08, DGX-2H", "v100-32g", 512, 16, "8xib100", 512, 8, 8, 17059),
    (TENSORFLOW, "v100-16g", 1, 8, "ib100", 128, 16, 4096, 134),
    (TENSORFLOW, "v100-16g", 1, 8, "ib100", 512, 4, 8192, 28.7),
    ("DeepSpeed 2020-05", "v100-32g", 1, 8, "ib100", 128, 64, 64, 272),
    ("DeepSpeed 2020-05", "v100-32g", 1, 8, "ib100", 512, 8, 64, 52),
    (PYTORCH, "a100-80g", 1, 8, "ib200", 128, 256, 32, 580),
    (PYTORCH, "a100-80g", 8, 8, "ib200", 128, 256, 32, 4591),
    (f"{PYTORCH}, DGX-A100", "a100-80g", 256, 8, "8xib200", 128, 256, 1, 138294),
    ("DLE TensorFlow", "a100-40g", 1, 8, "ib200", 128, 64, 1024, 356.8),
    ("DLE TensorFlow", "a100-40g", 8, 8, "ib200", 128, 64, 128, 2872),
    ("DLE TensorFlow", "a100-40g", 1, 8, "ib200", 512, 16, 2048, 70.9),
    ("DLE Paddle", "a100-80g", 1, 8, "ib200", 128, 256, 32, 694),
]
SCALING = {"DGX-2H, 128": (6, 8), "DGX-2H, 512": (7, 9), "DGX-A100, 128": (15, 16)}
"""From one machine to 32: rows of `PUBLISHED`."""
VISION = [  # Horovod's README, 128 machines of 4 P100 on 25 Gbit/s RoCE; images a second of one P100 by TensorFlow's
    # benchmarks page of 2017 at 64 a GPU (ResNet-101's between its neighbours by FLOPs); parameters; published share
    ("Inception V3", 142, 23.8e6, 0.90),
    ("ResNet-101", 135, 44.5e6, 0.90),
    ("VGG-16", 154, 138.4e6, 0.68),
]
FITTING = [  # what fitted and what did not, by the tables' notes: GPU, dtype, length, micro-batch, fits
    ("v100-32g", torch.float16, 128, 64, True),
    ("v100-32g", torch.float16, 512, 8, True),
    ("v100-32g", torch.float32, 128, 32, True),
    ("v100-32g", torch.float32, 128, 64, False),
    ("v100-16g", torch.float16, 128, 16, True),
    ("v100-16g", torch.float16, 512, 4, True),
    ("v100-16g", torch.float32, 128, 8, True),
    ("v100-16g", torch.float32, 128, 16, False),
    ("v100-16g", torch.float32, 512, 2, True),
    ("v100-16g", torch.float32, 512, 4, False),
]


def bert_large(corpus: Path, length: int, micro_batch: int, where: Cluster, **others: Any) -> Estimator:
    settings = settings_of(corpus, {**BERT, **LARGE}, {"sequence_length": length}, micro_batch * where.gpus, **others)
    spec = model_spec("nezha")
    return Estimator(settings, spec, model_config(spec, settings.model, 30522, None), where, None)


def throughput(corpus: Path) -> list[tuple[float, float]]:
    """BERT-large's sequences a second; returns those published and predicted by row of `PUBLISHED`."""
    print("BERT-large, by the bytes and FLOPs of its step\n")
    predicted = "sequences/s published", "predicted", "predicted / published"
    heading("source", "GPUs", "length", *predicted, "exposed ring")
    rates = []
    for source, gpu, gpus, per_node, network, length, micro_batch, accumulation, found in PUBLISHED:
        planner = bert_large(corpus, length, micro_batch, cluster(gpus, gpu, per_node, network))
        rows = micro_batch * accumulation * gpus
        planner.train = planner.train.model_copy(update={"global_batch": rows})
        seconds = planner.time(planner.arrangement(1, micro_batch, False))
        ours = rows / seconds.total
        rates.append((found, ours))
        shown = f"{found:,.0f}", f"{ours:,.0f}", f"{ours / found:.2f}", f"{seconds.exposed / seconds.total:.1%}"
        row(source, f"{gpus} {gpu}", length, *shown)
    ratios = [ours / theirs for theirs, ours in rates]
    print(f"\n{min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}\n")
    return rates


def scaling(rates: list[tuple[float, float]]) -> None:
    heading("from 1 to 32 machines", "published", "predicted")
    for name, (one, many) in SCALING.items():
        theirs, ours = (rates[many][which] / rates[one][which] for which in (0, 1))
        row(name, f"{theirs:.1f}x", f"{ours:.1f}x")
    print()
    heading("Horovod on 512 P100, 25 Gbit/s", "scaling published", "predicted")
    where = Cluster(replace(gpu_named("t4"), name="p100"), 512, 4, network_named("ib25"))
    across = ring(where, 4, 128)
    for name, images, parameters, share in VISION:
        compute, buckets = 64 / images, math.ceil(4 * parameters / 64e6)  # Horovod fuses up to 64 MB
        exposed = exposed_seconds(across, 4 * parameters, buckets, backward=compute * 2 / 3)
        row(name, f"{share:.0%}", f"{compute / (compute + exposed):.0%}")
    print()


def fitting(corpus: Path) -> None:
    heading("BERT-large with LAMB, TensorFlow", "length", "micro-batch", "published", "predicted GiB", "usable", "")
    for gpu, dtype, length, micro_batch, fits in FITTING:
        precision = "fp32" if dtype == torch.float32 else "fp16"
        planner = bert_large(corpus, length, micro_batch, cluster(1, gpu, 8, "ib100"), precision=precision)
        one = planner.arrangement(1, micro_batch, False)
        sizes = f"{one.bytes / GIB:.1f}", f"{one.limit / GIB:.1f}", "agrees" if one.fits == fits else "differs"
        row(f"{gpu} {precision}", length, micro_batch, "fits" if fits else "does not fit", *sizes)


def settings_of(corpus: Path, model: dict[str, Any], data: dict[str, Any], rows: int, **others: Any) -> TrainSettings:
    return TrainSettings.parse(
        {
            "model": model,
            "data": {"corpus": corpus, "masking": {"strategy": "token"}, **data},
            "steps": 100,
            "global_batch": rows,
            "micro_batch": rows,
            "optimizer": {"name": "lamb", "learning_rate": 1e-4},
            "peak_tflops": 1.0,
            **others,
        },
        "calibration",
    )


if __name__ == "__main__":
    nowhere = Path("corpus")  # rehearsals read no corpus
    scaling(throughput(nowhere))
    fitting(nowhere)
