"""A training step of megatron-core's BertModel on CPU, in its layers without TransformerEngine, on a batch of ours."""

import os
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks.peers.sizes import HEADS, INNER, LAYERS, LENGTHS, RATE, WIDTH

STEPS = 5


def bert(folder: Path, seed: int) -> dict[str, float]:
    """CPU seconds of the median step by length."""
    warnings.filterwarnings("ignore")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.cuda.current_device = lambda: "cpu"  # it asks without looking for a GPU, and drops out by CUDA's generators
    tensor_parallel.get_cuda_rng_tracker = lambda *_, **__: SimpleNamespace(fork=nullcontext)
    vocabulary = (folder / "vocab.txt").read_bytes().count(b"\n")  # a token may hold U+2028
    costs = {}
    for length in LENGTHS:
        config = TransformerConfig(
            num_layers=LAYERS,
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            ffn_hidden_size=INNER,
            use_cpu_initialization=True,
            masked_softmax_fusion=False,
        )
        model = BertModel(
            config,
            num_tokentypes=2,
            transformer_layer_spec=bert_layer_local_spec,
            vocab_size=vocabulary,
            max_sequence_length=512,
            share_embeddings_and_output_weights=True,
            add_binary_head=False,
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
        batch = {
            name: torch.from_numpy(values).long() for name, values in np.load(folder / f"rows-{length}.npz").items()
        }
        is_predicted = batch["labels"] != -100
        targets = torch.where(is_predicted, batch["labels"], 0)
        steps = []
        for _ in range(STEPS):
            begin = time.process_time()
            losses, _ = model(batch["input_ids"], batch["attention_mask"], torch.zeros_like(targets), targets)
            (losses[is_predicted].sum() / is_predicted.sum()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            steps.append(time.process_time() - begin)
        costs[f"step {length}"] = median(steps)
    return costs
