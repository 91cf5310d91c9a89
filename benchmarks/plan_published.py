"""`reread plan` against figures of other people's runs, with the one share of the peak that it assumes.

BERT-large's sequences a second (NVIDIA's DeepLearningExamples, short DLE; DeepSpeed's post), Horovod's scaling over 512
GPUs, and which micro-batches fitted. Nothing is fitted to any of them.
"""

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.estimate.arrangement import Estimator
from pipeline.estimate.hardware import FLOP_SHARE, GIB, Cluster, cluster, gpu_named, network_named
from pipeline.estimate.speed import exposed_seconds
from pipeline.estimate.speed import ring as speed_ring
from training.config import TrainSettings
from training.models import model_spec
from training.models.build import model_config

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
    return Estimator(settings, spec, model_config(spec, settings.model, 30522, None), where, FLOP_SHARE)


def published(corpus: Path) -> None:
    print(f"BERT-large, {FLOP_SHARE:.0%} of every GPU's peak\n")
    print("| source | GPUs | length | sequences/s published | predicted | predicted / published | exposed ring |")
    print("|---|---|---:|---:|---:|---:|---:|")
    rates = []
    for source, gpu, gpus, per_node, network, length, micro_batch, accumulation, found in PUBLISHED:
        where = cluster(gpus, gpu, per_node, network)
        rows = micro_batch * accumulation * gpus
        planner = bert_large(corpus, length, micro_batch, where)
        planner.train = planner.train.model_copy(update={"global_batch": rows})
        one = planner.arrangement(1, micro_batch, False)
        seconds = planner.time(one)
        rates.append((found, rows / seconds.total))
        print(
            f"| {source} | {gpus} {gpu} | {length} | {found:,.0f} | {rates[-1][1]:,.0f} "
            f"| {rates[-1][1] / found:.2f} "
            f"| {seconds.exposed / seconds.total:.1%} |",
            flush=True,
        )
    ratios = [ours / theirs for theirs, ours in rates]
    print(f"\n{min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}\n")
    print("| from 1 to 32 machines | published | predicted |\n|---|---:|---:|")
    for name, (one, many) in SCALING.items():
        theirs, ours = (rates[many][which] / rates[one][which] for which in (0, 1))
        print(f"| {name} | {theirs:.1f}x | {ours:.1f}x |")
    print()

    print("| Horovod on 512 P100, 25 Gbit/s | scaling published | predicted |\n|---|---:|---:|")
    where = Cluster(replace(gpu_named("t4"), name="p100"), 512, 4, network_named("ib25"))
    across = speed_ring(where, 4, 128)
    for name, images, parameters, scaling in VISION:
        compute, buckets = 64 / images, math.ceil(4 * parameters / 64e6)  # Horovod fuses up to 64 MB
        exposed = exposed_seconds(across, 4 * parameters, buckets, backward=compute * 2 / 3)
        print(f"| {name} | {scaling:.0%} | {compute / (compute + exposed):.0%} |")

    print("\n| BERT-large with LAMB, TensorFlow | length | micro-batch | published | predicted GiB | usable | |")
    print("|---|---:|---:|---|---:|---:|---|")
    for gpu, dtype, length, micro_batch, fits in FITTING:
        precision = "fp32" if dtype == torch.float32 else "fp16"
        one = bert_large(corpus, length, micro_batch, cluster(1, gpu, 8, "ib100"), precision=precision).arrangement(
            1, micro_batch, False
        )
        print(
            f"| {gpu} {precision} | {length} | {micro_batch} | {'fits' if fits else 'does not fit'} "
            f"| {one.bytes / GIB:.1f} | {one.limit / GIB:.1f} | {'agrees' if one.fits == fits else 'differs'} |",
            flush=True,
        )


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
