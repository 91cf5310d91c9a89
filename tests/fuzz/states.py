"""Training states of fairseq's RoBERTa and Megatron's BERT, which hold objects of other programs beside tensors."""

import argparse
import io
from pathlib import Path
from random import Random

import torch

from reread.training.exchange.formats import find_source
from reread.training.models.forms import forms_of
from tests.fuzz.common import Case, changed_bytes

WORDS = {
    "sentence_encoder.embed_tokens.weight": torch.ones(9, 4),
    "sentence_encoder.embed_positions.weight": torch.ones(10, 4),
    "sentence_encoder.layers.0.fc1.weight": torch.ones(8, 4),
    "lm_head.bias": torch.zeros(9),
}
FAIRSEQ = {
    "args": argparse.Namespace(encoder_layers=1, encoder_embed_dim=4, encoder_attention_heads=2, max_positions=8),
    "model": {f"encoder.{name}": tensor for name, tensor in WORDS.items()},
}
MEGATRON = {
    "args": argparse.Namespace(
        num_layers=1,
        hidden_size=4,
        num_attention_heads=2,
        max_position_embeddings=8,
        padded_vocab_size=9,
        apply_residual_connection_post_layernorm=True,
    ),
    "checkpoint_version": 3.0,
    "model": {
        "language_model": {
            "embedding": {"word_embeddings": {"weight": torch.ones(9, 4)}},
            "encoder": {
                name: torch.ones(*shape)
                for name, shape in {
                    "layers.0.input_layernorm.weight": (4,),
                    "layers.0.self_attention.query_key_value.weight": (12, 4),
                    "final_layernorm.weight": (4,),
                }.items()
            },
        }
    },
}


def prepare(folder: Path) -> Case:
    kept = []
    for name, model, state in (
        ("model.pt", "longformer", FAIRSEQ),
        ("mp_rank_00/model_optim_rng.pt", "nezha", MEGATRON),
    ):
        for zipped in (False, True):
            buffer = io.BytesIO()
            torch.save(state, buffer, _use_new_zipfile_serialization=zipped)
            kept.append((folder / name, model, buffer.getvalue()))
            (folder / name).parent.mkdir(parents=True, exist_ok=True)

    def case(random: Random) -> None:
        path, model, data = random.choice(kept)
        path.write_bytes(changed_bytes(random, data))
        find_source(path, forms_of(model, {}), model).read()

    return case
