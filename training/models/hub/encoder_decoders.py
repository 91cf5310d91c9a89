"""The table of transformers' encoder-decoders, which write a target of its source. Imports no torch.

A further one is an entry, and a class in writing.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EncoderDecoder:
    stem: str
    """What the names of its classes begin with."""
    positions: str
    """The key of its configuration for the encoder's positions, which are as many as a source has tokens."""
    decoder_positions: str
    """The same of the decoder's."""
    has_windows: bool = False
    """Whether its encoder attends within windows, and to a global first token, which has projections of its own."""


ENCODER_DECODERS: dict[str, EncoderDecoder] = {
    "bart": EncoderDecoder("Bart", "max_position_embeddings", "max_position_embeddings"),
    "led": EncoderDecoder("LED", "max_encoder_position_embeddings", "max_decoder_position_embeddings", True),
}
"""`model.type`, which is also `model_type` in config.json -> the encoder-decoder."""
